"""The kernels of a memory on a terminal."""

import importlib.util
from dataclasses import replace
from pathlib import Path

from artifacts.memory.tables import transition_rows
from pipeline.memory_text import kernels
from pipeline.report.memory_view import kernel_rows


def test_a_printed_kernel_holds_nothing_that_a_terminal_would_obey_or_a_reader_not_see() -> None:
    spec = importlib.util.spec_from_file_location("mined", Path(__file__).with_name("mined.py"))
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    memory = module.memory(transitions=60)
    hostile = "// \x1b]0;title\x07 \u202esdrawkcab\u202c\r\nint one;\n\tint two;\n"
    rows = [replace(row, kernel=row.kernel and hostile) for row in memory.transitions()]
    known = replace(memory, table=transition_rows(rows))
    shown = kernels(known, kernel_rows(known)[0].sha256, as_json=False)
    assert shown == "// ]0;title sdrawkcab\nint one;\n\tint two;"

"""Load a task's source: ``Model``, ``get_inputs`` and ``get_init_inputs``."""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from artifacts.errors import BadTaskError
from artifacts.syntax import parse

REQUIRED = ("Model", "get_inputs")
MODULE_NAME = "htam_task"


@dataclass(frozen=True, slots=True)
class TaskModule:
    """The names a task defines; ``awkward_inputs`` is None when the task allows one shape only."""

    model: Callable[..., Any]
    inputs: Callable[[], Any]
    init_inputs: Callable[[], Any]
    awkward_inputs: Callable[[], Any] | None = None


def check_task_source(source: str, name: str) -> None:
    """Look, without running anything, whether ``source`` can be a task.

    Raises:
        BadTaskError: no Python, or a required name is missing.
    """
    try:
        tree = parse(source)
    except (SyntaxError, ValueError) as problem:
        raise BadTaskError(f"task {name} is not Python: {problem}", "correct the file") from problem
    defined = {node.name for node in tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    defined |= {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    missing = [required for required in REQUIRED if required not in defined]
    if missing:
        raise BadTaskError(
            f"task {name} does not define {' and '.join(missing)}",
            "a task defines class Model, get_inputs() and get_init_inputs()",
        )


def load_task_module(source: str, folder: Path) -> TaskModule:
    """Run the task's source and pick its names.

    Raises:
        BadTaskError: it does not run or does not define what is needed.
    """
    path = folder / "task.py"
    path.write_text(source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(MODULE_NAME, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODULE_NAME] = module
    try:
        spec.loader.exec_module(module)
    except Exception as problem:
        raise BadTaskError(
            f"task does not import: {type(problem).__name__}: {problem}", "correct the file"
        ) from problem
    missing = [name for name in REQUIRED if not hasattr(module, name)]
    if missing:
        raise BadTaskError(f"task does not define {' and '.join(missing)}", "add the missing names")
    return TaskModule(
        model=module.Model,
        inputs=module.get_inputs,
        init_inputs=getattr(module, "get_init_inputs", list),
        awkward_inputs=getattr(module, "get_awkward_inputs", None),
    )

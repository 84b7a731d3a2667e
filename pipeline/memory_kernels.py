"""The kernels that a memory has to show, for a terminal or as JSON for a program."""

from __future__ import annotations

import json

from artifacts.codec import encode
from artifacts.errors import BadInputError
from artifacts.memory.htg import Memory
from optimizer.llm.fence import clean
from pipeline.report.kernels import NO_KERNEL, KernelRow, kernel_rows

SHOWN = 12
"""Digits of the SHA-256 of a source that name it."""


def kernels(memory: Memory, sha256: str | None, as_json: bool) -> str:
    """All kernels, or the source of the one that ``sha256`` begins, without characters that a reader cannot see.

    Raises:
        BadInputError: no kernel, or more than one, has such a hash.
    """
    rows = kernel_rows(memory)
    if sha256 is not None:
        return _source(memory, rows, sha256)
    if as_json:
        return json.dumps([encode(row) for row in rows], indent=1)
    if not rows:
        return f"{memory.reference} holds no kernel: {NO_KERNEL}"
    width = max(len(row.task) for row in rows)
    return "\n".join(
        f"{row.sha256[:SHOWN]}  {row.arch:>8} {row.language:>6}  {row.task:<{width}}  "
        f"{row.speedup:>7.2f}× eager, {row.found:.2f}× its first candidate"
        for row in rows
    )


def _source(memory: Memory, rows: list[KernelRow], sha256: str) -> str:
    found = {row.sha256: row.kernel for row in rows if row.sha256.startswith(sha256)}
    if len(found) != 1:
        problem = f"{len(found)} kernels of {memory.reference} have a hash that begins with {sha256!r}"
        raise BadInputError(problem, f"htam memory kernels {memory.reference} lists them")
    return clean(next(iter(found.values())))

"""The kernels that a memory has to show, as rows."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow.compute as pc

from artifacts.memory.htg import Memory
from pipeline.report.memory_view import ratio

NO_KERNEL = "none of its logs has one that was verified and beats its baseline, or an older release built it"
"""Why a memory holds no kernel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRow:
    """A verified kernel.

    Attributes:
        source: name of the log collection it comes from; ``transition`` is the step that made it.
        speedup: over eager; ``found``: over the first candidate of its search.
        kernel, reference: sources.
    """

    sha256: str
    arch: str
    language: str
    task: str
    family: str
    source: str
    speedup: float
    found: float
    transition: str
    kernel: str
    reference: str


def kernel_rows(memory: Memory) -> list[KernelRow]:
    """All kernels, the fastest of each device and language first."""
    table = memory.table.filter(pc.not_equal(memory.table["kernel"], ""))
    rows = [
        KernelRow(
            sha256=row["child_sha256"],
            arch=row["state_arch"],
            language=row["state_language"],
            task=row["task_id"],
            family=row["state_family"],
            source=row["source"],
            speedup=round(ratio(row["state_log2_speedup"] + row["reward"]), 4),
            found=round(ratio(row["state_log2_progress"] + row["reward"]), 4),
            transition=row["transition_id"],
            kernel=row["kernel"],
            reference=row["reference"],
        )
        for row in table.to_pylist()
    ]
    return sorted(rows, key=lambda row: (row.arch, row.language, -row.speedup, row.transition))

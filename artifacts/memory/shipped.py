"""The memory that travels with the package: where it is, and what a memory was built from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from artifacts.memory.htg import Memory
from artifacts.memory.store import MemoryStore, split_reference

SHIPPED = "shipped"
"""Its name, which is reserved: in every store it means this memory."""
STORE = Path(__file__).parents[1] / "shipped"
CARD = STORE / "CARD.md"


def load_memory(url: str, reference: str) -> Memory:
    """Load ``NAME[@VERSION|@TAG]`` from the store at ``url``, or the shipped memory by its name.

    Raises:
        ArtifactError: there is no such memory, or it is damaged.
    """
    name, at = split_reference(reference)
    return MemoryStore(str(STORE) if name == SHIPPED else url).load(name, at)


def is_shipped(reference: str) -> bool:
    """Whether ``NAME[@VERSION|@TAG]`` names the shipped memory."""
    return split_reference(reference)[0] == SHIPPED


def steps_on(memory: Memory, arch: str, language: str) -> int:
    """How many steps were taken on an architecture, in a language."""
    return sum(row["steps"] for row in _places(memory) if (row["arch"], row["language"]) == (arch, language))


def contents(memory: Memory) -> str:
    """What a memory was built from, a line for each architecture and language, most steps first."""
    return "\n".join(
        "- {language} on {arch}: steps {steps}, operators {tasks}".format(**row) for row in _places(memory)
    )


def _places(memory: Memory) -> list[dict[str, Any]]:
    names = ("state_arch", "state_language", "task_id")
    table = pa.table({name: memory.table[name].cast(pa.string()) for name in names})
    counted = table.group_by(names[:2]).aggregate([("task_id", "count_distinct"), ([], "count_all")])
    rows = counted.rename_columns(["arch", "language", "tasks", "steps"]).to_pylist()
    return sorted(rows, key=lambda row: (-row["steps"], row["arch"], row["language"]))

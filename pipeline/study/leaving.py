"""What a memory must forget before it is tried, checked on what is left."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from artifacts.memory.htg import Memory


def without(memory: Memory, task_ids: Sequence[str], families: Collection[str]) -> Memory:
    """``memory`` without the operators of ``task_ids``, under whatever id, and without ``families``."""
    memory = memory.filter(exclude_tasks=memory.same_operators(task_ids), exclude_families=sorted(families))
    left = {*memory.same_operators(task_ids), *(set(memory.table["family"].unique().to_pylist()) & set(families))}
    if left:
        raise AssertionError(f"leakage: {memory.reference} still knows {min(left)}")
    return memory

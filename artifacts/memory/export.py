"""A memory for other tools: JSON lines, one object a line, each with a ``kind``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from artifacts.codec import encode
from artifacts.memory.htg import Memory
from artifacts.memory.records import Transition


def export_lines(memory: Memory) -> Iterator[str]:
    """Lines of JSON: the manifest, then directions, strategies, edges and transitions, as the memory has them.

    Numbers keep their value; a missing one is ``null``; nothing is rounded.
    """
    records: Mapping[str, Iterable[object]] = {
        "manifest": (memory.manifest,),
        "direction": memory.directions,
        "strategy": memory.strategies,
        "edge": memory.edges,
        "transition": memory.transitions(),
    }
    for kind, found in records.items():
        for record in found:
            yield json.dumps({"kind": kind} | encode(record), ensure_ascii=False, sort_keys=True, allow_nan=False)


def solution_lines(memory: Memory) -> Iterator[str]:
    """One line a measured transition in the shape of a kernel trace: definition, solution, device, result.

    For tools that read traces of (task, kernel, hardware, speed); a memory holds few kernel sources, so a solution is
    named by the SHA-256 of its source.
    """
    for item in memory.transitions():
        if item.child_us is not None or item.reward is not None:
            yield json.dumps(_trace(item), ensure_ascii=False, sort_keys=True, allow_nan=False)


def _trace(item: Transition) -> dict[str, Any]:
    return {
        "definition": item.task.task_id,
        "solution": item.child_sha256,
        "derived_from": item.parent_sha256,
        "hardware": item.device,
        "author": item.llm,
        "status": item.outcome.value,
        "latency_ms": None if item.child_us is None else item.child_us / 1000.0,
        "parent_latency_ms": None if item.parent_us is None else item.parent_us / 1000.0,
        "speedup_over_parent": None if item.reward is None else 2.0**item.reward,
        "trust": item.weight,
        "tags": sorted(flag.value for flag in item.flags),
    }

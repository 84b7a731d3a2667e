"""The replay figures that a manifest carries, and the gate that they are for."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping

import numpy as np

from artifacts.errors import HtamError
from artifacts.memory.htg import Memory
from artifacts.memory.manifest import Manifest
from builder.judge.rankers import Attention, StateOnly
from builder.judge.replay import FOLDS, figures, run, task_splits

MOST = 20_000
"""Transitions that replay looks at; each choice is weighed against all of them, so its cost is their square."""
GATED = "saving_over_state_only"


def quality(memory: Memory) -> Mapping[str, float]:
    """Figures of direction and strategy ranking on held-out tasks; empty when the logs hold no choice to judge by.

    A memory of more than :data:`MOST` transitions is judged by a part of its tasks, chosen by their names' hashes.
    """
    memory = sampled(memory)
    found: dict[str, float] = {}
    for level in ("direction", "strategy"):
        judged = Attention()
        records = run(task_splits(memory, level, FOLDS), (judged, StateOnly()), level)
        if not records:
            continue
        ours, state = figures(records, judged.name)
        values = {
            "occasions": float(ours.occasions),
            "regret": ours.regret.value,
            "regret_state_only": state.regret.value,
            "ndcg": ours.ndcg.value,
            "hit3": ours.hit3.value,
            "pairwise": ours.pairwise.value,
            GATED: state.saving.value,
            f"{GATED}_low": state.saving.low,
            f"{GATED}_high": state.saving.high,
        }
        found |= {f"{level}.{name}": round(value, 6) for name, value in values.items() if math.isfinite(value)}
    return found


def sampled(memory: Memory) -> Memory:
    """``memory``, or that part of its tasks whose transitions are about :data:`MOST`."""
    if len(memory) <= MOST:
        return memory
    tasks = memory.columns.task
    rows = np.bincount(tasks.values, minlength=len(tasks.names))
    order = sorted(range(len(tasks.names)), key=lambda code: hashlib.sha256(tasks.names[code].encode()).digest())
    whole = 1 + int(np.searchsorted(np.cumsum(rows[order]), MOST))
    return memory.kept(np.isin(tasks.values, order[:whole]))


def gate(previous: Manifest, new: Manifest) -> None:
    """Refuse a memory whose ranking fell below the interval that the previous one had.

    Raises:
        HtamError: it did; the message says by how much. Without figures on both sides nothing is refused,
            nor where the interval has no width, because all choices were of one task.
    """
    for level, plural in (("direction", "directions"), ("strategy", "strategies")):
        low, high = (previous.quality.get(f"{level}.{GATED}_{end}") for end in ("low", "high"))
        value = new.quality.get(f"{level}.{GATED}")
        if low is not None and low != high and value is not None and value < low:
            raise HtamError(
                f"the new {new.name} ranks {plural} worse than {previous.name}@{previous.version}: it saves "
                f"{value:.1%} of the regret, the published one {low:.1%} at least",
                "look at htam memory replay, then publish with --force if you mean it",
            )

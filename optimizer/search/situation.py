"""What selection sees of a task and its population."""

from __future__ import annotations

from dataclasses import dataclass

from artifacts.candidate import Language
from artifacts.measurement import Bottleneck
from artifacts.outcome import Outcome
from artifacts.state import State
from optimizer.search.population import Node, Population
from optimizer.tasks import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where and in what language candidates are to be fast."""

    arch: str
    language: Language


def state_of(task: Task, target: Target, population: Population, parent: Node | None, index: int) -> State:
    """State before step ``index`` from ``parent``; None is the reference."""
    lineage = population.lineage(parent)
    timing = None if parent is None else parent.measurement.timing
    profile = None if parent is None else parent.measurement.profile
    fraction = None if profile is None or profile.fraction_of_bound is None else min(profile.fraction_of_bound, 1.0)
    correct = [node for node in lineage if node.correct]
    score = population.score(correct[-1]) if correct and parent is not None and parent.correct else None
    return State(
        family=task.ref.family,
        arch=target.arch,
        language=target.language,
        dtype=task.dtype,
        size=task.size,
        bottleneck=Bottleneck.UNKNOWN if profile is None else profile.bottleneck,
        fraction_of_bound=fraction,
        log2_speedup=score,
        log2_progress=0.0 if score is None else score - population.score(correct[0]),
        runtime_us=None if timing is None else timing.median_us,
        last_outcome=_last_outcome(population, parent),
        step=index,
        stagnation=0 if parent is None or not parent.correct else population.fruitless(parent),
        features=frozenset() if parent is None else parent.features,
        history=tuple(node.direction for node in lineage if node.direction),
    )


def _last_outcome(population: Population, parent: Node | None) -> Outcome | None:
    tries = population.children(parent) or ([] if parent is None else [parent])
    return tries[-1].measurement.outcome if tries else None

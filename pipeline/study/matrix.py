"""Results of a study as a matrix of memories and targets, with paired statistics over tasks."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from artifacts.codec import encode
from pipeline.report.figures import pair
from pipeline.study.spec import Study


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One memory on one target against its control.

    Attributes:
        value: share of regret saved (replay), or ratio of speedups (run).
        low, high: 95 % interval over tasks; None where there are too few.
        text: of the drill-down: what was compared, on how many tasks.
        losses: tasks on which the control was better.
    """

    memory: str
    target: str
    arm: str
    kind: str
    text: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    tasks: int = 0
    losses: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        """``good`` or ``bad`` where the interval excludes no difference, else empty."""
        if self.low is None or self.high is None:
            return ""
        still = 0.0 if self.kind == "replay" else 1.0
        return "good" if self.low > still else "bad" if self.high < still else ""


def entries(study: Study, results: Sequence[Mapping[str, Any]]) -> list[Entry]:
    """All entries, replay first, in the order of the study."""
    replayed = [_replay(result) for result in results if result["kind"] == "replay"]
    return replayed + _runs(study, [result for result in results if result["kind"] != "replay"])


def _replay(result: Mapping[str, Any]) -> Entry:
    found = result["transfer"]
    place: dict[str, Any] = {"memory": result["memory"], "target": result["target"], "arm": "", "kind": "replay"}
    if found is None:
        return Entry(**place, text="fewer than three tasks with a choice, or nothing left to train on")
    text = (
        f"{found['decision_points']} choices, trained on {found['trained_on']:,} transitions; "
        f"regret {found['regret']:.3f} against {found['regret_no_direction']:.3f} without a direction; {_counts(found)}"
    )
    figures = {name: found[name] for name in ("low", "high", "tasks")}
    return Entry(**place, **figures, value=found["margin"], losses=tuple(found["losses"]), text=text)


def _counts(found: Mapping[str, Any]) -> str:
    ties = found["tasks"] - found["wins"] - len(found["losses"])
    return f"{found['wins']} wins, {ties} ties, {len(found['losses'])} losses"


def _runs(study: Study, results: Sequence[Mapping[str, Any]]) -> list[Entry]:
    groups: dict[tuple[str, str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for result in results:
        groups[result["target"], result["memory"], result["arm"]].append(result)
    control = study.arms[0]
    made = []
    for (target, memory, arm), own in groups.items():
        other = groups.get((target, memory, control)) or groups.get((target, "", control), [])
        if arm != control and other:
            made.append(_paired(memory, target, arm, control, own, other))
    return made


def _paired(
    memory: str,
    target: str,
    arm: str,
    control: str,
    own: Sequence[Mapping[str, Any]],
    other: Sequence[Mapping[str, Any]],
) -> Entry:
    found = pair(_over_seeds(own), _over_seeds(other))
    place: dict[str, Any] = {"memory": memory, "target": target, "arm": arm, "kind": own[0]["kind"]}
    runs = tuple(result["run"] for result in (*own, *other) if "run" in result)
    text = f"{arm} over {control}, {len(own)} and {len(other)} seeds"
    if found is None:
        return Entry(**place, text=text, runs=runs)
    figures: dict[str, Any] = {"value": found.ratio, "low": found.low, "high": found.high, "tasks": found.tasks}
    return Entry(**place, **figures, text=f"{text}; {_counts(encode(found))}", losses=found.losses, runs=runs)


def _over_seeds(results: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Geometric mean of a task's speedups over seeds; a seed without a verified candidate counts 1."""
    logs: dict[str, list[float]] = defaultdict(list)
    for result in results:
        for task, speedup in result["speedups"].items():
            logs[task].append(math.log(speedup or 1.0))
    return {task: math.exp(sum(values) / len(values)) for task, values in logs.items()}

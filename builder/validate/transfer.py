"""Replay-level transfer: how well experience of one kind ranks the recorded choices of another."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from artifacts.errors import BadInputError
from artifacts.memory.columns import Bools, Codes, codes
from artifacts.memory.htg import Memory
from artifacts.statistics import LEAST_TASKS
from builder.validate.decision_points import decision_points
from builder.validate.rankers import HTAM, NO_DIRECTION, RANKERS
from builder.validate.replay import figures, held_out, regret_by_task, run


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of a memory's experience; an empty field keeps everything.

    Attributes:
        sources, archs, llms, suites, families: names that are kept.
    """

    sources: tuple[str, ...] = ()
    archs: tuple[str, ...] = ()
    llms: tuple[str, ...] = ()
    suites: tuple[str, ...] = ()
    families: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """What a training part is worth on a test part, in log2 regret per choice; lower is better.

    Attributes:
        margin: share of the no-direction baseline's regret that the memory saves, with its 95 % interval over tasks.
        trained_on: transitions that were left for training, on average over the folds of tested tasks.
        wins: tasks on which the memory's mean regret is lower than the baseline's; losses: where it is higher.
    """

    decision_points: int
    tasks: int
    trained_on: int
    regret: float
    regret_no_direction: float
    margin: float
    low: float
    high: float
    wins: int
    losses: tuple[str, ...]


def restricted(memory: Memory, part: Part) -> Memory:
    """``memory`` with the experience of ``part`` only.

    Raises:
        BadInputError: a name that the memory does not hold, or nothing is left.
    """
    keep = rows_of(memory, part)
    if not keep.any():
        raise BadInputError(f"nothing of {memory.reference} is left under {part}", "widen the filter")
    return memory.kept(keep)


def rows_of(memory: Memory, part: Part) -> Bools:
    """Rows that ``part`` keeps."""
    columns = memory.columns
    keep: Bools = np.ones(len(memory), np.bool_)
    keep &= _named(columns.source, part.sources, "source")
    keep &= _named(columns.categories["arch"], part.archs, "architecture")
    keep &= _named(columns.categories["family"], part.families, "family")
    keep &= _named(codes(memory.table["llm"]), part.llms, "model")
    keep &= _named(codes(memory.table["suite"]), part.suites, "suite")
    return keep


def _named(column: Codes, wanted: Collection[str], what: str) -> Bools:
    if not wanted:
        return np.ones(len(column.values), np.bool_)
    unknown = sorted(set(wanted) - set(column.names))
    if unknown:
        raise BadInputError(f"the memory holds no {what} {unknown[0]!r}", f"known: {', '.join(column.names)}")
    return column.among(wanted)


def transfer(
    memory: Memory, train: Part, test: Part, *, leave_out: str = "task", level: str = "direction"
) -> Transfer | None:
    """Rank the choices of ``test`` with the experience of ``train``; None when either side holds too little
    or every choice was as good as another.

    Args:
        leave_out: ``task`` or ``family``: no operator (no operator family) of the test part is trained on, whatever
            its source.
    """
    tested = rows_of(memory, test)
    points = tuple(item for item in decision_points(memory, level) if all(tested[row] for row in item.rows))
    tasks = {item.task for item in points}
    splits = list(held_out(memory, points, trained=rows_of(memory, train), families=leave_out == "family"))
    if len(tasks) < LEAST_TASKS or sum(len(split.test) for split in splits) < len(points):
        return None
    records = run(splits, {name: RANKERS[name] for name in (HTAM, NO_DIRECTION)}, level)
    ours, none = figures(records, HTAM)
    if not none.regret.value:
        return None
    regret = regret_by_task(item for item in records if item.ranker == HTAM)
    beyond = {
        task: round(regret[task] - value, 9)
        for task, value in regret_by_task(item for item in records if item.ranker == NO_DIRECTION).items()
    }
    return Transfer(
        decision_points=len(points),
        tasks=len(tasks),
        trained_on=round(sum(len(split.train) for split in splits) / len(splits)),
        regret=ours.regret.value,
        regret_no_direction=none.regret.value,
        margin=none.margin.value,
        low=none.margin.low,
        high=none.margin.high,
        wins=sum(value < 0 for value in beyond.values()),
        losses=tuple(task for task, value in beyond.items() if value > 0),
    )

"""Replay-level transfer: how well experience of one kind ranks the recorded choices of another."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from artifacts.errors import BadInputError
from artifacts.memory.columns import Bools, Codes, codes
from artifacts.memory.htg import Memory
from builder.judge.occasions import Occasion, fold_of, occasions
from builder.judge.rankers import Attention, StateOnly
from builder.judge.replay import FOLDS, Record, Split, figures, run, training


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
        saving: share of the state-only regret that the memory saves, with its 95 % interval over tasks.
        trained_on: transitions that were left for training, on average over the folds of tested tasks.
        wins: tasks on which the memory's mean regret is lower than that of the state alone; losses: where it is higher.
    """

    occasions: int
    tasks: int
    trained_on: int
    regret: float
    state_only: float
    saving: float
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
    found: Bools = np.isin(column.values, [column.code(name) for name in wanted])
    return found


def transfer(
    memory: Memory, train: Part, test: Part, *, leave_out: str = "task", level: str = "direction"
) -> Transfer | None:
    """Rank the choices of ``test`` with the experience of ``train``; None when either side holds too little.

    Args:
        leave_out: ``task`` or ``family``: no task (no operator family) of the test part is trained on, whatever its
            source; this is checked on the rows that are left, not assumed.
    """
    tested = rows_of(memory, test)
    found = tuple(item for item in occasions(memory, level) if all(tested[row] for row in item.rows))
    tasks = {item.task for item in found}
    splits = list(_splits(memory, rows_of(memory, train), found, leave_out))
    if len(tasks) < 3 or sum(len(split.test) for split in splits) < len(found):
        return None
    judged = Attention()
    records = run(splits, (judged, StateOnly()), level)
    ours, state = figures(records, judged.name)
    more = _regret_over(records, judged.name, state.ranker)
    return Transfer(
        occasions=len(found),
        tasks=len(tasks),
        trained_on=round(sum(len(split.train) for split in splits) / len(splits)),
        regret=ours.regret.value,
        state_only=state.regret.value,
        saving=state.saving.value,
        low=state.saving.low,
        high=state.saving.high,
        wins=sum(value < 0 for value in more.values()),
        losses=tuple(task for task, value in more.items() if value > 0),
    )


def _regret_over(records: Sequence[Record], ranker: str, other: str) -> dict[str, float]:
    """Task → mean regret of ``ranker`` beyond that of ``other``, on the same choices."""
    found: dict[str, list[float]] = defaultdict(list)
    for record in records:
        sign = {ranker: 1.0, other: -1.0}.get(record.ranker, 0.0)
        found[record.occasion.task].append(sign * record.judgement.regret)
    return {task: round(math.fsum(values), 9) / len(values) for task, values in sorted(found.items())}


def _splits(memory: Memory, trained: Bools, found: Sequence[Occasion], leave_out: str) -> Iterator[Split]:
    """Folds over the tested tasks; of each fold's tasks (families) nothing is trained on."""
    for fold in range(FOLDS):
        test = tuple(item for item in found if fold_of(item.task, FOLDS) == fold)
        tasks = {item.task for item in test}
        rows = trained & ~_shared_rows(memory, tasks, leave_out)
        if test and rows.any():
            train = training(memory, rows)
            leaked = tasks & {train.columns.task.names[code] for code in np.unique(train.columns.task.values)}
            if leaked:
                raise AssertionError(f"leakage: {min(leaked)} is trained and tested on")
            yield Split(name=f"fold {fold}", train=train, test=test)


def _shared_rows(memory: Memory, tasks: set[str], leave_out: str) -> Bools:
    columns = memory.columns
    same: Bools = np.isin(columns.task.values, [columns.task.code(task) for task in tasks])
    if leave_out == "family":
        family = columns.categories["family"].values
        same |= np.isin(family, np.unique(family[same]))
    return same

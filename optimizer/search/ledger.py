"""What steps gained on the device at hand, in the language at hand: the part of a memory that is about here.

Over recorded runs on one device, what other devices' logs said of a strategy ordered steps the wrong way round, and
what the device's own logs said, other operators only, ordered them rightly (docs/optimizer.md). So this part is read on
its own: a record for each strategy, and the very steps that gained most from states like ours.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from artifacts.device import UNKNOWN
from artifacts.memory.columns import Bools, Columns, columns_of
from artifacts.memory.experience import similarity
from artifacts.memory.htg import Memory
from artifacts.memory.records import Transition
from artifacts.memory.tables import transition_rows
from artifacts.outcome import Outcome
from artifacts.state import State
from optimizer.applicability import EXAMINING, MENDING, barred
from optimizer.search.cargo import Cargo, nearness

TRUSTED = 0.4
"""Weight below which a row is no evidence for anybody's eyes."""
TEMPERATURE = 0.3
"""Of the likeness of states, as in the paper's attention."""
BY_NEARNESS = (1.0, 0.8, 0.6)
"""Worth of a step on the same operator family, on its kin, on others; likeness of states counts families too."""
LEAST_GAIN, MOST_GAIN = math.log2(1.1), 3.0
"""Of an example, in log2: what is more than noise, and what only a poor kernel can gain."""
EXAMPLES, KEPT, OVERLAP = 3, 20, 0.17
"""Examples shown, kept of each strategy to choose from, and share of words in common from which two are one idea: of
pairs from the H200 runs, half of those of one idea share more than 0.22, nine in ten of two ideas less than 0.2."""

FEW = 3
"""Operators below which a strategy has no record."""
PAYS, IDLE = math.log2(1.03), math.log2(1.02)
"""A strategy pays when the low end of its interval is above, and is idle when its mean is below."""
MOST, FAMILIES = 3, 4
ASSUMED = 2.0
"""Operators that the spread over all strategies is worth where one strategy has few."""

Rows = npt.NDArray[np.int64]
Means = npt.NDArray[np.float64]
SHOWN = ["transition_id", "task_id", "state_family", "strategy_id", "reward", "plan", "outcome", "child_sha256"]
_WORD = re.compile(r"[a-z_0-9]{3,}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What one strategy did here: log2 gains over operators, each operator counting once.

    Attributes:
        steps, operators: how many rest on it; ``failures`` are not among the gains.
        families: most frequent first.
    """

    name: str
    mean: float
    low: float
    high: float
    steps: int
    operators: int
    failures: int
    families: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A step that gained here; ``gain`` in log2."""

    operator: str
    strategy: str
    gain: float
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pitfall:
    """A step that failed here, how, and what cured it."""

    operator: str
    strategy: str
    outcome: str
    text: str
    cure: str


class Ledger:
    """Records, examples and pitfalls of one memory for one device architecture and language."""

    def __init__(self, memory: Memory, cargo: Cargo, arch: str, language: str) -> None:
        self._memory = memory
        self._cargo = cargo
        columns = memory.columns
        here = _is(columns, "arch", arch) & _is(columns, "language", language) & (arch != UNKNOWN)
        self._here: Bools = here & columns.parent_timed & (columns.weight >= TRUSTED)

    def paying(self, state: State) -> tuple[Record, ...]:
        """Strategies that surely gained here, the surest first."""
        found = [record for key, record in self._records if record.low > PAYS and not barred(key, state)]
        return tuple(sorted(found, key=lambda record: -record.low)[:MOST])

    def idle(self, state: State) -> tuple[Record, ...]:
        """Strategies that were tried on more than :data:`FEW` operators here and gained nothing, most tried first."""
        found = [
            record
            for key, record in self._records
            if record.mean < IDLE and record.operators > FEW and not barred(key, state)
        ]
        return tuple(sorted(found, key=lambda record: -record.steps)[:MOST])

    def examples(self, state: State, learnt: Sequence[Transition] = ()) -> tuple[Example, ...]:
        """Steps that gained most from states like ``state``, no two of one idea; gains count as far as any is left.

        Args:
            learnt: what other tasks of the run have done, on the same device and in the same language.
        """
        scored = [*_by_worth(*self._telling, state), *_by_worth(*self._of_run(learnt), state)]
        scored.sort(key=lambda item: (-item[0], item[1]["transition_id"]))
        chosen: list[dict[str, Any]] = []
        for _, row in scored:
            if len(chosen) < EXAMPLES and not barred(row["strategy_id"], state) and _fresh(row, chosen):
                chosen.append(row)
        return tuple(
            Example(operator=_operator(row), strategy=row["strategy_id"], gain=row["reward"], text=_flat(row["plan"]))
            for row in chosen
        )

    def pitfalls(self, state: State, strategies: Collection[str]) -> tuple[Pitfall, ...]:
        """Of the failures of ``strategies`` here that were cured, the one from the state most like ``state``."""
        rows, columns = self._cured
        like = similarity(columns, state)
        places = [place for place, row in enumerate(rows) if row["strategy_id"] in strategies]
        return tuple(
            Pitfall(
                operator=_operator(row),
                strategy=row["strategy_id"],
                outcome=row["outcome"],
                text=_flat(row["plan"]),
                cure=_flat(row["cure"]),
            )
            for row in [rows[max(places, key=lambda place: float(like[place]))] for _ in places[:1]]
        )

    @cached_property
    def _records(self) -> tuple[tuple[str, Record], ...]:
        """A record of each strategy with enough operators, by its id."""
        columns, strategies = self._memory.columns, self._memory.strategies
        known = np.flatnonzero(self._here & ~np.isnan(columns.reward) & (columns.strategy.values >= 0))
        known = known[np.argsort(columns.strategy.values[known], kind="stable")]
        starts = np.flatnonzero(np.diff(columns.strategy.values[known], prepend=-1))
        groups = dict(zip(columns.strategy.values[known][starts].tolist(), np.split(known, starts[1:]), strict=False))
        means = {code: _by_operator(columns, rows) for code, rows in groups.items()}
        spread = _pooled(list(means.values()))
        return tuple(
            (strategies[code].strategy_id, self._record(code, rows, means[code], spread))
            for code, rows in groups.items()
            if len(means[code]) >= FEW and strategies[code].direction_id not in MENDING | EXAMINING
        )

    def _record(self, code: int, rows: Rows, means: Means, spread: float) -> Record:
        columns, count = self._memory.columns, len(means)
        mean = float(means.mean())
        square = float(((means - mean) ** 2).sum())
        half = 1.96 * math.sqrt((square + ASSUMED * spread**2) / (count - 1 + ASSUMED) / count)
        family = columns.categories["family"]
        often = np.bincount(family.values[rows], minlength=len(family.names))
        lost = self._here & columns.failed & (columns.strategy.values == code)
        return Record(
            name=self._memory.strategies[code].name,
            mean=mean,
            low=mean - half,
            high=mean + half,
            steps=len(rows),
            operators=count,
            failures=int(lost.sum()),
            families=tuple(family.names[one] for one in np.argsort(-often, kind="stable")[:FAMILIES] if often[one]),
        )

    @cached_property
    def _telling(self) -> tuple[list[dict[str, Any]], Columns]:
        """Rows to choose examples from, the best of each strategy, and the same as columns."""
        reward = self._memory.columns.reward
        gained = np.flatnonzero(self._here & (reward >= LEAST_GAIN) & (reward <= MOST_GAIN))
        best = self._some_of_each(gained[np.argsort(-reward[gained], kind="stable")])
        return self._read(self._memory.table.take(pa.array(best, pa.int64())))

    def _some_of_each(self, rows: Rows) -> list[int]:
        """The first :data:`KEPT` of ``rows`` of each strategy."""
        seen: Counter[int] = Counter()
        kept = []
        for row, code in zip(rows.tolist(), self._memory.columns.strategy.values[rows].tolist(), strict=True):
            seen[code] += 1
            if seen[code] <= KEPT:
                kept.append(row)
        return kept

    def _of_run(self, learnt: Sequence[Transition]) -> tuple[list[dict[str, Any]], Columns]:
        """Steps of the run that gained, as rows."""
        gained = [
            one
            for one in learnt
            if one.parent_us is not None and one.reward is not None and LEAST_GAIN <= one.reward <= MOST_GAIN
        ]
        return self._read(transition_rows(gained))

    @cached_property
    def _cured(self) -> tuple[list[dict[str, Any]], Columns]:
        """Rows that failed and of which a child was correct, with its plan as ``cure``."""
        table, columns = self._memory.table, self._memory.columns
        failed = self._some_of_each(np.flatnonzero(self._here & columns.failed))
        wanted = {table["child_sha256"][row].as_py(): row for row in failed}
        children = table.select(["parent_sha256", "plan"]).filter(
            pc.and_(
                pc.is_in(
                    table["parent_sha256"].cast(pa.string()),
                    pa.array(sorted(name for name in wanted if name), pa.string()),
                ),
                pc.equal(table["outcome"].cast(pa.string()), Outcome.CORRECT.value),
            )
        )
        cures = {row["parent_sha256"]: row["plan"] for row in children.to_pylist() if row["plan"]}
        rows, read = self._read(table.take(pa.array(sorted(wanted[name] for name in cures), pa.int64())))
        return [row | {"cure": cures[row["child_sha256"]]} for row in rows], read

    def _read(self, table: pa.Table) -> tuple[list[dict[str, Any]], Columns]:
        """Rows whose plan is worth reading, and the same as columns."""
        readable = [self._cargo.worth_reading(str(plan)) for plan in table["plan"]]
        table, columns = table.filter(pa.array(readable, pa.bool_())), self._memory.columns
        rows = table.select(SHOWN).to_pylist()
        return rows, columns_of(table, columns.direction.names, columns.strategy.names)


def _by_worth(rows: list[dict[str, Any]], columns: Columns, state: State) -> list[tuple[float, dict[str, Any]]]:
    """Each row with its gain, as far as one is left, times likeness of state and kinship of operator."""
    like = np.exp((similarity(columns, state) - 1.0) / TEMPERATURE)
    left = -math.log2(state.fraction_of_bound) if state.fraction_of_bound else math.inf
    return [
        (float(near) * min(row["reward"], left) * BY_NEARNESS[nearness(row["state_family"], state.family)], row)
        for near, row in zip(like, rows, strict=True)
    ]


def _is(columns: Columns, name: str, text: str) -> Bools:
    column = columns.categories[name]
    same: Bools = (column.values == column.code(text)) & (column.values >= 0)
    return same


def _by_operator(columns: Columns, rows: Rows) -> Means:
    """Mean gain of each operator among ``rows``."""
    _, task = np.unique(columns.task.values[rows], return_inverse=True)
    means: Means = np.bincount(task, weights=columns.reward[rows]) / np.bincount(task)
    return means


def _pooled(groups: Sequence[Means]) -> float:
    """Standard deviation of operators around the mean of their group."""
    several = [group for group in groups if len(group) > 1]
    squares = sum(float(np.var(group)) * len(group) for group in several)
    return math.sqrt(squares / max(1, sum(len(group) - 1 for group in several)))


def _fresh(row: dict[str, Any], chosen: Sequence[dict[str, Any]]) -> bool:
    """Whether a row says something that none of the chosen ones says."""
    words = frozenset(_WORD.findall(row["plan"].lower()))
    others = [frozenset(_WORD.findall(other["plan"].lower())) for other in chosen]
    return all(len(words & other) <= OVERLAP * len(words | other) for other in others)


def _operator(row: dict[str, Any]) -> str:
    return str(row["task_id"]).rsplit("/", 1)[-1]


def _flat(text: str) -> str:
    return " ".join(text.split())

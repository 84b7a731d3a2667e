"""Device experience: what steps gained on the device at hand, in the language at hand, and the lines that say so.

Over recorded runs on one device, what other devices' logs said of a strategy ordered steps the wrong way round, and
what the device's own logs said, other operators only, ordered them rightly (docs/decisions/0009). So this part of a
memory is read on its own: a record of each strategy, and the very steps that gained most from states like this one.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from artifacts.device import UNKNOWN
from artifacts.memory.columns import Bools, Columns, columns_of
from artifacts.memory.edges import cures_of
from artifacts.memory.effects import effects_by
from artifacts.memory.experience import similarity
from artifacts.memory.htg import Memory
from artifacts.memory.records import Effect
from artifacts.statistics import LEAST_TASKS
from artifacts.trajectory import State
from optimizer.applicability import EXAMINING, MENDING, NO_PRODUCTS, barred
from optimizer.prompting.strategies import StrategyTexts, nearness
from optimizer.prompting.text import brief

TRUSTED = 0.4
"""Weight below which a row is not shown as evidence."""
TEMPERATURE = 0.3
"""Of the likeness of states, as in the paper's attention."""
BY_NEARNESS = (1.0, 0.8, 0.6)
"""Worth of a step on the same operator family, on its kin, on others; likeness of states counts families too."""
LEAST_GAIN, MOST_GAIN = math.log2(1.1), 3.0
"""Of an example, in log2: what is more than noise, and what only a poor kernel can gain."""
EXAMPLES, KEPT, OVERLAP = 3, 20, 0.17
"""Examples shown, kept of each strategy to choose from, and share of words in common from which two are one idea: of
pairs from the H200 runs, half of those of one idea share more than 0.22, nine in ten of two ideas less than 0.2."""

GAINS, INEFFECTIVE = math.log2(1.03), math.log2(1.02)
"""A strategy gains when the low end of its interval is above, and is ineffective when its mean is below."""
MOST_RECORDS, FAMILIES = 3, 4

Rows = npt.NDArray[np.int64]
SHOWN = ["transition_id", "task_id", "state_family", "strategy_id", "reward", "plan", "outcome", "child_sha256"]
_WORD = re.compile(r"[a-z_0-9]{3,}")


@dataclass(frozen=True, slots=True)
class StrategyRecord:
    """What one strategy gained here, on kernels of ``families``, most frequent first."""

    strategy_id: str
    name: str
    effect: Effect
    families: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step that was taken here, in the words of its author: ``gain`` in log2, or its ``cure`` where it failed."""

    transition_id: str
    operator: str
    strategy: str
    outcome: str
    text: str
    gain: float = 0.0
    cure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What memory knows of the device at hand, as it is to be read, and the strategies and transitions it is from."""

    text: str
    sources: tuple[str, ...]


class DeviceExperience:
    """Records of strategies and telling steps of one memory, for one device architecture and language."""

    def __init__(self, memory: Memory, texts: StrategyTexts, arch: str, language: str) -> None:
        self._memory = memory
        self._texts = texts
        columns = memory.columns
        here = _is(columns, "arch", arch) & _is(columns, "language", language) & (arch != UNKNOWN)
        self._here: Bools = here & columns.parent_timed & (columns.weight >= TRUSTED)

    def gaining(self, state: State) -> tuple[StrategyRecord, ...]:
        """Strategies whose interval lies above :data:`GAINS` here, the surest first."""
        found = [
            record for record in self._records if record.effect.low > GAINS and not barred(record.strategy_id, state)
        ]
        return tuple(sorted(found, key=lambda record: -record.effect.low)[:MOST_RECORDS])

    def ineffective(self, state: State) -> tuple[StrategyRecord, ...]:
        """Strategies that were tried on more than the fewest operators here and gained nothing, most tried first."""
        often = [
            record for record in self._records if record.effect.tasks > LEAST_TASKS and record.effect.mean < INEFFECTIVE
        ]
        found = [record for record in often if not barred(record.strategy_id, state)]
        return tuple(sorted(found, key=lambda record: -record.effect.n)[:MOST_RECORDS])

    def examples(self, state: State) -> tuple[Step, ...]:
        """Steps that gained most from states like ``state``, no two of one idea; gains count as far as any is left.

        Of operators with products only where this one may have some: they gained by these.
        """
        scored = sorted(_by_worth(*self._telling, state), key=lambda item: (-item[0], item[1]["transition_id"]))
        able = (row for _, row in scored if state.family not in NO_PRODUCTS or row["state_family"] in NO_PRODUCTS)
        chosen: list[dict[str, Any]] = []
        for row in able:
            if len(chosen) < EXAMPLES and not barred(row["strategy_id"], state) and _fresh(row, chosen):
                chosen.append(row)
        return tuple(_step(row, gain=row["reward"]) for row in chosen)

    def cured_failures(self, state: State, strategies: Collection[str]) -> tuple[Step, ...]:
        """Of the failures of ``strategies`` here that were cured, the one from the state most like ``state``."""
        rows, columns = self._cured
        like = similarity(columns, state)
        places = [place for place, row in enumerate(rows) if row["strategy_id"] in strategies]
        nearest = max(places, key=lambda place: float(like[place]), default=None)
        return () if nearest is None else (_step(rows[nearest], cure=_one_line(rows[nearest]["cure"])),)

    @cached_property
    def _records(self) -> tuple[StrategyRecord, ...]:
        """A record of each strategy with an effect here."""
        columns, strategies = self._memory.columns, self._memory.strategies
        which = np.where(self._here, columns.strategy.values, -1).astype(np.int64)
        effects = effects_by(columns, which, len(strategies))
        return tuple(
            StrategyRecord(strategy.strategy_id, strategy.name, effects[code], self._families(which == code))
            for code, strategy in enumerate(strategies)
            if effects[code].known and strategy.direction_id not in MENDING | EXAMINING
        )

    def _families(self, rows: Bools) -> tuple[str, ...]:
        columns = self._memory.columns
        family = columns.categories["family"]
        often = np.bincount(family.values[rows & ~np.isnan(columns.reward)], minlength=len(family.names))
        return tuple(family.names[one] for one in np.argsort(-often, kind="stable")[:FAMILIES] if often[one])

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

    @cached_property
    def _cured(self) -> tuple[list[dict[str, Any]], Columns]:
        """Rows that failed and of which a child was correct, with its plan as ``cure``."""
        table, columns = self._memory.table, self._memory.columns
        failed = self._some_of_each(np.flatnonzero(self._here & columns.failed))
        mending = cures_of(table, np.array(failed, np.int64)).items()
        told = {child: list(filter(None, table["plan"].take(pa.array(rows)).to_pylist())) for child, rows in mending}
        cures = {child: plans[-1] for child, plans in told.items() if plans}
        wanted = {table["child_sha256"][row].as_py(): row for row in failed}
        found, read = self._read(table.take(pa.array(sorted(wanted[child] for child in cures), pa.int64())))
        return [row | {"cure": cures[row["child_sha256"]]} for row in found], read

    def _read(self, table: pa.Table) -> tuple[list[dict[str, Any]], Columns]:
        """Rows whose plan is worth reading, and the same as columns."""
        readable = [self._texts.readable(str(plan)) for plan in table["plan"]]
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


def _fresh(row: dict[str, Any], chosen: Sequence[dict[str, Any]]) -> bool:
    """Whether a row says something that none of the chosen ones says."""
    words = frozenset(_WORD.findall(row["plan"].lower()))
    others = [frozenset(_WORD.findall(other["plan"].lower())) for other in chosen]
    return all(len(words & other) <= OVERLAP * len(words | other) for other in others)


def _step(row: dict[str, Any], gain: float = 0.0, cure: str = "") -> Step:
    return Step(
        transition_id=row["transition_id"],
        operator=str(row["task_id"]).rsplit("/", 1)[-1],
        strategy=row["strategy_id"],
        outcome=row["outcome"],
        text=_one_line(row["plan"]),
        gain=gain,
        cure=cure,
    )


def _one_line(text: str) -> str:
    return " ".join(text.split())


GAINED_TITLE = "What gained there (speed after over speed before, each operator counted once):"
INEFFECTIVE_TITLE = "What came to nothing there, on kernels that were sound already:"
NEAREST_TITLE = "Steps that gained, the nearest to this one first:"
FAILED_TITLE = "What failed there, and its cure:"

LONGEST = 500
"""Characters of one plan; whole sentences as far as there are any."""


def evidence(experience: DeviceExperience, state: State) -> Evidence | None:
    """What ``experience`` says to ``state``; None for nothing."""
    gaining, ineffective = experience.gaining(state), experience.ineffective(state)
    examples = experience.examples(state)
    failed = experience.cured_failures(state, {example.strategy for example in examples})
    blocks = (
        _block(GAINED_TITLE, map(_gaining, gaining)),
        _block(INEFFECTIVE_TITLE, map(_ineffective, ineffective)),
        _block(NEAREST_TITLE, map(_example, examples)),
        _block(FAILED_TITLE, map(_cure, failed)),
    )
    strategies = tuple(record.strategy_id for record in (*gaining, *ineffective))
    text = "\n\n".join(block for block in blocks if block)
    steps = tuple(step.transition_id for step in (*examples, *failed))
    return Evidence(text=text, sources=(*strategies, *steps)) if text else None


def _block(title: str, lines: Iterable[str]) -> str:
    listed = [f"- {line}" for line in lines]
    return "\n".join([title, *listed]) if listed else ""


def _factor(log2: float) -> str:
    return f"{2**log2:.2f}x"


def _gaining(record: StrategyRecord) -> str:
    effect, families = record.effect, ", ".join(record.families)
    lost = f", {effect.failures} more failed" if effect.failures else ""
    interval = f"{_factor(effect.mean)} [{_factor(effect.low)} to {_factor(effect.high)}]"
    return f"{record.name}: {interval} over {effect.tasks} operators ({families}) in {effect.n} steps{lost}"


def _ineffective(record: StrategyRecord) -> str:
    effect = record.effect
    return f"{record.name}: {_factor(effect.mean)} over {effect.tasks} operators in {effect.n} steps"


def _example(step: Step) -> str:
    return f"{_factor(step.gain)} on {step.operator}: {brief(step.text, LONGEST)}"


def _cure(step: Step) -> str:
    text, cure = brief(step.text, LONGEST // 2), brief(step.cure, LONGEST)
    return f"{step.outcome} on {step.operator}: {text} The cure: {cure}"

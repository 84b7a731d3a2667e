"""Choosing the formula and its parameters on training folds only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from artifacts.memory.attention import ATTENDED, AttentionSettings
from artifacts.memory.expectation import GainSettings
from artifacts.memory.htg import Memory
from builder.judge.rankers import Attention, Fitted, Ranker
from builder.judge.replay import Split, mean_by_task, run, task_splits

INNER_FOLDS = 3


@dataclass(frozen=True, slots=True)
class Credited:
    """A ranker that learns from gains and credits by other rules than the memory's own; it is judged by the same."""

    inner: Ranker
    rules: GainSettings

    @property
    def name(self) -> str:
        """Name of the inner ranker with the rules."""
        rules = self.rules
        return f"{self.inner.name} floor={rules.floor:g} siblings={rules.siblings:g} alone={rules.alone:g}"

    def fit(self, memory: Memory, level: str) -> Fitted:
        """See :class:`builder.judge.rankers.Ranker`."""
        return self.inner.fit(replace(memory, gain=self.rules), level)


POOLED = GainSettings(siblings=1e9, alone=1.0)
"""So many pseudo-siblings that only the state's expectation is left."""
KEPT = GainSettings(floor=0.0)
"""A failed or slower step gained nothing and lost nothing, because a search keeps its best."""


def candidates() -> tuple[Ranker, ...]:
    """Formulas to choose from, simplest first: which of them is best is decided on training folds.

    Means with more and with less of the family; attention to the state, and to state and prefix; means credited
    against the state's expectation alone, and with failures as no gain.
    """
    means = named(AttentionSettings())
    others = (AttentionSettings(family=1e9), AttentionSettings(family=20.0), replace(ATTENDED, prefix=0.0), ATTENDED)
    return (means, *map(named, others), Credited(means, POOLED), Credited(means, KEPT))


def named(settings: AttentionSettings) -> Attention:
    """Attention named by its settings."""
    near = "all" if settings.temperature is None else f"{settings.temperature:g}"
    words = f"family={settings.family:g} temperature={near} prefix={settings.prefix:g}"
    return Attention(words, settings)


SELECTED = "htam, selected"
"""Name in reports of whatever the training folds chose."""


@dataclass(frozen=True, slots=True)
class Picked:
    """A chosen candidate under one name for all folds."""

    inner: Ranker
    name: str = SELECTED

    def fit(self, memory: Memory, level: str) -> Fitted:
        """See :class:`builder.judge.rankers.Ranker`."""
        return self.inner.fit(memory, level)


@dataclass(frozen=True, slots=True)
class Selected:
    """The candidate of least regret on inner folds of the training memory; on equal regret the first."""

    among: Sequence[Ranker] = field(default_factory=candidates)
    folds: int = INNER_FOLDS
    seed: int = 1
    name: str = SELECTED

    def fit(self, memory: Memory, level: str) -> Fitted:
        """See :class:`builder.judge.rankers.Ranker`."""
        return self.choose(memory, level).fit(memory, level)

    def choose(self, memory: Memory, level: str) -> Ranker:
        """The winner on ``memory``; the first candidate where there is nothing to judge by."""
        splits: list[Split] = list(task_splits(memory, level, self.folds, self.seed))
        regrets = [self._regret(ranker, splits, level) for ranker in self.among]
        return self.among[min(range(len(regrets)), key=lambda index: (regrets[index], index))]

    def _regret(self, ranker: Ranker, splits: Sequence[Split], level: str) -> float:
        records = run(splits, (ranker,), level)
        return mean_by_task(records) if records else 0.0

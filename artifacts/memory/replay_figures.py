"""The replay figures of a manifest in words, the same wherever a person reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

LEVELS = {"direction": "directions", "strategy": "strategies"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayFigures:
    """How well a memory ranked ``what`` (directions or strategies) at recorded choices of tasks it had not seen.

    Attributes:
        choices: recorded choices with two options or more.
        values: the other figures by the names that :mod:`builder.judge.quality` gives them; regret in log2 speedup.
    """

    what: str
    choices: int
    values: Mapping[str, float]

    @property
    def saved(self) -> str:
        """Share of the state-only regret that the memory saves, with its 95 % interval."""
        share, low, high = (self.values.get(f"saving_over_state_only{end}") for end in ("", "_low", "_high"))
        if share is None:
            return ""
        return f"{share:+.0%}" if low is None or high is None else f"{share:+.0%} [{low:+.0%}, {high:+.0%}]"

    def figure(self, name: str) -> str:
        """One figure with three digits; empty where it is not known."""
        value = self.values.get(name)
        return "" if value is None else f"{value:.3f}"

    @property
    def line(self) -> str:
        """All of it on one line."""
        regret, alone = self.figure("regret"), self.figure("regret_state_only")
        named = {"ndcg": self.figure("ndcg"), "hit@3": self.figure("hit3"), "pairs": self.figure("pairwise")}
        parts = [f"regret {regret} log2, state alone {alone}", f"saved {self.saved}" if self.saved else ""]
        parts += [f"{name} {value}" if value else "" for name, value in named.items()]
        return f"{self.what}, {self.choices} held-out choices: {', '.join(part for part in parts if part)}"


def replay_figures(quality: Mapping[str, float]) -> tuple[ReplayFigures, ...]:
    """The levels that a manifest's ``quality`` has figures for."""
    found = []
    for level, what in LEVELS.items():
        values = {name.removeprefix(f"{level}."): value for name, value in quality.items() if name.startswith(level)}
        if "regret" in values and "regret_state_only" in values:
            found.append(ReplayFigures(what=what, choices=int(values.get("occasions", 0)), values=values))
    return tuple(found)


def moved(before: Mapping[str, float], after: Mapping[str, float]) -> tuple[str, ...]:
    """What changed from one manifest's ``quality`` to another's, a line a level that has figures in both."""
    old = {figures.what: figures for figures in replay_figures(before)}
    pairs = [(old[new.what], new) for new in replay_figures(after) if new.what in old]
    return tuple(_moved(one, two) for one, two in pairs if one != two)


def _moved(old: ReplayFigures, new: ReplayFigures) -> str:
    regret, alone = ((old.figure(name), new.figure(name)) for name in ("regret", "regret_state_only"))
    return (
        f"{new.what}: saved {old.saved or 'unknown'} → {new.saved or 'unknown'}, regret {' → '.join(regret)} "
        f"(state alone {' → '.join(alone)}), {old.choices} → {new.choices} choices"
    )

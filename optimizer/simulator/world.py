"""What happens next: outcomes drawn from recorded transitions that the arms have not seen."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from artifacts.memory.experience import similarity
from artifacts.memory.htg import Memory
from artifacts.memory.records import Transition
from artifacts.outcome import Outcome
from artifacts.state import State

Array = npt.NDArray[np.float64]

LEAST_WEIGHT = 1e-6
"""Trust that even a doubtful transition keeps, so that something can always be drawn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldSettings:
    """How outcomes are drawn.

    Attributes:
        temperature: of the similarity between the simulated state and recorded ones.
        foreign: weight of transitions of other held-out tasks beside those of the task itself.
        kappa: transitions of the chosen direction, counted by their weight, at which every second draw comes from
            them; the others come from any direction, as if the model had not followed.
        least: usable transitions that a task needs to be simulated.
        capped: nobody gets further than the best that was recorded of a task. Without it gains add up that were one
            discovery made twice: six undirected steps then reach several times the best that anybody recorded.
    """

    temperature: float = 0.2
    foreign: float = 0.02
    kappa: float = 2.0
    least: int = 5
    capped: bool = True

    def __post_init__(self) -> None:
        if self.temperature <= 0 or self.kappa <= 0 or not 0 <= self.foreign <= 1 or self.least < 1:
            raise ValueError("temperature and kappa must be positive, foreign lie in 0..1, least count from 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """One outcome.

    Attributes:
        row: its number in the world; ``transition``: the recorded one that was drawn.
        gain: its log2 gain, capped as the memory caps it; None when the child failed.
        followed: it took the chosen direction; True when none was chosen.
        next_state: state of the recorded lineage after it; None when the log ends there.
    """

    row: int
    transition: Transition
    gain: float | None
    followed: bool
    next_state: State | None


class World:
    """Held-out transitions of some tasks, by state and direction.

    Args:
        held_out: a memory of the held-out tasks alone.
    """

    def __init__(self, held_out: Memory, settings: WorldSettings) -> None:
        self._settings = settings
        mask = np.array(~np.isnan(held_out.gains))
        self._memory = held_out.kept(mask)
        self._rows = tuple(self._memory.transitions())
        self._tasks = np.array([row.task.task_id for row in self._rows], dtype=object)
        self._directions = np.array([row.direction_id for row in self._rows], dtype=object)
        self._after = {row.parent_sha256: row.state for row in self._rows if row.parent_sha256}

    def tasks(self) -> tuple[str, ...]:
        """Tasks with enough transitions, sorted."""
        names, counts = np.unique(self._tasks.astype(str), return_counts=True)
        return tuple(str(name) for name, count in zip(names, counts, strict=True) if count >= self._settings.least)

    def starts(self, task_id: str) -> tuple[Transition, ...]:
        """Transitions of a task whose states a simulated run may begin in: the earliest step that was recorded."""
        own = [row for row in self._rows if row.task.task_id == task_id and row.state.runtime_us is not None]
        own = own or [row for row in self._rows if row.task.task_id == task_id]
        first = min(row.state.step for row in own)
        return tuple(row for row in own if row.state.step == first)

    def room(self, begun: Transition) -> float:
        """Log2 gain over ``begun``'s parent that was reached at most in the task's own log on that device."""
        if not self._settings.capped:
            return math.inf
        same = (begun.task.task_id, begun.source, begun.state.arch)
        own = [row for row in self._rows if (row.task.task_id, row.source, row.state.arch) == same]
        return max(0.0, *(_reached(row, begun) for row in own))

    def draw(
        self, state: State, task_id: str, direction: str, luck: tuple[float, float], used: Collection[int] = ()
    ) -> Drawn:
        """Draw what happens after taking ``direction`` (empty for the model's own choice) from ``state``.

        Args:
            luck: two numbers in 0..1 that decide; arms compared under equal luck differ by their choices only.
            used: rows that count as gone, because what was done once cannot be done again.
        """
        weights = self._weights(state, task_id, used)
        chosen = weights * (self._directions == direction)
        known = float(chosen.sum() / weights.max())
        if direction and luck[0] < known / (known + self._settings.kappa):
            weights = chosen
        row = int(np.searchsorted(np.cumsum(weights), luck[1] * float(weights.sum()), side="right"))
        return self._drawn(min(row, len(self._rows) - 1), direction)

    def means(self, state: State, task_id: str, shrink: float) -> dict[str, float]:
        """Mean gain of each direction near ``state``, slower and failed steps as zero.

        Args:
            shrink: draws of any direction that are mixed in, so that a single record decides little.
        """
        weights = self._weights(state, task_id, ())
        weights /= weights.max()
        worth = np.maximum(self._memory.gains.astype(np.float64), 0.0)
        overall = float(weights @ worth / weights.sum())
        names, codes = np.unique(self._directions.astype(str), return_inverse=True)
        total = np.bincount(codes, weights=weights)
        gained = np.bincount(codes, weights=weights * worth)
        found = (gained + shrink * overall) / (total + shrink)
        return {str(name): float(mean) for name, mean in zip(names, found, strict=True) if name}

    def _weights(self, state: State, task_id: str, used: Collection[int]) -> Array:
        columns = self._memory.columns
        alike = np.exp((similarity(columns, state).astype(np.float64) - 1) / self._settings.temperature)
        own = np.where(self._tasks == task_id, 1.0, self._settings.foreign)
        weights: Array = alike * own * np.maximum(columns.weight, LEAST_WEIGHT)
        fresh = weights.copy()
        fresh[list(used)] = 0.0
        return fresh if fresh.sum() > 0 else weights

    def _drawn(self, row: int, direction: str) -> Drawn:
        transition = self._rows[row]
        correct = transition.outcome is Outcome.CORRECT and transition.reward is not None
        return Drawn(
            row=row,
            transition=transition,
            gain=float(self._memory.gains[row]) if correct else None,
            followed=not direction or transition.direction_id == direction,
            next_state=self._after.get(transition.child_sha256) if correct else None,
        )


def advanced(state: State, drawn: Drawn, direction: str, room: float = math.inf) -> State:
    """Return the state after ``drawn``: a faster child is the next parent, anything else leaves the parent as it is."""
    outcome = drawn.transition.outcome
    gain = None if drawn.gain is None else reachable(state, drawn.gain, room)
    if gain is None or gain <= 0:
        return replace(state, step=state.step + 1, stagnation=state.stagnation + 1, last_outcome=outcome)
    seen = drawn.next_state or state
    return replace(
        state,
        step=state.step + 1,
        stagnation=0,
        last_outcome=outcome,
        history=(*state.history, direction) if direction else state.history,
        log2_progress=state.log2_progress + gain,
        log2_speedup=None if state.log2_speedup is None else state.log2_speedup + gain,
        fraction_of_bound=None if state.fraction_of_bound is None else min(state.fraction_of_bound * 2**gain, 1.0),
        runtime_us=None if state.runtime_us is None else state.runtime_us / 2**gain,
        bottleneck=seen.bottleneck,
        features=seen.features,
    )


def _reached(row: Transition, begun: Transition) -> float:
    """Log2 gain over ``begun``'s parent at the end of ``row``, by the most favourable of the figures that a log has."""
    gain = max(row.reward or 0.0, 0.0)
    found = [row.state.log2_progress + gain]
    if row.state.log2_speedup is not None and begun.state.log2_speedup is not None:
        found.append(row.state.log2_speedup + gain - begun.state.log2_speedup)
    if row.child_us and begun.parent_us and row.reward is not None:
        found.append(math.log2(begun.parent_us / row.child_us))
    return max(found)


def reachable(state: State, gain: float, room: float = math.inf) -> float:
    """``gain``, but not beyond the speed of light where the state knows it, nor beyond ``room`` over the start."""
    reached = state.fraction_of_bound
    light = max(-math.log2(reached), 0.0) if reached else math.inf
    return min(gain, light, max(room - state.log2_progress, 0.0))


def split(tasks: Sequence[str], folds: int) -> tuple[tuple[str, ...], ...]:
    """Divide tasks into at most ``folds`` groups of nearly equal size, always in the same way."""
    ordered = sorted(set(tasks))
    groups = (tuple(ordered[start::folds]) for start in range(folds))
    return tuple(group for group in groups if group)

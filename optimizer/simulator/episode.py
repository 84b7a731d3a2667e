"""One simulated search: an arm, a task and a budget of steps."""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass, replace

from artifacts.memory.records import Transition
from artifacts.state import State
from optimizer.arms import Arm, ArmContext, Choice
from optimizer.simulator.world import Drawn, World, advanced, reachable


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """What a simulated search reached.

    Attributes:
        progress: best log2 gain over the start after each step, never falling.
        followed: share of directed steps whose outcome was recorded under the chosen direction.
        directed: share of steps for which the arm chose a direction.
        correct: share of steps with a correct child.
    """

    progress: tuple[float, ...]
    followed: float
    directed: float
    correct: float


class Game:
    """A simulated search under way; equal seeds give all arms equal luck and the same start."""

    def __init__(self, world: World, task_id: str, arm: Arm, seed: str) -> None:
        self._world, self._arm = world, arm
        self.task_id = task_id
        self._seed = f"{seed}/{task_id}"
        self._dice = random.Random(hashlib.sha256(self._seed.encode()).digest())
        self._begun = self._dice.choice(world.starts(task_id))
        self._room = world.room(self._begun)
        self.state = _fresh(self._begun.state)
        self._overlay: list[Transition] = []
        self._taken: list[tuple[Choice, Drawn]] = []
        self.progress: list[float] = []
        self.fruitless = 0

    @property
    def steps_done(self) -> int:
        """Steps so far."""
        return len(self._taken)

    def step(self) -> None:
        """Let the arm choose and the world answer."""
        number = self.steps_done
        origin = replace(_fresh(self._begun.state), step=number) if self._arm.restarts else self.state
        choice = self._arm.choose(ArmContext(state=origin, overlay=self._overlay, seed=f"{self._seed}/{number}"))
        used = [done.row for _, done in self._taken if done.gain is not None and done.gain > 0]
        luck = (self._dice.random(), self._dice.random())
        drawn = self._world.draw(origin, self.task_id, choice.direction, luck, used)
        self._overlay += _learnt(self._begun, origin, choice, drawn, number, self._room)
        self.state = advanced(origin, drawn, choice.direction, self._room)
        before = self.progress[-1] if self.progress else 0.0
        self.progress.append(max(self.state.log2_progress, before))
        self.fruitless = 0 if self.progress[-1] > before else self.fruitless + 1
        self._taken.append((choice, drawn))

    def episode(self) -> Episode:
        """What came of it so far."""
        return _summary(self.progress, self._taken)


def play(world: World, task_id: str, arm: Arm, steps: int, seed: str) -> Episode:
    """Simulate one search of ``steps`` steps."""
    game = Game(world, task_id, arm, seed)
    for _ in range(steps):
        game.step()
    return game.episode()


def _fresh(state: State) -> State:
    """The state of a run that begins here, whatever was tried in the recorded one."""
    return replace(state, step=0, stagnation=0, history=(), log2_progress=0.0)


def _learnt(begun: Transition, state: State, choice: Choice, drawn: Drawn, step: int, room: float) -> list[Transition]:
    """The transition that a live run would add to its overlay; none without a direction."""
    if not choice.direction:
        return []
    gain = None if drawn.gain is None else reachable(state, drawn.gain, room)
    before = 100.0 if state.runtime_us is None else state.runtime_us
    return [
        replace(
            drawn.transition,
            transition_id=f"simulated/{begun.task.task_id}/{step}",
            source="simulated",
            trajectory_id=f"simulated/{begun.task.task_id}",
            task=begun.task,
            state=state,
            direction_id=choice.direction,
            strategy_id=choice.strategies[0].strategy_id if choice.strategies else "",
            reward=gain,
            expected=None,
            weight=1.0,
            siblings="",
            parent_us=before,
            child_us=None if gain is None else before / 2**gain,
            choice_probability=choice.probability,
        )
    ]


def _summary(progress: list[float], taken: list[tuple[Choice, Drawn]]) -> Episode:
    directed = [drawn for choice, drawn in taken if choice.direction]
    return Episode(
        progress=tuple(progress),
        followed=sum(drawn.followed for drawn in directed) / max(len(directed), 1),
        directed=len(directed) / len(taken),
        correct=sum(drawn.gain is not None for _, drawn in taken) / len(taken),
    )

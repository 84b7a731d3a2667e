"""The seam between the search and its ways of choosing the next step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from artifacts.memory.attention import DirectionScore, StrategyScore
from artifacts.memory.htg import Memory
from artifacts.memory.records import Transition
from artifacts.state import State
from optimizer.arms.intents import Intent


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmContext:
    """What an arm may look at.

    Attributes:
        overlay: transitions of this run that came before the step.
        seed: names the step; an arm that draws does so from this alone.
        taken: labels of what siblings of the same step follow already, see :attr:`Choice.label`, and of what was tried
            from this parent often enough.
        intents: the model's own list, for arms that keep one.
    """

    state: State
    overlay: Sequence[Transition] = ()
    seed: str = ""
    taken: frozenset[str] = frozenset()
    intents: tuple[Intent, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyUse:
    """A strategy offered in a prompt, with what was expected of it in log2."""

    strategy_id: str
    name: str
    mean: float
    spread: float
    effective_n: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What an arm chose and why; logged whole.

    Attributes:
        direction: id, empty when the model is given none or follows an intent of its own.
        probability: with which direction or intent was chosen; None when nothing was chosen.
        gate: why memory was not used; empty when it was, or when the arm has none.
        scores: every direction with its evidence, in the order of the memory.
        expected: log2 gain that the state alone lets expect of any step; None for arms that do not ask.
        intent: what the model is to implement of its own list; None for arms that keep none.
    """

    arm: str
    direction: str = ""
    strategies: tuple[StrategyUse, ...] = ()
    probability: float | None = None
    explored: bool = False
    gate: str = ""
    scores: tuple[DirectionScore, ...] = ()
    expected: float | None = None
    intent: Intent | None = None

    @property
    def label(self) -> str:
        """What siblings should not take as well: direction or intent; empty for neither."""
        return self.direction if self.intent is None else f"intent {self.intent.number}"


class Arm(Protocol):
    """One way to choose the next step; implementations are pure: equal contexts give equal choices.

    Attributes:
        name: as in ``--arm`` and in the log.
        memory: where the directions and strategies of its choices are looked up; None for none.
        restarts: True when every step starts from the reference instead of a parent.
        fixes: True when repairs are shown what cured similar failures in the memory.
        plans: True when the model is asked to keep a list of intents.
        learns: True when it looks at what the run itself has learnt.
    """

    @property
    def name(self) -> str:
        """As in ``--arm``."""
        ...

    @property
    def memory(self) -> Memory | None:
        """Where choices are looked up."""
        ...

    @property
    def restarts(self) -> bool:
        """Whether every step starts from the reference."""
        ...

    @property
    def fixes(self) -> bool:
        """Whether repairs are shown earlier fixes."""
        ...

    @property
    def plans(self) -> bool:
        """Whether the model keeps a list of intents."""
        ...

    @property
    def learns(self) -> bool:
        """Whether what the run has learnt is looked at."""
        ...

    def choose(self, context: ArmContext) -> Choice:
        """Choose direction and strategies for one candidate."""
        ...


def uses(scores: Sequence[StrategyScore]) -> tuple[StrategyUse, ...]:
    """The loggable part of strategy scores."""
    return tuple(
        StrategyUse(
            strategy_id=score.strategy.strategy_id,
            name=score.strategy.name,
            mean=score.mean,
            spread=score.spread,
            effective_n=score.effective_n,
        )
        for score in scores
    )

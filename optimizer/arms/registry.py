"""Arms by the names that users write."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from artifacts.errors import BadInputError
from artifacts.memory.attention import ATTENDED
from artifacts.memory.htg import Memory
from optimizer.arms.bandit import BanditArm
from optimizer.arms.feedback import FeedbackArm
from optimizer.arms.flat import FlatArm
from optimizer.arms.memory_arm import MemoryArm
from optimizer.arms.protocol import Arm
from optimizer.arms.shuffled import shuffled
from optimizer.arms.world_model import WorldModelArm
from optimizer.selection import SelectionSettings

_Maker = Callable[[Memory, SelectionSettings], Arm]


def _htam(memory: Memory, settings: SelectionSettings) -> Arm:
    return MemoryArm(name="htam", memory=memory, settings=settings)


def _no_local(memory: Memory, settings: SelectionSettings) -> Arm:
    return MemoryArm(name="no-local", memory=memory, settings=settings, local=False)


def _attended(settings: SelectionSettings) -> SelectionSettings:
    """``settings`` with the paper's attention, as far as the memory's own score has none."""
    known = settings.attention
    temperature = ATTENDED.temperature if known.temperature is None else known.temperature
    attention = replace(known, temperature=temperature, prefix=known.prefix or ATTENDED.prefix)
    return replace(settings, attention=attention)


def _attention(memory: Memory, settings: SelectionSettings) -> Arm:
    return MemoryArm(name="attention", memory=memory, settings=_attended(settings))


def _no_prefix(memory: Memory, settings: SelectionSettings) -> Arm:
    attended = _attended(settings)
    blind = replace(attended, attention=replace(attended.attention, prefix=0.0))
    return MemoryArm(name="no-prefix", memory=memory, settings=blind)


def _uniform(memory: Memory, settings: SelectionSettings) -> Arm:
    attended = _attended(settings)
    even = replace(attended, attention=replace(attended.attention, decay=1.0))
    return MemoryArm(name="uniform", memory=memory, settings=even)


def _frozen(memory: Memory, settings: SelectionSettings) -> Arm:
    return MemoryArm(name="frozen", memory=memory, settings=settings, learns=False)


def _flat(memory: Memory, settings: SelectionSettings) -> Arm:
    return FlatArm(memory=memory, settings=settings)


def _shuffled(memory: Memory, settings: SelectionSettings) -> Arm:
    return MemoryArm(name="shuffled", memory=shuffled(memory), settings=settings)


def _random(memory: Memory, settings: SelectionSettings) -> Arm:
    return MemoryArm(name="random", memory=memory, settings=replace(settings, explore=1.0))


def _bandit(memory: Memory, settings: SelectionSettings) -> Arm:
    return BanditArm(memory=memory, settings=settings)


_WITH_MEMORY: Mapping[str, _Maker] = {
    "htam": _htam,
    "flat": _flat,
    "no-local": _no_local,
    "attention": _attention,
    "no-prefix": _no_prefix,
    "uniform": _uniform,
    "frozen": _frozen,
    "shuffled": _shuffled,
    "random": _random,
    "bandit": _bandit,
}
ARMS: Mapping[str, str] = {
    "htam": "direction by what memory and run say of it, strategies under it",
    "flat": "strategies straight from the whole memory, no direction",
    "no-local": "the direction's name only, no strategies",
    "attention": "directions by attention to similar states and to those taken before, as in the paper",
    "no-prefix": "attention without the directions taken before",
    "uniform": "attention in which all directions taken before weigh the same",
    "frozen": "nothing learnt while the run goes on",
    "shuffled": "the memory's structure with its contents mixed up: a control",
    "random": "directions drawn at random, with their strategies: a control",
    "bandit": "upper confidence bounds over the run's own results, with the saturation mask, no experience",
    "world-model": "the model's own list of intents with priorities, no memory",
    "feedback": "measurements of the last candidate, no memory",
    "best-of-n": "independent first implementations, no feedback",
}
"""Names that ``--arm`` takes, with their meaning."""
WITHOUT_MEMORY = tuple(name for name in ARMS if name not in _WITH_MEMORY)
"""Arms that ask no memory."""


def make_arm(name: str, memory: Memory | None, settings: SelectionSettings) -> Arm:
    """Return the arm of that name.

    Raises:
        BadInputError: no such arm, or it needs a memory and there is none.
    """
    if name not in ARMS:
        raise BadInputError(f"unknown arm {name!r}", f"one of: {', '.join(ARMS)}")
    if name == "feedback":
        return FeedbackArm()
    if name == "best-of-n":
        return FeedbackArm(name="best-of-n", restarts=True)
    if name == "world-model":
        return WorldModelArm(settings=settings)
    if memory is None:
        raise BadInputError(f"arm {name!r} needs a memory", "give --memory NAME, or use --arm feedback")
    return _WITH_MEMORY[name](memory, settings)

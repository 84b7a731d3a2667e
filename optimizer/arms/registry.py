"""Arms by the names that users write; a new arm is one line here."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from artifacts.errors import BadInputError
from artifacts.memory.attention import ATTENDED
from artifacts.memory.htg import Memory
from optimizer.arms.archive import ArchiveArm
from optimizer.arms.bandit import BanditArm
from optimizer.arms.experiments import ExperimentsArm
from optimizer.arms.feedback import FeedbackArm
from optimizer.arms.flat import FlatArm
from optimizer.arms.judge import JudgeArm
from optimizer.arms.macro import MacroArm, learned
from optimizer.arms.memory_arm import MemoryArm
from optimizer.arms.plan_code import PlanCodeArm
from optimizer.arms.protocol import EXPERIENCE, KERNEL, Arm
from optimizer.arms.shuffled import shuffled
from optimizer.arms.verified import VerifiedArm
from optimizer.arms.world_model import WorldModelArm
from optimizer.selection import SelectionSettings


class _Entry(NamedTuple):
    meaning: str
    make: Callable[[Memory, SelectionSettings], Arm]
    source: str = "HTAM, arXiv 2605.29734"


class _WithoutMemory(NamedTuple):
    meaning: str
    make: Callable[[SelectionSettings], Arm]
    source: str = "a control"


def _attended(settings: SelectionSettings, **changes: Any) -> SelectionSettings:
    """``settings`` with the paper's attention as far as the memory's own score has none, and with ``changes``."""
    known = settings.attention
    temperature = ATTENDED.temperature if known.temperature is None else known.temperature
    attention = replace(known, temperature=temperature, prefix=known.prefix or ATTENDED.prefix)
    return replace(settings, attention=replace(attention, **changes))


def _undirected(name: str, memory: Memory, settings: SelectionSettings, part: str) -> MemoryArm:
    """An arm that gives no direction and shows one part of the memory."""
    never = replace(settings, least_margin=math.inf, explore=0.0)
    return MemoryArm(name=name, memory=memory, settings=never, shows=frozenset({part}))


_REGISTRY: dict[str, _Entry | _WithoutMemory] = {
    "htam": _Entry(
        "direction by what memory and run say of it, strategies under it",
        lambda memory, settings: MemoryArm(name="htam", memory=memory, settings=settings),
    ),
    "flat": _Entry(
        "strategies straight from the whole memory, no direction",
        lambda memory, settings: FlatArm(memory=memory, settings=settings),
    ),
    "no-local": _Entry(
        "the direction's name only, no strategies",
        lambda memory, settings: MemoryArm(name="no-local", memory=memory, settings=settings, shows=frozenset()),
    ),
    "attention": _Entry(
        "directions by attention to similar states and to those taken before, as in the paper",
        lambda memory, settings: MemoryArm(name="attention", memory=memory, settings=_attended(settings)),
    ),
    "no-prefix": _Entry(
        "attention without the directions taken before",
        lambda memory, settings: MemoryArm(name="no-prefix", memory=memory, settings=_attended(settings, prefix=0.0)),
    ),
    "uniform": _Entry(
        "attention in which all directions taken before weigh the same",
        lambda memory, settings: MemoryArm(name="uniform", memory=memory, settings=_attended(settings, decay=1.0)),
    ),
    "frozen": _Entry(
        "nothing learnt while the run goes on",
        lambda memory, settings: MemoryArm(name="frozen", memory=memory, settings=settings, learns=False),
    ),
    "shuffled": _Entry(
        "the memory's structure with its contents mixed up: a control",
        lambda memory, settings: MemoryArm(name="shuffled", memory=shuffled(memory), settings=settings),
    ),
    "random": _Entry(
        "directions drawn at random, with their strategies: a control",
        lambda memory, settings: MemoryArm(name="random", memory=memory, settings=replace(settings, explore=1.0)),
    ),
    "kernel-only": _Entry(
        "no direction; of the memory a reference kernel and nothing else",
        lambda memory, settings: _undirected("kernel-only", memory, settings, KERNEL),
    ),
    "experience-only": _Entry(
        "no direction; of the memory the device's record and nothing else",
        lambda memory, settings: _undirected("experience-only", memory, settings, EXPERIENCE),
    ),
    "bandit": _Entry(
        "upper confidence bounds over clusters of candidates and directions, with the saturation mask, no experience",
        lambda memory, settings: BanditArm(memory=memory, settings=settings),
        "KernelBand, arXiv 2511.18868",
    ),
    "world-model": _WithoutMemory(
        "a tree of intents that the model edits in questions of its own; each is refined until it stagnates",
        lambda settings: WorldModelArm(settings=settings),
        "K-Search, arXiv 2602.19128",
    ),
    "plan-code-debug": _WithoutMemory(
        "a planner's anchored instructions before each candidate, parents from the whole tree",
        lambda _: PlanCodeArm(),
        "STARK, arXiv 2510.16996",
    ),
    "hardware-feedback": _WithoutMemory(
        "a judge reads counters and error and gives one correction or one optimization (use with --profile)",
        lambda _: JudgeArm(),
        "CudaForge, arXiv 2511.01884",
    ),
    "experiments": _WithoutMemory(
        "experiments designed with worst and best case, three of five run, predictions held against results",
        lambda _: ExperimentsArm(),
        "GPU Kernel Scientist, arXiv 2506.20807",
    ),
    "macro": _Entry(
        "a policy over moves learnt from the memory's transitions issues one, the model codes it",
        lambda memory, _: MacroArm(policy=learned(memory)),
        "QiMeng-Kernel, arXiv 2511.20100",
    ),
    "verified-evolution": _WithoutMemory(
        "parents drawn by speed; three verdicts on each candidate before it is measured",
        lambda _: VerifiedArm(),
        "robust-kbench, arXiv 2509.14279; KernelEvolve, arXiv 2512.23236",
    ),
    "quality-diversity": _WithoutMemory(
        "parents drawn from an archive of the fastest candidate of each kind",
        lambda _: ArchiveArm(),
        "KernelFoundry, arXiv 2603.12440",
    ),
    "feedback": _WithoutMemory("measurements of the last candidate, no memory", lambda _: FeedbackArm()),
    "best-of-n": _WithoutMemory(
        "independent first implementations, no feedback",
        lambda _: FeedbackArm(name="best-of-n", restarts=True),
    ),
}
ARMS = {name: entry.meaning for name, entry in _REGISTRY.items()}
"""Names that ``--arm`` takes, with their meaning."""
SOURCES = {name: entry.source for name, entry in _REGISTRY.items()}
"""Where the idea of each arm is from."""
WITHOUT_MEMORY = tuple(name for name, entry in _REGISTRY.items() if isinstance(entry, _WithoutMemory))
"""Arms that ask no memory."""


def make_arm(name: str, memory: Memory | None, settings: SelectionSettings) -> Arm:
    """Return the arm of that name.

    Raises:
        BadInputError: no such arm, or it needs a memory and there is none.
    """
    entry = _REGISTRY.get(name)
    if entry is None:
        raise BadInputError(f"unknown arm {name!r}", f"one of: {', '.join(ARMS)}")
    if isinstance(entry, _WithoutMemory):
        return entry.make(settings)
    if memory is None:
        raise BadInputError(f"arm {name!r} needs a memory", "give --memory NAME, or use --arm feedback")
    return entry.make(memory, settings)

"""A study as its TOML file says it, and the cells it consists of."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from artifacts.codec import decode, encode
from artifacts.errors import BadInputError
from builder.validate.transfer import Part
from optimizer.arms.registry import ARMS, WITHOUT_MEMORY
from pipeline.project import read_toml

KINDS = ("replay", "run")

RESERVED = ("memory", "store", "run", "arm", "seed", "leave-out", "json")
"""Options of ``htam optimize`` that the study itself decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyMemory:
    """A memory under test.

    Attributes:
        part: what is kept of the study's base, see :class:`builder.validate.transfer.Part`.
        base: ``NAME[@VERSION|@TAG]`` in place of the study's base, for memories that were built apart (only for
            targets of kind ``run``).
    """

    name: str
    part: Part = field(default_factory=Part)
    base: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyTarget:
    """What the memories are tried on.

    Attributes:
        kind: ``replay`` (recorded choices of the base memory that ``part`` keeps) or ``run`` (``htam optimize``).
        tasks: task paths, for ``run``.
        options: of ``htam optimize``, without dashes.
    """

    name: str
    kind: str = "replay"
    part: Part = field(default_factory=Part)
    tasks: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"target {self.name!r} has kind {self.kind!r}, one of {', '.join(KINDS)}")
        if self.kind == "run" and not self.tasks:
            raise ValueError(f"target {self.name!r} names no tasks")
        wrong = sorted(set(self.options) & set(RESERVED))
        if wrong:
            raise ValueError(f"target {self.name!r} sets {wrong[0]!r}, which the study decides")


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A transfer study.

    Attributes:
        base: ``NAME[@VERSION|@TAG]`` that memories and replay targets are parts of.
        out: folder for results and page; an interrupted study resumes from it.
        arms: for ``run`` targets; the first is what the others are compared with.
        leave_out: ``task`` or ``family``: what memories must forget of their targets.
        level: ``direction`` or ``strategy``, for replay.
    """

    name: str
    base: str = ""
    out: str
    store: str = "memories"
    memory: tuple[StudyMemory, ...]
    target: tuple[StudyTarget, ...]
    arms: tuple[str, ...] = ("feedback", "htam")
    seeds: tuple[int, ...] = (0,)
    leave_out: str = "task"
    level: str = "direction"

    def __post_init__(self) -> None:
        if self.leave_out not in ("task", "family"):
            raise ValueError(f"leave_out is task or family, got {self.leave_out!r}: a study without it measures recall")
        own = [memory.name for memory in self.memory if memory.base]
        if own and any(target.kind != "run" for target in self.target):
            raise ValueError(f"memory {own[0]!r} has a base of its own, so only targets of kind run can try it")
        if not self.base and len(own) < len(self.memory):
            raise ValueError("a study, or each of its memories, needs a base")
        named = {"memory": [item.name for item in self.memory], "target": [item.name for item in self.target]}
        for what, names in (named | {"arm": self.arms, "seed": self.seeds}).items():
            if not names or len(set(names)) < len(names):
                raise ValueError(f"a study needs at least one {what}, and none twice")
        unknown = [arm for arm in self.arms if arm not in ARMS]
        if unknown:
            raise ValueError(f"unknown arm {unknown[0]!r}, one of {', '.join(ARMS)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One unit of work; ``arm`` is empty and ``seed`` 0 for replay; ``memory`` is None for arms that use none."""

    memory: StudyMemory | None
    target: StudyTarget
    arm: str = ""
    seed: int = 0
    base: str
    store: str
    leave_out: str
    level: str

    @property
    def key(self) -> str:
        """Readable, and different for every cell whose result could differ."""
        digest = hashlib.sha256(json.dumps(encode(self), sort_keys=True).encode()).hexdigest()[:10]
        parts = [
            self.memory.name if self.memory else "",
            self.target.name,
            self.arm,
            str(self.seed) if self.arm else "",
        ]
        return "-".join([part.replace("/", "_") for part in parts if part] + [digest])


def read_study(path: Path) -> Study:
    """Read and check a study.

    Raises:
        BadInputError: no such file, no TOML, or a field that is missing, unknown or wrong.
    """
    try:
        return decode(Study, read_toml(path))
    except BadInputError as problem:
        raise (
            problem if str(path) in problem.what else BadInputError(f"{path}: {problem.what}", problem.fix)
        ) from problem


def cells(study: Study, bases: Mapping[str, str]) -> Iterator[Cell]:
    """All cells, replay first; ``bases`` are the resolved ``name@version`` by the memory's name.

    Arms without memory run once for all memories.
    """
    for target in sorted(study.target, key=lambda item: item.kind):
        for arm, seed in _plays(study, target):
            for memory in (None,) if arm in WITHOUT_MEMORY else study.memory:
                yield Cell(
                    memory=memory,
                    target=target,
                    arm=arm,
                    seed=seed,
                    base=bases[memory.name] if memory else "",
                    store=study.store,
                    leave_out=study.leave_out,
                    level=study.level,
                )


def _plays(study: Study, target: StudyTarget) -> list[tuple[str, int]]:
    if target.kind == "replay":
        return [("", 0)]
    return [(arm, seed) for arm in study.arms for seed in study.seeds]

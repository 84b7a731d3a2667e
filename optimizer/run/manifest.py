"""What a run directory says of itself: enough to go on with it from any machine that has the memory."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from artifacts.candidate import Language
from artifacts.codec import decode, encode
from artifacts.errors import BadInputError, RunLogError
from artifacts.runlog import PAID_KINDS, RunLog
from artifacts.task import TaskRef
from optimizer.evaluation.job import EvaluationSettings
from optimizer.search.settings import SearchSettings

LANGUAGES = {"cpu": Language.CPP, "cuda": Language.CUDA}
"""What candidates are written in by default, by backend."""


LLM_KINDS = ("openai", "batch", "replay", "files")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskEntry:
    """One task of a run; its source is in ``candidates/``."""

    task: TaskRef
    sha256: str
    path: str
    dtype: str
    size: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LlmSpec:
    """Where answers come from: ``openai:MODEL``, ``batch:MODEL``, ``replay:FILE`` or ``files[:MODEL]``."""

    kind: str
    name: str

    def __post_init__(self) -> None:
        if self.kind not in LLM_KINDS:
            raise ValueError(f"unknown kind of model {self.kind!r}")

    @classmethod
    def parse(cls, text: str) -> LlmSpec:
        """Read what ``--llm`` was given.

        Raises:
            BadInputError: it is none of the forms.
        """
        kind, _, name = text.partition(":")
        if kind not in LLM_KINDS or (kind != "files" and not name):
            raise BadInputError(f"--llm {text!r} is not known", "use openai:MODEL, batch:MODEL, replay:FILE or files")
        return cls(kind=kind, name=name or "files")


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Settings of direction choice that a run fixes.

    Attributes:
        explore, optimism, lead: as in :class:`optimizer.selection.SelectionSettings`, there ``least_lead``.
        leave_out: ``none``, ``task`` or ``family``: experience with the run's own operators (or their whole
            families) that the memory must forget, for honest studies.
    """

    explore: float = 0.0
    optimism: float = 0.5
    lead: float = 1.5
    leave_out: str = "none"

    def __post_init__(self) -> None:
        if self.leave_out not in ("none", "task", "family"):
            raise ValueError(f"leave_out is none, task or family, got {self.leave_out!r}")
        if not 0 <= self.explore <= 1 or self.optimism < 0 or self.lead < 0:
            raise ValueError("explore is a share in 0..1, optimism and lead are not negative")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunManifest:
    """Everything that decides what a run does.

    Attributes:
        llm: as in ``--llm``; ``model`` is the name that requests carry.
        memory: ``name@version``, empty for arms without memory; ``store`` is where it was found.
        device: in words, as the user or the driver named it.
        seed: secret of the run.
        code_version: of HTAM when the run was made; a later one may go on with it.
    """

    run_id: str
    arm: str
    llm: str
    model: str
    evaluator: str
    backend: str
    device: str
    language: Language
    memory: str
    store: str
    seed: int
    tasks: tuple[TaskEntry, ...]
    search: SearchSettings
    selection: Selection
    evaluation: EvaluationSettings
    temperature: float | None = None
    max_tokens: int = 16384
    tunables: bool = False
    code_version: str = ""

    def __post_init__(self) -> None:
        if self.evaluator not in ("local", "files") and self.pool is None:
            raise ValueError(f"evaluator is local, files or pool:DIR, got {self.evaluator!r}")

    @property
    def pool(self) -> Path | None:
        """Folder of the pool whose workers measure; None where another evaluator does."""
        return pool_path(self.evaluator)


def pool_path(evaluator: str) -> Path | None:
    """The folder that ``pool:DIR`` names; None for anything else."""
    kind, _, folder = evaluator.partition(":")
    return Path(folder) if kind == "pool" and folder else None


FREE = ("run_id", "code_version", "store")
"""What may differ when a run is gone on with."""


def read_manifest(log: RunLog) -> RunManifest:
    """Manifest of an opened run.

    Raises:
        RunLogError: it was not written by ``htam optimize``.
    """
    body = {name: value for name, value in log.manifest.items() if name != "schema_version"}
    try:
        return decode(RunManifest, body)
    except BadInputError as problem:
        raise RunLogError(f"{log.path}/manifest.json: {problem.what}", "it is no run of this HTAM") from problem


def require_same(known: RunManifest, wanted: RunManifest, log: RunLog) -> None:
    """Refuse to go on with the run in ``log`` under other settings.

    Raises:
        RunLogError: names the first setting that differs.
    """
    for item in fields(RunManifest):
        before, now = encode(getattr(known, item.name)), encode(getattr(wanted, item.name))
        if item.name not in FREE and before != now:
            what, old, new = _difference(item.name, before, now)
            fix = "use the same settings, or another --run directory"
            asked = LlmSpec.parse(known.llm).kind != "openai"  # files and batches may be under way
            if not asked and not any(event.kind in PAID_KINDS for event in log.events()):
                fix += "; or remove it, nothing was answered or measured there"
            raise RunLogError(f"{log.path} was started with {what} {old}, not {new}", fix)


def _difference(name: str, before: Any, now: Any) -> tuple[str, str, str]:
    if isinstance(before, dict) and isinstance(now, dict):
        for part in before:
            if before[part] != now.get(part):
                return _difference(f"{name}.{part}", before[part], now.get(part))
    if name == "tasks":
        return "the tasks", _task_names(before), _task_names(now)
    return name, repr(before), repr(now)


def _task_names(entries: list[dict[str, Any]]) -> str:
    names = [f"{entry['task']['task_id']} ({entry['sha256'][:8]})" for entry in entries]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")

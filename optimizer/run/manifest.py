"""What a run directory says of itself: enough to resume it from any machine that has the memory."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any

from artifacts.candidate import Language
from artifacts.codec import decode, encode
from artifacts.errors import BadInputError, RunLogError
from artifacts.runlog import PAID_KINDS, RunLog
from artifacts.task import TaskRef
from optimizer.evaluation.job import EvaluationSettings
from optimizer.search.settings import SearchSettings

LANGUAGES = {"cpu": (Language.CPP, Language.NUMBA), "cuda": (Language.CUDA, Language.TRITON)}
"""What candidates may be written in, by backend; the first unless another is asked for."""


LLM_KINDS = ("openai", "replay", "files", "command", "agent")
"""``agent`` is that of the runs that ``htam mcp`` logs: nobody is asked there."""


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
    """Where answers come from: ``openai:MODEL``, ``command:WORDS``, ``replay:FILE`` or ``files[:MODEL]``."""

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
            raise BadInputError(f"--llm {text!r} is not known", "use openai:MODEL, command:WORDS, replay:FILE or files")
        return cls(kind=kind, name=name or "files")


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Settings of direction choice that a run fixes.

    Attributes:
        explore, optimism, margin: as in :class:`optimizer.selection.SelectionSettings`, there ``least_margin``.
        leave_out: ``none``, ``task`` or ``family``: experience with the run's own operators (or their whole
            families) that the memory must forget, for honest studies.
    """

    explore: float = 0.0
    optimism: float = 0.5
    margin: float = 1.5
    leave_out: str = "none"

    def __post_init__(self) -> None:
        if self.leave_out not in ("none", "task", "family"):
            raise ValueError(f"leave_out is none, task or family, got {self.leave_out!r}")
        if not 0 <= self.explore <= 1 or self.optimism < 0 or self.margin < 0:
            raise ValueError("explore is a share in 0..1, optimism and margin are not negative")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunManifest:
    """Everything that decides what a run does.

    Attributes:
        llm: as in ``--llm``; ``model`` is the name that requests carry.
        memory: ``name@version``, empty for arms without memory; ``store`` is where it was found.
        device: in words, as the user or the driver named it.
        seed: secret of the run.
        answers: ``file`` or ``edits``, see :class:`optimizer.prompting.request.PromptSettings`.
        code_version: of HTAM when the run was made; a later one may resume it.
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
    evaluation: EvaluationSettings
    tasks: tuple[TaskEntry, ...]
    search: SearchSettings
    selection: Selection
    temperature: float | None = None
    max_tokens: int = 16384
    tunables: bool = False
    answers: str = "file"
    code_version: str = ""

    def __post_init__(self) -> None:
        if self.evaluator not in ("local", "files") and not self.cluster:
            raise ValueError(f"evaluator is local, files or dask:ADDRESS, got {self.evaluator!r}")

    @property
    def cluster(self) -> str:
        """Address of the Dask scheduler whose workers measure; empty where another evaluator does."""
        return cluster_address(self.evaluator)


def cluster_address(evaluator: str) -> str:
    """The address that ``dask:ADDRESS`` names; empty for anything else."""
    kind, _, address = evaluator.partition(":")
    return address if kind == "dask" else ""


FREE = ("run_id", "code_version", "store")
"""What may differ when a run is resumed."""


def read_manifest(log: RunLog) -> RunManifest:
    """Manifest of an opened run, with the number of steps that its log says last.

    Raises:
        RunLogError: it was not written by ``htam optimize``.
    """
    body = {name: value for name, value in log.manifest.items() if name != "schema_version"}
    search = body.get("search")
    if isinstance(search, dict):  # earlier versions wrote a setting of which nothing is left where it was off
        body["search"] = {name: value for name, value in search.items() if (name, value) != ("shared", False)}
    try:
        manifest = decode(RunManifest, body)
    except BadInputError as problem:
        raise RunLogError(f"{log.path}/manifest.json: {problem.what}", "it is no run of this HTAM") from problem
    steps = [event.payload["steps"] for event in log.events() if event.kind == "steps_changed"]
    return replace(manifest, search=replace(manifest.search, steps=steps[-1])) if steps else manifest


def change_steps(log: RunLog, steps: int) -> None:
    """Let a run take another number of steps a task; the log records it.

    Raises:
        RunLogError: more are taken already, or the run has tuned constants after its last step.
    """
    known = read_manifest(log)
    if steps == known.search.steps:
        return
    taken: dict[str, int] = {}
    for event in log.events():
        if event.kind == "step":
            taken[event.key.rpartition("/")[0]] = event.payload["index"] + 1
            if event.payload["mode"] == "tune":
                raise RunLogError(f"{log.path} has tuned constants after its last step", "start another run")
    least = max(taken.values(), default=0)
    if known.search.reallocate:
        least = math.ceil(sum(taken.values()) / len(known.tasks))
    if steps < least:
        what = f"{log.path} has taken {least} steps a task already, --steps {steps} is fewer"
        raise RunLogError(what, f"give {least} or more")
    log.append("steps_changed", {"steps": steps, "before": known.search.steps})


def require_same(known: RunManifest, wanted: RunManifest, log: RunLog) -> None:
    """Refuse to resume the run in ``log`` under other settings.

    Raises:
        RunLogError: names the first setting that differs.
    """
    for item in fields(RunManifest):
        before, now = encode(getattr(known, item.name)), encode(getattr(wanted, item.name))
        if item.name not in FREE and before != now:
            what, old, new = _difference(item.name, before, now)
            fix = "use the same settings, or another --run directory"
            asked = LlmSpec.parse(known.llm).kind not in ("openai", "command")  # files may be under way
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

"""Opening a run: its log, tasks, memory, arm, model and evaluation queue, put together from its manifest."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from artifacts.codec import decode, encode
from artifacts.device import DeviceSpec, device_spec
from artifacts.errors import ArtifactError, RunLogError
from artifacts.measurement import Measurement
from artifacts.memory.attention import AttentionSettings
from artifacts.memory.htg import Memory
from artifacts.memory.retention import pin, release
from artifacts.memory.shipped import is_shipped, load_memory
from artifacts.memory.store import MemoryStore
from artifacts.runlog import RunLog
from artifacts.task import TaskRef
from optimizer.arms import Arm, make_arm
from optimizer.llm.budget import Budget, Spent
from optimizer.llm.cassette import Cassette
from optimizer.llm.protocol import LlmClient
from optimizer.prompting.context import Target
from optimizer.prompting.request import PromptSettings
from optimizer.run.manifest import LlmSpec, RunManifest, TaskEntry, change_steps, read_manifest, require_same
from optimizer.run.resources import CASSETTE, Resources, make_client, make_queue
from optimizer.search.effects import EffectLog, Listener
from optimizer.search.measure import EvaluationQueue
from optimizer.search.session import Session
from optimizer.search.task_search import RunSettings
from optimizer.selection import SelectionSettings
from optimizer.tasks import Task
from optimizer.tuning import TuningSettings

if TYPE_CHECKING:
    from optimizer.llm.openai_client import Retry

LONGEST_PAUSE_S = 600.0
"""Longer silences in a log count as the run having been away."""


class OpenRun:
    """A run directory with everything needed to resume it; use it as a context manager.

    Args:
        resources: what this session may use.
        listener: called with every new event.
        on_retry: called when an endpoint has to be asked again.
        store: where the run's memory is now; where the run found it when empty.
    """

    def __init__(
        self,
        log: RunLog,
        *,
        resources: Resources | None = None,
        listener: Listener | None = None,
        on_retry: Callable[[Retry], None] | None = None,
        store: str = "",
    ) -> None:
        self.log = log
        known = read_manifest(log)
        self.manifest = replace(known, store=store or known.store)
        self.effect_log = EffectLog(log, listener)
        self.tasks = tuple(_task(log, entry) for entry in self.manifest.tasks)
        self.arm = arm_of(self.manifest)
        self._resources = resources or Resources()
        self._on_retry = on_retry
        self._llm: LlmClient | None = None
        self._queue: EvaluationQueue | None = None

    @classmethod
    def at(cls, path: Path, *, resources: Resources | None = None, store: str = "") -> OpenRun:
        """Open the run in ``path``; ``store`` as for the class.

        Raises:
            RunLogError: there is none, or nobody is asked in it.
            ArtifactError: its memory is gone or damaged.
        """
        run = cls(RunLog.open(path), resources=resources, store=store)
        if LlmSpec.parse(run.manifest.llm).kind == "agent":
            raise RunLogError(f"{path} is the log of an agent, which asks nobody", "go on with htam mcp --run")
        return run

    def session(self) -> Session:
        """A session, to be advanced in a running event loop."""
        budget = Budget(self._resources.limits, spent_in(self.effect_log, self.log))
        self._llm = make_client(self.manifest, self.log.path, budget, self._resources, self._on_retry)
        self._queue = make_queue(self.manifest, self._resources)
        return Session(
            self.tasks,
            self.arm,
            self.settings(),
            self.effect_log,
            llm=self._llm,
            evaluations=self._queue,
            budget=budget,
            at_once=self._resources.concurrency,
        )

    def settings(self) -> RunSettings:
        """Settings of the search of every task."""
        manifest = self.manifest
        return RunSettings(
            run=manifest.run_id,
            seed=manifest.seed,
            backend=manifest.backend,
            target=Target(arch=device_spec(manifest.device).arch, language=manifest.language),
            search=manifest.search,
            prompt=PromptSettings(
                model=manifest.model,
                language=manifest.language,
                device=in_words(device_spec(manifest.device)),
                temperature=manifest.temperature,
                max_tokens=manifest.max_tokens,
                tunables=manifest.tunables,
                tf32=manifest.evaluation.tf32,
                dtype=manifest.evaluation.dtype,
                answers=manifest.answers,
            ),
            evaluation=manifest.evaluation,
            tuning=_tuning(manifest),
        )

    async def close(self) -> None:
        """Close client and queue and release the log."""
        if self._llm is not None:
            await self._llm.close()
        if self._queue is not None:
            await self._queue.close()
        self.log.close()


def create_run(path: Path, manifest: RunManifest, tasks: Sequence[Task]) -> RunLog:
    """Make the run directory and hold its memory, or open it when it is there and its settings are the same.

    The number of steps may differ: the run takes so many from now on.

    Raises:
        RunLogError: the directory holds something else, or a run with other settings.
    """
    if RunLog.is_run(path):
        log = RunLog.open(path)
        known = read_manifest(log)
        require_same(known, replace(manifest, search=replace(manifest.search, steps=known.search.steps)), log)
        take_steps(log, manifest.search.steps)
        return log
    log = RunLog.create(path, encode(manifest))
    hold_memory(path, manifest)
    for task in tasks:
        log.add_candidate(task.source, sync=True)
    return log


def take_steps(log: RunLog, steps: int) -> None:
    """Change the number of steps of a run where it differs, and hold its memory again.

    Raises:
        RunLogError: see :func:`optimizer.run.manifest.change_steps`.
    """
    known = read_manifest(log)
    if steps != known.search.steps:
        change_steps(log, steps)
        hold_memory(log.path, known)


def task_entry(task: Task, sha256: str) -> TaskEntry:
    """How a manifest names a task."""
    return TaskEntry(task=task.ref, sha256=sha256, path=task.path, dtype=task.dtype, size=task.size)


def arm_of(manifest: RunManifest) -> Arm:
    """The arm of a run, with its memory loaded and what it must forget left out."""
    memory = _memory_of(manifest) if manifest.memory else None
    chosen = manifest.selection
    attention = AttentionSettings()
    if memory is not None:
        attention = chosen_attention(memory)
        memory = without_own(memory, [entry.task for entry in manifest.tasks], chosen.leave_out)
    settings = SelectionSettings(
        explore=chosen.explore, optimism=chosen.optimism, least_margin=chosen.margin, attention=attention
    )
    return make_arm(manifest.arm, memory, settings)


def chosen_attention(memory: Memory) -> AttentionSettings:
    """The scorer settings that replay chose for a memory; defaults where it chose none."""
    values = dict(memory.manifest.scorer)
    advantage = bool(values.pop("advantage", AttentionSettings().advantage))
    return AttentionSettings(advantage=advantage, **values)


def _memory_of(manifest: RunManifest) -> Memory:
    try:
        return load_memory(manifest.store, manifest.memory)
    except ArtifactError as problem:
        if "://" in manifest.store or Path(manifest.store).exists():
            raise
        fix = "name its place with --store, or resume from the directory in which the run was started"
        raise ArtifactError(
            f"the run's memory {manifest.memory} is in {manifest.store}, which is not here", fix
        ) from problem


def without_own(memory: Memory, own: Sequence[TaskRef], leave_out: str) -> Memory:
    """``memory`` without what :attr:`Selection.leave_out` forbids; an operator is one task in every suite."""
    if leave_out == "none":
        return memory
    known = memory.same_operators(task.task_id for task in own)
    families = {task.family for task in own} if leave_out == "family" else ()
    return memory.filter(exclude_tasks=known, exclude_families=families)


def spent_in(effect_log: EffectLog, log: RunLog) -> Spent:
    """What earlier sessions of a run used."""
    recording = log.path / CASSETTE
    answered = Cassette(recording).spent() if recording.exists() and not _through_files(log) else Spent()
    measured = [decode(Measurement, payload) for _, payload in effect_log.of_kind("measurement")]
    times = [event.time for event in log.events()]
    pauses = [after - before for before, after in itertools.pairwise(times)]
    wall_s = sum(pause for pause in pauses if 0 < pause <= LONGEST_PAUSE_S)
    return answered + Spent(gpu_s=sum(measurement.gpu_s for measurement in measured), wall_s=wall_s)


def _through_files(log: RunLog) -> bool:
    return LlmSpec.parse(read_manifest(log).llm).kind == "files"


def in_words(device: DeviceSpec) -> str:
    """A device as prompts name it, with the ceilings that a kernel on it is judged by."""
    if not device.known:
        return device.name
    rates = {"float32": device.fp32_tflops, "TF32": device.tf32_tflops, "half precision": device.fp16_tflops}
    listed = ", ".join(f"{rate:g} in {name}" for name, rate in rates.items() if rate)
    return (
        f"{device.name} ({device.arch}; at most {device.dram_gb_s:g} GB/s of device memory; TFLOP/s at most: {listed}; "
        f"{device.l2_mb:g} MiB of L2 cache)"
    )


def _tuning(manifest: RunManifest) -> TuningSettings | None:
    if not manifest.tunables:
        return None
    if manifest.evaluator == "files":
        return TuningSettings(batch=TuningSettings().trials)  # each batch is a trip to another host
    return TuningSettings()


def _task(log: RunLog, entry: TaskEntry) -> Task:
    return Task(ref=entry.task, source=log.candidate(entry.sha256), path=entry.path, dtype=entry.dtype, size=entry.size)


def hold_memory(path: Path, manifest: RunManifest) -> bool:
    """Pin the memory of the run in ``path``; False when it has none, or its store is not to be written to."""
    if not manifest.memory or is_shipped(manifest.memory):
        return False
    name, _, version = manifest.memory.partition("@")
    try:
        pin(MemoryStore(manifest.store), name, version, holder(path, manifest))
    except OSError:  # a store that this run may only read is collected by those who may write to it
        return False
    return True


def release_memory(path: Path, manifest: RunManifest) -> None:
    """Let go of what :func:`hold_memory` pinned."""
    if manifest.memory and not is_shipped(manifest.memory):
        try:
            release(MemoryStore(manifest.store), manifest.memory.partition("@")[0], holder(path, manifest))
        except OSError:  # as above: what could not be pinned need not be released
            return


def holder(path: Path, manifest: RunManifest) -> str:
    """Name of a run's pin: its id, and where it is, because ids are folder names and may repeat."""
    place = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]
    return f"run-{re.sub(r'[^a-z0-9]+', '-', manifest.run_id.lower())[:40]}-{place}"

"""Opening a run: its log, tasks, memory, arm, model and bench, put together from its manifest."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from artifacts.codec import decode, encode
from artifacts.device import DeviceSpec, device_spec
from artifacts.errors import ArtifactError
from artifacts.measurement import Measurement
from artifacts.memory.attention import AttentionSettings
from artifacts.memory.htg import Memory
from artifacts.memory.store import MemoryStore
from artifacts.runlog import RunLog
from artifacts.task import TaskRef
from optimizer.arms import Arm, make_arm
from optimizer.llm.budget import Budget, Spent
from optimizer.llm.cassette import Cassette
from optimizer.llm.prompt import PromptSettings
from optimizer.llm.protocol import LlmClient
from optimizer.run.holding import hold_memory
from optimizer.run.manifest import LlmSpec, RunManifest, TaskEntry, read_manifest, require_same
from optimizer.run.resources import CASSETTE, Resources, make_bench, make_client
from optimizer.search.bench import Bench
from optimizer.search.journal import Journal, Listener
from optimizer.search.plan import RunSettings
from optimizer.search.session import Session
from optimizer.search.situation import Target
from optimizer.selection import SelectionSettings
from optimizer.tasks import Task
from optimizer.tuning.search import TuningSettings

if TYPE_CHECKING:
    from optimizer.llm.openai_client import Retry

LONGEST_PAUSE_S = 600.0
"""Longer silences in a log count as the run having been away."""


class OpenRun:
    """A run directory with everything needed to go on; use it as a context manager.

    Args:
        resources: what this sitting may use.
        listener: told of every new event.
        on_retry: told when an endpoint has to be asked again.
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
        self.journal = Journal(log, listener)
        self.tasks = tuple(_task(log, entry) for entry in self.manifest.tasks)
        self.arm = arm_of(self.manifest)
        self._resources = resources or Resources()
        self._on_retry = on_retry
        self._llm: LlmClient | None = None
        self._bench: Bench | None = None

    @classmethod
    def at(cls, path: Path, *, resources: Resources | None = None, store: str = "") -> OpenRun:
        """Open the run in ``path``; ``store`` as for the class.

        Raises:
            RunLogError: there is none.
            ArtifactError: its memory is gone or damaged.
        """
        return cls(RunLog.open(path), resources=resources, store=store)

    def session(self) -> Session:
        """A sitting, to be advanced in a running event loop."""
        budget = Budget(self._resources.limits, spent_in(self.journal, self.log))
        self._llm = make_client(self.manifest, self.log.path, budget, self._resources, self._on_retry)
        self._bench = make_bench(self.manifest, self._resources)
        return Session(
            self.tasks,
            self.arm,
            self.settings(),
            self.journal,
            llm=self._llm,
            bench=self._bench,
            budget=budget,
            at_once=self._resources.concurrency if LlmSpec.parse(self.manifest.llm).kind == "openai" else None,
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
            ),
            evaluation=manifest.evaluation,
            tuning=_tuning(manifest),
        )

    async def close(self) -> None:
        """End model and bench and release the log."""
        if self._llm is not None:
            await self._llm.close()
        if self._bench is not None:
            await self._bench.close()
        self.log.close()


def create_run(path: Path, manifest: RunManifest, tasks: Sequence[Task]) -> RunLog:
    """Make the run directory and hold its memory, or open it when it is there and its settings are the same.

    Raises:
        RunLogError: the directory holds something else, or a run with other settings.
    """
    if RunLog.is_run(path):
        log = RunLog.open(path)
        require_same(read_manifest(log), manifest, log)
        return log
    log = RunLog.create(path, encode(manifest))
    hold_memory(path, manifest)
    for task in tasks:
        log.add_candidate(task.source, sync=True)
    return log


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
        explore=chosen.explore, optimism=chosen.optimism, least_lead=chosen.lead, attention=attention
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
        fix = "name its place with --store, or go on from the directory in which the run was started"
        raise ArtifactError(
            f"the run's memory {manifest.memory} is in {manifest.store}, which is not here", fix
        ) from problem


def load_memory(store: str, reference: str) -> Memory:
    """Load ``NAME[@VERSION|@TAG]``.

    Raises:
        ArtifactError: there is no such memory, or it is damaged.
    """
    name, _, at = reference.partition("@")
    return MemoryStore(store).load(name, at or None)


def without_own(memory: Memory, own: Sequence[TaskRef], leave_out: str) -> Memory:
    """``memory`` without what :attr:`Selection.leave_out` forbids; an operator is one task in every suite."""
    if leave_out == "none":
        return memory
    known = memory.same_operators(task.task_id for task in own)
    families = {task.family for task in own} if leave_out == "family" else ()
    return memory.filter(exclude_tasks=known, exclude_families=families)


def spent_in(journal: Journal, log: RunLog) -> Spent:
    """What earlier sittings of a run used."""
    recording = log.path / CASSETTE
    answered = Cassette(recording).spent() if recording.exists() and not _through_files(log) else Spent()
    measured = [decode(Measurement, payload) for _, payload in journal.of_kind("measurement")]
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

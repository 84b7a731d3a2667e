"""Turning the records of one log into trajectories while every record is accounted for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from artifacts.candidate import Language
from artifacts.features import detect_language
from artifacts.measurement import Outcome
from artifacts.task import TaskRef
from artifacts.trajectory import Provenance, Quarantined, Step, Trajectory, TrustFlag
from builder.read.fields import BadRecordError
from builder.read.files import Probe, UnreadableError
from builder.read.verdict import Verdict

MAX_QUARANTINE_REASON = 400
MOST_REFUSED = 10_000
"""Records in quarantine from which a log is given up when nearly all of its records are there."""
REFERENCE = "reference"
"""Step id of the task's reference."""
TIMELESS = Verdict(outcome=Outcome.CORRECT)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFile:
    """One independent unit of reading: a file, or a run directory whose files belong together.

    Attributes:
        path: the file or directory.
        format: name of the importer that recognised it.
        name: path relative to what the user gave, with ``/``; shown in provenance and reports.
        companions: files beside it that the importer reads too (a baseline, the kernels of a run), sorted;
            together with ``path`` they decide the digest.
    """

    path: Path
    format: str
    name: str
    companions: tuple[Path, ...] = ()

    @property
    def size(self) -> int:
        """Bytes of its files."""
        return sum(path.stat().st_size for path in (self.path, *self.companions) if path.is_file())


@dataclass(frozen=True, slots=True, kw_only=True)
class LogResult:
    """What one log gave; it cannot be built unless every record is a step or quarantined.

    Attributes:
        records: records the log holds.
        derived: steps that no record of their own stands for, e.g. the reference that a ratio is against.
        digest: SHA-256 over the log's files: same digest, same result.
    """

    log: LogFile
    digest: str
    trajectories: tuple[Trajectory, ...]
    quarantined: tuple[Quarantined, ...]
    records: int
    derived: int = 0

    def __post_init__(self) -> None:
        if self.records + self.derived != self.steps + len(self.quarantined):
            raise ValueError(
                f"{self.log.name}: {self.records} records and {self.derived} derived steps do not make "
                f"{self.steps} steps and {len(self.quarantined)} quarantined"
            )

    @property
    def format(self) -> str:
        """Name of the importer that read the log."""
        return self.log.format

    @property
    def steps(self) -> int:
        """Steps over all trajectories."""
        return sum(len(trajectory.steps) for trajectory in self.trajectories)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What the steps of one trajectory share; ``key`` is unique within the log."""

    key: str
    source: str
    task: TaskRef
    device: str = ""
    llm: str = ""
    reference: str = ""


@dataclass(slots=True)
class Collector:
    """Collects the records of one log: each ends as a step or in quarantine.

    An importer opens each record with :meth:`record` and adds its step inside; whatever the record's
    fields refuse becomes the reason of its quarantine. :meth:`result` grows the trees.
    """

    log: LogFile
    version: int
    digest: str
    records: int = 0
    derived: int = 0
    quarantined: list[Quarantined] = field(default_factory=list)
    _runs: dict[str, Run] = field(default_factory=dict)
    _ids: set[tuple[str, str]] = field(default_factory=set)
    _steps: dict[str, list[Step]] = field(default_factory=lambda: defaultdict(list))

    @contextmanager
    def record(self, line: int | None) -> Iterator[None]:
        """Count one record; a bad one goes to quarantine with ``line`` and its reason."""
        self.records += 1
        try:
            yield
        except (BadRecordError, UnreadableError, ValueError) as problem:
            self.refuse(line, str(problem))

    def refuse(self, line: int | None, reason: str, *, count: bool = False) -> None:
        """Quarantine a record (counted by ``record`` unless ``count``)."""
        self.records += int(count)
        self.quarantined.append(
            Quarantined(file=self.log.name, line=line, reason=reason[:MAX_QUARANTINE_REASON] or "unreadable")
        )

    def gives_up(self, line: int | None) -> bool:
        """Whether so many records were refused that the rest is not worth reading; says so in quarantine."""
        refused = len(self.quarantined)
        if refused < MOST_REFUSED or refused < 0.9 * self.records:
            return False
        self.refuse(line, f"{refused:,} of {self.records:,} records cannot be read: the rest was not", count=True)
        return True

    def provenance(self, line: int | None) -> Provenance:
        """Provenance of a record of this log."""
        return Provenance(
            format=self.log.format,
            importer_version=self.version,
            file=self.log.name,
            file_sha256=self.digest,
            line=line,
        )

    def step(
        self,
        line: int | None,
        verdict: Verdict,
        code: str,
        *,
        step_id: str,
        parent_id: str | None = None,
        index: int = 0,
        plan: str = "",
        profile: Mapping[str, float] | None = None,
        ratio_to_parent: float | None = None,
        language: Language | None = None,
        flags: frozenset[TrustFlag] = frozenset(),
    ) -> Step:
        """The step of a record of this log: a candidate with what its harness said of it."""
        return Step(
            step_id=step_id,
            parent_id=parent_id,
            index=index,
            code=code,
            language=language or detect_language(code),
            outcome=verdict.outcome,
            provenance=self.provenance(line),
            plan=plan,
            error=verdict.error,
            runtime_us=verdict.runtime_us,
            baseline_us=verdict.baseline_us,
            ratio_to_parent=ratio_to_parent,
            statistic=verdict.statistic,
            profile=profile or {},
            flags=verdict.flags | flags,
        )

    def add_reference(self, run: Run, line: int | None, verdict: Verdict = TIMELESS) -> None:
        """Make the run's reference its root, as the parent of candidates that are compared with it; once a run."""
        if not self.has(run, REFERENCE):
            root = self.step(line, verdict, run.reference, step_id=REFERENCE, language=Language.TORCH)
            self.add(run, root, derived=True)

    def add(self, run: Run, step: Step, *, derived: bool = False) -> None:
        """Add a step to a trajectory; ``derived`` for one that no record of its own stands for."""
        self._runs.setdefault(run.key, run)
        self._steps[run.key].append(step)
        self._ids.add((run.key, step.step_id))
        self.derived += int(derived)

    def has(self, run: Run, step_id: str) -> bool:
        """Whether the trajectory already has a step of this id."""
        return (run.key, step_id) in self._ids

    def result(
        self, finish: Callable[[Trajectory], Trajectory], impossible: Callable[[Trajectory], Mapping[str, str]]
    ) -> LogResult:
        """Grow the trees, and quarantine what does not fit in one and what is ``impossible``, with its reason."""
        possible = (self._possible(trajectory, impossible(trajectory)) for trajectory in self._trajectories())
        trajectories = tuple(finish(trajectory) for trajectory in possible if trajectory.steps)
        return LogResult(
            log=self.log,
            digest=self.digest,
            trajectories=trajectories,
            quarantined=tuple(self.quarantined),
            records=self.records,
            derived=self.derived,
        )

    def _possible(self, trajectory: Trajectory, refused: Mapping[str, str]) -> Trajectory:
        """``trajectory`` without the refused steps, whose children start from nothing."""
        if not refused:
            return trajectory
        for step in trajectory.steps:
            if step.step_id in refused:
                self.refuse(step.provenance.line, refused[step.step_id])
        kept = (step for step in trajectory.steps if step.step_id not in refused)
        return replace(
            trajectory,
            steps=tuple(replace(step, parent_id=None) if step.parent_id in refused else step for step in kept),
        )

    def _trajectories(self) -> Iterator[Trajectory]:
        for key, run in self._runs.items():
            steps = tuple(self._tree(self._steps[key]))
            if steps:
                yield Trajectory(
                    trajectory_id=f"{self.log.format}:{self.digest[:12]}:{key}",
                    source=run.source,
                    task=run.task,
                    device=run.device,
                    llm=run.llm,
                    steps=steps,
                    reference=run.reference,
                )

    def _tree(self, steps: list[Step]) -> Iterator[Step]:
        """Steps with parents before children; repeated ids and cycles are quarantined, lost parents cut."""
        known: dict[str, Step] = {}
        for step in steps:
            if step.step_id in known:
                self.refuse(step.provenance.line, f"step {step.step_id!r} occurs twice")
            else:
                known[step.step_id] = step
        children: dict[str | None, list[Step]] = defaultdict(list)
        for step in known.values():
            parent = step.parent_id if step.parent_id in known else None
            children[parent].append(step if parent == step.parent_id else replace(step, parent_id=None))
        ready = list(reversed(children.pop(None, [])))
        while ready:
            step = ready.pop()
            yield step
            ready.extend(reversed(children.pop(step.step_id, [])))
        for lost in children.values():
            for step in lost:
                self.refuse(step.provenance.line, f"parent links of step {step.step_id!r} form a cycle")


def alone(path: Path) -> tuple[Path, ...]:
    """Companions of a file that stands alone."""
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Importer:
    """Reads one format.

    An importer claims a path by its content, names the other files it will read, and turns each record into a step or a
    quarantine entry through the Collector it is given. It reads the files of its log and nothing else, evaluates
    nothing, and raises nothing for any content of theirs.

    Attributes:
        name: shown by ``htam logs inspect`` and kept in provenance.
        version: raised when the same file would give other steps than before: caches are keyed by it.
        summary: one line for the docs and for ``htam logs formats``.
        claims: whether the content at ``probe.path`` is of this format; cheap, never raises.
        companions: the other files that belong to the log at a path, sorted; for a directory all its files.
        read: enters every record of a log.
    """

    name: str
    version: int
    summary: str
    claims: Callable[[Probe], bool]
    read: Callable[[LogFile, Collector], None]
    companions: Callable[[Path], tuple[Path, ...]] = alone

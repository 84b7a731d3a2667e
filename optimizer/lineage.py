"""An expert kernel walked backwards: one technique after the other is taken out, each version checked and timed.

Read forwards, each removal is a measured step: the simpler version is the parent, what was taken out is the move.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain

from artifacts.candidate import Candidate
from artifacts.codec import encode
from artifacts.errors import BadAnswerError, BadInputError
from artifacts.features import code_features
from artifacts.features.techniques import ABOUT, LADDERS, Technique, techniques
from artifacts.measurement import Bottleneck, Measurement, Outcome
from artifacts.run_events import LoggedStep, TaskStarted
from artifacts.runlog import RunLog
from artifacts.trajectory import State
from optimizer.evaluation.job import EvaluationJob, EvaluationSettings, Evaluator
from optimizer.llm.protocol import LlmClient
from optimizer.prompting.answer import parse_answer
from optimizer.prompting.request import PromptSettings, build_simplification
from optimizer.tasks import Task

_CLIMBED = tuple(dict.fromkeys(chain.from_iterable(reversed(rungs) for rungs in LADDERS.values())))
ORDER = (*_CLIMBED, *(technique for technique in Technique if technique not in _CLIMBED))
"""Techniques in the order in which they are taken out: from the top rung of each ladder down, then the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One version of the kernel.

    Attributes:
        removed: technique that was taken out of the version before; None for the expert's.
        measurement: timed in turns with the version before.
        reason: why a version was not taken, empty for one that was; its source is empty where an answer held no code.
    """

    source: str
    removed: Technique | None
    measurement: Measurement | None
    plan: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Walk:
    """Asks for simpler versions of one kernel and measures them."""

    task: Task
    client: LlmClient
    evaluator: Evaluator
    prompt: PromptSettings
    backend: str
    seed: int
    evaluation: EvaluationSettings

    async def versions(self, expert: str, most: int) -> list[tuple[Version, ...]]:
        """Versions from the expert's to the simplest, each with what was tried from it and not taken.

        Args:
            most: answers that are asked for.

        Raises:
            BadInputError: the expert's kernel is not correct here.
        """
        measured = self._measured(expert, "", "expert")
        if measured.outcome is not Outcome.CORRECT:
            raise BadInputError(f"the kernel is not correct here: {measured.first_error}", "give one that is")
        found: list[tuple[Version, ...]] = [
            (Version(source=Candidate(expert).source, removed=None, measurement=measured),)
        ]
        refused: set[Technique] = set()
        for number in range(most):
            current = found[-1][0].source
            held = techniques(current, self.prompt.language)
            wanted = next((technique for technique in ORDER if technique in held and technique not in refused), None)
            if wanted is None:
                break
            version = await self._simpler(current, wanted, number)
            if version.reason:
                refused.add(wanted)
                found[-1] = (*found[-1], version)
            else:
                refused.clear()
                found.append((version,))
        return found

    async def _simpler(self, current: str, removed: Technique, number: int) -> Version:
        request = build_simplification(
            self.task.ref.task_id, self.task.source, current, ABOUT[removed].meaning, f"lineage.{number}", self.prompt
        )
        try:
            parsed = parse_answer(await self.client.complete(request))
        except BadAnswerError as problem:
            return Version(source="", removed=removed, measurement=None, reason=str(problem))
        source = parsed.candidate.source
        measured = self._measured(source, current, f"lineage.{number}")
        reason = measured.first_error
        if not reason and removed in techniques(source, self.prompt.language):
            reason = f"{removed} is still in it"
        return Version(source=source, removed=removed, measurement=measured, plan=parsed.plan, reason=reason)

    def _measured(self, source: str, before: str, name: str) -> Measurement:
        job = EvaluationJob(
            job_id=name,
            task_id=self.task.ref.task_id,
            task_source=self.task.source,
            candidate_source=source,
            incumbent_source=before,
            backend=self.backend,
            seed=self.seed,
            settings=self.evaluation,
        )
        return next(measurement for _, measurement in self.evaluator.evaluate([job]))


def write_lineage(log: RunLog, task: Task, found: list[tuple[Version, ...]], arch: str, prompt: PromptSettings) -> int:
    """Write versions as the steps of a run, the simplest first; returns how many steps there are."""
    started = TaskStarted(task=task.ref, source_sha256=log.add_candidate(task.source), path=str(task.path))
    log.append("task_started", encode(started), key=task.ref.task_id)
    count = 0
    for step in _steps(log, task, found, arch, prompt):
        log.append("step", encode(step), key=f"{task.ref.task_id}/{step.step_id}")
        count += 1
    return count


def _steps(
    log: RunLog, task: Task, found: list[tuple[Version, ...]], arch: str, prompt: PromptSettings
) -> Iterator[LoggedStep]:
    parent, parent_name = None, None
    for number, (version, *refused) in enumerate(reversed(found)):
        name = f"{number}.0"
        plan = "" if parent is None or parent.removed is None else ABOUT[parent.removed].instruction
        forwards = replace(version, measurement=_forwards(version, parent), plan=plan)
        yield _step(log, task, forwards, parent, prompt, arch, name, parent_name)
        for place, failed in enumerate(refused, start=1):
            assert failed.removed is not None
            said = f"Without: {ABOUT[failed.removed].meaning}. {failed.plan}"
            yield _step(log, task, replace(failed, plan=said), version, prompt, arch, f"{number}.{place}", name)
        parent, parent_name = version, name


def _forwards(version: Version, parent: Version | None) -> Measurement | None:
    """What is known of ``version`` when it is read as the child of ``parent``, with which it was timed in turns.

    Its time is that of the evaluation in which the parent was made from it, and so are the notes and doubts about it.
    """
    measured = version.measurement
    if measured is None or parent is None or parent.measurement is None or parent.measurement.incumbent is None:
        return None if measured is None else replace(measured, incumbent=None, faster_than_incumbent=None)
    slower, again = parent.measurement, parent.measurement.incumbent
    return replace(
        measured,
        timing=again,
        incumbent=slower.timing,
        faster_than_incumbent=None,
        doubts=slower.doubts,
        notes=slower.notes,
    )


def _step(
    log: RunLog,
    task: Task,
    version: Version,
    parent: Version | None,
    prompt: PromptSettings,
    arch: str,
    name: str,
    parent_name: str | None,
) -> LoggedStep:
    index = 0 if parent_name is None else int(parent_name.partition(".")[0]) + 1
    before = None if parent is None else parent.measurement
    profile = None if before is None else before.profile
    state = State(
        family=task.ref.family,
        arch=arch,
        language=prompt.language,
        dtype=task.dtype,
        size=task.size,
        bottleneck=Bottleneck.UNKNOWN if profile is None else profile.bottleneck,
        runtime_us=None if before is None or before.timing is None else before.timing.median_us,
        step=index,
        features=frozenset() if parent is None else code_features(parent.source).names,
    )
    return LoggedStep(
        task_id=task.ref.task_id,
        step_id=name,
        parent_id=parent_name,
        index=index,
        mode="first" if parent is None else "optimize",
        candidate_sha256=log.add_candidate(version.source) if version.source else "",
        parent_sha256="" if parent is None else log.add_candidate(parent.source),
        direction="",
        strategies=(),
        plan=version.plan,
        state=state,
        measurement=version.measurement,
        error=version.reason if version.measurement is None else "",
        model=prompt.model,
    )

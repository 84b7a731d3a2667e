"""What is timed of a checked candidate, most of it with nobody else on the device: itself, reference, incumbent."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from artifacts.measurement import Doubt, DoubtKind, Precision, Timing
from optimizer.evaluation.device_lock import DeviceLock
from optimizer.evaluation.job import EvaluationJob
from optimizer.evaluation.sandbox.clock import Clock, clock_for
from optimizer.evaluation.sandbox.torch_state import give_back, is_large
from optimizer.evaluation.verify.baselines import Baselines, baselines_of, store_for
from optimizer.evaluation.verify.bound import Bound, Work
from optimizer.evaluation.verify.correctness import Checked
from optimizer.evaluation.verify.effort import ROUGH_SAMPLES, BreathingClock, Effort
from optimizer.evaluation.verify.plausibility import (
    UNSEEN,
    HostLoad,
    UnseenInputs,
    all_work_is_timed,
    bound_of,
    counted_profile,
    possible,
    seen_from_outside,
    timed_outputs_right,
    unseen_cost_the_same,
)
from optimizer.evaluation.verify.record import Record
from optimizer.evaluation.verify.reference import Case, Reference
from optimizer.evaluation.verify.sandbox_client import SandboxClient, TimedOutput
from optimizer.evaluation.verify.sandboxes import Sandboxes
from optimizer.evaluation.verify.timing import (
    Comparison,
    RemoteClock,
    SandboxCalls,
    TimingSettings,
    compare,
    seen_again,
    time_callable,
    timing_of,
)
from optimizer.evaluation.verify.trials import derive_seed

_SUSPICIOUS = 10.0
"""Speed-ups over the reference above this are measured again in a fresh process."""


class TimedStages:
    """Times of one checked candidate.

    Args:
        job: what is evaluated, of the class ``precision``.
        sandboxes: its processes.
        reference: of the task.
        checked: what the trials showed.
        effort: what the candidate deserves.
        incumbent: its time, where the effort was decided by it.
        device_lock: of the device, on which others load and check on meanwhile.
        folder: where measured ceilings and baselines are kept.
        record: receives checks, notes and laps.
    """

    def __init__(
        self,
        job: EvaluationJob,
        precision: Precision,
        sandboxes: Sandboxes,
        reference: Reference,
        checked: Checked,
        *,
        effort: Effort,
        incumbent: Timing | None,
        device_lock: DeviceLock,
        folder: Path,
        record: Record,
    ) -> None:
        self._job, self._precision = job, precision
        self._backend = job.backend
        self._sandboxes, self._sandbox = sandboxes, sandboxes.first
        self._reference, self._checked = reference, checked
        self._effort, self._incumbent = effort, incumbent
        self._device_lock, self._folder, self._record = device_lock, folder, record
        self._timing = effort.settings(timing_settings(job))
        self._load = HostLoad(sandboxes.cpu_s)
        self._outputs: list[TimedOutput] = []

    def close(self, work: Work) -> dict[str, Any]:
        """Times of a candidate that deserves them, against reference and incumbent.

        Raises:
            Failure: a time cannot be what the candidate takes.
        """
        timing, eager, bound = self._measured(work)
        timing = self._timed_again(timing, eager)
        fields = self._against_incumbent() if self._job.incumbent_source else {}
        timing = fields.pop("timing", timing)
        baselines = {self._precision.reference: eager}
        return {"timing": timing, "baselines": baselines, "profile": counted_profile(bound, timing), **fields}

    def rough(self, work: Work) -> dict[str, Any] | None:
        """A few samples of a candidate that is far slower than what there is; being slow gains nobody anything.

        None for one that is suddenly faster than it was: it has to show that as everybody else has.
        """
        self._prepare(self._sandbox)
        pause(self._device_lock, self._backend)
        with self._device_lock.alone():
            samples = [sample for _ in range(ROUGH_SAMPLES) for sample in self._one_sample()]
            if not self._effort.as_slow(min(samples)):
                return None
            timing = timing_of(samples)
            bound = bound_of(work, self._backend, self._folder)
            self._fetch(self._sandbox)
            self._sandbox.release()
            baselines = {self._precision.reference: self._eager()}
        self._look_back()
        self._record.lap("timing")
        fields: dict[str, Any] = {}
        if self._incumbent is not None:
            fields = {"incumbent": self._incumbent, "faster_than_incumbent": False}
        profile = counted_profile(bound, timing)
        doubt = Doubt(kind=DoubtKind.ROUGH, text=f"timed {ROUGH_SAMPLES} times only: {self._effort.why}")
        return {"doubts": (doubt,), "timing": timing, "baselines": baselines, "profile": profile, **fields}

    def with_others(self, known: dict[str, Timing]) -> dict[str, Timing]:
        """The baselines that the job wants; none is timed for the first time for a roughly measured candidate."""
        names = baselines_of(self._job, self._precision)
        if not names:
            return known
        self._sandbox.release()
        pause(self._device_lock, self._backend)
        case = self._first_case()
        eager = known[self._precision.reference]
        found, notes = self._baselines(case).others(names, eager, only_kept=self._effort.rough)
        case.put_away()
        self._record.notes += notes
        return {**known, **found}

    def _one_sample(self) -> list[float]:
        self._device_lock.breathe()
        return self._sandbox.time([0])

    def _measured(self, work: Work) -> tuple[Timing, Timing, Bound]:
        """All that has to be timed with nobody else on the device, prepared beforehand: candidate and reference."""
        backend = self._backend
        calls = self._prepare(self._sandbox)
        large = not self._checked.variants[0].case.inputs
        seed = derive_seed(self._job.seed, "unseen")
        unseen = UnseenInputs(self._reference, seed, 1 if large else UNSEEN, ahead=not large)
        pause(self._device_lock, backend)
        self._record.lap("preparation")
        breathe = self._device_lock.breathe
        with self._device_lock.alone():
            self._record.lap("waiting to time")
            self._load = HostLoad(self._sandboxes.cpu_s)
            timing = self._timed(calls)
            bound = bound_of(work, backend, self._folder)
            possible(work, bound, timing, backend, self._folder)
            if large:
                self._sandbox.release()
            breathe()
            eager = self._eager()
            breathe()
            unseen_cost_the_same(self._sandbox, unseen, backend, self._load.is_busy, self._effort, breathe)
            self._record.lap("timing")
        self._record.checks.append("unseen inputs cost the same")
        if large:
            self._sandbox.release()
        self._look_back()
        return timing, eager, bound

    def _prepare(self, sandbox: SandboxClient) -> SandboxCalls:
        """Fill a sandbox with model and inputs, ready for timing."""
        variants = self._checked.variants
        sandbox.construct(variants[0].case)
        for index, trial in enumerate(variants):
            sandbox.hold([self._reference.filled(trial.case).inputs], first=index == 0)
            trial.case.put_away()
        return SandboxCalls(sandbox, len(variants), derive_seed(self._job.seed, "timing"))

    def _timed(self, calls: SandboxCalls) -> Timing:
        """Time a prepared sandbox's candidate and make sure that it was the real thing."""
        sandbox, backend = calls.sandbox, self._backend
        timing = time_callable(calls, self._breathing(RemoteClock()), self._timing)
        self._fetch(sandbox)
        self._device_lock.breathe()
        seen_from_outside(sandbox, calls.variants, timing, backend, self._load.is_busy, self._effort)
        self._fetch(sandbox)
        if backend == "cuda":
            self._device_lock.breathe()
            all_work_is_timed(sandbox, calls.variants, timing, self._effort)
        self._record.checks.append("time plausible from outside")
        return timing

    def _fetch(self, sandbox: SandboxClient) -> None:
        """Take outputs of timed calls; large ones are compared at once, since there is no room to keep them."""
        self._outputs += sandbox.fetch()
        if any(is_large(output.tensors) for output in self._outputs):
            self._look_back()

    def _look_back(self) -> None:
        """Compare what timed calls gave; nobody need wait for that."""
        outputs, self._outputs = self._outputs, []
        timed_outputs_right(outputs, self._checked.variants, self._reference)
        self._record.checks.append("timed outputs right")

    def _breathing(self, clock: Clock) -> BreathingClock:
        return BreathingClock(clock, self._device_lock.breathe, self._effort.call_s)

    def _first_case(self) -> Case:
        return self._reference.filled(self._checked.variants[0].case)

    def _eager(self) -> Timing:
        """What the reference takes now, under the switches of its class."""
        case = self._first_case()
        timing = self._baselines(case).reference()
        case.put_away()
        return timing

    def _baselines(self, case: Case) -> Baselines:
        settings = self._job.settings
        return Baselines(
            case.model,
            case.inputs,
            backend=self._backend,
            precision=self._precision,
            tf32=settings.tf32,
            clock=self._breathing(self._clock),
            timing=self._timing,
            store=store_for(self._job, self._folder),
            compile_s=settings.run_timeout_s,
            alone=self._device_lock.alone,
            aside=self._off_device,
        )

    @functools.cached_property
    def _clock(self) -> Clock:
        return clock_for(self._backend)

    @contextlib.contextmanager
    def _off_device(self) -> Iterator[None]:
        """Leave the device to others meanwhile; the time is not that of the evaluation."""
        self._device_lock.leave()
        start = time.monotonic()
        try:
            yield
        finally:
            self._device_lock.waited_s += time.monotonic() - start
            self._device_lock.enter()

    def _timed_again(self, timing: Timing, eager: Timing) -> Timing:
        """A surprising speed-up is measured again in a fresh process, and the slower figure counts.

        They may be far apart without anybody's fault: on a CPU one process returns the pages of an output at each call
        and another keeps them.
        """
        if eager.median_us < _SUSPICIOUS * timing.median_us:
            return timing
        calls = self._prepare(self._sandboxes.fresh(self._job.candidate_source))
        with self._device_lock.alone():
            again = self._timed(calls)
        calls.sandbox.release()
        self._look_back()
        self._record.notes.append(
            f"more than {_SUSPICIOUS:g} times faster than the reference: {timing.median_us:.1f} µs, measured again in "
            f"a fresh process {again.median_us:.1f} µs; the slower counts"
        )
        return max(timing, again, key=lambda value: value.median_us)

    def _against_incumbent(self) -> dict[str, Any]:
        """Candidate and incumbent in turns, each in its own process; a gain must show in two pairs of processes.

        Both times of the comparison that decides are kept: on a busy host the candidate's earlier time and the
        incumbent's would contradict the verdict.
        """
        first = self._compared(self._sandbox)
        verdict = seen_again(first, lambda: self._compared(self._sandboxes.fresh(self._job.candidate_source)))
        if first.faster and not verdict.faster:
            self._record.notes.append(
                f"not surely faster: {first.ratio:.3f}, in other processes {verdict.ratio:.3f} times as fast"
            )
        return {"timing": verdict.candidate, "incumbent": verdict.incumbent, "faster_than_incumbent": verdict.faster}

    def _compared(self, sandbox: SandboxClient) -> Comparison:
        other = self._sandboxes.fresh(self._job.incumbent_source)
        mine, theirs = self._prepare(sandbox), self._prepare(other)
        with self._device_lock.alone():
            found = compare(mine, theirs, self._breathing(RemoteClock()), self._timing)
        sandbox.release()
        other.release()
        return found


def pause(device_lock: DeviceLock, backend: str) -> None:
    """Let others time; give memory back that checking needed, where it is enough to matter to the candidate."""
    device_lock.give_way()
    give_back(backend)


def timing_settings(job: EvaluationJob) -> TimingSettings:
    """The job's limits as timing settings."""
    settings = job.settings
    return TimingSettings(
        min_samples=settings.min_samples, max_samples=settings.max_samples, budget_s=settings.budget_s
    )

"""The measuring stages of one job in order: load, correctness, run-time guard, timing."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from artifacts.measurement import Doubt, Outcome, Timing, unsteady_times
from optimizer.evaluation.device_lock import DeviceLock
from optimizer.evaluation.job import EvaluationJob
from optimizer.evaluation.sandbox.clock import Clock, bind, clock_for
from optimizer.evaluation.sandbox.torch_state import set_precision
from optimizer.evaluation.sandbox.values import split
from optimizer.evaluation.verify.bound import Work
from optimizer.evaluation.verify.correctness import Checked, Correctness
from optimizer.evaluation.verify.effort import FAR_SLOWER, ROUGH_SAMPLES, Effort, limits
from optimizer.evaluation.verify.memory_budget import Sizes
from optimizer.evaluation.verify.oracle import with_own_state
from optimizer.evaluation.verify.plausibility import work_of
from optimizer.evaluation.verify.record import Record
from optimizer.evaluation.verify.reference import Case, Reference
from optimizer.evaluation.verify.runtime_guard import (
    does_the_work,
    kernels_matter,
    observed,
    operators_of,
    own_kernels_run,
)
from optimizer.evaluation.verify.sandbox_client import SandboxClient
from optimizer.evaluation.verify.sandboxes import Sandboxes
from optimizer.evaluation.verify.task_module import blaming_the_task, load_task_module
from optimizer.evaluation.verify.timed_stages import TimedStages, pause
from optimizer.evaluation.verify.timing import timing_of
from optimizer.evaluation.verify.trials import plan

_QUICK_CALLS = 2


class Evaluation:
    """One candidate on one task.

    Args:
        job: what to evaluate.
        sandbox: a fresh process for the candidate.
        more_sandboxes: gives another fresh process.
        scratch: folder for the task's module.
        folder: where measured ceilings and baselines of the device are kept.
        device_lock: of the device, on which others load and check on meanwhile.
        sizes: of the task, where they could be counted.
        guards: whether the run-time guard looks at the candidate.

    Attributes:
        backend: of the job; ``sizes``: of its task.
        sandboxes: all processes of the candidate and the incumbent so far.
        precision: class of the job, as far as it is known: the task's own half type shows when it is there.
        record: what was checked, seen and timed so far.
    """

    def __init__(
        self,
        job: EvaluationJob,
        sandbox: SandboxClient,
        more_sandboxes: Callable[[], SandboxClient],
        *,
        scratch: Path,
        folder: Path,
        device_lock: DeviceLock,
        sizes: Sizes | None = None,
        guards: bool = True,
    ) -> None:
        self._job = job
        self._sandbox = sandbox
        self._scratch = scratch
        self._folder = folder
        self._device_lock = device_lock
        self._guards = guards
        self.backend = job.backend
        self.precision = job.settings.precision_class()
        self.sizes = sizes
        self.sandboxes = Sandboxes(job.backend, sandbox, more_sandboxes, sizes)
        self.record = Record()

    def run(self) -> dict[str, Any]:
        """Fields of a correct measurement. The caller has entered the device lock.

        Raises:
            Failure: any other verdict.
            BadTaskError: the task itself does not work.
        """
        reference = self._begin()
        eager_us = self._first_look(reference)
        self._sandbox.call_s, later_s = self._limits(eager_us)
        correctness = Correctness(reference, self._sandbox, self._job.seed, self.record, self._pause, self._own_s)
        checked = correctness.begin()
        self._sandbox.call_s = self.sandboxes.call_s = later_s
        self.record.lap("first trial")
        effort, incumbent = self._deserved(reference, checked, eager_us)
        self.record.lap("first time")
        try:
            correctness.finish(self._job.settings.seeds, effort.trials_s)
        finally:
            self.record.lap("correctness")
        work = self._guard_work(reference, checked)
        timed = self._timed_stages(reference, checked, effort, incumbent)
        fields = (timed.rough(work) if effort.rough else None) or timed.close(work)
        if self._guards and not self.record.doubts:
            kernels_matter(self._sandbox, checked.variants[0], reference)
            self.record.checks.append("own kernels matter")
        self.record.lap("guards")
        fields["baselines"] = timed.with_others(fields["baselines"])
        fields["doubts"] = (*self.record.doubts, *doubts_of(fields))
        self.record.lap("baselines")
        return {"outcome": Outcome.CORRECT, "stage": "timing", "max_abs_error": checked.max_abs_error, **fields}

    def _begin(self) -> Reference:
        """Both processes take the device, the candidate is loaded, then the task."""
        self.sandboxes.start_first()
        self.record.lap("start")
        self.sandboxes.load_first(self._job.candidate_source)
        self.record.notes += self._sandbox.build_notes
        self.record.lap("load")
        self._device_lock.give_way()
        return self._reference()

    def _reference(self) -> Reference:
        """The task in this process, under the switches of its class."""
        import torch

        settings = self._job.settings
        task = load_task_module(self._job.task_source, self._scratch, settings.dtype)
        set_precision(tf32=settings.tf32)  # after the task, which may have set something else
        torch.set_grad_enabled(False)
        return Reference(task, self._job.backend, tf32=settings.tf32)

    def _classify(self, case: Case) -> None:
        """Name the class by the type of the floating-point inputs, or else of the parameters."""
        tensors = (*split(case.inputs)[1], *case.parameters.values())
        dtypes = (str(tensor.dtype) for tensor in tensors if tensor.dtype.is_floating_point)
        self.precision = self._job.settings.precision_class(next(dtypes, "").removeprefix("torch."))

    def _limits(self, eager_us: float) -> tuple[float, float]:
        compiles = "triton" in self._job.candidate_source
        return limits(self.backend, eager_us / 1e6, compiles=compiles, most_s=self._job.settings.run_timeout_s)

    def _own_s(self) -> float:
        """Seconds of this evaluation, without those that it waited for others."""
        return time.monotonic() - self._device_lock.waited_s

    def _pause(self) -> None:
        pause(self._device_lock, self.backend)

    def _first_look(self, reference: Reference) -> float:
        """Name the precision class of the task, and see about how many microseconds its reference takes."""
        case = reference.case(plan(self._job.seed, 1, awkward=False)[0])
        self._classify(case)
        return self._eager_us(reference, case)

    def _eager_us(self, reference: Reference, case: Case) -> float:
        """Least microseconds of a few calls of the reference, others on the device or not."""
        inputs, model = reference.filled(case).inputs, with_own_state(case.model)
        with blaming_the_task():
            self._clock.measure([lambda: bind(model, lambda: tuple(inputs))])
            return min(self._clock.measure([lambda: bind(model, lambda: tuple(inputs))] * _QUICK_CALLS))

    @functools.cached_property
    def _clock(self) -> Clock:
        return clock_for(self.backend)

    def _deserved(self, reference: Reference, checked: Checked, eager_us: float) -> tuple[Effort, Timing | None]:
        """What the first timed calls say, and the incumbent's time where they needed it.

        Who seems far slower is timed again with nobody else on the device.
        """
        assert checked.first is not None
        case = checked.first.case
        self._sandbox.construct(case)
        self._sandbox.hold([reference.filled(case).inputs])
        call_us = min(self._sandbox.time([0] * _QUICK_CALLS, new=False))
        if call_us > FAR_SLOWER * eager_us:
            with self._device_lock.alone():
                call_us = min(call_us, *self._sandbox.time([0], new=False))
                eager_us = min(eager_us, self._eager_us(reference, case))
        incumbent = None
        if self._job.incumbent_source and call_us > FAR_SLOWER * eager_us:
            incumbent = self._quick_incumbent(reference, case)
        self._sandbox.release()
        case.put_away()
        incumbent_us = incumbent.median_us if incumbent else None
        return Effort.deserved(self.backend, call_us, eager_us, incumbent_us), incumbent

    def _quick_incumbent(self, reference: Reference, case: Case) -> Timing:
        other = self.sandboxes.fresh(self._job.incumbent_source)
        other.construct(case)
        other.hold([reference.filled(case).inputs])
        with self._device_lock.alone():
            timing = timing_of(other.time([0] * ROUGH_SAMPLES))
        other.release()
        return timing

    def _guard_work(self, reference: Reference, checked: Checked) -> Work:
        """See that own kernels do the work; return what there is to do."""
        case = reference.filled(checked.variants[0].case)
        work = work_of(case)
        if self._guards:
            self._observe(case, checked, work)
        case.put_away()
        return work

    def _observe(self, case: Case, checked: Checked, work: Work) -> None:
        self._sandbox.construct(case)
        operators = observed(self._sandbox, case.inputs, self.backend)
        own_kernels_run(checked.kernel_calls, operators)
        finding = does_the_work(operators_of(case.model, case.inputs), operators, work.flops // 2)
        if finding is not None:
            self.record.findings.append(finding)
        self.record.checks.append("own kernels run")

    def _timed_stages(
        self, reference: Reference, checked: Checked, effort: Effort, incumbent: Timing | None
    ) -> TimedStages:
        return TimedStages(
            self._job,
            self.precision,
            self.sandboxes,
            reference,
            checked,
            effort=effort,
            incumbent=incumbent,
            device_lock=self._device_lock,
            folder=self._folder,
            record=self.record,
        )


def doubts_of(fields: Mapping[str, Any]) -> tuple[Doubt, ...]:
    """All that speaks against the times of a correct measurement."""
    timed = {"the candidate": fields["timing"], "the incumbent": fields.get("incumbent"), **fields["baselines"]}
    return (*fields.get("doubts", ()), *unsteady_times(timed))

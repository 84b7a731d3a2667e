"""The task alone: does its reference run here, and would it pass its own check?"""

from __future__ import annotations

from typing import Any

from artifacts.errors import BadTaskError
from artifacts.measurement import Outcome
from optimizer.evaluation.sandbox.clock import clock_for
from optimizer.evaluation.verify.baselines import Baselines, store_for
from optimizer.evaluation.verify.evaluation import Evaluation
from optimizer.evaluation.verify.failure import TASK_STAGE, Failure
from optimizer.evaluation.verify.reference import Case, Reference
from optimizer.evaluation.verify.timing import TimingSettings
from optimizer.evaluation.verify.tolerance import CONTROLS, bounds_of, refuted
from optimizer.evaluation.verify.trials import plan

_QUICK = TimingSettings(min_samples=3, max_samples=20, budget_s=0.1, warmup_s=0.0)
"""Enough to say about how long the reference takes; every candidate is timed beside it anyway."""


class ReferenceAlone(Evaluation):
    """What a job of the reference alone asks for: no candidate, so nothing is loaded into the sandbox."""

    def run(self) -> dict[str, Any]:
        """Fields of a correct measurement; its time is that of the reference.

        Raises:
            Failure: no candidate of this task can be evaluated on this device.
        """
        import torch

        try:
            return self._checked_and_timed()
        except BadTaskError as problem:
            raise Failure(Outcome.RUNTIME_ERROR, TASK_STAGE, problem.what) from problem
        except torch.OutOfMemoryError as problem:
            raise Failure(Outcome.RUNTIME_ERROR, TASK_STAGE, f"the reference does not fit: {problem}") from problem

    def _checked_and_timed(self) -> dict[str, Any]:
        reference = self._reference()
        case = reference.case(plan(self._job.seed, 1, awkward=False)[0])
        self._classify(case)
        if bounds_of(reference.answer(case)) is None:
            what = "the reference's output is random, is not finite, or rounding errors decide it"
            raise BadTaskError(what, "correct the task file")
        if passing := self._passing(reference):
            what = f"the task decides nothing: {' and '.join(sorted(passing))} would pass as output"
            raise BadTaskError(what, "correct the task file")
        self.record.checks.append("the reference passes its own check")
        with self._device_lock.alone():
            timing = self._baselines(case).reference()
        baselines = {self.precision.reference: timing}
        return {"outcome": Outcome.CORRECT, "stage": TASK_STAGE, "timing": timing, "baselines": baselines}

    def _passing(self, reference: Reference) -> frozenset[str]:
        """Trivial outputs that no trial of a candidate would refute; the first trial refutes them as a rule."""
        passing = CONTROLS
        for trial in plan(self._job.seed, 1, reference.has_awkward_shape):
            answer = reference.answer_if_any(reference.case(trial))
            bounds = None if answer is None else bounds_of(answer)
            if answer is not None and bounds is not None:
                passing -= refuted(answer, bounds)
            if not passing:
                break
        return passing

    def _baselines(self, case: Case) -> Baselines:
        return Baselines(
            case.model,
            case.inputs,
            backend=self.backend,
            precision=self.precision,
            tf32=self._job.settings.tf32,
            clock=clock_for(self.backend),
            timing=_QUICK,
            store=store_for(self._job, self._folder),
        )

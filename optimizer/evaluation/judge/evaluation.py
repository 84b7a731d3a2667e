"""The measuring stages of one job in order: load, correctness, timing, run-time guard."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from artifacts.measurement import GuardFinding, Timing
from artifacts.outcome import Outcome
from optimizer.evaluation.baselines import time_baselines
from optimizer.evaluation.bound import Bound
from optimizer.evaluation.clock import clock_for
from optimizer.evaluation.device_memory import give_back, is_large
from optimizer.evaluation.gate import Gate
from optimizer.evaluation.job import EvaluationJob
from optimizer.evaluation.judge.cell_client import Cell, TimedOutput
from optimizer.evaluation.judge.correctness import Checked, Correctness
from optimizer.evaluation.judge.host_load import HostLoad
from optimizer.evaluation.judge.physics import bound_of, counted_profile, possible, work_of
from optimizer.evaluation.judge.reference import Reference
from optimizer.evaluation.judge.remote_clock import CellCalls, RemoteClock
from optimizer.evaluation.judge.runtime_guard import (
    does_the_work,
    kernels_matter,
    observed,
    operators_of,
    own_kernels_run,
)
from optimizer.evaluation.judge.stopwatch import Stopwatch
from optimizer.evaluation.judge.task_module import load_task_module
from optimizer.evaluation.judge.trials import derive_seed
from optimizer.evaluation.judge.watch import (
    UNSEEN,
    UnseenInputs,
    all_work_is_timed,
    seen_from_outside,
    timed_outputs_right,
    unseen_cost_the_same,
)
from optimizer.evaluation.process.values import split
from optimizer.evaluation.timing import Comparison, TimingSettings, compare, seen_again, time_callable

_SUSPICIOUS = 10.0
"""Speed-ups over eager above this are measured again in a fresh process."""
_BASELINE_WARMUP_S = 0.03


class Evaluation:
    """One candidate on one task.

    Args:
        job: what to evaluate.
        cell: a fresh process for the candidate.
        more_cells: gives another fresh process.
        scratch: folder for the task's module.
        folder: where measured ceilings of the device are kept.
        gate: to the device, which others load and check on meanwhile.

    Attributes:
        backend: of the job.
        cells: all processes of the candidate and the incumbent so far.
        watch: seconds by stage.
        checks: what was checked and held so far.
        notes: what a reader must know.
        findings: what the run-time guard saw and let pass.
    """

    def __init__(
        self,
        job: EvaluationJob,
        cell: Cell,
        more_cells: Callable[[], Cell],
        *,
        scratch: Path,
        folder: Path,
        gate: Gate,
    ) -> None:
        self._job = job
        self._cell = cell
        self._more_cells = more_cells
        self._scratch = scratch
        self._folder = folder
        self._gate = gate
        self._settings = timing_settings(job)
        self.backend = job.backend
        self.cells = [cell]
        self._load = HostLoad(self._cpu_s)
        self._outputs: list[TimedOutput] = []
        self.watch = Stopwatch()
        self.checks: list[str] = []
        self.notes: list[str] = []
        self.findings: list[GuardFinding] = []

    def run(self) -> dict[str, Any]:
        """Fields of a correct measurement. The caller has entered the gate.

        Raises:
            Failure: any other verdict.
            BadTaskError: the task itself does not work.
        """
        reference = self._begin()
        checked = Correctness(reference, self._cell, self._job.seed, self._pause).check(self._job.settings.seeds)
        self.checks += checked.checks
        self.notes += checked.notes
        self.watch.lap("correctness")
        self._guard_work(checked)
        timing, baselines, bound = self._measured(reference, checked)
        timing = self._timed_again(timing, baselines["eager"], checked, reference)
        fields = self._against_incumbent(checked) if self._job.incumbent_source else {}
        timing = fields.pop("timing", timing)
        kernels_matter(self._cell, checked.variants[0], reference)
        self.checks.append("own kernels matter")
        self.watch.lap("guards")
        return {
            "outcome": Outcome.CORRECT,
            "stage": "timing",
            "max_abs_error": checked.max_abs_error,
            "timing": timing,
            "baselines": baselines,
            "profile": counted_profile(bound, timing),
            **fields,
        }

    def _begin(self) -> Reference:
        """Both processes take the device, the candidate is loaded, then the task."""
        self._start(self._cell)
        exact_arithmetic()
        self.watch.lap("start")
        self._cell.load(self._job.candidate_source)
        self.notes += self._cell.build_notes
        self.watch.lap("load")
        self._gate.give_way()
        return Reference(load_task_module(self._job.task_source, self._scratch), self._job.backend)

    def _start(self, cell: Cell) -> None:
        """Let the cell start its device, and start our own meanwhile."""
        if self._job.backend == "cuda":
            import torch

            cell.start()
            torch.cuda.synchronize()
            cell.started()

    def _measured(self, reference: Reference, checked: Checked) -> tuple[Timing, dict[str, Timing], Bound]:
        """All that has to be timed with nobody else on the device, prepared beforehand."""
        case, backend = checked.variants[0].case, self._job.backend
        calls = self._prepare(self._cell, checked)
        count = 1 if is_large(split(case.inputs)[1]) else UNSEEN
        unseen = UnseenInputs(reference, derive_seed(self._job.seed, "unseen"), count)
        work = work_of(case)
        self._pause()
        self.watch.lap("preparation")
        with self._gate.alone():
            self.watch.lap("waiting to time")
            self._load = HostLoad(self._cpu_s)
            timing = self._timed(calls, checked, reference)
            bound = bound_of(work, backend, self._folder)
            possible(work, bound, timing, backend, self._folder)
            baselines = self._time_baselines(("eager",), checked)
            unseen_cost_the_same(self._cell, unseen, backend, self._load.is_busy)
            self.watch.lap("timing")
        self.checks.append("unseen inputs cost the same")
        self._look_back(checked, reference)
        others = tuple(name for name in dict.fromkeys(self._job.settings.baselines) if name != "eager")
        baselines |= self._time_baselines(others, checked, self._gate.alone)
        self.watch.lap("baselines")
        return timing, baselines, bound

    def _pause(self) -> None:
        """Let others time; give memory back that checking needed, where it is enough to matter to the candidate."""
        self._gate.give_way()
        give_back(self.backend)

    def _guard_work(self, checked: Checked) -> None:
        case = checked.variants[0].case
        self._construct(self._cell, checked)
        operators = observed(self._cell, case.inputs, self.backend)
        own_kernels_run(checked.kernel_calls, operators)
        products = work_of(case).flops // 2
        finding = does_the_work(operators_of(case.model, case.inputs), operators, products)
        if finding is not None:
            self.findings.append(finding)
        self.checks.append("own kernels run")

    def _construct(self, cell: Cell, checked: Checked) -> None:
        case = checked.variants[0].case
        cell.construct(case.arguments, case.parameters, case.buffers, case.trial.seed)

    def _prepare(self, cell: Cell, checked: Checked) -> CellCalls:
        """Fill a cell with model and inputs, ready for timing."""
        self._construct(cell, checked)
        cell.hold([trial.case.inputs for trial in checked.variants])
        return CellCalls(cell, len(checked.variants), derive_seed(self._job.seed, "timing"))

    def _timed(self, calls: CellCalls, checked: Checked, reference: Reference) -> Timing:
        """Time a prepared cell's candidate and make sure that it was the real thing."""
        cell, backend = calls.cell, self._job.backend
        timing = time_callable(calls, RemoteClock(), self._settings)
        self._outputs += cell.fetch()
        seen_from_outside(cell, len(checked.variants), timing, backend, self._load.is_busy)
        self._outputs += cell.fetch()
        if any(is_large(output.tensors) for output in self._outputs):
            self._look_back(checked, reference)
        if backend == "cuda":
            all_work_is_timed(cell, len(checked.variants), timing)
        self.checks.append("time plausible from outside")
        return timing

    def _look_back(self, checked: Checked, reference: Reference) -> None:
        """Compare what timed calls gave; nobody need wait for that."""
        outputs, self._outputs = self._outputs, []
        timed_outputs_right(outputs, checked.variants, reference)
        self.checks.append("timed outputs right")

    def _time_baselines(
        self,
        names: Sequence[str],
        checked: Checked,
        alone: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> dict[str, Timing]:
        case, backend = checked.variants[0].case, self._job.backend
        settings = self._settings
        if backend == "cuda":  # the candidate has just warmed the device
            settings = dataclasses.replace(settings, warmup_s=_BASELINE_WARMUP_S)
        found, notes = time_baselines(names, case.model, case.inputs, backend, clock_for(backend), settings, alone)
        exact_arithmetic()
        self.notes += notes
        return found

    def _timed_again(self, timing: Timing, eager: Timing, checked: Checked, reference: Reference) -> Timing:
        """A surprising speed-up is measured again in a fresh process, and the slower figure counts.

        They may be far apart without anybody's fault: on a CPU one process returns the pages of an output at each call
        and another keeps them.
        """
        if eager.median_us < _SUSPICIOUS * timing.median_us:
            return timing
        calls = self._prepare(self._fresh(self._job.candidate_source), checked)
        with self._gate.alone():
            again = self._timed(calls, checked, reference)
        self._look_back(checked, reference)
        self.notes.append(
            f"more than {_SUSPICIOUS:g} times faster than eager: {timing.median_us:.1f} µs, measured again in a fresh "
            f"process {again.median_us:.1f} µs; the slower counts"
        )
        return max(timing, again, key=lambda value: value.median_us)

    def _against_incumbent(self, checked: Checked) -> dict[str, Any]:
        """Candidate and incumbent in turns, each in its own process; a gain must show in two pairs of processes.

        Both times of the comparison that decides are kept: on a busy host the candidate's earlier time and the
        incumbent's would contradict the verdict.
        """
        first = self._compared(self._cell, checked)
        verdict = seen_again(first, lambda: self._compared(self._fresh(self._job.candidate_source), checked))
        if first.faster and not verdict.faster:
            self.notes.append(
                f"not surely faster: {first.ratio:.3f}, in other processes {verdict.ratio:.3f} times as fast"
            )
        return {"timing": verdict.candidate, "incumbent": verdict.incumbent, "faster_than_incumbent": verdict.faster}

    def _compared(self, cell: Cell, checked: Checked) -> Comparison:
        other = self._fresh(self._job.incumbent_source)
        mine, theirs = self._prepare(cell, checked), self._prepare(other, checked)
        with self._gate.alone():
            return compare(mine, theirs, RemoteClock(), self._settings)

    def _cpu_s(self) -> float:
        """CPU seconds of this evaluation's processes so far."""
        return time.process_time() + sum(cell.cpu_s() for cell in self.cells)

    def _fresh(self, source: str) -> Cell:
        cell = self._more_cells()
        self.cells.append(cell)
        self._start(cell)
        cell.load(source)
        return cell


def exact_arithmetic() -> None:
    """No TF32 in the judge: references are computed in the precision they state."""
    import torch

    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    torch.set_grad_enabled(False)


def timing_settings(job: EvaluationJob) -> TimingSettings:
    """The job's limits as timing settings."""
    settings = job.settings
    return TimingSettings(
        min_samples=settings.min_samples, max_samples=settings.max_samples, budget_s=settings.budget_s
    )

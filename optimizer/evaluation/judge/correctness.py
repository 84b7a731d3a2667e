"""Correctness: every trial, candidate before and after the reference, inputs and outputs intact."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from artifacts.outcome import Outcome
from optimizer.evaluation.device_memory import give_back, is_large
from optimizer.evaluation.judge.cell_client import Cell, Delivery
from optimizer.evaluation.judge.compare import (
    bounds_of,
    largest_error_of,
    modified_input,
    output_problem,
    same_tensors,
    varied,
)
from optimizer.evaluation.judge.failure import Failure
from optimizer.evaluation.judge.reference import Answer, Case, Reference
from optimizer.evaluation.judge.tolerance import Tolerance, powerless_controls
from optimizer.evaluation.judge.trials import Trial, derive_seed, plan, twins, with_other_numbers
from optimizer.evaluation.process.values import split

STAGE = "correctness"
_CONTROLS = frozenset({"zeros", "mean"})
_LARGE_VARIANTS = 2
"""Enough for a draw that the candidate can not foresee, where more would fill the device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainTrial:
    """Inputs as the task gives them and what may deviate from the reference's answer to them.

    Attributes:
        held: that answer, None where it is too large to be kept.
        ask: gives it again.
    """

    case: Case
    bounds: list[Tolerance | None]
    held: Answer | None
    ask: Callable[[], Answer]

    @property
    def answer(self) -> Answer:
        """What the reference says."""
        return self.ask() if self.held is None else self.held


@dataclass(slots=True, kw_only=True)
class Checked:
    """What the trials showed.

    Attributes:
        checks: names of what was tried and held.
        notes: what could not be tried and why.
        max_abs_error: over all plain trials.
        plain: the trials with plain seeds, while they are under way.
        variants: one model on the inputs of all plain trials; timing draws from them.
        kernel_calls: calls into own kernels that the candidate's process counted in one call.
    """

    checks: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    max_abs_error: float = 0.0
    plain: list[PlainTrial] = field(default_factory=list)
    variants: list[PlainTrial] = field(default_factory=list)
    kernel_calls: int = 0


class Correctness:
    """Runs the trials of one candidate.

    Args:
        reference: the task.
        cell: the candidate.
        secret: hidden seeds derive from it.
        pause: called between trials, when nothing runs.
    """

    def __init__(self, reference: Reference, cell: Cell, secret: int, pause: Callable[[], None] = lambda: None) -> None:
        self._pause = pause
        self._reference = reference
        self._cell = cell
        self._secret = secret
        self._decisive: set[str] = set()
        self._packs = False

    def check(self, seeds: int) -> Checked:
        """Run all trials.

        Raises:
            Failure: the candidate is wrong, or the task can not tell right from wrong.
        """
        checked = Checked()
        for trial in plan(self._secret, seeds, self._reference.has_awkward_shape):
            self._run(trial, checked)
            self._pause()
        if self._reference.has_numbers(checked.plain[0].case):
            self._run(with_other_numbers(self._secret), checked)
        missing = _CONTROLS - self._decisive
        if missing:
            raise Failure(
                Outcome.INFRA_ERROR,
                STAGE,
                f"the task can not be refereed: {' and '.join(sorted(missing))} would pass as output",
            )
        checked.variants = self._variants(checked)
        checked.plain = []
        self._twice(checked)
        self._near_twins(checked)
        return checked

    def _run(self, trial: Trial, checked: Checked) -> None:
        """One trial; once a candidate has shown that it packs drawn parameters when constructed, they stay as drawn."""
        if not trial.perturb:
            return self._try(trial, checked)
        try:
            self._try(dataclasses.replace(trial, drawn=self._packs), checked)
        except Failure as failure:
            if self._packs or failure.outcome is not Outcome.WRONG_RESULT or not self._packed(trial, checked):
                raise
        return None

    def _packed(self, trial: Trial, checked: Checked) -> bool:
        """Whether a failed trial holds with parameters as the constructor drew them."""
        drawn = dataclasses.replace(trial, drawn=True)
        if not self._reference.draws_parameters(self._reference.case(dataclasses.replace(trial, perturb=False))):
            return False
        try:
            self._try(drawn, checked)
        except Failure:
            return False
        self._packs = True
        checked.notes.append("not tried: other values of drawn parameters (ModelNew packs them when it is constructed)")
        return True

    def _try(self, trial: Trial, checked: Checked) -> None:
        case = self._reference.case(trial)
        mapping = self._construct(case)
        if trial.perturb and mapping == "none":
            self._unmapped(case, checked)
            return
        try:
            first = self._call(case)
        except Failure as failure:
            excusable = not trial.required and failure.outcome is Outcome.RUNTIME_ERROR
            if not excusable or self._reference.answer_if_any(case) is not None:
                raise
            self._leave_out(trial, checked)
            return
        answer = self._reference.answer_if_any(case)
        bounds = None if answer is None else bounds_of(answer)
        if answer is None or bounds is None:
            self._leave_out(trial, checked)
            return
        self._compare(trial, first, answer, bounds, "")
        self._again(case, first, answer, bounds)
        self._note_power(answer, bounds)
        checked.checks.append(trial.name)
        if trial.required and not trial.awkward:
            checked.max_abs_error = max(checked.max_abs_error, largest_error_of(first.tensors, answer))
            if not (_is_large(answer) and len(checked.plain) >= _LARGE_VARIANTS):
                checked.plain.append(self._plain_trial(case, answer, bounds))
            checked.kernel_calls = int(first.extra.get("kernel_calls", 0))

    def _again(self, case: Case, first: Delivery, answer: Answer, bounds: list[Tolerance | None]) -> None:
        """The same call after the reference has run; its tensors are gone when this returns."""
        again = self._call(case)
        if not same_tensors(first.tensors, again.tensors):
            self._compare(case.trial, again, answer, bounds, " on the second call with the same inputs")

    def _construct(self, case: Case) -> str:
        return self._cell.construct(case.arguments, case.parameters, case.buffers, case.trial.seed)

    def _call(self, case: Case) -> Delivery:
        give_back(self._reference.device)
        delivery = self._cell.call(case.inputs)
        changed = modified_input(case, delivery.inputs)
        if changed is not None:
            raise Failure(Outcome.WRONG_RESULT, STAGE, f"the candidate modifies input {changed}")
        state = delivery.extra.get("state")
        if state:
            raise Failure(Outcome.REJECTED, STAGE, f"the candidate changes global state: {'; '.join(map(str, state))}")
        return dataclasses.replace(delivery, inputs=[])  # the answer needs the room

    def _compare(
        self, trial: Trial, delivery: Delivery, answer: Answer, bounds: list[Tolerance | None], when: str
    ) -> None:
        problem = output_problem(delivery.facts, delivery.tensors, answer, bounds, self._reference.device)
        if problem:
            raise Failure(Outcome.WRONG_RESULT, STAGE, f"{problem} ({trial.name}{when})")

    def _note_power(self, answer: Answer, bounds: list[Tolerance | None]) -> None:
        """Remember which trivial outputs this trial has refuted."""
        if len(self._decisive) == len(_CONTROLS):
            return
        for exact, bound in zip(answer.exact_tensors, bounds, strict=True):
            if bound is None:
                self._decisive |= _CONTROLS if varied(exact) else frozenset()
            else:
                self._decisive |= _CONTROLS - powerless_controls(exact, bound)

    def _leave_out(self, trial: Trial, checked: Checked) -> None:
        if trial.required:
            raise Failure(
                Outcome.INFRA_ERROR,
                STAGE,
                "the task can not be refereed: its reference is not finite or ill-conditioned",
            )
        checked.notes.append(f"not tried: {trial.name} (reference fails, is not finite or ill-conditioned there)")

    def _unmapped(self, case: Case, checked: Checked) -> None:
        """The candidate holds its parameters in another form; say so, or refuse where that hides constants."""
        constant = [name for name, value in case.parameters.items() if _constant_at_birth(case, name, value)]
        if constant:
            raise Failure(
                Outcome.WRONG_RESULT,
                STAGE,
                f"parameters of Model ({', '.join(constant)}) can not be copied into ModelNew: "
                "keep their names, or their order and shapes",
            )
        checked.notes.append(f"not tried: {case.trial.name} (parameters of ModelNew have other shapes)")

    def _variants(self, checked: Checked) -> list[PlainTrial]:
        """The first plain trial's model on the inputs of every plain trial."""
        first = checked.plain[0].case
        variants = [checked.plain[0]]
        for other in checked.plain[1:]:
            case = dataclasses.replace(first, inputs=other.case.inputs)
            answer = self._reference.answer(case)
            bounds = bounds_of(answer)
            if bounds is not None:
                variants.append(self._plain_trial(case, answer, bounds))
            self._pause()
        return variants

    def _plain_trial(self, case: Case, answer: Answer, bounds: list[Tolerance | None]) -> PlainTrial:
        held = None if _is_large(answer) else answer
        return PlainTrial(case=case, bounds=bounds, held=held, ask=lambda: self._reference.answer(case))

    def _twice(self, checked: Checked) -> None:
        """Same input addresses, other contents: nothing may be kept from the call before."""
        if len(checked.variants) < 2:
            return
        first, second = checked.variants[:2]
        self._construct(first.case)
        delivery = self._cell.call([first.case.inputs, second.case.inputs], mode="twice")
        parts = delivery.parts()
        if len(parts) != 2:
            raise Failure(Outcome.WRONG_RESULT, STAGE, "the candidate's process broke the protocol")
        problem = self._problem(second, parts[1])
        if problem:
            raise Failure(Outcome.WRONG_RESULT, STAGE, f"stale result when inputs change in place: {problem}")
        problem = self._problem(first, parts[0])
        if problem:
            raise Failure(Outcome.WRONG_RESULT, STAGE, f"an output is overwritten by the next call: {problem}")
        checked.checks.append("two calls on the same addresses")

    def _near_twins(self, checked: Checked) -> None:
        """Inputs seen before with some elements changed: an answer must not be known by a part of its question."""
        if len(checked.variants) < 2 or is_large(split(checked.variants[0].case.inputs)[1]):
            return
        first, second = (trial.case for trial in checked.variants[:2])
        for inputs in twins(first.inputs, second.inputs, derive_seed(self._secret, "twins")):
            case = dataclasses.replace(first, inputs=inputs)
            answer = self._reference.answer(case)
            bounds = bounds_of(answer)
            if bounds is None:
                continue
            self._construct(first)
            self._call(first)
            self._compare(first.trial, self._call(case), answer, bounds, ", some elements changed: a stale result")
            self._pause()
        checked.checks.append("inputs changed in part")

    def _problem(self, trial: PlainTrial, part: tuple[dict[str, Any], list[Any]]) -> str:
        return output_problem(*part, trial.answer, trial.bounds, self._reference.device)


def _is_large(answer: Answer) -> bool:
    """Whether answers are better computed again than kept."""
    return is_large([*answer.exact_tensors, *answer.native_tensors])


def _constant_at_birth(case: Case, name: str, value: Any) -> bool:
    return name in case.parameters and value.numel() > 1 and bool((value == value.flatten()[0]).all())

"""Correctness: every trial, candidate before and after the reference, inputs and outputs intact."""

from __future__ import annotations

import dataclasses
import math
import random
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from artifacts.measurement import Doubt, DoubtKind, Outcome
from optimizer.evaluation.sandbox.digest import digests
from optimizer.evaluation.sandbox.torch_state import give_back, is_large
from optimizer.evaluation.sandbox.values import split
from optimizer.evaluation.verify.failure import Failure
from optimizer.evaluation.verify.record import Record
from optimizer.evaluation.verify.reference import Answer, Case, Reference
from optimizer.evaluation.verify.sandbox_client import Delivery, SandboxClient
from optimizer.evaluation.verify.tolerance import (
    CONTROLS,
    Tolerance,
    bounds_of,
    contents_problem,
    largest_error_of,
    output_problem,
    refuted,
    same_tensors,
    shares_of,
)
from optimizer.evaluation.verify.trials import Trial, derive_seed, plan, twins, with_other_numbers

STAGE = "correctness"
_NAMED = 5
_KEY_BITS = 62
_LEAST_SEEDS = 2
_LEAST_TRANSFORMS = 2
"""Tried however dear they are; the secret decides which."""


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
        max_abs_error: over all plain trials.
        first: the first plain trial.
        plain: the others with plain seeds.
        variants: one model on the inputs of all plain trials, or of the first one where inputs fill the device;
            timing draws from them.
        kernel_calls: calls into own kernels that the candidate's process counted in one call.
    """

    max_abs_error: float = 0.0
    first: PlainTrial | None = None
    plain: list[Trial] = field(default_factory=list)
    variants: list[PlainTrial] = field(default_factory=list)
    kernel_calls: int = 0


class Correctness:
    """Runs the trials of one candidate: :meth:`begin` the first one, :meth:`finish` the others.

    Args:
        reference: the task.
        sandbox: the candidate.
        secret: hidden seeds derive from it.
        record: is told what was tried and held, and what could not be tried and why.
        pause: called between trials, when nothing runs.
        clock: seconds that trials took, waits aside.
    """

    def __init__(
        self,
        reference: Reference,
        sandbox: SandboxClient,
        secret: int,
        record: Record,
        pause: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pause = pause
        self._clock = clock
        self._reference = reference
        self._sandbox = sandbox
        self._secret = secret
        self._record = record
        self._decisive: set[str] = set()
        self._packs = False
        self._cost_s = math.inf
        self.checked = Checked()

    def begin(self) -> Checked:
        """Run the first trial.

        Raises:
            Failure: the candidate is wrong there.
        """
        self._timed(plan(self._secret, 1, awkward=False)[0])
        return self.checked

    def finish(self, seeds: int, budget_s: float) -> Checked:
        """Run the other trials; those that may be left out as far as ``budget_s`` seconds carry.

        Raises:
            Failure: the candidate is wrong, or the task can not tell right from wrong.
        """
        checked = self.checked
        trials = plan(self._secret, seeds, self._reference.has_awkward_shape)[1:]
        plain = [trial for trial in trials if trial.required and not trial.awkward]
        for trial in plain[: self._affordable(len(plain), budget_s, _LEAST_SEEDS - 1)]:
            self._timed(trial)
        others = [trial for trial in trials if trial not in plain]
        for trial in self._chosen(others, budget_s):
            self._timed(trial)
        has_numbers = self._reference.has_numbers(self._reference.filled(self._first.case))
        self._first.case.put_away()
        if has_numbers:
            self._timed(with_other_numbers(self._secret))
        missing = CONTROLS - self._decisive
        if missing:
            text = f"the task decides nothing: {' and '.join(sorted(missing))} would pass as output"
            self._record.doubts.append(Doubt(kind=DoubtKind.UNDECIDED, text=text))
        checked.variants = self._variants()
        self._twice()
        self._near_twins()
        return checked

    @property
    def _first(self) -> PlainTrial:
        assert self.checked.first is not None
        return self.checked.first

    def _timed(self, trial: Trial) -> None:
        """One trial; the cheapest one so far says what another one costs."""
        start = self._clock()
        self._run(trial)
        self._cost_s = min(self._cost_s, self._clock() - start)
        self._pause()

    def _affordable(self, wanted: int, budget_s: float, least: int) -> int:
        return max(min(int(budget_s / max(self._cost_s, 1e-9)), wanted), least)

    def _chosen(self, trials: list[Trial], budget_s: float) -> list[Trial]:
        """Trials that are required or perturb parameters alone, and of the others as many as the budget carries.

        A task without parameters has more seeds instead, as far as the budget carries.
        """
        optional = [trial for trial in trials if trial.transform != "as given"]
        count = self._affordable(len(optional), budget_s, _LEAST_TRANSFORMS)
        if count >= len(optional):
            return trials
        drawn = random.Random(derive_seed(self._secret, "transforms")).sample(optional, count)
        left = [trial.transform for trial in optional if trial not in drawn]
        self._record.note(f"not tried, since a trial takes {self._cost_s:.1f} s: inputs {', '.join(left)}")
        case = self._first.case
        kept = [trial for trial in trials if trial.required or case.parameters or case.buffers]
        return [trial for trial in trials if trial in drawn or (trial in kept and trial not in optional)]

    def _run(self, trial: Trial) -> None:
        """One trial; once a candidate has shown that it packs drawn parameters when constructed, they stay as drawn."""
        if not trial.perturb:
            return self._try(trial)
        try:
            self._try(dataclasses.replace(trial, drawn=self._packs))
        except Failure as failure:
            if self._packs or failure.outcome is not Outcome.WRONG_RESULT or not self._packed(trial):
                raise
        return None

    def _packed(self, trial: Trial) -> bool:
        """Whether a failed trial holds with parameters as the constructor drew them."""
        drawn = dataclasses.replace(trial, drawn=True)
        if not self._reference.draws_parameters(self._reference.case(dataclasses.replace(trial, perturb=False))):
            return False
        try:
            self._try(drawn)
        except Failure:
            return False
        self._packs = True
        self._record.note("not tried: other values of drawn parameters (ModelNew holds them in another form)")
        return True

    def _try(self, trial: Trial) -> None:
        case, left = self._constructed(trial)
        if left and trial.perturb and not trial.drawn:
            raise Failure(
                Outcome.WRONG_RESULT,
                STAGE,
                f"parameters of Model ({', '.join(left[:_NAMED])}) can not be copied into ModelNew: "
                "keep their names, or their order and shapes",
            )
        try:
            first = self._call(case)
        except Failure as failure:
            excusable = not trial.required and failure.outcome is Outcome.RUNTIME_ERROR
            if not excusable or self._reference.answer_if_any(case) is not None:
                raise
            self._leave_out(trial)
            return
        large = is_large([*split(case.inputs)[1], *first.tensors])
        again = self._repeated(case, first) if large and trial.required else None
        answer = self._reference.answer_if_any(case)
        bounds = None if answer is None else bounds_of(answer, anyway=trial.required)
        if answer is None or bounds is None:
            self._leave_out(trial)
            return
        self._record.note(answer.note)
        try:
            self._compare(trial, first, answer, bounds, "")
            if not large:
                again = self._repeated(case, first)
            if again is not None:
                self._compare(trial, again, answer, bounds, " on the second call with the same inputs")
        except Failure:
            if trial.required or not self._trembles(case, answer, bounds):
                raise
            self._leave_out(trial)
            return
        self._note_power(answer, bounds)
        self._record.checks.append(trial.name)
        if trial.required and not trial.awkward:
            self._keep(case, first, answer, bounds)
        case.put_away()

    def _trembles(self, case: Case, answer: Answer, bounds: list[Tolerance | None]) -> bool:
        """Whether the reference itself fails, called again on inputs that differ by no more than rounding errors."""
        return any(contents_problem(tensors, answer, bounds) for tensors in self._reference.nearby(case))

    def _keep(self, case: Case, first: Delivery, answer: Answer, bounds: list[Tolerance | None]) -> None:
        """Remember a plain trial: the first one whole, of the others what their inputs are drawn from."""
        checked = self.checked
        checked.max_abs_error = max(checked.max_abs_error, largest_error_of(first.tensors, answer))
        checked.kernel_calls = int(first.extra.get("kernel_calls", 0))
        if checked.first is None:
            self._reference.learn(shares_of(answer))
            checked.first = self._plain_trial(case, answer, bounds)
        else:
            checked.plain.append(case.trial)

    def _repeated(self, case: Case, first: Delivery) -> Delivery | None:
        """The same call once more, None when it gives the same; at once where the device has no room for later."""
        again = self._call(case)
        return None if same_tensors(first.tensors, again.tensors) else again

    def _constructed(self, trial: Trial) -> tuple[Case, tuple[str, ...]]:
        """A trial's case and the parameters that found no place in the candidate.

        A candidate that can only be constructed on the host draws other numbers there; where these stay, the reference
        has to draw them there too.
        """
        case = self._reference.case(trial)
        built = self._sandbox.construct(case)
        if built.left and built.on_host and not case.on_host:
            self._reference.construct_on_host()
            case = self._reference.case(trial)
            built = self._sandbox.construct(case)
        return case, built.left

    def _call(self, case: Case) -> Delivery:
        give_back(self._reference.device)
        inputs = self._reference.filled(case).inputs
        delivery = self._sandbox.call(inputs)
        key = secrets.randbits(_KEY_BITS)
        tensors = split(inputs)[1]
        left = self._sandbox.digests(key)
        if left != (given := digests(tensors, key)):
            changed = next(
                (index for index, (one, other) in enumerate(zip(left, given, strict=False)) if one != other), 0
            )
            raise Failure(Outcome.WRONG_RESULT, STAGE, f"the candidate modifies input {changed}")
        state = delivery.extra.get("state")
        if state:
            raise Failure(Outcome.REJECTED, STAGE, f"the candidate changes global state: {'; '.join(map(str, state))}")
        return delivery

    def _compare(
        self, trial: Trial, delivery: Delivery, answer: Answer, bounds: list[Tolerance | None], when: str
    ) -> None:
        problem = output_problem(delivery.facts, delivery.tensors, answer, bounds, self._reference.device)
        if problem:
            raise Failure(Outcome.WRONG_RESULT, STAGE, f"{problem} ({trial.name}{when})")

    def _note_power(self, answer: Answer, bounds: list[Tolerance | None]) -> None:
        """Remember which trivial outputs this trial has refuted."""
        if len(self._decisive) == len(CONTROLS):
            return
        self._decisive |= refuted(answer, bounds)

    def _leave_out(self, trial: Trial) -> None:
        if trial.required:
            raise Failure(
                Outcome.INFRA_ERROR,
                STAGE,
                "the task cannot be evaluated: its reference is not finite",
            )
        self._record.note(f"not tried: {trial.name} (reference fails, is not finite or ill-conditioned there)")

    def _variants(self) -> list[PlainTrial]:
        """The first plain trial's model on the inputs of every plain trial."""
        first = self._first
        variants = [first]
        if is_large(split(self._reference.filled(first.case).inputs)[1]):
            first.case.put_away()
            return variants
        for trial in self.checked.plain:
            case = self._reference.with_inputs_of(first.case, trial)
            answer = self._reference.native_answer(case)
            bounds = bounds_of(answer)
            if bounds is not None:
                variants.append(self._plain_trial(case, answer, bounds))
            self._pause()
        return variants

    def _plain_trial(self, case: Case, answer: Answer, bounds: list[Tolerance | None]) -> PlainTrial:
        held = None if _is_large(answer) else answer
        return PlainTrial(case=case, bounds=bounds, held=held, ask=lambda: self._reference.native_answer(case))

    def _twice(self) -> None:
        """Same input addresses, other contents: nothing may be kept from the call before."""
        if not self.checked.plain:
            return
        first = self._first
        self._sandbox.construct(first.case)
        self._sandbox.call(self._reference.filled(first.case).inputs, mode="twice")
        first.case.put_away()
        case = self._reference.with_inputs_of(first.case, self.checked.plain[0])
        parts = self._sandbox.call(case.inputs, mode="again").parts()
        if len(parts) != 2:
            raise Failure(Outcome.WRONG_RESULT, STAGE, "the candidate's process broke the protocol")
        answer = self._reference.native_answer(case)
        case.put_away()
        if bounds := bounds_of(answer):
            problem = output_problem(*parts.pop(), answer, bounds, self._reference.device)
            if problem:
                raise Failure(Outcome.WRONG_RESULT, STAGE, f"stale result when inputs change in place: {problem}")
        del answer
        problem = output_problem(*parts[0], first.answer, first.bounds, self._reference.device)
        first.case.put_away()
        if problem:
            raise Failure(Outcome.WRONG_RESULT, STAGE, f"an output is overwritten by the next call: {problem}")
        self._record.checks.append("two calls on the same addresses")

    def _near_twins(self) -> None:
        """Inputs seen before with some elements changed: an answer must not be known by a part of its question."""
        if len(self.checked.variants) < 2:
            return
        first, second = (trial.case for trial in self.checked.variants[:2])
        for inputs in twins(first.inputs, second.inputs, derive_seed(self._secret, "twins")):
            case = dataclasses.replace(first, inputs=inputs)
            answer = self._reference.native_answer(case)
            bounds = bounds_of(answer)
            if bounds is None:
                continue
            self._sandbox.construct(first)
            self._call(first)
            self._compare(first.trial, self._call(case), answer, bounds, ", some elements changed: a stale result")
            self._pause()
        self._record.checks.append("inputs changed in part")


def _is_large(answer: Answer) -> bool:
    """Whether answers are better computed again than kept."""
    return is_large([*answer.exact_tensors, *answer.native_tensors])

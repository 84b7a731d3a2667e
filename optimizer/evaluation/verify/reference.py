"""The reference: inputs, parameters and outputs in fp64 and in the task's own precision."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from artifacts.errors import BadTaskError
from optimizer.evaluation.sandbox.candidate import constructed
from optimizer.evaluation.sandbox.clock import scaled
from optimizer.evaluation.sandbox.digest import digests
from optimizer.evaluation.sandbox.torch_state import is_large
from optimizer.evaluation.sandbox.values import map_tensors, nbytes, split
from optimizer.evaluation.verify.memory_budget import PEAK
from optimizer.evaluation.verify.oracle import Exact, Loss, Oracle, rms, with_own_state
from optimizer.evaluation.verify.task_module import TaskModule, blaming_the_task
from optimizer.evaluation.verify.trials import Trial, in_parts, other_numbers, perturb_, transformed

_DEVICE_TROUBLE = re.compile(r"memory|CUDA error", re.IGNORECASE)
"""In what a model fails with: says nothing about its inputs."""
_NUDGES = 10
"""Enough to see nearly every pair of equal numbers change places."""
_NUDGE = 4.0
"""Of the last bit."""
_TREMBLES = 4
_ROUNDING = 0.5
"""Of the last bit."""
_DIGEST_KEY = 1


@dataclass(slots=True, kw_only=True)
class Case:
    """A trial made concrete: what the candidate is given and what the reference makes of it.

    Attributes:
        trial: of the model; ``drawn``: of the inputs.
        inputs: empty while they are put away to save room, see :meth:`Reference.filled`.
        on_host: whether the model was constructed on the host and moved.
    """

    trial: Trial
    drawn: Trial
    arguments: list[Any]
    inputs: list[Any]
    model: Any
    parameters: dict[str, Any] = field(default_factory=dict)
    buffers: dict[str, Any] = field(default_factory=dict)
    on_host: bool = True

    def put_away(self) -> None:
        """Forget inputs that fill a device; others stay."""
        if is_large(split(self.inputs)[1]):
            self.inputs = []


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The reference's output: its structure, tensors in fp64 and in native precision (same order).

    Attributes:
        open_to: for a tensor of integers, where the reference itself answers otherwise when its inputs move by a
            rounding error, such as the place of the largest of equal numbers; None for others.
        losses: where native tensors stand in for fp64 ones, what is known of their loss; None otherwise.
        note: how the fp64 tensors were had, where that was not the plain way.
        tf32: whether TF32 was allowed to the native tensors.
    """

    native: Any
    exact_tensors: list[Any]
    native_tensors: list[Any]
    aliases_input: bool
    open_to: list[Any] = field(default_factory=list)
    losses: list[Loss | None] | None = None
    note: str = ""
    tf32: bool = False


class Reference:
    """Runs the task's ``Model``; deterministic for a seed.

    Args:
        task: the loaded task.
        device: where to compute: ``cpu`` or ``cuda``.
        tf32: whether this process allows TF32.
    """

    def __init__(self, task: TaskModule, device: str, oracle: Oracle | None = None, *, tf32: bool = False) -> None:
        self._task = task
        self._tf32 = tf32
        self.device = device
        self._draws_on = device
        self._constructs_on = device
        self._oracle = oracle or Oracle(device, tf32=tf32)
        self._changes_inputs: bool | None = None
        self._shares: list[Loss | None] | None = None

    @property
    def has_awkward_shape(self) -> bool:
        """True when the task names a second shape."""
        return self._task.awkward_inputs is not None

    def has_numbers(self, case: Case) -> bool:
        """Whether the inputs hold numbers beside tensors."""
        template, others = split(case.inputs)[0], split(other_numbers(case.inputs))[0]
        return bool(template != others)

    def case(self, trial: Trial) -> Case:
        """Inputs and parameters of a trial, on the reference's device.

        Raises:
            BadTaskError: the task's functions fail.
        """
        import torch

        with blaming_the_task(), torch.no_grad():
            torch.manual_seed(trial.seed)
            arguments = list(self._task.init_inputs())
            inputs = self._inputs_of(trial)
            model = self._constructed(trial.seed, arguments)
            if trial.perturb:
                perturb_(model, trial.seed + 2, self._constants(model, trial.seed) if trial.drawn else None)
            parameters, buffers = _state(model)
        return Case(
            trial=trial,
            drawn=trial,
            arguments=arguments,
            inputs=inputs,
            model=model,
            parameters=parameters,
            buffers=buffers,
            on_host=self._constructs_on == "cpu",
        )

    def with_inputs_of(self, case: Case, trial: Trial) -> Case:
        """The model of a case on the inputs of another trial."""
        return dataclasses.replace(case, drawn=trial, inputs=self._inputs_of(trial))

    def filled(self, case: Case) -> Case:
        """The case with its inputs, drawn again where they were put away."""
        if not case.inputs:
            case.inputs = self._inputs_of(case.drawn)
        return case

    def scaled(self, case: Case, factor: float) -> Case:
        """The case with floating-point inputs times a factor, in place of the given ones where these fill a device."""
        inputs = self.filled(case).inputs
        tensors = split(inputs)[1]
        if not is_large(tensors):
            return dataclasses.replace(case, inputs=scaled(inputs, factor))
        case.inputs = []
        for tensor in tensors:
            if tensor.dtype.is_floating_point:
                tensor.mul_(factor)
        return dataclasses.replace(case, inputs=inputs)

    def construct_on_host(self) -> None:
        """Construct models on the host from now on, as a candidate does that can not be constructed on the device."""
        self._constructs_on = "cpu"

    def _inputs_of(self, trial: Trial) -> list[Any]:
        make_inputs = self._task.awkward_inputs if trial.awkward else self._task.inputs
        assert make_inputs is not None
        inputs = transformed(self._made(make_inputs, trial.seed + 1), trial.transform)
        return other_numbers(inputs) if trial.numbers else inputs

    def _constructed(self, seed: int, arguments: list[Any]) -> Any:
        """The model for a seed, its parameters drawn where the candidate's are."""
        import torch

        model, device = constructed(self._task.model, arguments, seed, self._constructs_on)
        self._constructs_on = device
        assert isinstance(model, torch.nn.Module)
        return model.to(self.device)

    def _constants(self, model: Any, seed: int) -> set[str]:
        """Parameters and buffers that another seed would not change."""
        import torch

        torch.manual_seed(seed + 3)
        others = _named(self._constructed(seed + 3, list(self._task.init_inputs())))
        return {name for name, value in _named(model).items() if name in others and torch.equal(value, others[name])}

    def draws_parameters(self, case: Case) -> bool:
        """Whether the constructor draws some parameter from the seed."""
        import torch

        with torch.no_grad():
            return not set(case.parameters) <= self._constants(case.model, case.trial.seed)

    def inputs(self, seed: int) -> list[Any]:
        """Inputs as the task gives them for a seed, on the reference's device."""
        return self._made(self._task.inputs, seed)

    def answer(self, case: Case) -> Answer:
        """Run the reference natively and in fp64."""
        return self._answer(case, self._oracle.exact)

    def learn(self, shares: list[Loss | None]) -> None:
        """Remember what the native output loses, as shares of its RMS, for :meth:`native_answer`."""
        self._shares = shares

    def native_answer(self, case: Case) -> Answer:
        """Run the reference natively alone, with the loss that was learnt in place of fp64.

        For calls that repeat what trials held against fp64: a stale, foreign or less precise output shows as well.
        """
        shares = self._shares
        if shares is None:
            return self.answer(case)

        def known(model: Any, inputs: list[Any], native: list[Any], intermediates: int) -> Exact:
            losses = [share and share.times(rms(tensor)) for share, tensor in zip(shares, native, strict=True)]
            return Exact(tensors=native, losses=losses)

        return self._answer(case, known)

    def _answer(self, case: Case, exact_of: Callable[[Any, list[Any], list[Any], int], Exact | None]) -> Answer:
        import torch

        with torch.no_grad():
            inputs = self.filled(case).inputs
            with blaming_the_task():
                native, aliases, intermediates = self._native(case.model, inputs)
                native_tensors = split(native)[1]
                exact = exact_of(case.model, inputs, native_tensors, intermediates)
                open_to = self._open_to(case, native_tensors)
        exact = exact or Exact(tensors=[_wide(tensor) for tensor in native_tensors])
        return Answer(
            native=native,
            exact_tensors=exact.tensors,
            native_tensors=native_tensors,
            aliases_input=aliases,
            open_to=open_to,
            losses=exact.losses,
            note=exact.note,
            tf32=self._tf32,
        )

    def _native(self, model: Any, inputs: list[Any]) -> tuple[Any, bool, int]:
        """The output, whether it shares memory with an input, and the bytes that came and went on the way.

        The model gets copies of the inputs, or the inputs themselves where these fill a device and a digest says
        that it leaves them alone.
        """
        tensors = split(inputs)[1]
        large = is_large(tensors)
        before = digests(tensors, _DIGEST_KEY) if large and self._changes_inputs is None else None
        given = inputs if large and not self._changes_inputs else _cloned(inputs)
        with PEAK.inside() as taken:
            native = with_own_state(model)(*given)
            peak = taken()
        if before is not None:
            self._changes_inputs = digests(tensors, _DIGEST_KEY) != before
            if self._changes_inputs:
                raise BadTaskError("the reference changes its inputs, and they are too large to be copied")
        storages = {tensor.untyped_storage().data_ptr() for tensor in split(given)[1]}
        outputs = split(native)[1]
        aliases = any(tensor.untyped_storage().data_ptr() in storages for tensor in outputs)
        return native, aliases, max(peak - nbytes(outputs), 0)

    def answer_if_any(self, case: Case) -> Answer | None:
        """The same; None where the model refuses inputs that the task does not give."""
        try:
            return self.answer(case)
        except BadTaskError as problem:
            if case.trial.required or _DEVICE_TROUBLE.search(str(problem)):
                raise
            return None

    def _open_to(self, case: Case, native: list[Any]) -> list[Any]:
        """See :class:`Answer`."""
        import torch

        if all(tensor.dtype.is_floating_point for tensor in native):
            return []
        found = [None if each.dtype.is_floating_point else torch.zeros_like(each, dtype=torch.bool) for each in native]
        for _ in range(_NUDGES):
            moved = self._moved_by(case, _NUDGE)
            for mask, before, after in zip(found, native, moved, strict=True):
                if mask is not None:
                    mask |= before != after
        return found

    def nearby(self, case: Case) -> Iterator[list[Any]]:
        """Native output tensors for inputs that differ from those of the case by no more than rounding errors."""
        import torch

        with torch.no_grad():
            self.filled(case)
            for _ in range(_TREMBLES):
                yield self._moved_by(case, _ROUNDING)

    def _moved_by(self, case: Case, bits: float) -> list[Any]:
        """Native output tensors for inputs moved by so many of their last bit."""
        found: list[Any] = split(with_own_state(case.model)(*map_tensors(case.inputs, lambda x: _nudged(x, bits))))[1]
        return found

    def _made(self, make: Callable[[], Any], seed: int) -> list[Any]:
        """Inputs drawn on the device itself, which is a hundred times faster; on the host where the task objects."""
        import torch

        if self._draws_on != "cpu":
            torch.manual_seed(seed)
            try:
                with torch.device(self._draws_on):
                    return self._moved(list(make()))
            except (RuntimeError, TypeError, ValueError):
                self._draws_on = "cpu"
        torch.manual_seed(seed)
        return self._moved(list(make()))

    def _moved(self, inputs: list[Any]) -> list[Any]:
        result: list[Any] = map_tensors(inputs, lambda tensor: tensor.to(self.device))
        return result


def _nudged(tensor: Any, bits: float) -> Any:
    """Each floating-point number moved by at most so many of its last bit."""
    import torch

    if not tensor.dtype.is_floating_point:
        return tensor.clone()
    step = bits * torch.finfo(tensor.dtype).eps
    return in_parts(
        tensor,
        lambda part: part * (1 + step * (2 * torch.rand_like(part, dtype=torch.float32) - 1).double()).to(part.dtype),
    )


def _named(model: Any) -> dict[str, Any]:
    return {
        **dict(model.named_parameters(remove_duplicate=False)),
        **dict(model.named_buffers(remove_duplicate=False)),
    }


def _state(model: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Parameters, which no run changes, and copies of buffers, which one may."""
    parameters = {name: value.detach() for name, value in model.named_parameters(remove_duplicate=False)}
    buffers = {name: value.detach().clone() for name, value in model.named_buffers(remove_duplicate=False)}
    return parameters, buffers


def _wide(tensor: Any) -> Any:
    return tensor.double() if tensor.dtype.is_floating_point else tensor


def _cloned(inputs: list[Any]) -> list[Any]:
    result: list[Any] = map_tensors(inputs, lambda tensor: tensor.clone())
    return result

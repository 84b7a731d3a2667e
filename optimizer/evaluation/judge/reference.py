"""The reference: inputs, parameters and outputs in fp64 and in the task's own precision."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from artifacts.errors import BadTaskError
from optimizer.evaluation.judge.task_module import TaskModule
from optimizer.evaluation.judge.trials import Trial, other_numbers, perturb_, transformed
from optimizer.evaluation.process.values import map_tensors, split

_DEVICE_TROUBLE = re.compile(r"memory|CUDA error", re.IGNORECASE)
"""In what a model fails with: says nothing about its inputs."""
_NUDGES = 10
"""Enough to see nearly every pair of equal numbers change places."""
_NUDGE = 4.0
"""Of the last bit."""


@dataclass(slots=True, kw_only=True)
class Case:
    """A trial made concrete: what the candidate is given and what the reference makes of it."""

    trial: Trial
    arguments: list[Any]
    inputs: list[Any]
    model: Any
    parameters: dict[str, Any] = field(default_factory=dict)
    buffers: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The reference's output: its structure, tensors in fp64 and in native precision (same order).

    ``open_to``: for a tensor of integers, where the reference itself answers otherwise when its inputs move by a
    rounding error, such as the place of the largest of equal numbers; None for others.
    """

    native: Any
    exact_tensors: list[Any]
    native_tensors: list[Any]
    aliases_input: bool
    open_to: list[Any] = field(default_factory=list)


class Reference:
    """Runs the task's ``Model``; deterministic for a seed.

    Args:
        task: the loaded task.
        device: where to compute: ``cpu`` or ``cuda``.
    """

    def __init__(self, task: TaskModule, device: str) -> None:
        self._task = task
        self.device = device
        self._draws_on = device

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

        make_inputs = self._task.awkward_inputs if trial.awkward else self._task.inputs
        assert make_inputs is not None
        try:
            with torch.no_grad():
                torch.manual_seed(trial.seed)
                arguments = list(self._task.init_inputs())
                inputs = transformed(self._made(make_inputs, trial.seed + 1), trial.transform)
                if trial.numbers:
                    inputs = other_numbers(inputs)
                torch.manual_seed(trial.seed)
                model = self._task.model(*arguments).to(self.device)
                parameters, buffers = _state(model)
                if trial.perturb:
                    perturb_(model, trial.seed + 2, self._constants(model, trial.seed) if trial.drawn else None)
                    parameters, buffers = _state(model)
        except Exception as problem:
            raise BadTaskError(f"task fails: {type(problem).__name__}: {problem}", "correct the task file") from problem
        return Case(
            trial=trial,
            arguments=arguments,
            inputs=inputs,
            model=model,
            parameters=parameters,
            buffers=buffers,
        )

    def _constants(self, model: Any, seed: int) -> set[str]:
        """Parameters and buffers that another seed would not change."""
        import torch

        torch.manual_seed(seed + 3)
        other = self._task.model(*self._task.init_inputs()).to(self.device)
        others = {name: value for part in _state(other) for name, value in part.items()}
        ours = {name: value for part in _state(model) for name, value in part.items()}
        return {name for name, value in ours.items() if name in others and torch.equal(value, others[name])}

    def draws_parameters(self, case: Case) -> bool:
        """Whether the constructor draws some parameter from the seed."""
        import torch

        with torch.no_grad():
            return not set(case.parameters) <= self._constants(case.model, case.trial.seed)

    def inputs(self, seed: int) -> list[Any]:
        """Inputs as the task gives them for a seed, on the reference's device."""
        return self._made(self._task.inputs, seed)

    def answer(self, case: Case) -> Answer:
        """Run the reference twice, natively and in fp64; both on copies."""
        import torch

        with torch.no_grad():
            inputs = _cloned(case.inputs)
            try:
                native = copy.deepcopy(case.model)(*inputs)
                storages = {tensor.untyped_storage().data_ptr() for tensor in split(inputs)[1]}
                aliases = any(tensor.untyped_storage().data_ptr() in storages for tensor in split(native)[1])
                del inputs
                exact = self._exact(case)
                open_to = self._open_to(case, split(native)[1])
            except Exception as problem:
                raise BadTaskError(
                    f"task fails: {type(problem).__name__}: {problem}", "correct the task file"
                ) from problem
        native_tensors = split(native)[1]
        exact_tensors = native_tensors if exact is None else split(exact)[1]
        return Answer(
            native=native,
            exact_tensors=[tensor.double() if tensor.dtype.is_floating_point else tensor for tensor in exact_tensors],
            native_tensors=native_tensors,
            aliases_input=aliases,
            open_to=open_to,
        )

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
            moved = split(copy.deepcopy(case.model)(*map_tensors(case.inputs, _nudged)))[1]
            for mask, before, after in zip(found, native, moved, strict=True):
                if mask is not None:
                    mask |= before != after
        return found

    def _exact(self, case: Case) -> Any:
        """The output in fp64; None when the model insists on its own precision."""
        try:
            return copy.deepcopy(case.model).double()(*_doubled(case.inputs))
        except (RuntimeError, TypeError, NotImplementedError):
            return None

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


def _nudged(tensor: Any) -> Any:
    """Each floating-point number moved by a few of its last bit."""
    import torch

    if not tensor.dtype.is_floating_point:
        return tensor.clone()
    step = _NUDGE * torch.finfo(tensor.dtype).eps
    return tensor * (1 + step * (2 * torch.rand_like(tensor, dtype=torch.float32) - 1).double()).to(tensor.dtype)


def _state(model: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    parameters = {name: value.detach().clone() for name, value in model.named_parameters(remove_duplicate=False)}
    buffers = {name: value.detach().clone() for name, value in model.named_buffers(remove_duplicate=False)}
    return parameters, buffers


def _cloned(inputs: list[Any]) -> list[Any]:
    result: list[Any] = map_tensors(inputs, lambda tensor: tensor.clone())
    return result


def _doubled(inputs: list[Any]) -> list[Any]:
    """Copies, floating-point ones in fp64."""
    import torch

    result: list[Any] = map_tensors(
        inputs, lambda tensor: tensor.to(torch.float64 if tensor.dtype.is_floating_point else tensor.dtype, copy=True)
    )
    return result

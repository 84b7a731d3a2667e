"""What the judge may ask of a candidate: load, construct, call, and time calls."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from optimizer.evaluation.arguments import FreshArguments, bind
from optimizer.evaluation.cell.facts import facts_of
from optimizer.evaluation.cell.frozen import frozen
from optimizer.evaluation.cell.global_state import global_state
from optimizer.evaluation.cell.kernels import OwnKernels
from optimizer.evaluation.cell.module import import_candidate
from optimizer.evaluation.cell.parameters import adopt
from optimizer.evaluation.cell.poison import poisoned
from optimizer.evaluation.cell.record import recorded_operators
from optimizer.evaluation.clock import clock_for, lingering_us
from optimizer.evaluation.device_memory import give_back
from optimizer.evaluation.process.transport import receiver_for
from optimizer.evaluation.process.values import split

Reply = tuple[dict[str, Any], list[int]]
_KEEP = 2
"""Outputs of timed calls that are kept for the judge to look at."""
_FURTHER_CALLS = 6
_FURTHER_S = 1.0


class CandidateError(Exception):
    """The candidate broke the contract; ``kind`` is the outcome's value."""

    def __init__(self, kind: str, text: str) -> None:
        self.kind = kind
        super().__init__(text)


class Session:
    """One candidate in this process.

    The torch functions used around its calls are looked up before it is loaded.
    """

    def __init__(self, *, backend: str, scratch: Path, kernels: OwnKernels) -> None:
        self._backend = backend
        self._scratch = scratch
        self._kernels = kernels
        self._receiver = receiver_for(backend)
        self._module: Any = None
        self._model: Any = None
        self._variants: list[FreshArguments] = []
        self._kept: list[tuple[int, Any]] = []
        self._clock: Any = None
        self._state_before: Mapping[str, str] = {}
        self._handlers: dict[str, Callable[[dict[str, Any], list[int]], Reply]] = {
            "load": self._load,
            "construct": self._construct,
            "call": self._call,
            "twice": self._twice,
            "observe": self._observe,
            "void": self._without_kernels,
            "echo": self._without_kernels,
            "hold": self._hold,
            "time": self._time,
            "run": self._run,
            "fetch": self._fetch,
            "linger": self._linger,
        }

    def handle(self, message: dict[str, Any], fds: list[int]) -> Reply:
        """Dispatch one request; exceptions of the candidate pass through."""
        return self._handlers[str(message["do"])](message, fds)

    def _load(self, message: dict[str, Any], _fds: list[int]) -> Reply:
        self._state_before = global_state(self._backend)
        module = import_candidate(message["source"], self._scratch)
        if not isinstance(getattr(module, "ModelNew", None), type):
            raise CandidateError("compile_error", "the candidate does not define a class ModelNew")
        self._module = module
        return {}, []

    def _construct(self, message: dict[str, Any], fds: list[int]) -> Reply:
        import torch

        arguments, parameters, buffers = self._receiver.unpack(message["values"], fds)
        torch.manual_seed(message["seed"])
        with torch.no_grad():
            model = self._module.ModelNew(*arguments)
            if not isinstance(model, torch.nn.Module):
                raise CandidateError("runtime_error", f"ModelNew is no torch.nn.Module but {type(model).__name__}")
            self._model = model.to(self._device())
            mapping = adopt(self._model, parameters, buffers)
        return {"mapping": mapping}, []

    def _call(self, message: dict[str, Any], fds: list[int]) -> Reply:
        give_back(self._backend)
        inputs = self._receiver.unpack(message["values"], fds)
        calls = self._kernels.calls
        with poisoned(self._backend):
            output = self._forward(inputs)
            self._synchronise()
        extra = {"kernel_calls": self._kernels.calls - calls, "state": self._changed_state()}
        return self._deliver(output, inputs, extra)

    def _twice(self, message: dict[str, Any], fds: list[int]) -> Reply:
        """Two calls on the same input tensors with other contents; both outputs as they are after a few more calls."""
        first, second = self._receiver.unpack(message["values"], fds)
        output = self._forward(first)
        self._synchronise()
        for target, source in zip(split(first)[1], split(second)[1], strict=True):
            target.copy_(source)
        again = self._forward(first)
        self._synchronise()
        until = time.monotonic() + _FURTHER_S
        for _ in range(_FURTHER_CALLS):  # a ring of kept buffers comes round
            if time.monotonic() < until:
                self._forward(first)
        self._synchronise()
        return self._deliver([output, again], first, {})

    def _observe(self, message: dict[str, Any], fds: list[int]) -> Reply:
        """The operators of a call, on a CPU with inputs that can not be written."""
        inputs = self._receiver.unpack(message["values"], fds)
        if self._backend == "cpu":
            inputs = frozen(inputs)
        operators = recorded_operators(lambda: self._forward(inputs))
        return {"operators": [[each.namespace, each.name, each.work] for each in operators]}, []

    def _without_kernels(self, message: dict[str, Any], fds: list[int]) -> Reply:
        """A call in which own kernels have no effect (``void``), or give back what they are given (``echo``)."""
        inputs = self._receiver.unpack(message["values"], fds)
        with poisoned(self._backend), self._kernels.replaced(echo=message["do"] == "echo"):
            output = self._forward(inputs)
            self._synchronise()
        return self._deliver(output, inputs, {"own_results": self._kernels.own_results})

    def _hold(self, message: dict[str, Any], fds: list[int]) -> Reply:
        """Keep one more input variant for timing; the first one replaces all before."""
        if message["first"]:
            self._variants, self._kept = [], []
            give_back(self._backend)
        values = self._receiver.unpack(message["values"], fds)
        self._variants.append(FreshArguments(values, seed=len(self._variants)))
        self._clock = self._clock or clock_for(self._backend)
        return {}, []

    def _time(self, message: dict[str, Any], _fds: list[int]) -> Reply:
        """Cold-cache samples in microseconds, one for each variant index in ``order``."""
        self._kept = []
        return {"samples_us": self._clock.measure(self._prepares(message))}, []

    def _run(self, message: dict[str, Any], _fds: list[int]) -> Reply:
        """Back-to-back calls; the judge holds the watch."""
        self._kept = []
        calls = [prepare() for prepare in self._prepares(message)]
        for turn in range(message["count"]):
            calls[turn % len(calls)]()
        self._synchronise()
        return {}, []

    def _linger(self, message: dict[str, Any], _fds: list[int]) -> Reply:
        """Microseconds for which the device is busy after calls that are over, and after no call."""
        calls = [lingering_us(prepare()) for prepare in self._prepares(message)]
        nothing = [lingering_us(lambda: None) for _ in message["order"]]
        return {"calls_us": calls, "nothing_us": nothing}, []

    def _prepares(self, message: dict[str, Any]) -> list[Callable[[], Callable[[], object]]]:
        """Each call of a request: a variant's inputs, times a factor that makes them new."""
        calls = enumerate(zip(message["order"], message["factors"], strict=True))
        return [self._prepared(place, index, factor) for place, (index, factor) in calls]

    def _prepared(self, place: int, index: int, factor: float) -> Callable[[], Callable[[], object]]:
        def prepare() -> Callable[[], object]:
            call = bind(self._forward_values, lambda: self._variants[index](factor))

            def timed() -> object:
                output = call()
                self._keep(place, output)
                return output

            return timed

        return prepare

    def _keep(self, place: int, output: object) -> None:
        self._kept.append((place, output))
        if len(self._kept) > _KEEP:
            del self._kept[0]

    def _fetch(self, _message: dict[str, Any], _fds: list[int]) -> Reply:
        """The outputs of the last timed calls with their places in the request."""
        kept, self._kept = self._kept, []
        return self._deliver([output for _, output in kept], [], {"calls": [place for place, _ in kept]})

    def _forward_values(self, *values: object) -> object:
        import torch

        with torch.no_grad():
            return self._model(*values)

    def _forward(self, inputs: Sequence[object]) -> object:
        return self._forward_values(*inputs)

    def _deliver(self, output: object, inputs: Sequence[object], extra: dict[str, Any]) -> Reply:
        """Outputs and the inputs as the candidate left them."""
        facts, tensors = facts_of(output, inputs)
        reply, fds = self._receiver.deliver(tensors, split(list(inputs))[1])
        return {"output": facts, **reply, **extra}, fds

    def _changed_state(self) -> list[str]:
        now = global_state(self._backend)
        return [f"{name}: {old} → {now[name]}" for name, old in self._state_before.items() if now[name] != old]

    def _device(self) -> str:
        return self._backend

    def _synchronise(self) -> None:
        if self._backend == "cuda":
            import torch

            torch.cuda.synchronize()

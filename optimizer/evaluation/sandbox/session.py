"""What the verifier may ask of a candidate: load, construct, call and time calls; and what an output is."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from optimizer.evaluation.sandbox.candidate import adopt, constructed, import_candidate
from optimizer.evaluation.sandbox.clock import FreshArguments, bind, clock_for, lingering_us
from optimizer.evaluation.sandbox.digest import digests
from optimizer.evaluation.sandbox.own_kernels import OwnKernels, frozen, poisoned
from optimizer.evaluation.sandbox.recording import recorded_operators
from optimizer.evaluation.sandbox.torch_state import give_back, global_state, release, set_precision
from optimizer.evaluation.sandbox.transport import SandboxEnd
from optimizer.evaluation.sandbox.values import split, tensors_in

Reply = dict[str, Any]
_KEEP = 2
"""Outputs of timed calls that are kept for the verifier to look at."""
_FURTHER_CALLS = 6
_FURTHER_S = 1.0
_KEEPING = frozenset({"put", "pull", "digest"})
"""Requests that go on with what the one before left."""
_RELEASING = frozenset({"construct", "call", "digest", "pull", "again", "observe", "void", "echo", "release"})
"""Requests after which memory that torch keeps is better given back; what is timed keeps it."""


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
        self.source = ""
        self._backend = backend
        self._scratch = scratch
        self._kernels = kernels
        self._shared = SandboxEnd(backend)
        self._inputs: list[Any] = []
        self._module: Any = None
        self._model: Any = None
        self._dtype: Any = None
        self._variants: list[FreshArguments] = []
        self._kept: list[tuple[int, Any]] = []
        self._clock: Any = None
        self._first: Any = None
        self._first_output: Any = None
        self._state_before: Mapping[str, str] = {}
        self._handlers: dict[str, Callable[[dict[str, Any]], Reply]] = {
            "load": self._load,
            "construct": self._construct,
            "call": self._call,
            "digest": self._digest,
            "twice": self._twice,
            "again": self._again,
            "observe": self._observe,
            "void": self._without_kernels,
            "echo": self._without_kernels,
            "hold": self._hold,
            "time": self._time,
            "run": self._run,
            "fetch": self._fetch,
            "linger": self._linger,
            "release": self._release,
            "put": self._put,
            "pull": self._pull,
        }

    def handle(self, message: dict[str, Any], fds: list[int]) -> Reply:
        """Dispatch one request; exceptions of the candidate pass through."""
        self._shared.use(message, fds)
        if message["do"] not in _KEEPING:
            self._inputs = []
            self._shared.forget()
        reply = self._handlers[str(message["do"])](message)
        if message["do"] in _RELEASING and self._backend == "cuda":
            reply["peak_bytes"] = give_back(self._backend)
        return reply

    def _put(self, message: dict[str, Any]) -> Reply:
        """A part of values that come with the request after it."""
        if "tensors" in message:
            self._inputs = []
            self._shared.forget()
        self._shared.put(message)
        return {}

    def _pull(self, message: dict[str, Any]) -> Reply:
        """A part of the output of the request before it."""
        self._shared.pull(message)
        return {}

    def _digest(self, message: dict[str, Any]) -> Reply:
        """The inputs of the last call, as it left them."""
        found = digests(self._inputs, message["key"])
        self._inputs = []
        return {"digests": found}

    def _release(self, _message: dict[str, Any]) -> Reply:
        """Let go of what is held for timing."""
        self._variants, self._kept, self._clock = [], [], None
        release(self._backend)
        return {}

    def _load(self, message: dict[str, Any]) -> Reply:
        """Import the candidate under the switches of the job's precision class, which it must leave as they are."""
        import torch

        set_precision(tf32=message["tf32"])
        self._dtype = getattr(torch, message["dtype"]) if message["dtype"] else None
        self._state_before = global_state(self._backend)
        self.source = message["source"]
        module = import_candidate(self.source, self._scratch)
        if not isinstance(getattr(module, "ModelNew", None), type):
            raise CandidateError("compile_error", "the candidate does not define a class ModelNew")
        self._module = module
        return {}

    def _construct(self, message: dict[str, Any]) -> Reply:
        import torch

        arguments, parameters, buffers = self._shared.unpack(message["values"])
        self._model = None
        device = "cpu" if message["on_host"] else self._backend
        with torch.no_grad():
            model, device = constructed(self._module.ModelNew, arguments, message["seed"], device)
            if not isinstance(model, torch.nn.Module):
                raise CandidateError("runtime_error", f"ModelNew is no torch.nn.Module but {type(model).__name__}")
            self._model = model.to(self._backend, self._dtype)
            left = adopt(self._model, parameters, buffers)
        return {"left": left, "on_host": device == "cpu"}

    def _call(self, message: dict[str, Any]) -> Reply:
        inputs = self._shared.unpack(message["values"])
        calls = self._kernels.calls
        with poisoned(self._backend):
            output = self._forward(inputs)
            self._synchronise()
        extra = {"kernel_calls": self._kernels.calls - calls, "state": self._changed_state()}
        self._inputs = split(inputs)[1]
        return self._deliver(output, inputs, extra)

    def _twice(self, message: dict[str, Any]) -> Reply:
        """The first of two calls on the same input tensors; tensors and output stay for the second one."""
        self._first = self._shared.unpack(message["values"])
        self._first_output = self._forward(self._first)
        self._synchronise()
        return {"output": {"kind": "other"}, "tensors": self._shared.offer([])}

    def _again(self, message: dict[str, Any]) -> Reply:
        """The same tensors with other contents; both outputs as they are after a few more calls."""
        first, output = self._first, self._first_output
        self._first = self._first_output = None
        second = self._shared.unpack(message["values"])
        for target, source in zip(split(first)[1], split(second)[1], strict=True):
            target.copy_(source)
        del second
        again = self._forward(first)
        self._synchronise()
        until = time.monotonic() + _FURTHER_S
        for _ in range(_FURTHER_CALLS):  # a ring of kept buffers comes round
            if time.monotonic() < until:
                self._forward(first)
        self._synchronise()
        return self._deliver([output, again], first, {})

    def _observe(self, message: dict[str, Any]) -> Reply:
        """The operators of a call, on a CPU with inputs that can not be written."""
        inputs = self._shared.unpack(message["values"])
        if self._backend == "cpu":
            inputs = frozen(inputs)
        operators = recorded_operators(lambda: self._forward(inputs))
        return {"operators": [[each.namespace, each.name, each.work] for each in operators]}

    def _without_kernels(self, message: dict[str, Any]) -> Reply:
        """A call in which own kernels have no effect (``void``), or give back what they are given (``echo``)."""
        inputs = self._shared.unpack(message["values"])
        with poisoned(self._backend), self._kernels.replaced(echo=message["do"] == "echo"):
            output = self._forward(inputs)
            self._synchronise()
        return self._deliver(output, inputs, {"own_results": self._kernels.own_results})

    def _hold(self, message: dict[str, Any]) -> Reply:
        """Keep one more input variant for timing; the first one replaces all before."""
        if message["first"]:
            self._variants, self._kept = [], []
            give_back(self._backend)
        values = self._shared.unpack(message["values"])
        self._variants.append(FreshArguments(values, seed=len(self._variants)))
        self._clock = self._clock or clock_for(self._backend)
        return {}

    def _time(self, message: dict[str, Any]) -> Reply:
        """Cold-cache samples in microseconds, one for each variant index in ``order``."""
        self._kept = []
        return {"samples_us": self._clock.measure(self._prepares(message))}

    def _run(self, message: dict[str, Any]) -> Reply:
        """Back-to-back calls; the verifier holds the watch."""
        self._kept = []
        calls = [prepare() for prepare in self._prepares(message)]
        for turn in range(message["count"]):
            calls[turn % len(calls)]()
        self._synchronise()
        return {}

    def _linger(self, message: dict[str, Any]) -> Reply:
        """Microseconds for which the device is busy after calls that are over, and after no call."""
        calls = [lingering_us(prepare()) for prepare in self._prepares(message)]
        nothing = [lingering_us(lambda: None) for _ in message["order"]]
        return {"calls_us": calls, "nothing_us": nothing}

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

    def _fetch(self, _message: dict[str, Any]) -> Reply:
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
        """An output: its description, and its tensors on their way."""
        facts, tensors = facts_of(output, inputs)
        return {"output": facts, "tensors": self._shared.offer(tensors), **extra}

    def _changed_state(self) -> list[str]:
        now = global_state(self._backend)
        return [f"{name}: {old} → {now[name]}" for name, old in self._state_before.items() if now[name] != old]

    def _synchronise(self) -> None:
        if self._backend == "cuda":
            import torch

            torch.cuda.synchronize()


def facts_of(output: object, inputs: object) -> tuple[dict[str, Any], list[Any]]:
    """Describe a nested output as JSON-ready data, with its tensors in order of appearance."""
    storages = {tensor.untyped_storage().data_ptr() for tensor in tensors_in(inputs) if tensor.numel()}
    tensors: list[Any] = []
    return _facts(output, storages, tensors), tensors


def _facts(item: object, storages: set[int], tensors: list[Any]) -> dict[str, Any]:
    import torch

    if isinstance(item, torch.Tensor):
        fact = tensor_fact(item, storages)
        if fact["kind"] == "tensor":
            tensors.append(item)
        return fact
    if isinstance(item, (list, tuple)):
        return {"kind": "sequence", "items": [_facts(part, storages, tensors) for part in item]}
    if isinstance(item, dict):
        parts = {str(key): _facts(part, storages, tensors) for key, part in item.items()}
        return {"kind": "mapping", "items": parts}
    return {"kind": "other", "type": type(item).__name__, "value": repr(item)[:200]}


def tensor_fact(tensor: Any, storages: set[int]) -> dict[str, Any]:
    """One tensor; anything but a plain strided ``torch.Tensor`` is of kind ``odd``."""
    import torch

    plain = type(tensor) is torch.Tensor and tensor.layout == torch.strided and not tensor.is_meta
    fact: dict[str, Any] = {
        "kind": "tensor" if plain else "odd",
        "type": type(tensor).__name__,
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "shape": list(tensor.shape),
        "device": tensor.device.type,
    }
    if plain:
        fact["aliases_input"] = bool(tensor.numel()) and tensor.untyped_storage().data_ptr() in storages
    return fact

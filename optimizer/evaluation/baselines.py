"""What a candidate is compared with, timed in the same run: the reference, run four ways.

``eager`` in full float32, ``eager_tf32``, ``compile`` (``torch.compile``) and ``cuda_graph``. Each
way runs between a snapshot and a restoration of torch's global state.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from artifacts.measurement import Timing
from optimizer.evaluation.arguments import FreshArguments, bind
from optimizer.evaluation.clock import Call, Clock
from optimizer.evaluation.snapshot import GlobalState
from optimizer.evaluation.timing import TimingSettings, time_callable

if TYPE_CHECKING:
    import torch

Model = Callable[..., object]

NAMES = ("eager", "eager_tf32", "compile", "cuda_graph")
"""All baselines; the last two fall out on the CPU or where torch cannot do them."""


class BaselineUnavailableError(RuntimeError):
    """This baseline does not exist on this backend or for this model; the message says why."""


def time_baselines(
    names: Sequence[str],
    model: torch.nn.Module,
    inputs: Sequence[object],
    backend: str,
    clock: Clock,
    settings: TimingSettings,
    alone: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
) -> tuple[dict[str, Timing], tuple[str, ...]]:
    """Time the named baselines.

    Args:
        model: the reference on its device; ``inputs``: its positional arguments there.
        alone: entered around each timing, but not around what comes before it (compilation).

    Returns:
        Timings by name, and a note for each baseline that could not be had.
    """
    found: dict[str, Timing] = {}
    notes: list[str] = []
    for name in names:
        with GlobalState.preserved(backend):
            try:
                with _prepared(name, model, inputs, backend) as prepare, alone():
                    found[name] = time_callable(prepare, clock, settings)
            except BaselineUnavailableError as problem:
                notes.append(f"baseline {name}: {problem}")
    return found, tuple(notes)


@contextmanager
def _prepared(
    name: str, model: torch.nn.Module, inputs: Sequence[object], backend: str
) -> Iterator[Callable[[], Call]]:
    """What to time for a baseline, its settings in force."""
    import torch

    if name not in NAMES:
        raise BaselineUnavailableError(f"unknown, one of {', '.join(NAMES)}")
    arguments = FreshArguments(inputs)
    with torch.no_grad():
        _precision(tf32=name == "eager_tf32")
        if name == "compile":
            yield _bound(_compiled(model, inputs), arguments)
        elif name == "cuda_graph":
            yield _graphed(model, inputs, backend)
        else:
            yield _bound(model, arguments)


def _bound(model: Model, arguments: FreshArguments) -> Callable[[], Call]:
    import torch

    def prepare() -> Call:
        call = bind(model, arguments)

        def timed() -> object:
            with torch.no_grad():
                return call()

        return timed

    return prepare


def _precision(*, tf32: bool) -> None:
    import torch

    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32


def _compiled(model: torch.nn.Module, inputs: Sequence[object]) -> Model:
    """The model through ``torch.compile``, compiled here so that timing does not see it."""
    import torch

    compiled = torch.compile(model)
    try:
        compiled(*inputs)
    except (RuntimeError, torch._dynamo.exc.TorchDynamoException) as problem:
        raise BaselineUnavailableError(f"torch.compile: {str(problem).splitlines()[0]}") from problem
    return compiled


def _graphed(model: torch.nn.Module, inputs: Sequence[object], backend: str) -> Callable[[], Call]:
    """Replay of a captured run; inputs stay where they were captured, as a graph's must."""
    import torch

    if backend != "cuda":
        raise BaselineUnavailableError("needs a CUDA device")
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.stream(side):
            for _ in range(3):
                model(*inputs)
        torch.cuda.current_stream().wait_stream(side)
        with torch.cuda.graph(graph):
            model(*inputs)
    except RuntimeError as problem:
        raise BaselineUnavailableError(f"capture: {str(problem).splitlines()[0]}") from problem
    return lambda: graph.replay

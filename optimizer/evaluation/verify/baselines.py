"""What a candidate is compared with: the reference, run in several ways.

The reference as it was judged (:attr:`artifacts.measurement.Precision.reference`) is timed in every evaluation, beside
the candidate: scores, paired comparisons and the look at surprising speedups need a figure of the same minutes. Every
other baseline is timed once for all that it depends on (task, type, switches, device, versions of torch and CUDA), in
turns with that reference, and both times are kept. Later evaluations take their ratio times what the reference takes
there: a device that is warmer today, or another one of the same name, moves both sides alike. Compiling a baseline is
what costs, and it happens once; nothing else that is kept could be had cheaper or truer by measuring it again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import FrameType
from typing import Any

from artifacts.measurement import Precision, Timing
from optimizer.evaluation.job import EvaluationJob
from optimizer.evaluation.kept_file import content_hash, keep, read_kept
from optimizer.evaluation.sandbox.clock import Call, Clock, FreshArguments, bind
from optimizer.evaluation.sandbox.torch_state import GlobalState, set_precision
from optimizer.evaluation.verify.bound import device_name
from optimizer.evaluation.verify.timing import Prepare, TimingSettings, compare, time_callable

_FAILURE_HOLDS_S = 3600.0
"""Why a baseline cannot be had is asked again after that: somebody may have installed a compiler."""
_PAIR_S = 2.0
"""What the fewest calls of a pair may take; a slow reference is called less often."""
_FEWEST = 4
_WARMUP_S = 0.03
"""On a CUDA device, which the candidate has just warmed."""


class BaselineUnavailableError(RuntimeError):
    """This baseline does not exist on this backend or for this model; the message says why.

    ``lasting``: whether the next candidate need not try again.
    """

    def __init__(self, message: str, *, lasting: bool = True) -> None:
        self.lasting = lasting
        super().__init__(message)


def baselines_of(job: EvaluationJob, precision: Precision) -> tuple[str, ...]:
    """Names of the baselines that a job wants beside the reference.

    Unasked these are the others of the class and, on a CUDA device, PyTorch as installed. On a CPU, which knows no TF32
    and no graphs and takes longer to compile than to run, the reference is enough.
    """
    wanted = job.settings.baselines
    if wanted is None:
        wanted = () if job.backend == "cpu" else ("eager", *precision.baselines)
    return tuple(name for name in dict.fromkeys(wanted) if name != precision.reference)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A baseline and the reference, timed in turns."""

    baseline: Timing
    reference: Timing

    def at(self, reference: Timing) -> Timing:
        """The baseline's time where the reference takes ``reference``; it has no samples of its own."""
        factor = reference.median_us / self.reference.median_us
        low, middle, high = (
            factor * value for value in (self.baseline.low_us, self.baseline.median_us, self.baseline.high_us)
        )
        return Timing(median_us=middle, low_us=low, high_us=high)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    """What the folder holds of one baseline: a pair, or why there is none."""

    pair: Pair | None = None
    problem: str = ""


class BaselineStore:
    """Pairs by the content that they depend on, one file each.

    Args:
        folder: of the files, made when needed.
        content: everything that the times depend on, names of baselines aside.
    """

    def __init__(self, folder: Path, content: Sequence[object]) -> None:
        self._folder = folder
        self._content = list(content)

    def find(self, name: str) -> Pair | None:
        """The pair of a baseline; None when it is not known or its file cannot be read.

        Raises:
            BaselineUnavailableError: there was none less than an hour ago.
        """
        path = self._path(name)
        kept = read_kept(_Kept, path)
        if kept is None:
            return None
        if kept.pair is None and time.time() - path.stat().st_mtime < _FAILURE_HOLDS_S:
            raise BaselineUnavailableError(kept.problem)
        return kept.pair

    def keep(self, name: str, pair: Pair | None, problem: str = "") -> None:
        """Remember a pair, or why there is none."""
        keep(self._path(name), _Kept(pair=pair, problem=problem))

    def _path(self, name: str) -> Path:
        return self._folder / f"{content_hash(name, *self._content)}.json"


def store_for(job: EvaluationJob, folder: Path) -> BaselineStore:
    """Where the baselines of a job's task are kept, below ``folder``."""
    import torch

    settings = job.settings
    arithmetic = (settings.dtype, settings.tf32)
    versions = (device_name(job.backend), torch.__version__, torch.version.cuda)
    return BaselineStore(folder / "baselines", [job.task_source, *arithmetic, *versions])


class Baselines:
    """Times one task's reference in several ways.

    Args:
        model: the reference on its device; ``inputs``: its positional arguments there.
        backend: ``cpu`` or ``cuda``; ``precision``: the class of the job; ``tf32``: whether its switches allow TF32.
        clock, timing: how to time; ``store``: where pairs are kept.
        compile_s: seconds that compiling may take.
        alone: entered around what is timed; ``aside``: around compilation, which needs no device.
    """

    def __init__(
        self,
        model: Any,
        inputs: Sequence[object],
        *,
        backend: str,
        precision: Precision,
        tf32: bool,
        clock: Clock,
        timing: TimingSettings,
        store: BaselineStore,
        compile_s: float = 120.0,
        alone: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
        aside: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        self._model, self._inputs = model, inputs
        self._backend, self._precision, self._tf32 = backend, precision, tf32
        self._clock, self._store = clock, store
        self._timing = dataclasses.replace(timing, warmup_s=_WARMUP_S) if backend == "cuda" else timing
        self._compile_s, self._alone, self._aside = compile_s, alone, aside

    @cached_property
    def _arguments(self) -> FreshArguments:
        """Copies of the inputs, which take memory: made when something is timed."""
        return FreshArguments(self._inputs)

    def reference(self) -> Timing:
        """Time the reference under the switches of the class. The caller holds the device alone."""
        with GlobalState.preserved(self._backend):
            return time_callable(self._eager(self._precision.reference), self._clock, self._timing)

    def others(
        self, names: Sequence[str], reference: Timing, *, only_kept: bool = False
    ) -> tuple[dict[str, Timing], tuple[str, ...]]:
        """Timings by name, from the store or measured now, and a note for each baseline that could not be had.

        Args:
            reference: what the reference takes in this evaluation.
            only_kept: measure nothing.
        """
        found: dict[str, Timing] = {}
        notes: list[str] = []
        for name in names:
            try:
                pair = self._store.find(name) or (None if only_kept else self._measured(name, reference))
                if pair is not None:
                    found[name] = pair.at(reference)
            except BaselineUnavailableError as problem:
                notes.append(f"baseline {name}: {problem}")
        return found, tuple(notes)

    def _measured(self, name: str, reference: Timing) -> Pair:
        """Time a baseline in turns with the reference, and remember how that went."""
        import torch

        try:
            with GlobalState.preserved(self._backend), torch.no_grad():
                prepare = self._prepared(name)
                with self._alone():
                    pair = self._paired(prepare, reference)
        except torch.OutOfMemoryError as problem:
            raise BaselineUnavailableError("no room on the device beside the candidate", lasting=False) from problem
        except BaselineUnavailableError as problem:
            if problem.lasting:
                self._store.keep(name, None, str(problem))
            raise
        if not (pair.baseline.unsteady or pair.reference.unsteady):
            bare = (dataclasses.replace(timing, samples_us=()) for timing in (pair.baseline, pair.reference))
            self._store.keep(name, Pair(baseline=next(bare), reference=next(bare)))
        return pair

    def _paired(self, prepare: Prepare, reference: Timing) -> Pair:
        fewest = min(self._timing.min_samples, max(int(_PAIR_S * 1e6 / reference.median_us / 4), _FEWEST))
        timing = dataclasses.replace(self._timing, min_samples=fewest)
        found = compare(prepare, self._eager(self._precision.reference), self._clock, timing)
        return Pair(baseline=found.candidate, reference=found.incumbent)

    def _prepared(self, name: str) -> Prepare:
        """What to time for a baseline."""
        if name in ("eager_fp32", "eager_tf32") and self._precision.reference == "eager":
            raise BaselineUnavailableError(f"is for float32, not for {self._precision.value}")
        set_precision(tf32=self._tf32)
        if name == "compile":
            return self._bound(self._compiled(), tf32=self._tf32)
        if name == "cuda_graph":
            replay = self._graph().replay
            return lambda: replay
        return self._eager(name)

    def _eager(self, name: str) -> Prepare:
        """The model itself; as installed, PyTorch leaves TF32 to cuDNN alone."""
        if name == "eager":
            return self._bound(self._model, tf32=False, cudnn_tf32=True)
        return self._bound(self._model, tf32=name == "eager_tf32")

    def _bound(self, model: Callable[..., object], *, tf32: bool, cudnn_tf32: bool | None = None) -> Prepare:
        import torch

        def prepare() -> Call:
            set_precision(tf32=tf32, cudnn_tf32=cudnn_tf32)
            call = bind(model, self._arguments)

            def timed() -> object:
                with torch.no_grad():
                    return call()

            return timed

        return prepare

    def _compiled(self) -> Callable[..., object]:
        """The model through ``torch.compile``, compiled here so that timing does not see it."""
        import torch

        def backend(graph: Any, examples: Any) -> Any:
            from torch._inductor.compile_fx import compile_fx

            with self._aside():
                return compile_fx(graph, examples)

        compiled: Callable[..., object] = torch.compile(self._model, backend=backend)
        try:
            with deadline(self._compile_s):
                compiled(*self._inputs)
        except DeadlineError as problem:
            raise BaselineUnavailableError(f"torch.compile took more than {self._compile_s:g} s") from problem
        except torch.OutOfMemoryError:
            raise
        except Exception as problem:
            raise BaselineUnavailableError(f"torch.compile: {_first_line(problem)}") from problem
        return compiled

    def _graph(self) -> Any:
        """A captured run; its inputs stay where they were captured, as a graph's must."""
        import torch

        if self._backend != "cuda":
            raise BaselineUnavailableError("needs a CUDA device")
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.stream(side):
                for _ in range(3):
                    self._model(*self._inputs)
            torch.cuda.current_stream().wait_stream(side)
            with torch.cuda.graph(graph):
                self._model(*self._inputs)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as problem:
            raise BaselineUnavailableError(f"capture: {_first_line(problem)}") from problem
        return graph


def _first_line(problem: Exception) -> str:
    return next(iter(str(problem).splitlines()), type(problem).__name__)


class DeadlineError(BaseException):
    """Time is up. No ``Exception``: what runs meanwhile must not take it for one of its own."""


@contextlib.contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Raise :class:`DeadlineError` in the block after so many seconds; main thread only."""

    def over(number: int, frame: FrameType | None) -> None:
        raise DeadlineError

    handler = signal.signal(signal.SIGALRM, over)
    others = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *others)
        signal.signal(signal.SIGALRM, handler)

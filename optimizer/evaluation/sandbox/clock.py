"""How one call is timed on a device, and the fresh arguments that every timed call gets."""

from __future__ import annotations

import ctypes
import math
import random
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from optimizer.evaluation.sandbox.values import span

if TYPE_CHECKING:
    import torch

Call = Callable[[], object]
"""One prepared call: its arguments are bound, nothing but the work to be timed is left."""


class Clock(Protocol):
    """Times prepared calls one by one; implementations: CPU, CUDA, scripted in tests.

    Contract: ``prepare`` runs outside the timed region; caches are cold for every timed call; the
    returned list has one value per prepare, in order, in microseconds.
    """

    def measure(self, prepares: Sequence[Callable[[], Call]]) -> list[float]:
        """Prepare, cool and time each call; return microseconds."""
        ...


class CpuClock:
    """``perf_counter_ns`` around the call, last-level cache flushed before it.

    The process keeps blocks of up to 32 MiB that a call frees, for the next one. Otherwise the C library gives some of
    them back, and a call now and then pays for new pages: 30 ms beside the 2 ms of a kernel with 16 MiB of output, on a
    virtual machine.
    """

    def __init__(self, flush_bytes: int | None = None) -> None:
        import torch

        keep_freed_memory()
        size = 2 * last_level_cache_bytes() if flush_bytes is None else flush_bytes
        self._flush = torch.zeros(max(size // 4, 1), dtype=torch.int32)

    def measure(self, prepares: Sequence[Callable[[], Call]]) -> list[float]:
        """Time each call on the host clock."""
        samples = []
        for prepare in prepares:
            call = prepare()
            self._flush.add_(1)
            start = time.perf_counter_ns()
            call()
            samples.append((time.perf_counter_ns() - start) / 1e3)
        return samples


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGEST_KEPT = 32 << 20
"""Bytes; more glibc does not allow. Larger blocks are new pages at every call, in PyTorch and candidates alike."""


def keep_freed_memory() -> None:
    """Ask the C library to reuse freed blocks; nothing happens where it has no ``mallopt`` (not glibc)."""
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_M_TRIM_THRESHOLD, -1)
        set_option(_M_MMAP_THRESHOLD, _LARGEST_KEPT)


def give_freed_memory_back() -> None:
    """Give the system what :func:`keep_freed_memory` has kept; for processes that live on without timing."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


_COVERS = 2
"""Flushes before each call; while they run the host must get the call on its way."""
_RETAKES = 2
_LATE = 1.5


class CudaClock:
    """CUDA events on the current stream, L2 overwritten before each call.

    The flushes keep the device busy while the host enqueues the call, so that launch latency is
    hidden for short kernels as it is in a real stream of work. A call that the host brought late, later than it can,
    is taken again: others were busy on the host. Events and the torch functions used
    are captured at construction, before a candidate is imported.
    """

    def __init__(self, flush_bytes: int | None = None) -> None:
        import torch

        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        size = max(4 * properties.L2_cache_size, 256 << 20) if flush_bytes is None else flush_bytes
        self._flush = torch.empty(size // 4, dtype=torch.int32, device="cuda")
        self._event: Callable[..., torch.cuda.Event] = torch.cuda.Event
        self._zero = torch.Tensor.zero_
        self._synchronise = torch.cuda.synchronize
        self._cover_us = 0.0
        self._least_us = math.inf

    def measure(self, prepares: Sequence[Callable[[], Call]]) -> list[float]:
        """Time each call between two events; one synchronisation at the end."""
        self._cover_us = self._cover_us or min(self._taken([lambda: self._cover])[0][0] for _ in range(3))
        taken = self._taken(prepares)
        for _ in range(_RETAKES):
            self._least_us = min(self._least_us, *(host_us for _, host_us in taken))
            late = late_ones([host_us for _, host_us in taken], self._cover_us, self._least_us)
            for index, again in zip(late, self._taken([prepares[index] for index in late]), strict=True):
                taken[index] = min(taken[index], again, key=lambda pair: pair[1])
        return [device_us for device_us, _ in taken]

    def _cover(self) -> None:
        for _ in range(_COVERS):
            self._zero(self._flush)

    def _taken(self, prepares: Sequence[Callable[[], Call]]) -> list[tuple[float, float]]:
        """Microseconds on the device and microseconds that the host took to enqueue, for each call."""
        started: list[tuple[torch.cuda.Event, torch.cuda.Event, float]] = []
        for prepare in prepares:
            call = prepare()
            start, end = self._event(enable_timing=True), self._event(enable_timing=True)
            self._cover()
            begin = time.perf_counter_ns()
            start.record()
            call()
            end.record()
            started.append((start, end, (time.perf_counter_ns() - begin) / 1e3))
        self._synchronise()
        return [(float(start.elapsed_time(end)) * 1e3, host_us) for start, end, host_us in started]


def late_ones(host_us: Sequence[float], cover_us: float, least_us: float) -> list[int]:
    """Calls that the host enqueued after the device had run out of work, though it can do better."""
    return [index for index, each in enumerate(host_us) if each > cover_us and each > _LATE * least_us]


def lingering_us(call: Call) -> float:
    """Microseconds that the CUDA device goes on after the current stream has finished what ``call`` gave it."""
    import torch

    end = torch.cuda.Event()  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    call()
    end.record()
    end.synchronize()
    start = time.perf_counter_ns()
    torch.cuda.synchronize()
    return (time.perf_counter_ns() - start) / 1e3


def clock_for(backend: str) -> Clock:
    """The clock of a backend name, ``cpu`` or ``cuda``."""
    return CudaClock() if backend == "cuda" else CpuClock()


def last_level_cache_bytes(root: str = "/sys/devices/system/cpu/cpu0/cache") -> int:
    """Size of the largest CPU cache in bytes; 32 MiB when the system does not say."""
    sizes = [_parse_size(path.read_text(encoding="ascii")) for path in Path(root).glob("index*/size")]
    return max(sizes, default=32 << 20)


def _parse_size(text: str) -> int:
    match = re.fullmatch(r"(\d+)([KMG]?)", text.strip())
    if match is None:
        return 0
    return int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[match[2]]


_ALIGNMENT = 512
"""Bytes; what torch's CUDA allocator gives, so that a copy is aligned like a fresh tensor."""


class FreshArguments:
    """Copies of the given arguments at a new, random address on each call.

    Tensors are copied into an arena with slack, at a random multiple of 512 bytes; anything else is
    passed on as it is. Copying happens when an instance is called, outside the timed region.

    Args:
        values: positional arguments of the callable to time.
        seed: of the offsets.
        slack_bytes: room in which the addresses vary.
    """

    def __init__(self, values: Sequence[object], seed: int = 0, slack_bytes: int = 8 << 20) -> None:
        self._values = tuple(values)
        self._random = random.Random(seed)
        self._slots = max(slack_bytes // _ALIGNMENT, 1)
        self._arenas = [_arena(value, self._slots * _ALIGNMENT) for value in self._values]

    def __call__(self, factor: float = 1.0) -> tuple[object, ...]:
        """Return the arguments, each tensor at an address that is unlikely to have been used before.

        Tensors of floating-point numbers are multiplied by ``factor``.
        """
        pairs = zip(self._values, self._arenas, strict=True)
        return tuple(value if arena is None else self._place(value, arena, factor) for value, arena in pairs)

    def _place(self, value: object, arena: torch.Tensor, factor: float) -> object:
        import torch

        assert isinstance(value, torch.Tensor)
        start = self._random.randrange(self._slots) * _ALIGNMENT
        count = span(value.shape, value.stride())
        flat = arena[start : start + count * value.element_size()].view(value.dtype)
        source = value.detach().as_strided((count,), (1,))
        if factor == 1.0 or not value.dtype.is_floating_point:
            flat.copy_(source)
        else:
            torch.mul(source, factor, out=flat)
        return flat.as_strided(value.shape, value.stride()).requires_grad_(value.requires_grad)


def scaled(values: Sequence[object], factor: float) -> list[object]:
    """What :class:`FreshArguments` gives for ``factor``, at new addresses too."""
    import torch

    return [
        value * factor if isinstance(value, torch.Tensor) and value.dtype.is_floating_point else value
        for value in values
    ]


def bind(function: Callable[..., object], arguments: Callable[[], tuple[object, ...]]) -> Callable[[], object]:
    """Draw arguments now and return the call that uses them."""
    values = arguments()
    return lambda: function(*values)


def _arena(value: object, slack: int) -> torch.Tensor | None:
    import torch

    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return None
    size = span(value.shape, value.stride()) * value.element_size()
    return torch.empty(size + slack, dtype=torch.uint8, device=value.device)

"""Speed of light: the least time a device should need for a task, from its reference alone."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from optimizer.evaluation.kept_file import keep, read_kept
from optimizer.evaluation.sandbox.clock import Clock, bind, clock_for, last_level_cache_bytes
from optimizer.evaluation.sandbox.values import tensors_in
from optimizer.evaluation.verify.timing import TimingSettings, time_callable

if TYPE_CHECKING:
    import torch

MARGIN = 1.15
"""Ceilings are medians of one kernel each; another may do a little better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a task must move at least, and what its reference computes.

    Attributes:
        read_bytes, written_bytes: traffic with device memory; of inputs what is not zero, since a kernel may know
            where zeros are (triangular matrices).
        flops: of matrix products and convolutions as the reference does them; others are not counted.
        dense_dtype: element type of the inputs, decides which arithmetic ceiling holds.
    """

    read_bytes: int
    written_bytes: int
    flops: int
    dense_dtype: str = "float32"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """What a device reached.

    Attributes:
        bytes_per_s: of a large copy, counting bytes read plus written.
        cache_bytes: size of the last-level cache; smaller tasks may live in it, cold or not.
        cache_bytes_per_s: of a copy that fits the cache.
        flops_per_s: element type → rate of a large matrix product, tensor cores and TF32 allowed.
        rounds: measurements of which these are the best figures.
    """

    device: str
    bytes_per_s: float
    cache_bytes: int
    cache_bytes_per_s: float
    flops_per_s: Mapping[str, float]
    rounds: int = 1

    def best_with(self, other: Ceilings) -> Ceilings:
        """The better figure of each kind: other work on the machine can only lower them."""
        rates = {
            name: max(self.flops_per_s.get(name, 0.0), other.flops_per_s.get(name, 0.0))
            for name in {*self.flops_per_s, *other.flops_per_s}
        }
        return dataclasses.replace(
            self,
            bytes_per_s=max(self.bytes_per_s, other.bytes_per_s),
            cache_bytes_per_s=max(self.cache_bytes_per_s, other.cache_bytes_per_s),
            flops_per_s=rates,
            rounds=self.rounds + other.rounds,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """The least time in microseconds: for the bytes, which nothing gets round, and for the reference's flops."""

    memory_us: float
    compute_us: float

    @property
    def time_us(self) -> float:
        """The larger of both."""
        return max(self.memory_us, self.compute_us)

    @property
    def limited_by(self) -> str:
        """``memory`` or ``compute``."""
        return "memory" if self.memory_us >= self.compute_us else "compute"

    def is_impossible(self, time_us: float) -> bool:
        """True for times in which this device can not move the task's bytes."""
        return time_us < self.memory_us / MARGIN

    def seen_with(self, time_us: float) -> Bound:
        """This bound, or that of the bytes alone where a time shows that the reference's flops are not all needed."""
        return self if time_us >= self.compute_us / MARGIN else dataclasses.replace(self, compute_us=0.0)

    def fraction(self, time_us: float) -> float:
        """Which part of the speed of light a time reaches; 1 is the bound."""
        return self.time_us / time_us


def speed_of_light(work: Work, ceilings: Ceilings) -> Bound:
    """The bound of ``work`` on a device."""
    moved = work.read_bytes + work.written_bytes
    memory = moved / ceilings.bytes_per_s * 1e6
    if moved <= ceilings.cache_bytes:  # a flush leaves lines in place that a write-back cache may keep
        memory = min(memory, moved / ceilings.cache_bytes_per_s * 1e6)
    rate = ceilings.flops_per_s.get(work.dense_dtype) or max(ceilings.flops_per_s.values())
    return Bound(memory_us=memory, compute_us=work.flops / rate * 1e6)


def count_work(function: Callable[..., object], inputs: Sequence[object], state: Iterable[torch.Tensor] = ()) -> Work:
    """Run the reference once and count.

    Args:
        function: the reference model.
        inputs: its positional arguments.
        state: its parameters and buffers; those that the run does not touch are not counted.
    """
    import torch

    from optimizer.evaluation.sandbox.recording import CountedFlops, ReadSet

    given = tensors_in(list(inputs))
    held = list(state)
    with torch.no_grad(), CountedFlops() as counter, ReadSet() as touched:
        output = function(*inputs)
    read = {_identity(tensor): _bytes(tensor) for tensor in held if touched.covers(tensor)}
    read |= {_identity(tensor): _nonzero_bytes(tensor) for tensor in given if touched.covers(tensor)}
    written = {_identity(tensor): _bytes(tensor) for tensor in tensors_in(output) if _identity(tensor) not in read}
    floating = [tensor for tensor in given if tensor.is_floating_point()]
    return Work(
        read_bytes=sum(read.values()),
        written_bytes=sum(written.values()),
        flops=counter.total,
        dense_dtype=str(floating[0].dtype).removeprefix("torch.") if floating else "float32",
    )


def measure_ceilings(backend: str, clock: Clock | None = None) -> Ceilings:
    """Measure this device: copies outside and inside the cache, a matrix product per element type."""
    import torch

    device = "cuda" if backend == "cuda" else "cpu"
    clock = clock or clock_for(backend)
    cache = _cache_bytes(backend)
    large, small = (1 << 30, cache // 4) if backend == "cuda" else (1 << 27, cache // 4)
    size, dtypes = (8192, ("float32", "float16", "bfloat16")) if backend == "cuda" else (1024, ("float32",))
    return Ceilings(
        device=device_name(backend),
        bytes_per_s=_copy_rate(device, large, clock),
        cache_bytes=cache,
        cache_bytes_per_s=max(_warm_copy_rate(device, small), _copy_rate(device, large, clock)),
        flops_per_s={name: _product_rate(device, size, getattr(torch, name), clock) for name in dtypes},
    )


def cached_ceilings(backend: str, folder: Path) -> Ceilings:
    """Ceilings from ``folder``, measured on first use of a device; an unreadable file is measured again.

    A CPU does other work too: there the first few uses measure again and keep the best.
    """
    known = read_kept(Ceilings, _path(backend, folder))
    return known if known is not None and known.rounds >= _ROUNDS[backend] else improved_ceilings(backend, folder)


def improved_ceilings(backend: str, folder: Path, measure: Callable[[str], Ceilings] | None = None) -> Ceilings:
    """Measure now; the best of this and of what ``folder`` had, which is kept there."""
    known = read_kept(Ceilings, _path(backend, folder))
    ceilings = (measure or measure_ceilings)(backend)
    if known is not None:
        ceilings = ceilings.best_with(known)
    keep(_path(backend, folder), ceilings)
    return ceilings


def _path(backend: str, folder: Path) -> Path:
    return folder / f"ceilings-{''.join(c if c.isalnum() else '_' for c in device_name(backend))}.json"


def device_name(backend: str) -> str:
    """Product name of the current device, or the processor's architecture."""
    import platform

    import torch

    return torch.cuda.get_device_name() if backend == "cuda" else f"cpu {platform.machine()} {os.cpu_count()}"


_SETTINGS = TimingSettings(min_samples=10, max_samples=30, budget_s=0.5, warmup_s=0.1)
_ROUNDS = {"cuda": 1, "cpu": 3}


def _copy_rate(device: str, size: int, clock: Clock) -> float:
    import torch

    source = torch.randint(0, 255, (size // 8,), dtype=torch.int64, device=device)
    target = torch.empty_like(source)
    timing = time_callable(lambda: bind(target.copy_, lambda: (source,)), clock, _SETTINGS)
    return 2 * size / (min(timing.samples_us) / 1e6)


def _warm_copy_rate(device: str, size: int) -> float:
    """Rate of repeated copies of a block that stays in the cache."""
    import time

    import torch

    source = torch.randint(0, 255, (size // 8,), dtype=torch.int64, device=device)
    target = torch.empty_like(source)
    rounds, best = 200, math.inf
    for _ in range(5):
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(rounds):
            target.copy_(source)
        if device == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return 2 * size * rounds / best


def _product_rate(device: str, size: int, dtype: torch.dtype, clock: Clock) -> float:
    import torch

    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    allowed = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        timing = time_callable(lambda: bind(torch.mm, lambda: (a, b)), clock, _SETTINGS)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = allowed
    return 2 * size**3 / (min(timing.samples_us) / 1e6)


def _cache_bytes(backend: str) -> int:
    import torch

    if backend == "cuda":
        return int(torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size)
    return last_level_cache_bytes()


def _identity(tensor: torch.Tensor) -> tuple[int, int]:
    return tensor.untyped_storage().data_ptr(), int(tensor.storage_offset())


def _bytes(tensor: torch.Tensor) -> int:
    """Bytes of distinct elements: expanded dimensions are stored once."""
    count = math.prod(size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride != 0)
    return count * tensor.element_size()


def _nonzero_bytes(tensor: torch.Tensor) -> int:
    """Bytes of distinct elements without the share of zeros."""
    return round(_bytes(tensor) * tensor.count_nonzero().item() / max(tensor.numel(), 1))

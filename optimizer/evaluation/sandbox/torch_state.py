"""Torch's and the device's global state: what one computation may change and the next must not see."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from optimizer.evaluation.sandbox.values import nbytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GlobalState:
    """A snapshot; take one with :meth:`take`, put it back with :meth:`restore`.

    Attributes:
        flags: precision, determinism, gradient, default type and device, thread count.
        generators: states of the random generators.
        limits: device limits by their number (persisting L2 among them); empty on the CPU.
        environment: all variables.
    """

    flags: Mapping[str, Any]
    generators: Mapping[str, Any]
    limits: Mapping[int, int]
    environment: Mapping[str, str]

    @classmethod
    def take(cls, backend: str) -> GlobalState:
        """Read everything."""
        import torch

        generators = {"python": random.getstate(), "torch": torch.get_rng_state()}
        if backend == "cuda":
            generators["cuda"] = torch.cuda.get_rng_state_all()
        return cls(
            flags={name: read() for name, (read, _) in _flags().items()},
            generators=generators,
            limits=_device_limits() if backend == "cuda" else {},
            environment=dict(os.environ),
        )

    def restore(self) -> None:
        """Put everything back, whatever it is now."""
        import torch

        for name, (read, write) in _flags().items():
            if read() != self.flags[name]:  # some setters are slow: one imports the compiler
                write(self.flags[name])
        random.setstate(self.generators["python"])
        torch.set_rng_state(self.generators["torch"])
        if "cuda" in self.generators:
            torch.cuda.set_rng_state_all(self.generators["cuda"])
        for limit, value in self.limits.items():
            _set_device_limit(limit, value)
        if dict(os.environ) != self.environment:
            os.environ.clear()
            os.environ.update(self.environment)

    @classmethod
    @contextmanager
    def preserved(cls, backend: str) -> Iterator[None]:
        """Whatever happens inside, the state after is the state before."""
        state = cls.take(backend)
        try:
            yield
        finally:
            state.restore()


def set_precision(*, tf32: bool, cudnn_tf32: bool | None = None) -> None:
    """Allow TF32, or forbid it; ``cudnn_tf32`` is what holds for cuDNN where that differs.

    Every process that works on a job calls it once the job is known: verifier, candidate, incumbent, profiler. How
    torch adds up in half types stays as installed.
    """
    import torch

    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32 if cudnn_tf32 is None else cudnn_tf32


def _flags() -> dict[str, tuple[Any, Any]]:
    """Name → (read, write)."""
    import torch

    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn

    def attribute(owner: Any, name: str) -> tuple[Any, Any]:
        return lambda: getattr(owner, name), lambda value: setattr(owner, name, value)

    return {
        "matmul_tf32": attribute(matmul, "allow_tf32"),
        "fp16_reduced": attribute(matmul, "allow_fp16_reduced_precision_reduction"),
        "bf16_reduced": attribute(matmul, "allow_bf16_reduced_precision_reduction"),
        "cudnn_tf32": attribute(cudnn, "allow_tf32"),
        "cudnn_benchmark": attribute(cudnn, "benchmark"),
        "cudnn_deterministic": attribute(cudnn, "deterministic"),
        "cudnn_enabled": attribute(cudnn, "enabled"),
        "deterministic": (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
        "grad": (torch.is_grad_enabled, torch.set_grad_enabled),
        "dtype": (torch.get_default_dtype, torch.set_default_dtype),
        "threads": (torch.get_num_threads, torch.set_num_threads),
    }


_LIMITS = (0, 1, 2, 6)
"""cudaLimitStackSize, PrintfFifoSize, MallocHeapSize, PersistingL2CacheSize."""


def _device_limits() -> dict[int, int]:
    import ctypes

    runtime = _runtime()
    found = {}
    for limit in _LIMITS:
        value = ctypes.c_size_t()
        if runtime.cudaDeviceGetLimit(ctypes.byref(value), limit) == 0:
            found[limit] = value.value
    return found


def _set_device_limit(limit: int, value: int) -> None:
    import ctypes

    current = ctypes.c_size_t()
    runtime = _runtime()
    if runtime.cudaDeviceGetLimit(ctypes.byref(current), limit) == 0 and current.value != value:
        runtime.cudaDeviceSetLimit(limit, ctypes.c_size_t(value))


def _runtime() -> Any:
    """The CUDA runtime library that torch has loaded."""
    import ctypes
    from pathlib import Path

    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        if "libcudart" in line:
            return ctypes.CDLL(line.split(maxsplit=5)[5])
    return ctypes.CDLL("libcudart.so")


_SPARE_BYTES = 1 << 30
LARGE_SHARE = 128
_HOST_BYTES = 128 << 30
"""Taken for a host's memory."""


def is_large(tensors: Sequence[Any]) -> bool:
    """Whether tensors had better not be kept, nor copied often: beyond a 128th of their device."""
    import torch

    room = _HOST_BYTES
    if tensors and tensors[0].is_cuda:
        room = torch.cuda.get_device_properties(tensors[0].device).total_memory
    return nbytes(tensors) > room // LARGE_SHARE


def give_back(backend: str) -> int:
    """Return what torch keeps of freed memory to the device, where it is enough to matter to other processes.

    Returns the bytes that were reserved at most so far.
    """
    if backend != "cuda":
        return 0
    import torch

    statistics = torch.cuda.memory_stats()
    if statistics["reserved_bytes.all.current"] - statistics["allocated_bytes.all.current"] > _SPARE_BYTES:
        torch.cuda.empty_cache()
    return int(statistics["reserved_bytes.all.peak"])


def release(backend: str) -> None:
    """Return all that torch keeps of freed memory to the device."""
    if backend == "cuda":
        import torch

        torch.cuda.empty_cache()


def global_state(backend: str) -> Mapping[str, str]:
    """Snapshot of precision, determinism, default and threading switches, as text."""
    import torch

    backends = torch.backends
    state = {
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "cuda.matmul.allow_fp16_reduced_precision": backends.cuda.matmul.allow_fp16_reduced_precision_reduction,
        "cuda.matmul.allow_bf16_reduced_precision": backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
        "cudnn.enabled": backends.cudnn.enabled,
        "cudnn.benchmark": backends.cudnn.benchmark,
        "cudnn.deterministic": backends.cudnn.deterministic,
        "cudnn.allow_tf32": backends.cudnn.allow_tf32,
        "default_dtype": torch.get_default_dtype(),
        "num_threads": torch.get_num_threads(),
        "grad_enabled": torch.is_grad_enabled(),
        "autocast": torch.is_autocast_enabled(),
        "flush_denormal": 1e-310 * 1.0 == 0.0,
    }
    if backend == "cuda":
        state["current_stream"] = torch.cuda.current_stream() == torch.cuda.default_stream()
    return {name: str(value) for name, value in state.items()}

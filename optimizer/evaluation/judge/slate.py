"""What a judge's process is like before a job, put back after it, so that the next job finds a fresh judge."""

from __future__ import annotations

import contextlib
import gc
import linecache
import sys
import threading

from optimizer.evaluation.job import EvaluationJob
from optimizer.evaluation.judge.task_module import MODULE_NAME
from optimizer.evaluation.snapshot import GlobalState

_MOST_JOBS = 100
"""Whatever may gather in a process does not gather for longer."""
_LEFT_BYTES = 16 << 20
_CACHED_SHARE = 64
"""Freed memory up to this part of a device is kept for the next job: asking the driver for it takes its lock."""
_PLAIN_BASELINES = frozenset({"eager"})
"""Others compile: they leave processes, threads and patched functions."""


class Slate:
    """One a process; make it in the judge before its first job, and :meth:`take` when the device may be used.

    No candidate's code ever runs here. What one can leave in a judge is memory and a broken device; what a task can
    leave is global state.
    """

    def __init__(self, backend: str) -> None:
        self._backend = backend
        self._state: GlobalState | None = None
        self._jobs = 0
        self._threads = threading.active_count()

    def take(self) -> None:
        """Remember the state, the first time; starts CUDA on a CUDA backend."""
        if self._state is None:
            self._state = GlobalState.take(self._backend)

    def wipe(self, job: EvaluationJob) -> bool:
        """Forget a job; False when this process had better not judge another one."""
        self._jobs += 1
        if self._state is None or self._jobs >= _MOST_JOBS or not set(job.settings.baselines) <= _PLAIN_BASELINES:
            return False
        sys.modules.pop(MODULE_NAME, None)
        linecache.clearcache()
        gc.collect()
        with contextlib.suppress(RuntimeError):  # a broken device
            self._state.restore()
            return threading.active_count() <= self._threads and self._device_is_free()
        return False

    def _device_is_free(self) -> bool:
        """Whether nothing of the job is left on the device."""
        if self._backend != "cuda":
            return True
        import torch

        torch.cuda.synchronize()
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.reset_peak_memory_stats()
        if torch.cuda.memory_reserved() > torch.cuda.get_device_properties(0).total_memory // _CACHED_SHARE:
            torch.cuda.empty_cache()
        return torch.cuda.memory_allocated() <= _LEFT_BYTES

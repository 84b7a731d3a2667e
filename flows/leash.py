"""A Python module as a process group of its own that never outlives the process that started it.

``python -P -m flows.leash PARENT MODULE WORDS...`` is ``python -m MODULE WORDS...``, ended by the kernel with PARENT.
A flow whose process is killed must not leave a tuning run behind that goes on spending, and that holds the lock of the
run directory which the next try needs; a service that is killed must not leave a server behind, which holds its port.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

_PR_SET_PDEATHSIG = 1


@contextmanager
def leashed(
    module: str, words: Sequence[str], *, stop_s: float, stop: signal.Signals = signal.SIGTERM, **options: Any
) -> Iterator[subprocess.Popen[Any]]:
    """Start ``python -m MODULE WORDS`` and leave nothing of it behind, whatever ends the block.

    Args:
        stop_s: how long it may take to end by itself after the signal ``stop``.
        options: of :class:`subprocess.Popen`.
    """
    command = [sys.executable, "-P", "-m", "flows.leash", str(os.getpid()), module, *words]
    with subprocess.Popen(command, start_new_session=True, **options) as process:
        try:
            yield process
        finally:
            _end(process, stop, stop_s)


def _end(process: subprocess.Popen[Any], stop: signal.Signals, stop_s: float) -> None:
    if process.poll() is None:
        process.send_signal(stop)
        with suppress(subprocess.TimeoutExpired):
            process.wait(stop_s)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def main() -> None:
    """Fasten the leash, then become the module."""
    parent, module = int(sys.argv[1]), sys.argv[2]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
    if os.getppid() != parent:  # it died before the leash was on
        raise SystemExit(128 + signal.SIGTERM)
    sys.argv = [module, *sys.argv[3:]]
    runpy.run_module(module, run_name="__main__")


if __name__ == "__main__":
    main()

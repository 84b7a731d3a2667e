"""A Python module as a process group of its own that never outlives the process that started it.

``python -P -m flows.leash PARENT MODULE WORDS...`` is ``python -m MODULE WORDS...``, which ends when PARENT has ended.
A flow whose process is killed must not leave a tuning run behind that goes on spending, and that holds the lock of the
run directory which the next try needs; a service that is killed must not leave a server behind, which holds its port.
"""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

LOOK_S = 0.5
"""How often the parent is looked for. The kernel could tell, but by the thread that started us, not by its process."""


@contextmanager
def leashed(
    module: str, words: Sequence[str], *, stop_s: float, stop: signal.Signals = signal.SIGTERM, **options: Any
) -> Iterator[subprocess.Popen[Any]]:
    """Start ``python -m MODULE WORDS`` and leave nothing of it behind, whatever ends the block.

    Args:
        stop_s: how long it may take to end by itself after the signal ``stop``.
        options: of :class:`subprocess.Popen`.
    """
    with subprocess.Popen(leashed_command(module, words), start_new_session=True, **options) as process:
        try:
            yield process
        finally:
            _end(process, stop, stop_s)


def leashed_command(module: str, words: Sequence[str]) -> list[str]:
    """The command that is ``python -m MODULE WORDS`` as long as this process lives."""
    return [sys.executable, "-P", "-m", "flows.leash", str(os.getpid()), module, *words]


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
    threading.Thread(target=_end_with, args=(parent,), daemon=True, name="leash").start()
    sys.argv = [module, *sys.argv[3:]]
    runpy.run_module(module, run_name="__main__")


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(LOOK_S)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()

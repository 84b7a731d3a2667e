"""Supervised subprocesses: a Python module as a process group that never outlives the process that started it.

``python -P -m flows.supervised PARENT MODULE WORDS...`` is ``python -m MODULE WORDS...``, which ends when PARENT has
ended. A flow whose process is killed must not leave a tuning run behind that keeps spending and holds the lock
of the run directory which the next try needs; a service that is killed must not leave a server behind, which holds its
port.
"""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from artifacts.errors import HtamError

STOP_S = 20.0
"""An ``htam`` command that is asked to end writes down what it is doing."""
PARENT_CHECK_S = 0.5
"""How often the parent is looked for. The kernel could tell, but by the thread that started us, not by its process."""


def htam(
    words: Sequence[str], log: Path, *, environment: Mapping[str, str] | None = None, timeout_s: float | None = None
) -> str:
    """Run ``htam WORDS`` and return its standard output; both streams are appended to ``log``.

    A process keeps candidates' builds and a device to itself, can be killed as a whole, and resumes from its run
    directory when it is started again.

    Raises:
        HtamError: exit code 1, with the command's own line: a mistake that a second try would repeat.
        ConnectionError: it was killed from outside; a second try resumes where it stopped.
        TimeoutError: it ran longer than ``timeout_s``.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    streams |= {"text": True, "errors": "replace", "env": {**os.environ, **(environment or {})}}
    with supervised("pipeline", words, stop_s=STOP_S, **streams) as process:
        try:
            out, err = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"htam {words[0]} ran longer than {timeout_s:g} s") from None
    with log.open("a", encoding="utf-8") as file:
        file.write(f"$ htam {' '.join(words)}\n{out}{err}exit {process.returncode}\n")
    if process.returncode == 0:
        return str(out)
    last = err.strip().splitlines()[-1:] or [f"htam {words[0]} ended with exit code {process.returncode}"]
    if process.returncode < 0:
        raise ConnectionError(f"htam {words[0]} was ended by signal {-process.returncode}; see {log}")
    raise HtamError(last[0].removeprefix("htam: "), f"see {log}")


def option_words(options: Mapping[str, str]) -> list[str]:
    """Options of a command as words of its line; one without a value is a flag."""
    return [word for name, value in sorted(options.items()) for word in (f"--{name}", value) if word]


@contextmanager
def supervised(
    module: str, words: Sequence[str], *, stop_s: float, stop: signal.Signals = signal.SIGTERM, **options: Any
) -> Iterator[subprocess.Popen[Any]]:
    """Start ``python -m MODULE WORDS`` and leave nothing of it behind, whatever ends the block.

    Args:
        stop_s: how long it may take to end by itself after the signal ``stop``.
        options: of :class:`subprocess.Popen`.
    """
    with subprocess.Popen(supervised_command(module, words), start_new_session=True, **options) as process:
        try:
            yield process
        finally:
            _end(process, stop, stop_s)


def supervised_command(module: str, words: Sequence[str]) -> list[str]:
    """The command that is ``python -m MODULE WORDS`` as long as this process lives."""
    return [sys.executable, "-P", "-m", "flows.supervised", str(os.getpid()), module, *words]


def _end(process: subprocess.Popen[Any], stop: signal.Signals, stop_s: float) -> None:
    if process.poll() is None:
        process.send_signal(stop)
        with suppress(subprocess.TimeoutExpired):
            process.wait(stop_s)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def main() -> None:
    """Watch the parent from a thread and become the module."""
    parent, module = int(sys.argv[1]), sys.argv[2]
    threading.Thread(target=_end_with, args=(parent,), daemon=True, name="supervisor").start()
    sys.argv = [module, *sys.argv[3:]]
    runpy.run_module(module, run_name="__main__")


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(PARENT_CHECK_S)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()

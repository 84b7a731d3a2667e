"""One ``htam`` command as a process of its own: what a mapped task of a suite or study is.

A process keeps candidates' builds and a device to itself, can be killed as a whole, and goes on from its run
directory when it is started again.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from artifacts.errors import HtamError
from flows.leash import leashed

STOP_S = 20.0
"""A run that is asked to end writes down what it is doing."""
LOOK_S = 1.0


def htam(
    words: Sequence[str],
    log: Path,
    *,
    environment: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
    folder: Path | None = None,
    stop: threading.Event | None = None,
) -> str:
    """Run ``htam WORDS`` in ``folder`` and return its standard output; both streams are appended to ``log``.

    Args:
        stop: ends the command once it is set.

    Raises:
        HtamError: exit code 1, with the command's own line: a mistake that a second try would repeat.
        ConnectionError: it was killed from outside or stopped; a second try goes on where it stopped.
        TimeoutError: it ran longer than ``timeout_s``.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with leashed(
        "pipeline",
        words,
        stop_s=STOP_S,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env={**os.environ, **(environment or {})},
        cwd=folder,
    ) as process:
        out, err = _waited(process, words[0], timeout_s, stop or threading.Event())
    with log.open("a", encoding="utf-8") as file:
        file.write(f"$ htam {' '.join(words)}\n{out}{err}exit {process.returncode}\n")
    if process.returncode == 0:
        return str(out)
    last = err.strip().splitlines()[-1:] or [f"htam {words[0]} ended with exit code {process.returncode}"]
    if process.returncode < 0:
        raise ConnectionError(f"htam {words[0]} was ended by signal {-process.returncode}; see {log}")
    raise HtamError(last[0].removeprefix("htam: "), f"see {log}")


def _waited(
    process: subprocess.Popen[str], name: str, timeout_s: float | None, stop: threading.Event
) -> tuple[str, str]:
    """Both streams of ``process`` once it has ended."""
    end = time.monotonic() + (float("inf") if timeout_s is None else timeout_s)
    while True:
        left = end - time.monotonic()
        try:
            return process.communicate(timeout=max(min(left, LOOK_S), 0.0))
        except subprocess.TimeoutExpired:
            if left <= LOOK_S:
                raise TimeoutError(f"htam {name} ran longer than {timeout_s:.0f} s") from None
            if stop.is_set():
                raise ConnectionError(f"htam {name} was stopped: its task was given to another host") from None

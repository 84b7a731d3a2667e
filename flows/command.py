"""One ``htam`` command as a process of its own: what a mapped task of a suite or study is.

A process keeps candidates' builds and a device to itself, can be killed as a whole, and goes on from its run
directory when it is started again.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from artifacts.errors import HtamError
from flows.leash import leashed

STOP_S = 20.0
"""A run that is asked to end writes down what it is doing."""


def htam(
    words: Sequence[str],
    log: Path,
    *,
    environment: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
    folder: Path | None = None,
) -> str:
    """Run ``htam WORDS`` in ``folder`` and return its standard output; both streams are appended to ``log``.

    Raises:
        HtamError: exit code 1, with the command's own line: a mistake that a second try would repeat.
        ConnectionError: it was killed from outside; a second try goes on where it stopped.
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
        try:
            out, err = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"htam {words[0]} ran longer than {timeout_s:.0f} s") from None
    with log.open("a", encoding="utf-8") as file:
        file.write(f"$ htam {' '.join(words)}\n{out}{err}exit {process.returncode}\n")
    if process.returncode == 0:
        return str(out)
    last = err.strip().splitlines()[-1:] or [f"htam {words[0]} ended with exit code {process.returncode}"]
    if process.returncode < 0:
        raise ConnectionError(f"htam {words[0]} was ended by signal {-process.returncode}; see {log}")
    raise HtamError(last[0].removeprefix("htam: "), f"see {log}")

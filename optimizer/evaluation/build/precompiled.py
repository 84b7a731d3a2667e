"""Precompiled headers for g++: parsing the tensor class and pybind11 is paid once per set of flags."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import threading
from collections.abc import Sequence
from pathlib import Path

from optimizer.evaluation.build.command import BuildTimeoutError, Runner
from optimizer.evaluation.build.slots import URGENT, CompilerSlots

_TIMEOUT_S = 300.0


class PrecompiledHeaders:
    """Precompiled versions of headers, one for each set of code generation flags.

    gcc ignores a precompiled header that does not fit, so a wrong one costs time, never correctness.

    Args:
        folder: where they live, shared by processes.
        command: compiler and include flags common to all.
        slots: where to queue for a compiler.
        limit: sets of flags to keep; a file takes about 400 MB, further sets go without.
    """

    def __init__(
        self, folder: Path, command: Sequence[str], runner: Runner, slots: CompilerSlots, limit: int = 8
    ) -> None:
        self._folder = folder
        self._command = tuple(command)
        self._runner = runner
        self._slots = slots
        self._limit = limit
        self._started: set[Path] = set()
        self._lock = threading.Lock()

    def include_flags(self, header: Path, flags: Sequence[str], *, wait: bool) -> list[str]:
        """Flags that include ``header`` first, precompiled if it is already.

        Otherwise it is precompiled now: ``wait`` for it, or go without this time, since it takes longer (13 s, most of
        it for writing) than a build that parses the header itself (8 s).
        """
        home = self._folder / self._key(header, flags)
        if (home / f"{header.name}.gch").is_file():
            return ["-include", str(home / header.name)]
        if not home.is_dir() and len(list(self._folder.glob("pch-*"))) >= self._limit:
            return ["-include", str(header)]
        home.mkdir(parents=True, exist_ok=True)
        if wait:
            return self._compile(header, home, flags)
        with self._lock:
            if home not in self._started:
                self._started.add(home)
                # Not a daemon: a program that ends sooner waits for it, or a host would never get its headers.
                threading.Thread(target=self._prepare, args=(header, home, tuple(flags)), name="headers").start()
        return ["-include", str(header)]

    def is_in(self, flags: Sequence[str]) -> bool:
        """Whether flags of :meth:`include_flags` name no header at all or a precompiled one."""
        return not flags or flags[1].startswith(str(self._folder / "pch-"))

    def _prepare(self, header: Path, home: Path, flags: Sequence[str]) -> None:
        with contextlib.suppress(BuildTimeoutError, OSError):  # a folder that is gone by now needs no headers
            self._compile(header, home, flags)

    def _compile(self, header: Path, home: Path, flags: Sequence[str]) -> list[str]:
        copy = home / header.name
        with (home / "lock").open("w") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            if not (home / f"{header.name}.gch").is_file():
                shutil.copyfile(header, copy)
                part = home / f"{os.getpid()}.part"
                command = [*self._command, *flags, "-x", "c++-header", str(copy), "-o", str(part)]
                with self._slots.slot(URGENT):
                    done = self._runner.run(command, home, _TIMEOUT_S)
                if done.status != 0:
                    part.unlink(missing_ok=True)
                    return ["-include", str(header)]
                part.rename(home / f"{header.name}.gch")
        return ["-include", str(copy)]

    def _key(self, header: Path, flags: Sequence[str]) -> str:
        parts = "\0".join([*self._command, str(header), *flags])
        return f"pch-{hashlib.sha256(parts.encode()).hexdigest()[:16]}"

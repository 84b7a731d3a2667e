"""What a service may leave behind on a host: processes, open files, locks, temporary files, half-written artifacts."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


def processes(mark: str) -> dict[int, str]:
    """Living processes with ``mark`` in their environment: process id and words; zombies have none and do not count."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if int(folder.name) != os.getpid() and mark.encode() in (folder / "environ").read_bytes():
                found[int(folder.name)] = (
                    (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                )
    return found


def open_files(pids: Iterable[int]) -> int:
    """Open file descriptors of living processes."""
    count = 0
    for pid in pids:
        with suppress(OSError):
            count += len(list(Path(f"/proc/{pid}/fd").iterdir()))
    return count


def resident_mib(pids: Iterable[int]) -> float:
    """Resident memory of living processes."""
    pages = 0
    for pid in pids:
        with suppress(OSError):
            pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def locks_below(folder: Path) -> int:
    """Files below ``folder`` on which some process of this host holds a lock."""
    with suppress(OSError):
        held = {line.split()[-3] for line in Path("/proc/locks").read_text().splitlines()}
        inodes = {int(item.rpartition(":")[2]) for item in held}
        return sum(path.stat().st_ino in inodes for path in folder.rglob("*") if path.is_file())
    return 0


def files_below(folder: Path) -> list[str]:
    """Names of all files and sockets below ``folder``."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir())


def shared_memory() -> set[str]:
    """Names in ``/dev/shm``."""
    folder = Path("/dev/shm")
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()

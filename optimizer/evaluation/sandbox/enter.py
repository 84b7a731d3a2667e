"""Shut the doors, one after the other; what the host lacks is left out and said."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import site
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from optimizer.evaluation.sandbox.kernel_filters import (
    PR_SET_NO_NEW_PRIVS,
    drop_capabilities,
    filter_calls,
    mount,
    prctl,
    restrict_files,
    unshare,
)

_SYSTEM = ("/usr", "/lib", "/lib64", "/bin", "/sbin", "/opt", "/proc", "/sys")
_OWN = "/proc/self"
"""This process's own entry: CUDA's driver names its threads by creating ``task/<thread>/comm``, or does not start."""
_SETTINGS = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "alternatives", "passwd", "nsswitch.conf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What one process may do.

    Attributes:
        scratch: the only folder it may write to.
        readable: folders beside the system's and Python's own.
        cpu_s: CPU seconds; ``memory_bytes``: address space, None for no bound (CUDA maps everything).
        allow_programs: may start other programs.
    """

    scratch: str
    readable: tuple[str, ...] = ()
    cpu_s: float
    memory_bytes: int | None
    allow_programs: bool = False


def enter(policy: Policy) -> tuple[str, ...]:
    """Apply everything to this process, for good; return the names of the layers that hold.

    Call it while the process has a single thread.
    """
    limit_resources(policy.cpu_s, policy.memory_bytes)
    layers: tuple[tuple[str, Callable[[], object]], ...] = (
        ("network namespace", leave_network),
        ("no new privileges", lambda: prctl(PR_SET_NO_NEW_PRIVS, 1)),
        ("no capabilities", drop_capabilities),
        ("landlock", lambda: restrict_files(readable_paths(policy.readable), ("/dev",), (policy.scratch, _OWN))),
        ("seccomp", lambda: filter_calls(policy.allow_programs)),
    )
    return ("resource limits", *(name for name, apply in layers if _holds(apply)))


def readable_paths(more: tuple[str, ...]) -> list[str]:
    """The system's libraries and tools, Python and its packages, and ``more``; no home, no checkout."""
    packages = [path for path in sys.path if "site-packages" in path or "dist-packages" in path]
    named = [os.environ.get(name, "") for name in ("CUDA_HOME", "CUDA_PATH")]
    libraries = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    own = [sys.prefix, sys.base_prefix, *site.getsitepackages()]
    settings = [str(Path("/etc") / name) for name in _SETTINGS]
    return [path for path in (*_SYSTEM, *settings, *own, *packages, *named, *libraries, *more) if path]


def _holds(apply: Callable[[], object]) -> bool:
    try:
        apply()
    except OSError:
        return False
    return True


_FILE_BYTES = 1 << 30
_OPEN_FILES = 1024
_PROCESSES = 512


def limit_resources(cpu_s: float, memory_bytes: int | None) -> None:
    """Bound CPU seconds, address space (None: CUDA needs it unbounded), file size, files and processes."""
    _lower(resource.RLIMIT_CORE, 0)
    _lower(resource.RLIMIT_CPU, max(int(cpu_s), 1))
    _lower(resource.RLIMIT_FSIZE, _FILE_BYTES)
    _lower(resource.RLIMIT_NOFILE, _OPEN_FILES)
    _lower(resource.RLIMIT_NPROC, _PROCESSES)
    if memory_bytes is not None:
        _lower(resource.RLIMIT_AS, memory_bytes)


def _lower(kind: int, value: int) -> None:
    """Set a limit; one that is already lower stays."""
    _, hard = resource.getrlimit(kind)
    wanted = value if hard == resource.RLIM_INFINITY else min(value, hard)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(kind, (wanted, wanted))


_NEWUSER = 0x10000000
_NEWNET = 0x40000000
_NEWIPC = 0x08000000


def leave_network() -> None:
    """Enter empty network and IPC namespaces, through a user namespace where we are not root.

    Raises:
        OSError: the kernel or its settings do not allow it.
    """
    if os.geteuid() == 0:
        unshare(_NEWNET | _NEWIPC)
        return
    uid, gid = os.getuid(), os.getgid()
    unshare(_NEWUSER | _NEWNET | _NEWIPC)
    Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1", encoding="ascii")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1", encoding="ascii")


_NEWNS = 0x00020000
_PRIVATE, _RECURSIVE, _BIND = 1 << 18, 1 << 14, 1 << 12
_DRIVER = Path("/proc/driver/nvidia/gpus")


def show_device(key: str | None) -> None:
    """Let CUDA in this process find the device with this identity alone; none at all for None.

    One hardware queue in place of eight: whoever uses one stream notices nothing, and contexts start and end in half
    the time, which the driver spends under a lock that all processes of a host share.
    """
    os.environ["CUDA_VISIBLE_DEVICES"] = key or ""
    os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"


def hide_other_devices(key: str, driver: Path = _DRIVER) -> None:
    """Take other devices out of this process's file system: no access, and CUDA need not ask each of them.

    Does nothing where the host has no other, or does not say which file is whose.

    Raises:
        OSError: no right to mount.
    """
    minors = device_minors(driver)
    others = [minor for uuid, minor in minors.items() if uuid != key]
    if key not in minors or not others:
        return
    unshare(_NEWNS)
    mount(None, "/", _PRIVATE | _RECURSIVE)
    for minor in others:
        with contextlib.suppress(FileNotFoundError):
            mount("/dev/null", f"/dev/nvidia{minor}", _BIND)


def device_minors(driver: Path = _DRIVER) -> dict[str, int]:
    """Identity of each NVIDIA device → number of its file."""
    found = {}
    for path in driver.glob("*/information"):
        text = path.read_text(encoding="utf-8", errors="replace")
        fields = dict(re.findall(r"^([\w ]+?):\s*(\S.*?)\s*$", text, re.MULTILINE))
        with contextlib.suppress(KeyError, ValueError):
            found[fields["GPU UUID"]] = int(fields["Device Minor"])
    return found

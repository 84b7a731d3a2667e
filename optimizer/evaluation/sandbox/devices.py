"""Which CUDA device a process sees, and how dear it is to start: set before CUDA starts."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from optimizer.evaluation.sandbox.system import mount, unshare

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

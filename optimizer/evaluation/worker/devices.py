"""Measuring devices of this host."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass

from artifacts.errors import UnavailableError


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """Something to measure on.

    Attributes:
        backend: cpu or cuda; ``index``: as the driver counts.
        name: product name, or ``cpu``.
        key: stable identity, names the locks.
        memory_bytes: of a CUDA device; 0 where it is not known.
    """

    backend: str
    index: int
    name: str
    key: str
    memory_bytes: int = 0


def devices_of(backend: str, wanted: tuple[int, ...] = ()) -> tuple[Device, ...]:
    """Devices to measure on; ``wanted`` selects by index.

    Raises:
        UnavailableError: there is no such device here.
    """
    if backend == "cpu":
        return (Device(backend="cpu", index=0, name="cpu", key="cpu"),)
    found = nvidia_devices()
    if not found:
        raise UnavailableError("no CUDA device on this host", "use --backend cpu, or run the jobs on a GPU host")
    missing = sorted(set(wanted) - {device.index for device in found})
    if missing:
        raise UnavailableError(
            f"no CUDA device {missing[0]} on this host", f"devices: {', '.join(str(device.index) for device in found)}"
        )
    return tuple(device for device in found if not wanted or device.index in wanted)


def nvidia_devices() -> tuple[Device, ...]:
    """CUDA devices as ``nvidia-smi`` lists them, those of ``CUDA_VISIBLE_DEVICES`` where it is set.

    Empty without a driver. Needs no CUDA context.
    """
    command = shutil.which("nvidia-smi")
    if command is None:
        return ()
    query = [command, "--query-gpu=index,name,uuid,memory.total", "--format=csv,noheader,nounits"]
    result = subprocess.run(query, capture_output=True, text=True, timeout=60, check=False)
    if result.returncode != 0:
        return ()
    rows = [[field.strip() for field in line.split(",")] for line in result.stdout.splitlines() if line.count(",") == 3]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    shown = [row for row in rows if visible is None or {row[0], row[2]} & set(visible.replace(" ", "").split(","))]
    return tuple(
        Device(backend="cuda", index=int(row[0]), name=row[1], key=row[2], memory_bytes=_mebibytes(row[3]))
        for row in shown
    )


def _mebibytes(text: str) -> int:
    return int(text) << 20 if text.isdecimal() else 0

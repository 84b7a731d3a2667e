"""The sandbox: what it says holds, holds."""

from __future__ import annotations

import errno
import platform
import struct

import pytest

from optimizer.evaluation.sandbox.kernel_filters import filter_code, landlock_version
from optimizer.evaluation.sandbox.probe import features
from optimizer.evaluation.worker.processes import server_environment


def test_every_layer_that_is_named_bars_what_it_should() -> None:
    found = features()
    assert "resource limits" in found.layers
    if "landlock" in found.layers:
        assert found.barred["write outside scratch"]
        assert found.barred["read the parent's memory"]
    if "network namespace" in found.layers or "seccomp" in found.layers:
        assert found.barred["network"]
    if "seccomp" in found.layers:
        assert found.barred["start a program"]
        assert found.barred["leave the process group"]


def test_landlock_is_used_where_the_kernel_has_it() -> None:
    assert ("landlock" in features().layers) == (landlock_version() > 0)


def test_keys_in_our_environment_stay_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    assert "secret" not in "".join(server_environment().values())


def run_filter(code: bytes, number: int, argument: int, machine: str) -> int:
    """A BPF interpreter of the few instructions that the filter uses."""
    arch = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}[machine]
    data = {0: number, 4: arch, 16: argument}
    lines = [struct.unpack_from("HBBI", code, at) for at in range(0, len(code), 8)]
    at, value = 0, 0
    while True:
        operation, true, false, constant = lines[at]
        at += 1
        if operation == 0x20:
            value = data[constant]
        elif operation == 0x06:
            return int(constant)
        else:
            holds = value == constant if operation == 0x15 else bool(value & constant)
            at += true if holds else false


@pytest.mark.parametrize(
    ("machine", "execve", "read", "clone", "socket"), [("x86_64", 59, 0, 56, 41), ("aarch64", 221, 63, 220, 198)]
)
def test_the_filter_refuses_programs_and_lets_threads_live(
    machine: str, execve: int, read: int, clone: int, socket: int
) -> None:
    strict, loose = filter_code(machine, False), filter_code(machine, True)
    allow, refuse = 0x7FFF0000, 0x00050000 | errno.EPERM
    assert run_filter(strict, execve, 0, machine) == refuse
    assert run_filter(loose, execve, 0, machine) == allow
    assert run_filter(strict, read, 0, machine) == allow
    assert run_filter(strict, clone, 0x3D0F00, machine) == allow
    assert run_filter(strict, clone, 0x11, machine) == refuse
    assert run_filter(loose, socket, 2, machine) == refuse
    assert run_filter(strict, socket, 1, machine) == allow


def test_an_unknown_machine_has_no_filter() -> None:
    with pytest.raises(OSError, match="pdp11"):
        filter_code("pdp11", False)


def test_the_filter_fits_this_machine_or_says_so() -> None:
    if platform.machine() in ("x86_64", "aarch64"):
        assert len(filter_code(platform.machine(), False)) % 8 == 0

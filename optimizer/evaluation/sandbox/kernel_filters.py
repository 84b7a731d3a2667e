"""Landlock and seccomp: what files may be read, and which system calls a candidate may make."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import platform
import struct
from collections.abc import Iterable
from pathlib import Path

_CREATE, _ADD_RULE, _RESTRICT = 444, 445, 446
_VERSION_FLAG = 1
_PATH_BENEATH = 1

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_TRUNCATE, _IOCTL = 1 << 14, 1 << 15
_READING = _EXECUTE | _READ_FILE | _READ_DIR
_FILE_ONLY = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL
_ALL_BY_VERSION = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}
_TCP = 0b11
_SCOPES = 0b11


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


def landlock_version() -> int:
    """ABI version of the kernel; 0 when it has no Landlock."""
    try:
        return syscall(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION_FLAG))
    except OSError:
        return 0


def restrict_files(readable: Iterable[str], devices: Iterable[str], writable: Iterable[str]) -> None:
    """Allow reading and executing below ``readable``, device access below ``devices``, all below ``writable``.

    Paths that do not exist are left out. From version 4 on TCP is closed too, from 6 on signals and
    abstract sockets to processes outside. Needs no_new_privs or privileges.

    Raises:
        OSError: no Landlock here.
    """
    version = landlock_version()
    if version == 0:
        raise OSError("the kernel has no Landlock")
    everything = _ALL_BY_VERSION[min(version, 5)]
    ruleset = _Ruleset(everything, _TCP if version >= 4 else 0, _SCOPES if version >= 6 else 0)
    size = 8 if version < 4 else 16 if version < 6 else 24
    fd = syscall(_CREATE, ctypes.byref(ruleset), ctypes.c_size_t(size), ctypes.c_uint32(0))
    try:
        for paths, rights in (
            (readable, _READING),
            (devices, _READ_FILE | _READ_DIR | _WRITE_FILE | _IOCTL),
            (writable, everything),
        ):
            for path in paths:
                with contextlib.suppress(FileNotFoundError):
                    _allow(fd, path, rights & everything)
        syscall(_RESTRICT, ctypes.c_int(fd), ctypes.c_uint32(0))
    finally:
        os.close(fd)


def _allow(ruleset: int, path: str, rights: int) -> None:
    if not Path(path).is_dir():
        rights &= _FILE_ONLY
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        rule = _PathBeneath(rights, fd)
        syscall(_ADD_RULE, ctypes.c_int(ruleset), ctypes.c_int(_PATH_BENEATH), ctypes.byref(rule), ctypes.c_uint32(0))
    finally:
        os.close(fd)


_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_ALWAYS = {
    "x86_64": {
        "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "setsid": 112, "setpgid": 109,
        "mount": 165, "umount2": 166, "bpf": 321, "perf_event_open": 298, "unshare": 272, "setns": 308,
        "userfaultfd": 323, "io_uring_setup": 425, "pidfd_getfd": 438, "keyctl": 250, "personality": 135,
        "sched_setscheduler": 144, "chroot": 161,
    },
    "aarch64": {
        "ptrace": 117, "process_vm_readv": 270, "process_vm_writev": 271, "setsid": 157, "setpgid": 154,
        "mount": 40, "umount2": 39, "bpf": 280, "perf_event_open": 241, "unshare": 97, "setns": 268,
        "userfaultfd": 282, "io_uring_setup": 425, "pidfd_getfd": 438, "keyctl": 219, "personality": 92,
        "sched_setscheduler": 119, "chroot": 51,
    },
}  # fmt: skip
"""Not among them: listen and accept. CUDA's driver needs them at start, on a local socket, and there are no others."""
_PROGRAMS = {
    "x86_64": {"fork": 57, "vfork": 58, "execve": 59, "execveat": 322},
    "aarch64": {"execve": 221, "execveat": 281},
}
_CLONE = {"x86_64": 56, "aarch64": 220}
_CLONE3 = 435
_SOCKET = {"x86_64": 41, "aarch64": 198}
_CLONE_THREAD = 0x10000
_AF_UNIX = 1

_LOAD, _JUMP_EQUAL, _JUMP_SET, _RETURN = 0x20, 0x15, 0x45, 0x06
_NUMBER, _ARCH, _ARGUMENT_0 = 0, 4, 16
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def filter_calls(allow_programs: bool) -> None:
    """Install the filter for this process and all it becomes.

    Args:
        allow_programs: permit fork and exec (Triton runs its compiler and assembler).

    Raises:
        OSError: the kernel has no seccomp, or the machine is of another architecture.
    """
    code = filter_code(platform.machine(), allow_programs)
    program = _Program(len(code) // 8, code)
    prctl(PR_SET_SECCOMP, ctypes.c_ulong(2), ctypes.byref(program))


def filter_code(machine: str, allow_programs: bool) -> bytes:
    """The filter as BPF instructions; ``OSError`` for an unknown machine."""
    if machine not in _ARCHITECTURES:
        raise OSError(f"no system-call table for {machine}")
    refused = errno.EPERM | _ERRNO
    lines = [_line(_LOAD, _ARCH), _line(_JUMP_EQUAL, _ARCHITECTURES[machine], 1, 0), _line(_RETURN, _KILL)]
    lines.append(_line(_LOAD, _NUMBER))
    numbers = [*_ALWAYS[machine].values(), *(() if allow_programs else _PROGRAMS[machine].values())]
    for number in numbers:
        lines += [_line(_JUMP_EQUAL, number, 0, 1), _line(_RETURN, refused)]
    if not allow_programs:
        lines += [_line(_JUMP_EQUAL, _CLONE3, 0, 1), _line(_RETURN, errno.ENOSYS | _ERRNO)]
        lines += _on_argument(_CLONE[machine], _JUMP_SET, _CLONE_THREAD, refused)
    lines += _on_argument(_SOCKET[machine], _JUMP_EQUAL, _AF_UNIX, refused)
    lines.append(_line(_RETURN, _ALLOW))
    return b"".join(lines)


def _on_argument(number: int, test: int, value: int, refused: int) -> list[bytes]:
    """Allow call ``number`` only when its first argument passes the test."""
    return [
        _line(_JUMP_EQUAL, number, 0, 4),
        _line(_LOAD, _ARGUMENT_0),
        _line(test, value, 0, 1),
        _line(_RETURN, _ALLOW),
        _line(_RETURN, refused),
    ]


def _line(code: int, value: int, true: int = 0, false: int = 0) -> bytes:
    return struct.pack("HBBI", code, true, false, value)


PR_SET_NO_NEW_PRIVS = 38
PR_SET_SECCOMP = 22
_CAPABILITY_VERSION_3 = 0x20080522


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def syscall(number: int, *arguments: object) -> int:
    """Raw system call; ``OSError`` on failure."""
    return _checked(int(_libc().syscall(ctypes.c_long(number), *arguments)))


def prctl(option: int, *arguments: object) -> int:
    """``prctl(2)``; ``OSError`` on failure."""
    filled = [*arguments, *([ctypes.c_ulong(0)] * (4 - len(arguments)))]
    return _checked(int(_libc().prctl(option, *filled)))


def unshare(flags: int) -> None:
    """``unshare(2)``; ``OSError`` on failure."""
    _checked(int(_libc().unshare(flags)))


def mount(source: str | None, target: str, flags: int) -> None:
    """``mount(2)`` without a file system of its own; ``OSError`` on failure."""
    given = None if source is None else source.encode()
    _checked(int(_libc().mount(given, target.encode(), None, ctypes.c_ulong(flags), None)))


def drop_capabilities() -> None:
    """Give up every capability of this process; ``OSError`` on failure."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    nothing = (ctypes.c_uint32 * 6)()
    _checked(int(_libc().capset(ctypes.byref(header), ctypes.byref(nothing))))


def _checked(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result

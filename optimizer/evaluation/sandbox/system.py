"""System calls that Python has no name for."""

from __future__ import annotations

import ctypes
import functools
import os

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

"""Memory of a CUDA device that two processes map: values travel there at its own speed, not over the bus to the host.

The driver's virtual memory functions, found by name in ``libcuda``: an allocation becomes a file descriptor, which
works across namespaces of processes. Nothing here is thread-safe; a context must be current, as after torch used it.
"""

from __future__ import annotations

import ctypes
import functools
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_PINNED, _DEVICE, _FILE, _READ_WRITE = 1, 1, 1, 3
_CAN_MAP, _CAN_SHARE = 102, 103
"""Device attributes: virtual memory management, and its allocations as file descriptors."""


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Properties(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("handles", ctypes.c_int),
        ("location", _Location),
        ("metadata", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


class _Access(ctypes.Structure):
    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


class DeviceMemory:
    """A mapping of an allocation on the current CUDA device.

    Args:
        fd: of the allocation; the mapping closes it. ``size``: its bytes, as :meth:`of_size` made it.

    Attributes:
        memory: the mapping as bytes, a tensor on the device.

    Raises:
        OSError: the driver refuses.
    """

    def __init__(self, fd: int, size: int) -> None:
        import torch

        torch.cuda.synchronize()
        self.fd, self.size = fd, size
        handle, address = ctypes.c_uint64(), ctypes.c_uint64()
        _call("cuMemImportFromShareableHandle", ctypes.byref(handle), ctypes.c_void_p(fd), _FILE)
        try:
            _call("cuMemAddressReserve", ctypes.byref(address), _size(size), _size(0), ctypes.c_uint64(0), _size(0))
            _call("cuMemMap", address, _size(size), _size(0), handle, _size(0))
        finally:
            _call("cuMemRelease", handle)  # the mapping holds it
        access = _Access(_Location(_DEVICE, torch.cuda.current_device()), _READ_WRITE)
        _call("cuMemSetAccess", address, _size(size), ctypes.byref(access), _size(1))
        self._address = address
        self.memory: torch.Tensor = torch.as_tensor(_Bytes(int(address.value), size), device="cuda")

    @classmethod
    def of_size(cls, size: int) -> DeviceMemory:
        """A new allocation of at least ``size`` bytes.

        Raises:
            OSError: the device can not share memory this way, or has no room.
        """
        import torch

        if not can_share():
            raise OSError("the CUDA device shares no memory by file descriptors")
        torch.cuda.synchronize()
        where = _Location(_DEVICE, torch.cuda.current_device())
        wanted = _Properties(type=_PINNED, handles=_FILE, location=where)
        grain, handle, fd = ctypes.c_size_t(), ctypes.c_uint64(), ctypes.c_int(-1)
        _call("cuMemGetAllocationGranularity", ctypes.byref(grain), ctypes.byref(wanted), 0)
        whole = max(-(-size // grain.value), 1) * grain.value
        _call("cuMemCreate", ctypes.byref(handle), _size(whole), ctypes.byref(wanted), ctypes.c_uint64(0))
        try:
            _call("cuMemExportToShareableHandle", ctypes.byref(fd), handle, _FILE, ctypes.c_uint64(0))
        finally:
            _call("cuMemRelease", handle)
        os.set_inheritable(fd.value, False)
        return cls(fd.value, whole)

    def close(self) -> None:
        """Unmap; the memory goes when the other side has closed it too."""
        import torch

        torch.cuda.synchronize()
        del self.memory
        _call("cuMemUnmap", self._address, _size(self.size))
        _call("cuMemAddressFree", self._address, _size(self.size))
        os.close(self.fd)


class _Bytes:
    """What torch makes a tensor of without a copy."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3, "strides": None,
        }  # fmt: skip


@functools.cache
def can_share() -> bool:
    """Whether the current device's allocations can be mapped by other processes."""
    import torch

    number = ctypes.c_int()
    for attribute in (_CAN_MAP, _CAN_SHARE):
        try:
            _call("cuDeviceGetAttribute", ctypes.byref(number), attribute, torch.cuda.current_device())
        except OSError:
            return False
        if not number.value:
            return False
    return True


def _size(number: int) -> ctypes.c_size_t:
    return ctypes.c_size_t(number)


def _call(name: str, *arguments: Any) -> None:
    result = getattr(_driver(), name)(*arguments)
    if result:
        raise OSError(f"{name} failed with {result}")


@functools.cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")

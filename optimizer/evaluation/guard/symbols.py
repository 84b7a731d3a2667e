"""What a built library asks of others: names that no spelling in the source can hide."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from pathlib import Path

from optimizer.evaluation.guard.tables import REFUSED_CALLS

THREAD_SYMBOLS = ("_ZNSt6thread", "_ZNSt7jthread")
_DYNAMIC_SYMBOLS = 11
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_LIBRARIES = re.compile(
    r"[sdcz](?:ge|sy|he|tr|gb|sb)(?:mm|mv|rk|r2k|sv|sm|trf|trs|ev|evd|svd|qrf)_?(?:64_)?$|[sdcz](?:dot|axpy|ger)[uc]?_$|"
    r"(?:cblas|mkl|MKL|LAPACKE|dnnl|xnn|nnp|cublas|cudnn|cusparse|cusolver|cufft)_?[A-Za-z]|"
    r"_Z\w*?(?:2at6native|2at3cpu|2at4cuda4blas|2at11redispatch|4dnnl)|"
    r"_ZN2at4_ops\w+10redispatch|_ZN3c10\d+Set(?:CPU)?Allocator|_ZN3c1010Dispatcher13realSingleton"
)
_SYSTEM = re.compile(
    r"(?:__)?(?:" + "|".join(sorted(set(" ".join(REFUSED_CALLS.values()).split()))) + r")(?:64)?(?:_2|_chk)?$|"
    r"omp_get_wtime$|_ZN3c10\d*getTime|_ZNSt6chrono|_ZNSt6thread|_ZNSt10filesystem|"
    r"_ZNSt\d*(?:basic_)?(?:i|o)?f(?:ilebuf|stream)"
)


def refused_symbols(library: Path, *, with_cuda: bool) -> list[str]:
    """Imported names of vendor libraries, torch's own kernels, allocators and dispatcher and, on the CPU, the system.

    A CUDA library's runtime asks the system for much by itself, so there only the text is looked at for that.
    """
    found = []
    for name in imported(library.read_bytes()):
        if _LIBRARIES.match(name) or (not with_cuda and _SYSTEM.match(name)):
            found.append(name)
    return found


def imported(data: bytes) -> Iterator[str]:
    """Undefined dynamic symbols of a 64-bit little-endian ELF file; none of anything else."""
    if data[:6] != b"\x7fELF\x02\x01":
        return
    (offset,) = struct.unpack_from("<Q", data, 40)
    size, count = struct.unpack_from("<HH", data, 58)
    sections = [_SECTION.unpack_from(data, offset + index * size) for index in range(count)]
    for _, kind, _, _, start, length, link, _, _, _ in sections:
        if kind != _DYNAMIC_SYMBOLS:
            continue
        names = sections[link][4]
        for place in range(start, start + length, _SYMBOL.size):
            name, _, _, section, _, _ = _SYMBOL.unpack_from(data, place)
            if not section and name:
                begin = names + name
                yield data[begin : data.index(b"\0", begin)].decode("ascii", "replace")

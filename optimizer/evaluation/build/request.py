"""What is to be built, and one way to get from sources to a library."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from artifacts.codec import encode
from optimizer.evaluation.build.command import Stop
from optimizer.evaluation.build.flags import checked
from optimizer.evaluation.kept_file import content_hash

_NAME = re.compile(r"[A-Za-z_]\w*\Z")
_FILE = re.compile(r"[\w.+-]+(/[\w.+-]+)*\Z")
_SIZE_LIMIT = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """A file to compile (``.cpp``, ``.cu``, …) or a header that one of them includes.

    Attributes:
        name: relative path, as the including file spells it.
        compile: False for headers.
    """

    name: str
    text: str
    compile: bool = True

    def __post_init__(self) -> None:
        if not _FILE.match(self.name) or ".." in self.name.split("/"):
            raise ValueError(f"file name must be a plain relative path, got {self.name!r}")

    @property
    def is_cuda(self) -> bool:
        """True for files that nvcc compiles."""
        return self.name.endswith((".cu", ".cuh"))


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRequest:
    """One extension module; equal requests give the same library, so a library is built once.

    Attributes:
        name: module name, the suffix of its ``PyInit_`` function.
        files: sources and the headers they include by quotes.
        cflags, cuda_cflags, ldflags: in any spelling that torch takes; held with one flag a string.
        fast: try the fast routes; False asks for the stock route alone.
    """

    name: str
    files: tuple[SourceFile, ...]
    cflags: tuple[str, ...] = ()
    cuda_cflags: tuple[str, ...] = ()
    ldflags: tuple[str, ...] = ()
    include_paths: tuple[str, ...] = ()
    with_cuda: bool = False
    fast: bool = True

    def __post_init__(self) -> None:
        if not _NAME.match(self.name):
            raise ValueError(f"extension name must be an identifier, got {self.name!r}")
        if not any(file.compile for file in self.files):
            raise ValueError(f"extension {self.name!r} has no source to compile")
        if sum(len(file.text) for file in self.files) > _SIZE_LIMIT:
            raise ValueError(f"sources of extension {self.name!r} exceed {_SIZE_LIMIT} characters")
        object.__setattr__(self, "cflags", checked(self.cflags))
        object.__setattr__(self, "cuda_cflags", checked(self.cuda_cflags, for_nvcc=True))
        object.__setattr__(self, "ldflags", checked(self.ldflags))

    def key(self, toolchain: str) -> str:
        """SHA-256 (hex) over the content and the compilers' fingerprint."""
        return content_hash(encode(self), toolchain)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What a route gave: a library, or the compilers' output.

    Attributes:
        library: path of the built library; None when the compilers refused.
        log: their output; warnings too.
    """

    library: Path | None
    log: str


class Route(Protocol):
    """Builds requests in one way.

    Contract: ``build`` writes into ``directory`` alone and returns an :class:`Attempt` for anything
    compilers say, and one without a library soon after ``stop`` is set;
    :class:`optimizer.evaluation.build.command.BuildTimeoutError` passes through.
    """

    name: str

    def supports(self, request: BuildRequest) -> bool:
        """Whether trying is worth it; False is not a failure."""
        ...

    def build(self, request: BuildRequest, directory: Path, timeout_s: float, stop: Stop | None = None) -> Attempt:
        """Build ``request`` in the empty ``directory``."""
        ...


def write_files(request: BuildRequest, directory: Path) -> list[Path]:
    """Write sources and headers; returns the paths of those to compile."""
    paths = []
    for file in request.files:
        path = directory / file.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file.text, encoding="utf-8", errors="surrogatepass")
        if file.compile:
            paths.append(path)
    return paths

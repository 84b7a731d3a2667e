"""One way to get from sources to a library."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from optimizer.evaluation.build.command import Stop
from optimizer.evaluation.build.request import BuildRequest


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

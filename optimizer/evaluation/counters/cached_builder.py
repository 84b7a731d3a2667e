"""A builder that compiles nothing: what evaluation built is in the cache."""

from __future__ import annotations

from optimizer.evaluation.build.builder import BuildResult
from optimizer.evaluation.build.cache import BuildCache
from optimizer.evaluation.build.command import Stop
from optimizer.evaluation.build.request import BuildRequest


class CachedBuilder:
    """A :class:`optimizer.evaluation.build.builder.Builder` over entries that exist.

    Args:
        cache: where evaluation builds.
        fingerprint: of the toolchain evaluation builds with.
    """

    def __init__(self, cache: BuildCache, fingerprint: str) -> None:
        self._cache = cache
        self._fingerprint = fingerprint

    def build(self, request: BuildRequest, stop: Stop | None = None) -> BuildResult:
        """The library of ``request``, or a result without one."""
        found = self._cache.find(request.key(self._fingerprint))
        if found is None or not found[0].built:
            return BuildResult(library="", route="cache", log="not built before")
        entry, directory = found
        return BuildResult(library=str(directory / entry.library), route=entry.route, cached=True)

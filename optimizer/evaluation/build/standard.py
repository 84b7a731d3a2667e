"""The builder that evaluation uses: all routes that this host supports over one cache."""

from __future__ import annotations

import os
from pathlib import Path

from optimizer.evaluation.build.builder import LocalBuilder
from optimizer.evaluation.build.cache import BuildCache
from optimizer.evaluation.build.fast import FastRoute
from optimizer.evaluation.build.route import Route
from optimizer.evaluation.build.slots import CompilerSlots
from optimizer.evaluation.build.stock import StockRoute
from optimizer.evaluation.build.toolchain import detect_toolchain


def default_root() -> Path:
    """``$HTAM_BUILD_CACHE``, else a folder in the user's cache."""
    named = os.environ.get("HTAM_BUILD_CACHE")
    if named:
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "htam" / "builds"


def standard_builder(root: Path | None = None, slots: int | None = None, timeout_s: float = 300.0) -> LocalBuilder:
    """A builder over the cache at ``root`` with the fast routes first.

    Args:
        root: cache directory; :func:`default_root` when None.
        slots: builds that compile at a time; the number of cores when None.
        timeout_s: limit of one compiler run.
    """
    toolchain = detect_toolchain()
    cache = BuildCache(root or default_root())
    headers = cache.root / "headers"
    compilers = CompilerSlots(os.cpu_count() or 1)
    fast: list[Route] = [FastRoute(toolchain, headers, split=split, slots=compilers) for split in (True, False)]
    routes = [*fast, StockRoute(arch=toolchain.arch)]
    return LocalBuilder(cache, routes, toolchain.fingerprint, slots or os.cpu_count() or 1, timeout_s)

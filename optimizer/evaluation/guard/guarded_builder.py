"""A builder that looks at what it is asked to compile."""

from __future__ import annotations

from pathlib import Path

from optimizer.evaluation.build.builder import Builder, BuildResult
from optimizer.evaluation.build.command import Stop
from optimizer.evaluation.build.request import BuildRequest
from optimizer.evaluation.guard.cpp_threads import has_threads
from optimizer.evaluation.guard.static import check_files
from optimizer.evaluation.guard.symbols import THREAD_SYMBOLS, refused_symbols

ROUTE = "guard"
"""Route of a result that the guard decided."""


class GuardedBuilder:
    """Refuses sources with fatal findings and libraries that ask for what none may use; passes all others on."""

    def __init__(self, builder: Builder) -> None:
        self._builder = builder

    def build(self, request: BuildRequest, stop: Stop | None = None) -> BuildResult:
        """See :class:`optimizer.evaluation.build.builder.Builder`."""
        findings = [item for item in check_files((file.name, file.text) for file in request.files) if item.fatal]
        if findings:
            lines = [f"line {item.line}: {item.message} [{item.rule}]" for item in findings[:5]]
            return BuildResult(library="", route=ROUTE, log="; ".join(lines))
        built = self._builder.build(request, stop)
        library = Path(built.library)
        names = refused_symbols(library, with_cuda=request.with_cuda) if library.is_file() else []
        if any(has_threads(file.text) for file in request.files):  # looked at in the text
            names = [name for name in names if not name.startswith(THREAD_SYMBOLS)]
        if names:
            return BuildResult(library="", route=ROUTE, log=f"{', '.join(names[:5])} may not be called [cpp_symbol]")
        return built

"""The static guard: everything that can be said before a candidate runs."""

from __future__ import annotations

import ast
import io
import re
import struct
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

from artifacts.candidate import syntax_tree
from artifacts.measurement import GuardFinding
from optimizer.evaluation.build.builder import Builder, BuildResult
from optimizer.evaluation.build.command import Stop
from optimizer.evaluation.build.request import BuildRequest
from optimizer.evaluation.guard import python_rules, work_rules
from optimizer.evaluation.guard.cpp_lifetime import has_threads
from optimizer.evaluation.guard.cpp_rules import check_cpp
from optimizer.evaluation.guard.kept import states_of
from optimizer.evaluation.guard.languages import LANGUAGES
from optimizer.evaluation.guard.names import Names, spell_out
from optimizer.evaluation.guard.set_up import module_values, setup_modules
from optimizer.evaluation.guard.tables import REFUSED_CALLS

_RULES = (
    python_rules.imports,
    python_rules.builtins,
    python_rules.attributes,
    python_rules.assignments,
    python_rules.classes,
    python_rules.statements,
    module_values,
    setup_modules,
    work_rules.own_kernels,
    work_rules.reference_used,
    work_rules.fallbacks,
    work_rules.kept_state,
    *(language.rules for language in LANGUAGES),
)


def check_source(source: str, backend: str, task: str = "") -> tuple[GuardFinding, ...]:
    """Findings in a candidate, in order of lines; fatal ones reject it.

    C++ and CUDA text is looked at where it is compiled (:class:`GuardedBuilder`), since Python may
    put it together in any way. A file that is no Python has no findings: its import says more. A state that the
    model of the task keeps between calls, such as a hidden one, a candidate may keep under that name.
    """
    if (encoding := _encoding(source)) not in ("utf-8", "utf-8-sig"):
        return (
            GuardFinding(rule="encoding", message=f"the file says that it is {encoding}: it must be UTF-8", line=1),
        )
    try:
        return _findings(syntax_tree(source), states_of(task))
    except (SyntaxError, ValueError):
        return ()
    except (RecursionError, MemoryError):  # the second is how a parser says that its stack is too small
        return (GuardFinding(rule="nesting", message="the source is nested too deeply to be read"),)


def _encoding(source: str) -> str:
    """What an import would decode the file with; a parser of text never asks."""
    try:
        return tokenize.detect_encoding(io.BytesIO(source.encode("utf-8", "surrogatepass")).readline)[0]
    except SyntaxError:
        return "utf-8"


def _findings(tree: ast.Module, states: frozenset[str]) -> tuple[GuardFinding, ...]:
    tree.body = [node for node in tree.body if not _is_main_block(node)]
    spell_out(tree)
    names = Names(tree, states)
    found = {finding for rule in _RULES for finding in rule(tree, names)}
    return tuple(sorted(found, key=lambda item: (item.line or 0, item.rule, item.message)))


def _is_main_block(node: ast.stmt) -> bool:
    """``if __name__ == "__main__"``: never runs, since a candidate is imported."""
    return isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'" and not node.orelse


def check_files(files: Iterable[tuple[str, str]]) -> tuple[GuardFinding, ...]:
    """Findings in C++ and CUDA files given as (name, text)."""
    listed = list(files)
    own = frozenset(name for name, _ in listed)
    return tuple(finding for _, text in listed for finding in check_cpp(text, own))


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

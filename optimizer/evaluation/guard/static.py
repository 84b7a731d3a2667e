"""The static guard: everything that can be said before a candidate runs."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterable

from artifacts.measurement import GuardFinding
from artifacts.syntax import parse
from optimizer.evaluation.guard import python_rules, work_rules
from optimizer.evaluation.guard.cpp_rules import check_cpp
from optimizer.evaluation.guard.module_values import module_values, setup_modules
from optimizer.evaluation.guard.names import Names, spell_out

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
)


def check_source(source: str, backend: str) -> tuple[GuardFinding, ...]:
    """Findings in a candidate, in order of lines; fatal ones reject it.

    C++ and CUDA text is looked at where it is compiled (:class:`GuardedBuilder`), since Python may
    put it together in any way. A file that is no Python has no findings: its import says more.
    """
    if (encoding := _encoding(source)) not in ("utf-8", "utf-8-sig"):
        return (
            GuardFinding(rule="encoding", message=f"the file says that it is {encoding}: it must be UTF-8", line=1),
        )
    try:
        return _findings(parse(source))
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


def _findings(tree: ast.Module) -> tuple[GuardFinding, ...]:
    tree.body = [node for node in tree.body if not _is_main_block(node)]
    spell_out(tree)
    names = Names(tree)
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

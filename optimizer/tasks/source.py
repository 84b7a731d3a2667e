"""A task, and looking at its source without running it."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from artifacts.candidate import syntax_tree
from artifacts.errors import BadTaskError
from artifacts.task import TaskRef
from optimizer.evaluation.verify.task_module import HIDDEN

REQUIRED = ("Model", "get_inputs", "get_init_inputs")
"""What the source of a task defines at top level, as in KernelBench."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One operator to make fast.

    Attributes:
        source: Python that defines ``Model``, ``get_inputs`` and ``get_init_inputs``.
        path: where it was read, for messages.
        dtype, size: of the inputs, as :class:`artifacts.trajectory.State` names them.
    """

    ref: TaskRef
    source: str
    path: str
    dtype: str = "unknown"
    size: str = "unknown"


def parse_task(source: str, where: str) -> ast.Module:
    """Return the syntax tree of a task source.

    Raises:
        BadTaskError: it is no Python.
    """
    try:
        return syntax_tree(source)
    except SyntaxError as problem:
        raise BadTaskError(f"{where} line {problem.lineno} is not Python: {problem.msg}", "correct the file") from None
    except (ValueError, RecursionError, MemoryError) as problem:
        raise BadTaskError(f"{where} cannot be parsed: {problem}", "correct the file") from problem


def top_level_names(tree: ast.Module) -> frozenset[str]:
    """Names of functions, classes and variables that a module defines or imports at top level."""
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return frozenset(names)


def check_task(source: str, where: str) -> None:
    """Refuse a source that lacks something a task needs.

    Raises:
        BadTaskError: names what is missing.
    """
    missing = [name for name in REQUIRED if name not in top_level_names(parse_task(source, where))]
    if missing:
        raise BadTaskError(
            f"{where} is no task: it does not define {' and '.join(missing)}",
            "a task file defines class Model, get_inputs() and get_init_inputs()",
        )


def shown_source(source: str) -> str:
    """The source of a task as prompts show it: without the function that makes its hidden input settings.

    What is to stay hidden stands inside that function; constants and helpers beside it are shown.
    """
    lines = source.splitlines(keepends=True)
    for node in reversed(syntax_tree(source).body):
        if isinstance(node, ast.FunctionDef) and node.name == HIDDEN:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            del lines[first - 1 : node.end_lineno]
    return "".join(lines)

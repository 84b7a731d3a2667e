"""Load a task's source: Model, get_inputs and get_init_inputs."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from artifacts.candidate import syntax_tree
from artifacts.errors import BadTaskError
from optimizer.evaluation.sandbox.candidate import import_source
from optimizer.evaluation.sandbox.values import map_tensors

REQUIRED = ("Model", "get_inputs")
MODULE_NAME = "htam_task"
MORE, HIDDEN = "get_input_sets", "get_hidden_input_sets"
"""Functions by which a task declares more input settings."""
_SELECTED = "HTAM_INPUT_SET"


@dataclass(frozen=True, slots=True)
class TaskModule:
    """The names a task defines; optional ones are None where it does not."""

    model: Callable[..., Any]
    inputs: Callable[[], Any]
    init_inputs: Callable[[], Any]
    awkward_inputs: Callable[[], Any] | None = None
    input_sets: Callable[[], Any] | None = None
    hidden_input_sets: Callable[[], Any] | None = None

    def every_inputs(self) -> list[Callable[[], Any]]:
        """Makers of inputs, one for each setting."""
        sets = [one for make in (self.input_sets, self.hidden_input_sets) if make for one in make()]
        return [self.inputs, *(one if callable(one) else functools.partial(list, one) for one in sets)]


@contextlib.contextmanager
def blaming_the_task() -> Iterator[None]:
    """Whatever the block raises becomes a :class:`BadTaskError`."""
    try:
        yield
    except Exception as problem:
        raise BadTaskError(f"task fails: {type(problem).__name__}: {problem}", "correct the task file") from problem


def check_task_source(source: str, name: str) -> None:
    """Look, without running anything, whether ``source`` can be a task.

    Raises:
        BadTaskError: no Python, or a required name is missing.
    """
    try:
        tree = syntax_tree(source)
    except (SyntaxError, ValueError) as problem:
        raise BadTaskError(f"task {name} is not Python: {problem}", "correct the file") from problem
    defined = {node.name for node in tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    defined |= {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    missing = [required for required in REQUIRED if required not in defined]
    if missing:
        raise BadTaskError(
            f"task {name} does not define {' and '.join(missing)}",
            "a task defines class Model, get_inputs() and get_init_inputs()",
        )


def load_task_module(source: str, folder: Path, dtype: str = "") -> TaskModule:
    """Run the task's source and pick its names.

    Args:
        dtype: to which the model and floating-point inputs are cast; as the task has them when empty.

    Raises:
        BadTaskError: it does not run or does not define what is needed.
    """
    try:
        module = import_source(source, folder / "task.py", MODULE_NAME)
    except Exception as problem:
        raise BadTaskError(
            f"task does not import: {type(problem).__name__}: {problem}", "correct the file"
        ) from problem
    missing = [name for name in REQUIRED if not hasattr(module, name)]
    if missing:
        raise BadTaskError(f"task does not define {' and '.join(missing)}", "add the missing names")
    selected = getattr(module, _SELECTED, None)
    task = TaskModule(
        model=module.Model,
        inputs=module.get_inputs if selected is None else _chosen(module, *selected),
        init_inputs=getattr(module, "get_init_inputs", list),
        awkward_inputs=getattr(module, "get_awkward_inputs", None) if selected is None else None,
        input_sets=getattr(module, MORE, None),
        hidden_input_sets=getattr(module, HIDDEN, None),
    )
    return _cast(task, dtype) if dtype else task


def selecting(source: str, function: str, index: int) -> str:
    """``source`` as a task of one input setting: the one at ``index`` of what ``function`` returns."""
    return f"{source}\n\n{_SELECTED} = {(function, index)!r}\n"


def _chosen(module: ModuleType, function: str, index: int) -> Callable[[], Any]:
    """Makes the inputs of one setting, which is a list of inputs or a function that returns one."""

    def inputs() -> Any:
        chosen = getattr(module, function)()[index]
        return chosen() if callable(chosen) else chosen

    return inputs


def _cast(task: TaskModule, dtype: str) -> TaskModule:
    """The task in another floating-point type; its numbers are drawn in their own type and rounded once."""
    import torch

    target = getattr(torch, dtype)

    def cast(tensor: Any) -> Any:
        return tensor.to(target) if tensor.dtype.is_floating_point else tensor

    def casting(make: Callable[[], Any]) -> Callable[[], Any]:
        return lambda: map_tensors(list(make()), cast)

    return dataclasses.replace(
        task,
        model=lambda *arguments: task.model(*arguments).to(target),
        inputs=casting(task.inputs),
        awkward_inputs=None if task.awkward_inputs is None else casting(task.awkward_inputs),
    )

"""How many bytes a task must move at least, read from its reference without running it."""

from __future__ import annotations

import ast
import functools
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from artifacts.candidate import syntax_tree
from artifacts.task import TaskRef

MAX_SOURCE_CHARS = 200_000
_ITEM_BYTES = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}
_ALIASES = {"double": "float64", "float": "float32", "half": "float16", "long": "int64", "int": "int32"}
_SAME_SHAPE = frozenset({"elementwise", "softmax", "normalization", "scan"})
_LARGEST_INTEGER = 2**62
_MOST_ITEMS = 1024
"""Longest list that a comprehension may make; inputs are a few tensors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskBytes:
    """Bytes of a task's tensors.

    Attributes:
        inputs: all inputs together.
        largest: the largest input.
        dtype: of the largest input, e.g. ``float32``.
    """

    inputs: int
    largest: int
    dtype: str

    def least_moved(self, family: str) -> int:
        """Bytes that any kernel must move: all inputs once, and the output where its shape is the input's."""
        return self.inputs + (self.largest if family in _SAME_SHAPE else 0)

    @property
    def size(self) -> str:
        """Shape regime of :class:`artifacts.trajectory.State`: below 1 MiB, 32 MiB, 512 MiB, and above."""
        for name, limit in (("tiny", 2**20), ("small", 2**25), ("medium", 2**29)):
            if self.inputs < limit:
                return name
        return "large"


def task_bytes(task: TaskRef, reference: str = "") -> TaskBytes | None:
    """Bytes of a task from its reference, else from the published KernelBench sizes; None when neither says."""
    found = reference_bytes(reference) if reference else None
    return found or _published().get(task.task_id)


@functools.lru_cache(maxsize=4096)
def reference_bytes(reference: str) -> TaskBytes | None:
    """Bytes of what ``get_inputs`` of a reference makes; None when that needs running it."""
    if len(reference) > MAX_SOURCE_CHARS or "def get_inputs" not in reference:
        return None
    try:
        tensors = _inputs_of(syntax_tree(reference))
    except (SyntaxError, ValueError, RecursionError, MemoryError, _UnknownError):
        return None
    if not tensors:
        return None
    largest = max(tensors, key=lambda tensor: tensor.bytes)
    return TaskBytes(inputs=sum(tensor.bytes for tensor in tensors), largest=largest.bytes, dtype=largest.dtype)


class _UnknownError(Exception):
    """The value is not known without running the code."""


@dataclass(frozen=True, slots=True)
class _Tensor:
    shape: tuple[int, ...]
    dtype: str

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * _ITEM_BYTES[self.dtype]


_Value = int | float | tuple[Any, ...] | _Tensor | None


def _inputs_of(module: ast.Module) -> list[_Tensor]:
    names: dict[str, _Value] = {}
    body: list[ast.stmt] = []
    for statement in module.body:
        if isinstance(statement, ast.FunctionDef) and statement.name == "get_inputs":
            body = statement.body
        else:
            _assign(statement, names)
    for statement in body:
        if isinstance(statement, ast.Return) and statement.value is not None:
            value = _evaluate(statement.value, names)
            return [item for item in _flat(value) if isinstance(item, _Tensor)]
        _assign(statement, names)
    return []


def _flat(value: _Value) -> Iterable[_Value]:
    if isinstance(value, tuple):
        for item in value:
            yield from _flat(item)
    else:
        yield value


def _assign(statement: ast.stmt, names: dict[str, _Value]) -> None:
    """Take over an assignment; what is not known makes its name unknown."""
    if not isinstance(statement, ast.Assign):
        return
    try:
        value = _evaluate(statement.value, names)
    except _UnknownError:
        value = None
    for target in statement.targets:
        _bind(target, value, names)


def _bind(target: ast.expr, value: _Value, names: dict[str, _Value]) -> None:
    if isinstance(target, ast.Name):
        names[target.id] = value
    elif isinstance(target, ast.Tuple) and isinstance(value, tuple) and len(value) == len(target.elts):
        for name, item in zip(target.elts, value, strict=True):
            _bind(name, item, names)


def _evaluate(node: ast.expr, names: Mapping[str, _Value]) -> _Value:
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        return node.value
    if isinstance(node, ast.Name) and names.get(node.id) is not None:
        return names[node.id]
    if isinstance(node, (ast.Tuple, ast.List)):
        return tuple(_spread(node.elts, names))
    if isinstance(node, (ast.ListComp, ast.GeneratorExp)):
        return tuple(_comprehended(node.elt, node.generators, names))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = _evaluate(node.operand, names)
        return -value if isinstance(value, (int, float)) else value
    if isinstance(node, ast.BinOp):
        return _arithmetic(node, names)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return _call(node, node.func, names)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return _listed(node, node.func.id, names)
    if isinstance(node, ast.Attribute):
        return _attribute(_evaluate(node.value, names), node.attr)
    raise _UnknownError


def _attribute(value: _Value, name: str) -> _Value:
    if isinstance(value, _Tensor) and name == "shape":
        return value.shape
    if isinstance(value, _Tensor) and name in ("T", "mT"):
        return value
    raise _UnknownError


def _spread(nodes: Iterable[ast.expr], names: Mapping[str, _Value]) -> Iterable[_Value]:
    for node in nodes:
        if isinstance(node, ast.Starred):
            value = _evaluate(node.value, names)
            if not isinstance(value, tuple):
                raise _UnknownError
            yield from value
        else:
            yield _evaluate(node, names)


def _listed(node: ast.Call, name: str, names: Mapping[str, _Value]) -> _Value:
    """What ``list``, ``tuple`` and ``range`` make."""
    given = tuple(_spread(node.args, names))
    if node.keywords or not given:
        raise _UnknownError
    if name in ("list", "tuple") and len(given) == 1 and isinstance(given[0], tuple):
        return given[0]
    bounds = [item for item in given if isinstance(item, int)]
    if name != "range" or len(bounds) < len(given) or len(bounds) > 3 or bounds[2:] == [0]:
        raise _UnknownError
    counted = range(*bounds)
    if len(counted) > _MOST_ITEMS:
        raise _UnknownError
    return tuple(counted)


def _comprehended(
    element: ast.expr, generators: Sequence[ast.comprehension], names: Mapping[str, _Value]
) -> list[_Value]:
    """Items of a comprehension, the first ``for`` outermost; a condition is not evaluated."""
    if not generators:
        return [_evaluate(element, names)]
    first, *rest = generators
    over = _evaluate(first.iter, names)
    if first.ifs or not isinstance(over, tuple):
        raise _UnknownError
    found: list[_Value] = []
    for item in over:
        within = dict(names)
        _bind(first.target, item, within)
        found += _comprehended(element, rest, within)
        if len(found) > _MOST_ITEMS:
            raise _UnknownError
    return found


_OPERATIONS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.truediv,
}


def _arithmetic(node: ast.BinOp, names: Mapping[str, _Value]) -> _Value:
    left, right = _evaluate(node.left, names), _evaluate(node.right, names)
    tensors = [side for side in (left, right) if isinstance(side, _Tensor)]
    if tensors:
        return max(tensors, key=lambda tensor: tensor.bytes)
    operation = _OPERATIONS.get(type(node.op))
    if operation is None or not isinstance(left, (int, float)) or not isinstance(right, (int, float)):
        raise _UnknownError
    try:
        value: int | float = operation(left, right)
    except (ArithmeticError, ValueError) as problem:
        raise _UnknownError from problem
    if abs(value) > _LARGEST_INTEGER:
        raise _UnknownError
    return value


_MAKERS = frozenset({"rand", "randn", "zeros", "ones", "empty", "randint", "full", "rand_like", "randn_like"})
_KEEPERS = frozenset(
    {
        *("to", "cuda", "cpu", "contiguous", "softmax", "abs", "t", "transpose", "permute", "clone", "sign", "sigmoid"),
        *("cos", "sin", "tanh", "tril", "triu", "requires_grad_", "log_softmax", "exp", "log", "view", "reshape"),
        *("unsqueeze", "squeeze"),
    }
)


def _call(node: ast.Call, function: ast.Attribute, names: Mapping[str, _Value]) -> _Value:
    on_torch = isinstance(function.value, ast.Name) and function.value.id in ("torch", "F")
    if on_torch and function.attr in _MAKERS:
        return _made(node, function.attr, names)
    tensor = _evaluate(node.args[0] if on_torch and node.args else function.value, names)
    if not isinstance(tensor, _Tensor):
        raise _UnknownError
    cast = _ALIASES.get(function.attr, function.attr)
    if cast in _ITEM_BYTES:
        return _Tensor(tensor.shape, cast)
    if function.attr in _KEEPERS:
        return _Tensor(tensor.shape, _dtype(node, tensor.dtype))
    raise _UnknownError


def _made(node: ast.Call, maker: str, names: Mapping[str, _Value]) -> _Tensor:
    keywords = {keyword.arg: keyword.value for keyword in node.keywords}
    if maker.endswith("_like"):
        like = _evaluate(node.args[0], names) if node.args else None
        if not isinstance(like, _Tensor):
            raise _UnknownError
        return _Tensor(like.shape, _dtype(node, like.dtype))
    arguments = list(node.args)
    if maker in ("randint", "full"):
        sizes = [_shape_of(value, names) for value in (*arguments, keywords.get("size")) if value is not None]
        arguments = [size for size in sizes if size is not None][-1:]
    default = "int64" if maker == "randint" else "float32"
    if not arguments:
        raise _UnknownError
    shape = tuple(item for item in _flat(tuple(_spread(arguments, names))) if isinstance(item, int) and item > 0)
    if len(shape) != sum(1 for _ in _flat(tuple(_spread(arguments, names)))) or math.prod(shape) > _LARGEST_INTEGER:
        raise _UnknownError
    return _Tensor(shape, _dtype(node, default))


def _shape_of(node: ast.expr, names: Mapping[str, _Value]) -> ast.expr | None:
    """``node`` when it is a tuple of sizes, None when it is a plain number."""
    return node if isinstance(_evaluate(node, names), tuple) else None


def _dtype(node: ast.Call, default: str) -> str:
    """Dtype among the arguments of a call (``dtype=torch.float16``, ``.to(torch.half)``), else ``default``."""
    for value in (*node.args, *(keyword.value for keyword in node.keywords)):
        name = _ALIASES.get(value.attr, value.attr) if isinstance(value, ast.Attribute) else ""
        if name in _ITEM_BYTES:
            return name
    return default


@functools.cache
def _published() -> dict[str, TaskBytes]:
    """Sizes of the published KernelBench tasks as they are since 2025, by task id."""
    table: dict[str, TaskBytes] = {}
    text = resources.files("artifacts").joinpath("kernelbench_tasks.txt").read_text(encoding="utf-8")
    for line in text.splitlines():
        level, slug, *sizes = line.split()
        if sizes:
            inputs, largest, dtype = sizes
            table[f"kernelbench/{level}/{slug}"] = TaskBytes(inputs=int(inputs), largest=int(largest), dtype=dtype)
    return table

"""Kernels in Numba: functions under ``@numba.njit``, compiled for the CPU by LLVM when they are first called.

A kernel is loops over arrays and numbers. Numba also gives what nobody asked the candidate to write: BLAS and LAPACK
behind ``dot``, ``@`` and ``linalg``, Python itself behind ``objmode``, text that is evaluated as a signature, files of
compiled code. So a kernel may use what is listed here and nothing else, and arrays live from the argument of a kernel
to its end: in between, numpy would work where no recorder sees it.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator, Sequence
from typing import Any

from artifacts.measurement import GuardFinding
from optimizer.evaluation.guard.names import Names, decorators_of

MODULE = "numba"
_TYPES = "float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64"
PARTS = frozenset({"numba", *(f"numba.{name}" for name in ("njit", "prange", *_TYPES.split()))})
KERNELS: tuple[str, ...] = ("numba.njit",)

_OPTIONS = frozenset({"parallel", "fastmath", "nogil", "error_model", "boundscheck", "inline"})
_NUMPY = frozenset(
    f"""{_TYPES} bool_ pi e inf nan newaxis abs absolute sqrt cbrt exp exp2 expm1 log log2 log10 log1p sin cos tan
    arcsin arccos arctan arctan2 sinh cosh tanh hypot floor ceil trunc rint round sign fabs fmax fmin maximum minimum
    power square reciprocal isnan isinf isfinite copysign where empty empty_like zeros zeros_like ones full arange
    int_ float_ clip""".split()
)
_METHODS = frozenset({"shape", "size", "ndim", "dtype", "reshape", "ravel", "astype", "copy", "fill", "T", "strides"})
_BUILTINS = frozenset({"range", "len", "min", "max", "abs", "int", "float", "bool", "round", "enumerate", "zip", "pow"})
_REFUSED = (
    *(ast.With, ast.Try, ast.Import, ast.ImportFrom, ast.ClassDef, ast.FunctionDef, ast.Lambda, ast.Global, ast.Raise),
    *(ast.Nonlocal, ast.Yield, ast.YieldFrom, ast.JoinedStr, ast.Dict, ast.DictComp, ast.SetComp, ast.Set, ast.Delete),
)


def rules(tree: ast.Module, names: Names) -> Iterator[GuardFinding]:
    """What is wrong inside kernels, with what compiles them, and with how Python calls them."""
    kernels = _kernels(tree, names)
    inside = {id(part) for kernel in kernels.values() for part in ast.walk(kernel)}
    plain = {id(part) for kernel in kernels.values() for part in decorators_of(kernel)}
    own = {id(kernel) for kernel in kernels.values()}
    for kernel in kernels.values():
        yield from _compiled_as(kernel)
        yield from _body(kernel, names, frozenset(kernels))
    for node in ast.walk(tree):
        if _compiles(node, names) and id(node) not in plain:
            yield _finding("compiles functions as their only decorator, at module level", node)
        if any(getattr(node, field, None) in kernels for field in ("name", "arg", "asname")) and id(node) not in own:
            yield _finding("a kernel's name means nothing else", node)
    if kernels:
        yield from _calls(tree, names, frozenset(kernels), inside)
        yield from _kept(tree, kernels, inside)


def arrays(tree: ast.Module, names: Names) -> set[int]:
    """The ``.numpy`` of tensors that are arguments of a kernel, and numpy inside kernels."""
    kernels = _kernels(tree, names)
    given = {
        id(argument.func)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in kernels
        for argument in node.args
        if isinstance(argument, ast.Call) and _is_array(argument)
    }
    return given | {id(part) for kernel in kernels.values() for part in ast.walk(kernel)}


def watch(own: Any) -> None:
    """Count calls of compiled functions; see :class:`optimizer.evaluation.guard.languages.KernelLanguage`."""
    try:
        dispatcher: Any = importlib.import_module("numba.core.registry").CPUDispatcher
    except ImportError:
        return
    original = dispatcher.__call__

    def call(kernel: Any, *args: Any) -> Any:
        if not own.replacing:
            own.calls += 1
            return original(kernel, *args)
        result = own.wrapped(lambda *tensors: _tensors(original(kernel, *_arrays(tensors))))(*_tensors(args))
        return _arrays(result)

    dispatcher.__call__ = call


def _tensors(value: Any) -> Any:
    """Arrays as tensors over the same memory."""
    import numpy as np
    import torch

    if isinstance(value, tuple):
        return tuple(_tensors(item) for item in value)
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value


def _arrays(value: Any) -> Any:
    import torch

    if isinstance(value, tuple):
        return tuple(_arrays(item) for item in value)
    return value.numpy() if isinstance(value, torch.Tensor) else value


def _finding(message: str, node: ast.AST) -> GuardFinding:
    return GuardFinding(rule="numba", message=f"numba: {message}", line=getattr(node, "lineno", None))


def _compiles(node: ast.AST, names: Names) -> bool:
    return any(full in KERNELS for full in names.meanings_of(node))


def _kernels(tree: ast.Module, names: Names) -> dict[str, ast.FunctionDef]:
    return {
        node.name: node
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and any(_compiles(part, names) for part in decorators_of(node))
    }


def _compiled_as(kernel: ast.FunctionDef) -> Iterator[GuardFinding]:
    """One decorator, with switches only: a signature in quotes is evaluated, a cache is written to files."""
    arguments = kernel.args
    if len(kernel.decorator_list) > 1:
        yield _finding(f"{kernel.name} has more than one decorator", kernel)
    if arguments.defaults or arguments.kw_defaults or arguments.vararg or arguments.kwarg:
        yield _finding(f"{kernel.name} has arguments that are not plain positions", kernel)
    for node in (part for part in kernel.decorator_list if isinstance(part, ast.Call)):
        if node.args or any(word.arg not in _OPTIONS or not _is_switch(word.value) for word in node.keywords):
            yield _finding(f"njit takes {', '.join(sorted(_OPTIONS))} with constants, and no signature", node)


def _is_switch(node: ast.expr) -> bool:
    values = node.elts if isinstance(node, ast.Set) else [node]
    return all(isinstance(value, ast.Constant) for value in values)


def _body(kernel: ast.FunctionDef, names: Names, kernels: frozenset[str]) -> Iterator[GuardFinding]:
    """Loops, arithmetic and what is listed."""
    inner = {id(node.value) for node in ast.walk(kernel) if isinstance(node, ast.Attribute)}
    for node in (node for statement in kernel.body for node in ast.walk(statement)):
        if isinstance(node, _REFUSED):
            yield _finding(f"{type(node).__name__} in a kernel", node)
        elif isinstance(node, (ast.BinOp, ast.AugAssign)) and isinstance(node.op, ast.MatMult):
            yield _finding("@ in a kernel is a product by BLAS", node)
        elif isinstance(node, ast.Attribute) and id(node) not in inner and not _is_listed(node, names):
            yield _finding(f"{ast.unparse(node)} is not for kernels", node)
        elif isinstance(node, ast.Call) and not _may_be_called(node.func, names, kernels):
            yield _finding(f"{ast.unparse(node.func)}() is not for kernels", node)


def _may_be_called(function: ast.expr, names: Names, kernels: frozenset[str]) -> bool:
    """Parts of modules are looked at as attributes."""
    if isinstance(function, ast.Attribute):
        return True
    found = names.meanings_of(function)
    if found:
        return all(map(_is_part, found))
    return isinstance(function, ast.Name) and function.id in kernels | _BUILTINS


def _is_listed(node: ast.Attribute, names: Names) -> bool:
    found = names.meanings_of(node)
    return all(map(_is_part, found)) if found else node.attr in _METHODS


def _is_part(full: str) -> bool:
    root, _, rest = full.partition(".")
    return full in PARTS or (root == "math" and rest.isidentifier()) or (root == "numpy" and rest in _NUMPY)


def _is_array(node: ast.expr) -> bool:
    """``tensor.numpy()``."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "numpy"


def _calls(tree: ast.Module, names: Names, kernels: frozenset[str], inside: set[int]) -> Iterator[GuardFinding]:
    """Python calls kernels by name, with tensors and numbers, and makes tensors of what they return."""
    outside = [node for node in ast.walk(tree) if id(node) not in inside]
    handed = {id(node.value) for node in outside if isinstance(node, ast.Expr)}
    handed |= {
        id(node.args[0])
        for node in outside
        if isinstance(node, ast.Call) and len(node.args) == 1 and "torch.from_numpy" in names.meanings_of(node.func)
    }
    lasting, called = _lasting(tree, names), set[int]()
    for node in outside:
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.func.id not in kernels:
            continue
        called.add(id(node.func))
        if node.keywords or any(isinstance(argument, ast.Starred) for argument in node.args):
            yield _finding("kernels are called with plain positions", node)
        if id(node) not in handed:
            yield _finding("what a kernel returns goes straight into torch.from_numpy()", node)
        for argument in (argument for argument in node.args if not _is_array(argument)):
            named = {getattr(part, "id", getattr(part, "attr", "")) for part in ast.walk(argument)}
            if named & lasting:
                yield _finding(f"{min(named & lasting)} outlives the call: kernels take tensors and numbers", argument)
    for node in outside:
        if isinstance(node, ast.Name) and node.id in kernels and id(node) not in called:
            yield _finding(f"{node.id} is called by name and nothing else", node)


def _lasting(tree: ast.Module, names: Names) -> set[str]:
    """Names of the module that are no plain numbers, and attributes that are made with numpy."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Assign, ast.AnnAssign)) or node.value is None:
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        parts = list(ast.walk(node.value))
        holds = any(isinstance(part, (ast.Call, ast.List, ast.Dict, ast.Set, ast.ListComp)) for part in parts)
        from_numpy = any(full.startswith("numpy") for part in parts for full in names.meanings_of(part))
        if holds and node in tree.body:
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
        if from_numpy:
            found |= {target.attr for target in targets if isinstance(target, ast.Attribute)}
    return found


def _kept(tree: ast.Module, kernels: dict[str, ast.FunctionDef], inside: set[int]) -> Iterator[GuardFinding]:
    """Tensors of the model or the module that a kernel writes: the next call could find results there."""
    outside = [node for node in ast.walk(tree) if id(node) not in inside]
    written = _through_helpers(outside, _written(kernels))
    lasting = {part.id for node in tree.body if isinstance(node, ast.Assign) for part in _names(node.targets)}
    lasting |= {"self", "cls"}
    for node in outside:
        if isinstance(node, ast.Assign) and _viewed(node.value) & lasting:
            lasting |= {part.id for part in _names(node.targets)}
    for node, argument in _written_arguments(outside, written):
        if {part.id for part in _names([argument])} & lasting and not _is_fresh(argument):
            yield _finding(f"{ast.unparse(argument)} is written and outlives the call", node)


def _through_helpers(nodes: Sequence[ast.AST], written: dict[str, set[int]]) -> dict[str, set[int]]:
    """The same with functions of Python that hand arguments of their own on."""
    helpers = [node for node in nodes if isinstance(node, ast.FunctionDef)]
    found = {**{helper.name: set[int]() for helper in helpers}, **written}
    before = -1
    while before != (before := sum(map(len, found.values()))):
        for helper in helpers:
            names = [argument.arg for argument in helper.args.args if argument.arg not in ("self", "cls")]
            for _, argument in _written_arguments(list(ast.walk(helper)), found):
                found[helper.name] |= {names.index(part.id) for part in _names([argument]) if part.id in names}
    return found


def _written_arguments(nodes: Sequence[ast.AST], written: dict[str, set[int]]) -> Iterator[tuple[ast.Call, ast.expr]]:
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, (ast.Name, ast.Attribute)):
            name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
            named = isinstance(node.func, ast.Name) or _root(node.func) in ("self", "cls")
            places = written.get(name, set()) if named else set[int]()
            yield from ((node, argument) for place, argument in enumerate(node.args) if place in places)
            if places:
                yield from ((node, keyword.value) for keyword in node.keywords)


def _written(kernels: dict[str, ast.FunctionDef]) -> dict[str, set[int]]:
    """Kernel → places of the arguments that it may write, itself or through kernels that it calls."""
    found: dict[str, set[int]] = {name: set() for name in kernels}
    while True:
        before = {name: len(places) for name, places in found.items()}
        for name, kernel in kernels.items():
            stored = _stored(kernel, found)
            for place, argument in enumerate(kernel.args.args):
                if argument.arg in stored:
                    found[name].add(place)
        if before == {name: len(places) for name, places in found.items()}:
            return found


def _stored(kernel: ast.FunctionDef, written: dict[str, set[int]]) -> set[str]:
    """Names in a kernel whose memory is written, and the names that they are views of."""
    stored: set[str] = set()
    views: dict[str, set[str]] = {}
    for node in ast.walk(kernel):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            stored |= {_root(node)}
        elif isinstance(node, (ast.Assign, ast.For)):
            source = node.iter if isinstance(node, ast.For) else node.value
            for target in _names(node.targets if isinstance(node, ast.Assign) else [node.target]):
                if isinstance(target.ctx, ast.Store):  # what is stored under an index is copied
                    views.setdefault(target.id, set()).update(_viewed(source))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            for place in written.get(node.func.id, ()):
                stored |= {part.id for part in _names(node.args[place : place + 1])}
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "fill":
            stored |= {_root(node.func)}
    waiting = list(stored)
    while waiting:
        new = views.get(waiting.pop(), set()) - stored
        stored |= new
        waiting += new
    return stored


def _viewed(source: ast.expr) -> set[str]:
    """Names that a value may be a view of: arithmetic makes new arrays."""
    if isinstance(source, (ast.Tuple, ast.List)) or (
        isinstance(source, ast.Call) and isinstance(source.func, ast.Name)
    ):
        parts = source.args if isinstance(source, ast.Call) else source.elts
        return {name for part in parts for name in _viewed(part)}
    return {_root(source)} - {""}


def _names(nodes: Sequence[ast.AST]) -> list[ast.Name]:
    return [part for node in nodes for part in ast.walk(node) if isinstance(part, ast.Name)]


def _is_fresh(argument: ast.expr) -> bool:
    """``torch.empty(self.width).numpy()``: what is asked of the model is a number."""
    owner = argument.func.value if isinstance(argument, ast.Call) and isinstance(argument.func, ast.Attribute) else None
    return isinstance(owner, ast.Call) and _root(owner.func) == "torch"


def _root(node: ast.AST) -> str:
    """The name that a chain of attributes, indices and methods begins with; empty for anything else."""
    while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""

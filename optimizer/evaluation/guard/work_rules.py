"""Rules about who does the work: own kernels, no hidden fallback, nothing kept between calls."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from artifacts.measurement import GuardFinding
from optimizer.evaluation.guard.names import Names, dotted
from optimizer.evaluation.guard.python_rules import finding
from optimizer.evaluation.guard.tables import TORCH_MOVES

_OUTSIDE = {"__init__", "get_inputs", "get_init_inputs", "__repr__", "extra_repr"}
_FACTS = {"shape", "dtype", "device", "ndim", "is_cuda", "size", "numel", "dim", "stride", "is_contiguous", "training",
          "element_size", "is_floating_point", "get_device", "type", "__name__"}  # fmt: skip
"""What may be asked of an input without carrying its contents away."""
_BLANK = (*sorted(_FACTS), "empty", "new_empty", "zeros", "new_zeros")
"""Calls whose result holds nothing of their arguments' contents, by prefix."""
_GROWERS = {"append", "extend", "insert", "update", "setdefault", "add", "appendleft", "register_buffer", "put"}
_KERNEL_SOURCES = ("load_inline", "load")


def own_kernels(tree: ast.Module, names: Names) -> Iterator[GuardFinding]:
    """A candidate brings a kernel: an extension, a Triton function or a custom library."""
    builds = any(
        isinstance(node, ast.Call) and dotted(node.func, names).split(".")[-1] in _KERNEL_SOURCES
        for node in ast.walk(tree)
    )
    triton = any(
        dotted(decorator.func if isinstance(decorator, ast.Call) else decorator, names).endswith("jit")
        for function in names.functions.values()
        for decorator in function.decorator_list
    )
    if not builds and not triton:
        yield finding("no_kernel", "the candidate has no kernel of its own", tree)


def reference_used(tree: ast.Module, names: Names) -> Iterator[GuardFinding]:
    """The task's ``Model`` is no part of a candidate."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and dotted(node.func, names).split(".")[-1] == "Model":
            yield finding("inherited_model", "the reference is constructed", node)


def fallbacks(tree: ast.Module, names: Names) -> Iterator[GuardFinding]:
    """Torch operators that compute: inside a branch they are a fallback, elsewhere they are noted."""
    for function in called_functions(names):
        branches = {
            id(part) for node in ast.walk(function) if isinstance(node, (ast.If, ast.IfExp)) for part in _arms(node)
        }
        for node in ast.walk(function):
            chain = compute_call(node, names)
            if not chain:
                continue
            if id(node) in branches:
                yield finding("fallback", f"{chain} in a branch can stand in for the kernel", node)
            else:
                yield finding("torch_operators", f"{chain} is left to torch", node, fatal=False)


def called_functions(names: Names) -> list[ast.FunctionDef]:
    """Every function but constructors, input makers and Triton kernels."""
    return [
        function
        for name, function in names.functions.items()
        if name not in _OUTSIDE and not any("jit" in ast.unparse(item) for item in function.decorator_list)
    ]


def _arms(node: ast.If | ast.IfExp) -> Iterator[ast.AST]:
    arms = [*node.body, *node.orelse] if isinstance(node, ast.If) else [node.body, node.orelse]
    for arm in arms:
        yield from ast.walk(arm)


def compute_call(node: ast.AST, names: Names) -> str:
    """The dotted name of a torch function or module that computes, or an empty string."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        return "the @ operator"
    if not isinstance(node, ast.Call):
        return ""
    parts = dotted(node.func, names).split(".")
    root = names.module_of(parts[0])
    if root is None:
        return ""
    full = [*root.split("."), *parts[1:]]
    if full[0] != "torch" or full[-1] in TORCH_MOVES or full[1:2] == ["cuda"] or "library" in full or "init" in full:
        return ""
    if "ops" in full:
        return ".".join(full) if "aten" in full else ""
    if "cpp_extension" in full or full[-1][:1].isupper():
        return ""
    return ".".join(full)


def kept_state(tree: ast.Module, names: Names) -> Iterator[GuardFinding]:
    """Nothing that depends on the inputs outlives a call."""
    persistent = _module_level(tree) | set(names.functions) | set(names.classes)
    inner = _inside_functions(tree)
    for function in called_functions(names):
        kept = persistent | inner.get(function, set())
        if function not in inner or inner[function]:
            yield from _Kept(function, kept).findings()


def _module_level(tree: ast.Module) -> set[str]:
    return {
        target.id
        for node in tree.body
        if isinstance(node, (ast.Assign, ast.AnnAssign))
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }


def _inside_functions(tree: ast.Module) -> dict[ast.FunctionDef, set[str]]:
    """Functions inside functions, each with those variables around it that live on: where it is handed out."""
    found: dict[ast.FunctionDef, set[str]] = {}
    for outer in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        returned = {
            node.value.id
            for node in ast.walk(outer)
            if isinstance(node, ast.Return) and isinstance(node.value, ast.Name)
        }
        for inner in ast.walk(outer):
            if isinstance(inner, ast.FunctionDef) and inner is not outer:
                around = _assigned(outer) - _assigned(inner) if inner.name in returned else set()
                found[inner] = found.get(inner, set()) | around
    return found


def _assigned(function: ast.FunctionDef) -> set[str]:
    """Names that the function itself binds; those inside it have their own."""
    bound: set[str] = set()
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef):
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound.add(node.id)
        waiting += ast.iter_child_nodes(node)
    return bound


def _kept_defaults(function: ast.FunctionDef) -> set[str]:
    """Arguments whose default is an object that lives as long as the function."""
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    pairs = [*zip(positional[len(positional) - len(arguments.defaults) :], arguments.defaults, strict=True)]
    pairs += [(name, value) for name, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if value]
    return {name.arg for name, value in pairs if isinstance(value, (ast.Dict, ast.List, ast.Set, ast.Call))}


class _Kept:
    """Follows what depends on the arguments through one function, in order of lines."""

    def __init__(self, function: ast.FunctionDef, persistent: set[str]) -> None:
        arguments = function.args
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
        self._tainted = {argument.arg for argument in every if argument is not None} - {"self", "cls", "ctx"}
        self._roots = {"self", "cls"} | persistent | _kept_defaults(function)
        self._function = function
        self._globals = {
            name for node in ast.walk(function) if isinstance(node, (ast.Global, ast.Nonlocal)) for name in node.names
        }

    def findings(self) -> Iterator[GuardFinding]:
        nodes = [node for node in ast.walk(self._function) if hasattr(node, "lineno")]
        for _ in range(2):
            for node in nodes:
                self._learn(node)
        for node in nodes:
            if self._stores(node):
                yield finding("cache", "a value that depends on the inputs is kept between calls", node)

    def _learn(self, node: ast.AST) -> None:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Attribute) and self._persists(node.value):
            self._roots |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.NamedExpr)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if self._depends(node.value):
                for target in targets:
                    self._tainted |= {part.id for part in ast.walk(target) if isinstance(part, ast.Name)} - {
                        "self",
                        "cls",
                    }

    def _stores(self, node: ast.AST) -> bool:
        if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            parts = [part for target in targets for part in getattr(target, "elts", [target])]
            return self._depends(node.value) and any(self._persists(part) for part in parts)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _GROWERS:
            values = [*node.args, *(keyword.value for keyword in node.keywords)]
            return self._persists(node.func) and any(self._depends(value) for value in values)
        return False

    def _persists(self, target: ast.expr) -> bool:
        if isinstance(target, ast.Name):
            return target.id in self._globals
        node: ast.AST = target
        while isinstance(node, (ast.Attribute, ast.Subscript, ast.Starred)):
            node = node.value
        return isinstance(node, ast.Name) and node.id in self._roots

    def _depends(self, value: ast.AST) -> bool:
        """Whether the contents of an argument can be in the value; shapes and types do not count."""
        if isinstance(value, ast.Attribute) and value.attr in _FACTS:
            return False
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr.startswith(_BLANK):
            return False
        if isinstance(value, ast.Name):
            return value.id in self._tainted
        return any(self._depends(child) for child in ast.iter_child_nodes(value))

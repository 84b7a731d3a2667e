"""Follows what depends on a function's arguments, and says where it would outlive the call."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

from artifacts.candidate import syntax_tree
from artifacts.measurement import GuardFinding
from optimizer.evaluation.guard.names import Function, arguments_of
from optimizer.evaluation.guard.python_rules import finding

FACTS = {"shape", "dtype", "device", "ndim", "is_cuda", "size", "numel", "dim", "stride", "is_contiguous", "training",
         "element_size", "is_floating_point", "get_device", "type", "__name__"}  # fmt: skip
"""What may be asked of an input without carrying its contents away."""
_BLANK = (*sorted(FACTS), "empty", "new_empty", "zeros", "new_zeros")
"""Calls whose result holds nothing of their arguments' contents, by prefix."""
_GROWERS = {"append", "extend", "insert", "update", "setdefault", "add", "appendleft", "register_buffer", "put"}
_Binding = tuple[list[ast.expr], ast.expr]
"""Targets and the value that they get, or get a part of."""


class Kept:
    """One function, its nodes in order of lines.

    Args:
        function: to look at.
        persistent: names that outlive a call, ``self`` too unless the object is made in it.
        free: attributes that may be kept.
    """

    def __init__(self, function: Function, persistent: set[str], free: Collection[str] = ()) -> None:
        self._tainted = arguments_of(function) - {"self", "cls", "ctx"}
        self._roots = persistent | kept_defaults(function)
        self._free = free
        self._function = function
        self._globals = {
            name for node in ast.walk(function) if isinstance(node, (ast.Global, ast.Nonlocal)) for name in node.names
        }

    def findings(self) -> Iterator[GuardFinding]:
        """Where a value that depends on the inputs is stored."""
        nodes = list(ast.walk(self._function))
        bindings = [binding for node in nodes for binding in _bindings(node)]
        for _ in range(2):
            for targets, value in bindings:
                self._learn(targets, value)
        kept = [value for targets, value in bindings if self._stores(targets, value)]
        kept += [node for node in nodes if isinstance(node, ast.Call) and self._hands_over(node)]
        for node in kept:
            yield finding("cache", "a value that depends on the inputs is kept between calls", node)

    def _learn(self, targets: list[ast.expr], value: ast.expr) -> None:
        names = {part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)}
        if isinstance(value, ast.Attribute) and self._persists(value):
            self._roots |= {target.id for target in targets if isinstance(target, ast.Name)}
        if self.depends(value):
            self._tainted |= names - {"self", "cls"}

    def _stores(self, targets: list[ast.expr], value: ast.expr) -> bool:
        parts = [part for target in targets for part in getattr(target, "elts", [target])]
        read = [part for part in parts if not (isinstance(part, ast.Attribute) and part.attr in self._free)]
        return self.depends(value) and any(self._persists(part) for part in read)

    def _hands_over(self, node: ast.Call) -> bool:
        """A call that puts an argument into something that stays."""
        values = [*node.args, *(keyword.value for keyword in node.keywords)]
        if isinstance(node.func, ast.Name) and node.func.id == "setattr" and node.args:
            return self._persists(ast.Attribute(value=node.args[0], attr="")) and any(map(self.depends, values[1:]))
        grows = isinstance(node.func, ast.Attribute) and node.func.attr in _GROWERS
        return grows and self._persists(node.func) and any(map(self.depends, values))

    def _persists(self, target: ast.expr) -> bool:
        if isinstance(target, ast.Name):
            return target.id in self._globals
        node: ast.AST = target
        while isinstance(node, (ast.Attribute, ast.Subscript, ast.Starred)):
            node = node.value
        return isinstance(node, ast.Name) and node.id in self._roots

    def depends(self, value: ast.AST) -> bool:
        """Whether the contents of an argument can be in the value; shapes and types do not count."""
        if isinstance(value, ast.Attribute) and value.attr in FACTS:
            return False
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr.startswith(_BLANK):
            return False
        if isinstance(value, ast.Name):
            return value.id in self._tainted
        return any(self.depends(child) for child in ast.iter_child_nodes(value))


def _bindings(node: ast.AST) -> Iterator[_Binding]:
    """Every way in which a name gets a value."""
    if isinstance(node, ast.Assign):
        yield node.targets, node.value
    elif isinstance(node, (ast.AnnAssign, ast.AugAssign, ast.NamedExpr)):
        if node.value is not None:
            yield [node.target], node.value
    elif isinstance(node, (ast.For, ast.comprehension)):
        yield [node.target], node.iter
    elif isinstance(node, ast.withitem):
        if node.optional_vars is not None:
            yield [node.optional_vars], node.context_expr
    elif isinstance(node, ast.Match):
        names = (part.name for part in ast.walk(node) if isinstance(part, (ast.MatchAs, ast.MatchStar)))
        yield [ast.Name(id=name, ctx=ast.Store()) for name in names if name], node.subject
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Lambda):
        yield from _passed(node.func.args.args, node.args)


def _passed(parameters: list[ast.arg], values: list[ast.expr]) -> Iterator[_Binding]:
    """A lambda that is called on the spot."""
    for parameter, value in zip(parameters, values, strict=False):
        yield [ast.Name(id=parameter.arg, ctx=ast.Store())], value


def kept_defaults(function: Function) -> set[str]:
    """Arguments whose default is an object that lives as long as the function."""
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    pairs = [*zip(positional[len(positional) - len(arguments.defaults) :], arguments.defaults, strict=True)]
    pairs += [(name, value) for name, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if value]
    return {name.arg for name, value in pairs if isinstance(value, (ast.Dict, ast.List, ast.Set, ast.Call))}


def states_of(task: str) -> frozenset[str]:
    """Attributes that the model of a task binds anew when it is called."""
    try:
        tree = syntax_tree(task)
    except (SyntaxError, ValueError):
        return frozenset()
    forwards = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "forward")
    nodes = (node for function in forwards for node in ast.walk(function) if isinstance(node, ast.Attribute))
    return frozenset(node.attr for node in nodes if isinstance(node.ctx, ast.Store))

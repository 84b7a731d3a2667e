"""What the names in a candidate's module stand for."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from artifacts.candidate import expression_tree

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


class Names:
    """One pass over a module: imports, classes, functions, aliases and attribute chains.

    Attributes:
        imported: local name → (dotted module or object, node), the last one where there are several.
        meanings: local name → everything that it is imported as or assigned, anywhere in the module.
        star_imports: ``from x import *`` nodes.
        classes, functions: names defined at any level; several functions may share one.
        every_function: all of them, lambdas too.
        called: function nodes of calls by name.
        outermost_attributes: attribute nodes that are not the value of another one.
        rebound: builtins without power, such as ``input``, that the module uses as names of its own.
        listed: names of loops over literals, with these; those that get any other value are left out.
        environment_writes: ``os.environ`` nodes that are only indexed or asked by an allowed call.
        states: attributes that the model of the task keeps between calls.
    """

    def __init__(self, tree: ast.Module, states: frozenset[str] = frozenset()) -> None:
        self.states = states
        self.imported: dict[str, tuple[str, ast.AST]] = {}
        self.meanings: dict[str, dict[str, ast.AST]] = {}
        self.star_imports: list[ast.AST] = []
        self.classes: dict[str, ast.ClassDef] = {}
        self.functions: set[str] = set()
        self.every_function: list[Function] = []
        self.called: set[ast.AST] = set()
        self.outermost_attributes: list[ast.Attribute] = []
        self.environment_writes: set[ast.AST] = set()
        self.listed = _listed(tree)
        self.rebound = _harmless_rebindings(tree)
        self._loads: set[str] = set()
        self._visit(tree)
        self._alias(tree)

    def is_used(self, local: str) -> bool:
        """Whether an imported name is read anywhere."""
        return local in self._loads

    def module_of(self, local: str) -> str | None:
        """What an imported name stands for, or None."""
        found = self.imported.get(local)
        return None if found is None else found[0]

    def meanings_of(self, node: ast.AST) -> list[str]:
        """Every dotted name of a module, or of a part of one, that a name or attribute chain may stand for."""
        first, *rest = dotted(node).split(".")
        return [".".join([root, *rest]) for root in self.meanings.get(first, ())]

    def _visit(self, tree: ast.Module) -> None:
        inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        for node in ast.walk(tree):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                self._import(node)
            elif isinstance(node, ast.ClassDef):
                self.classes[node.name] = node
            elif isinstance(node, Function):
                self.every_function.append(node)
                self.functions |= {node.name} if not isinstance(node, ast.Lambda) else set()
            elif isinstance(node, ast.Attribute) and id(node) not in inner:
                self.outermost_attributes.append(node)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                self._loads.add(node.id)
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                self.called.add(node.func)
            elif isinstance(node, ast.Subscript):
                self.environment_writes.add(node.value)

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        if isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            for alias in node.names:
                if alias.name == "*":
                    self.star_imports.append(node)
                else:
                    self._stands_for(alias.asname or alias.name, f"{module}.{alias.name}", node)
            return
        for alias in node.names:
            local = alias.asname or alias.name.split(".")[0]
            self._stands_for(local, alias.name if alias.asname else local, node)
            if not alias.asname and "." in alias.name:
                self.imported.setdefault(f"({alias.name})", (alias.name, node))

    def _stands_for(self, local: str, full: str, node: ast.AST) -> None:
        self.imported[local] = (full, node)
        self.meanings.setdefault(local, {}).setdefault(full, node)

    def _alias(self, tree: ast.Module) -> None:
        """Names that are assigned a module or a part of one stand for it too."""
        for node in ast.walk(tree):
            if not isinstance(node, ast.Assign) or not isinstance(node.value, (ast.Name, ast.Attribute)):
                continue
            parts = dotted(node.value).split(".")
            root = self.module_of(parts[0])
            for target in node.targets:
                if root is not None and isinstance(target, ast.Name):
                    full = ".".join([root, *parts[1:]])
                    self.imported.setdefault(target.id, (full, node))
                    self.meanings.setdefault(target.id, {}).setdefault(full, node)


def spell_out(tree: ast.Module) -> None:
    """Write ``getattr(a, "b")`` as ``a.b`` and hints in quotes without them, in place, so that each rule sees both."""
    for node in ast.walk(tree):
        for field in ("annotation", "returns"):
            hint = getattr(node, field, None)
            if hint is not None:
                setattr(node, field, _unquoted(hint))
    for node in ast.walk(tree):
        for field, value in ast.iter_fields(node):
            if isinstance(value, list):
                value[:] = [_spelled(part) if isinstance(part, ast.Call) else part for part in value]
            elif isinstance(value, ast.Call):
                setattr(node, field, _spelled(value))


def _unquoted(hint: ast.expr) -> ast.expr:
    """A hint of which every text is parsed: some libraries evaluate them."""
    if isinstance(hint, ast.Constant) and isinstance(hint.value, str):
        try:
            parsed = expression_tree(hint.value.strip())
        except (SyntaxError, ValueError):  # nobody can evaluate it either
            return hint
        return ast.copy_location(_unquoted(parsed), hint)
    for node in ast.walk(hint):
        if isinstance(node, ast.Subscript) and not _is_literal(node):
            inner = node.slice
            parts = inner.elts if isinstance(inner, ast.Tuple) else []
            parts[:] = [_unquoted(part) if isinstance(part, ast.Constant) else part for part in parts]
            node.slice = _unquoted(inner) if isinstance(inner, ast.Constant) else inner
        elif isinstance(node, ast.BinOp):
            node.left, node.right = (
                _unquoted(part) if isinstance(part, ast.Constant) else part for part in (node.left, node.right)
            )
    return hint


def _is_literal(node: ast.Subscript) -> bool:
    return "Literal" in ast.unparse(node.value) or "Annotated" in ast.unparse(node.value)


def _spelled(node: ast.Call) -> ast.expr:
    key = node.args[1] if len(node.args) > 1 else None
    named = isinstance(node.func, ast.Name) and node.func.id == "getattr" and not node.keywords
    if named and isinstance(key, ast.Constant) and isinstance(key.value, str) and key.value.isidentifier():
        owner = node.args[0]
        inner = _spelled(owner) if isinstance(owner, ast.Call) else owner
        return ast.copy_location(ast.Attribute(value=inner, attr=key.value, ctx=ast.Load()), node)
    return node


def arguments_of(function: Function) -> set[str]:
    """Names of all arguments, starred ones too."""
    arguments = function.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    return {argument.arg for argument in every if argument is not None}


def decorators_of(function: Function) -> list[ast.expr]:
    """What decorates a function, without the arguments that it is called with; nothing decorates a lambda."""
    return [part.func if isinstance(part, ast.Call) else part for part in getattr(function, "decorator_list", [])]


def bound_in(function: Function) -> set[str]:
    """Names that are the function's own: arguments, and what it assigns without saying ``global``."""
    bound, free = arguments_of(function), set[str]()
    for node in _own_nodes(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound.add(node.id)
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            free |= set(node.names)
    return bound - free


def _own_nodes(function: Function) -> Iterator[ast.AST]:
    """Nodes of the body, those of functions, classes and comprehensions in it left out."""
    waiting: list[ast.AST] = [function.body] if isinstance(function, ast.Lambda) else list(function.body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, (Function, ast.ClassDef, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
            waiting += ast.iter_child_nodes(node)


def _listed(tree: ast.Module) -> dict[str, list[ast.expr]]:
    stores = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    stores += [node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)]
    found: dict[str, list[ast.expr]] = {}
    for node in ast.walk(tree):
        if not isinstance(node, (ast.For, ast.comprehension)) or not isinstance(node.target, ast.Name):
            continue
        if isinstance(node.iter, (ast.Tuple, ast.List)):
            found.setdefault(node.target.id, []).extend(node.iter.elts)
    return {name: values for name, values in found.items() if stores.count(name) == 1}


def _harmless_rebindings(tree: ast.Module) -> set[str]:
    bound = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    bound |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    return bound & {"input", "vars", "help", "exit", "quit", "credits"}


def dotted(node: ast.AST | None) -> str:
    """``a.b.c`` of an attribute chain; a root that is no name becomes ``?``."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    parts.append(node.id if isinstance(node, ast.Name) else "?")
    return ".".join(reversed(parts))

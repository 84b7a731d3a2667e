"""What stays as it is while a task is evaluated: devices, types, modes and settings, in contrast to contents and sizes.

A branch on such a thing always goes one way, so what stands in it is part of the candidate like any other line.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

from optimizer.evaluation.guard.kept import kept_defaults
from optimizer.evaluation.guard.names import Function, Names, arguments_of, dotted

_FACTS = {"is_cuda", "device", "dtype", "ndim", "requires_grad", "layout"}
_ASKED = {"dim", "is_floating_point", "is_complex"}
_SAID_BY_TORCH = {"torch.cuda.is_available", "torch.cuda.get_device_capability", "torch.is_grad_enabled"}
_SETTING_WORDS = """p eps momentum affine elementwise_affine track_running_stats num_layers bidirectional hidden_size
    kernel_size stride padding dilation groups in_channels out_channels in_features out_features num_features
    normalized_shape inplace num_groups batch_first training"""
_SETTINGS = frozenset(_SETTING_WORDS.split())
"""Attributes of torch's modules that are numbers and switches."""
_SCALARS = {"int", "float", "bool", "str", "len", "tuple", "isinstance", "hasattr", "round"}
_DEVICE_FACTS = {"is_available", "get_device_capability"}
_MODES = {"train", "eval"}
_DERIVATIVES = {"backward", "grad", "vjp", "jvp"}
"""Methods that torch would call to change the mode or to differentiate, which nobody asks for."""
_REGISTERS = {"setattr", "delattr", "register_buffer", "register_parameter", "register_module", "add_module"}
_READS_ALL = {"buffers", "named_buffers", "parameters", "named_parameters", "state_dict", "get_buffer", "getattr",
              "_buffers", "_parameters"}  # fmt: skip
_CHOICES = (ast.IfExp, ast.BoolOp, ast.Compare)
_CHOOSERS = {"int", "bool", "float", "item", "tolist", "nonzero"}
"""How the contents of a tensor come into an expression that would say nothing of them otherwise."""


class Constants:
    """What of a candidate is constant once it is constructed.

    Args:
        tree: the candidate.
        late: its functions that run with inputs; the others set it up.
    """

    def __init__(self, tree: ast.Module, names: Names, late: Collection[Function]) -> None:
        self._names = names
        self._late = [node for function in late for node in ast.walk(function)]
        inside = {id(node) for node in self._late}
        early = [node for node in ast.walk(tree) if id(node) not in inside]
        said = {_said(node) for node in self._late}
        self._registers = bool(said & _REGISTERS)
        self._reads_all = bool(said & _READS_ALL)
        own_modes = {id(part) for node in names.every_function if _is_named(node, _MODES) for part in ast.walk(node)}
        self._switches = any(_said(node) in _MODES and id(node) not in own_modes for node in ast.walk(tree))
        self._differentiates = any(_said(node) in _DERIVATIVES for node in ast.walk(tree))
        self._changed = {attr for node in self._late for attr in _stored(node)}
        mutable = _mutable_arguments(tree)
        odd = {attr for node in early for attr in _odd_settings(node, mutable)}
        self._handled = {attr for node in self._late for attr in _handled(node)}
        self._odd = self._changed | self._handled | odd
        outer = [node for node in ast.walk(tree) if isinstance(node, (ast.Global, ast.Nonlocal))]
        self._rebound = {name for node in outer for name in node.names}
        self._switches_of_module = _scalars(tree) - self._rebound

    def is_constant(self, test: ast.expr, function: Function) -> bool:
        """Whether a condition in ``function`` has one answer for as long as the task is evaluated."""
        if isinstance(test, ast.BoolOp):
            return all(self.is_constant(value, function) for value in test.values)
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            return self.is_constant(test.operand, function)
        if not isinstance(test, ast.Compare):
            return self._is_setting(test, function)
        parts = [test.left, *test.comparators]
        if all(isinstance(op, (ast.Is, ast.IsNot)) for op in test.ops):
            return all(self._is_same_object(part, function) for part in parts)
        return all(self._is_setting(part, function) for part in parts)

    def unreached(self) -> set[int]:
        """Nodes, by identity, to which no evaluation comes: branches for another mode, and derivatives."""
        parts = [part for node in self._late for part in _not_in_training(node)] if not self._switches else []
        if not self._differentiates:
            parts += [function for function in self._names.every_function if _is_named(function, _DERIVATIVES)]
        return {id(inner) for part in parts for inner in ast.walk(part)}

    def only_updated(self) -> set[str]:
        """Attributes that are read where they are updated and nowhere else: running statistics."""
        if self._switches or self._reads_all:
            return set()
        updated: set[str] = set()
        harmless = self.unreached()
        for node in self._late:
            for attr, value in _updates(node):
                reads = {id(part) for part in ast.walk(value) if isinstance(part, ast.Attribute) and part.attr == attr}
                updated |= {attr} if reads else set()
                harmless |= reads
        loads = (node for node in self._late if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load))
        return updated - {node.attr for node in loads if id(node) not in harmless}

    def _is_setting(self, node: ast.expr, function: Function) -> bool:
        """Whether a value says nothing of a tensor's contents or sizes and stays as it is."""
        if isinstance(node, ast.Constant):
            return True
        if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
            return all(self._is_setting(part, function) for part in node.elts)
        if isinstance(node, ast.UnaryOp):
            return self._is_setting(node.operand, function)
        if isinstance(node, ast.BinOp):
            return self._is_setting(node.left, function) and self._is_setting(node.right, function)
        if isinstance(node, ast.Subscript):
            return isinstance(node.value, ast.Call) and self._is_setting(node.value, function)
        if isinstance(node, ast.Call):
            return self._is_plain_answer(node, function)
        if isinstance(node, ast.Name):
            return self._is_switch(node.id, function)
        return isinstance(node, ast.Attribute) and self._is_plain_attribute(node, function)

    def _is_plain_attribute(self, node: ast.Attribute, function: Function) -> bool:
        if node.attr == "type" and isinstance(node.value, ast.Attribute) and node.value.attr == "device":
            return self._is_plain_attribute(node.value, function)
        first, *rest = dotted(node).split(".")
        if first == "self":
            if rest[-1] in _FACTS and len(rest) > 1:
                return self._stays(rest[:-1])
            scalar = rest[-1] in _SETTINGS if len(rest) > 1 else rest[0] not in self._odd
            return scalar and self._stays(rest) and not (rest[-1] == "training" and self._switches)
        if self._names.module_of(first) is not None:
            return str(self._names.module_of(first)).partition(".")[0] == "torch"
        return node.attr in _FACTS and len(rest) == 1 and _is_argument(first, function, node)

    def _is_plain_answer(self, node: ast.Call, function: Function) -> bool:
        if dotted(node.func) in _SAID_BY_TORCH:
            return True
        arguments = node.args
        if isinstance(node.func, ast.Attribute):
            asked = node.func.attr in _ASKED and not arguments and isinstance(node.func.value, ast.Name)
            return asked and _is_argument(dotted(node.func.value), function, node)
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name == "len" and len(arguments) == 1 and isinstance(arguments[0], ast.Attribute):
            first, *rest = dotted(arguments[0]).split(".")
            of_self = first == "self" and self._stays(rest) and not self._handled & set(rest)
            return of_self or (rest == ["shape"] and _is_argument(first, function, node))
        if name == "hasattr" and len(arguments) == 2 and isinstance(arguments[1], ast.Constant):
            return self._is_same_object(arguments[0], function) and self._stays([str(arguments[1].value)])
        return name == "isinstance" and self._is_same_object(arguments[0], function)

    def _is_same_object(self, node: ast.expr, function: Function) -> bool:
        """Whether a name or attribute stands for one object always: for None, or not."""
        if isinstance(node, ast.Constant):
            return True
        first, *rest = dotted(node).split(".")
        bound = any(part.id == first for part in _stores(function)) or first in self._rebound or first == "?"
        return not bound and self._stays(rest)

    def _is_switch(self, name: str, function: Function) -> bool:
        """A number or switch of the file, a local name for a constant condition, or a place in a loop."""
        stores = [part for part in _stores(function) if part.id == name]
        if not stores:
            return name in self._switches_of_module and name not in arguments_of(function)
        values = [value for target, value in _assignments(function) if target in stores]
        if len(stores) == len(values) == 1:
            return self.is_constant(values[0], function)
        loops = (node for node in ast.walk(function) if isinstance(node, (ast.For, ast.comprehension)))
        return len(stores) == 1 and any(self._counts(loop, stores[0], function) for loop in loops)

    def _counts(self, loop: ast.For | ast.comprehension, name: ast.Name, function: Function) -> bool:
        """``for i in range(n)`` and ``for i, layer in enumerate(self.layers)`` where the length is constant."""
        call = loop.iter
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            return False
        if call.func.id == "range":
            return loop.target is name and all(self._is_setting(part, function) for part in call.args)
        first = loop.target.elts[0] if isinstance(loop.target, ast.Tuple) else None
        parts = dotted(call.args[0]).split(".") if call.args else ["?"]
        own = parts[0] == "self" and self._stays(parts[1:]) and not self._handled & set(parts[1:])
        return call.func.id == "enumerate" and first is name and own

    def _stays(self, attributes: list[str]) -> bool:
        return not self._registers and not self._changed & set(attributes)


def _is_argument(name: str, function: Function, place: ast.expr) -> bool:
    """Whether a name is an argument there, or what expressions without a choice have made of one."""
    stores = [part for part in _stores(function) if part.id == name]
    if not any(isinstance(node, (ast.For, ast.While)) for node in ast.walk(function)):
        stores = [part for part in stores if part.lineno < place.lineno]
    values = [value for target, value in _assignments(function) if target in stores]
    chosen = any(isinstance(part, _CHOICES) or _said(part) in _CHOOSERS for value in values for part in ast.walk(value))
    return (bool(stores) or name in arguments_of(function)) and len(values) == len(stores) and not chosen


def _is_named(function: Function, names: Collection[str]) -> bool:
    return getattr(function, "name", "") in names


def _assignments(function: Function) -> list[tuple[ast.expr, ast.expr]]:
    """Targets and values of statements with one target."""
    nodes = list(ast.walk(function))
    plain = [(node.targets[0], node.value) for node in nodes if isinstance(node, ast.Assign) and len(node.targets) == 1]
    return plain + [(node.target, node.value) for node in nodes if isinstance(node, ast.AugAssign)]


def _stores(function: Function) -> list[ast.Name]:
    return [node for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]


def _mutable_arguments(tree: ast.Module) -> set[str]:
    """Arguments whose default is an object that may change."""
    return {name for node in ast.walk(tree) if isinstance(node, Function) for name in kept_defaults(node)}


def _odd_settings(node: ast.AST, mutable: set[str]) -> Iterator[str]:
    """Attributes that get more than a number, a switch or an argument where a candidate is set up."""
    if isinstance(node, ast.Assign) and not _is_scalar(node.value, mutable):
        yield from (
            part.attr for target in node.targets for part in ast.walk(target) if isinstance(part, ast.Attribute)
        )
    elif isinstance(node, (ast.AnnAssign, ast.AugAssign)) and isinstance(node.target, ast.Attribute):
        yield node.target.attr


def _is_scalar(value: ast.expr, mutable: set[str]) -> bool:
    if isinstance(value, ast.Name):
        return value.id not in mutable
    if isinstance(value, ast.Call):
        return _said(value.func) in (_SCALARS if isinstance(value.func, ast.Name) else _DEVICE_FACTS)
    if isinstance(value, (ast.BoolOp, ast.IfExp)):
        parts = value.values if isinstance(value, ast.BoolOp) else [value.body, value.orelse]
        return all(_is_scalar(part, mutable) for part in parts)
    return isinstance(value, (ast.Constant, ast.Compare, ast.UnaryOp, ast.BinOp))


def _scalars(tree: ast.Module) -> set[str]:
    """Names of numbers and switches of the file itself."""
    found: dict[str, bool] = {}
    for node in (node for node in tree.body if isinstance(node, ast.Assign)):
        plain = not isinstance(node.value, ast.Name) and _is_scalar(node.value, set())
        for target in node.targets:
            if isinstance(target, ast.Name):
                found[target.id] = found.get(target.id, True) and plain
    return {name for name, plain in found.items() if plain}


def _handled(node: ast.AST) -> Iterator[str]:
    """Attributes of which a method is called, which may change them."""
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Attribute)
    ):
        yield node.func.value.attr


def _said(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _stored(node: ast.AST) -> Iterator[str]:
    """Attributes that a statement binds anew, or whose parts it changes."""
    if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
        yield node.attr
    elif isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
        yield _said(node.value)


def _updates(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """``self.a = …`` and ``self.a += …``: the attribute and what it becomes."""
    if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Attribute):
        yield node.targets[0].attr, node.value
    elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Attribute):
        yield node.target.attr, node.value


def _not_in_training(node: ast.AST) -> Iterator[ast.AST]:
    """What a module in training, as all are when they are evaluated, does not come to."""
    if isinstance(node, (ast.If, ast.IfExp)):
        answer = _in_training(node.test)
        arm = node.orelse if answer else node.body
        if answer is not None:
            yield from arm if isinstance(arm, list) else [arm]


def _in_training(test: ast.expr) -> bool | None:
    if isinstance(test, ast.Attribute) and test.attr == "training":
        return True
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        answer = _in_training(test.operand)
        return None if answer is None else not answer
    if isinstance(test, ast.BoolOp):
        decisive = isinstance(test.op, ast.Or)
        return decisive if decisive in map(_in_training, test.values) else None
    return None

"""Rules for a candidate's Python, one visitor for each concern."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator

from artifacts.measurement import GuardFinding
from optimizer.evaluation.guard.languages import LANGUAGES, PARTS
from optimizer.evaluation.guard.names import Names, dotted
from optimizer.evaluation.guard.tables import (
    BUILTINS_REFUSED,
    DUNDERS,
    ENVIRONMENT,
    FILE_CALLS,
    HARMLESS_PARTS,
    HARMLESS_TORCH,
    METHODS,
    MODULES,
    PLAIN_METHODS,
    SETUP_CONSTANTS,
    SETUP_MODULES,
    TORCH_REFUSED,
)

_REFUSED_BY_CHAIN = {chain: rule for rule, text in TORCH_REFUSED.items() for chain in text.split()}
_FILE_MODULES = ("os", "pathlib", "tempfile")
_BY_NAME = ("getattr", "setattr", "delattr", "open")
_ESCAPES = {"share_memory_", "register_hook", "set_", "storage", "untyped_storage", "register_forward_hook", "_version",
            "register_forward_pre_hook", "__dict__", "data_ptr_", "record_stream", "numpy"}  # fmt: skip
"""Methods of tensors and modules that lead to their memory, to other processes or to what others call."""
_OWN_NAMES = (*_ESCAPES, "load_state_dict", "state_dict", "register_buffer", "register_parameter", "forward", "apply")
_AUTOCASTS = {"torch.autocast", "torch.amp.autocast", "torch.cuda.amp.autocast"}
"""Contexts that may be entered to switch lower precision off."""
_HINTS = ("get_type_hints", "ForwardRef", "evaluate_forward_ref")
_EVALUATORS = (*(f"typing.{name}" for name in _HINTS), *(f"typing_extensions.{name}" for name in _HINTS),
               "functools.single")  # fmt: skip
"""Functions that evaluate hints, which may be text."""
_ORDINARY = {"select", "signal", "random", "types", "array", "copy", "code"}
_IN_PART = {part.partition(".")[0] for part in HARMLESS_PARTS} - {"torch"}
"""Modules that may be imported for their harmless parts."""
_FOREIGN = (sys.stdlib_module_names - MODULES - _ORDINARY) | {*_FILE_MODULES, "torch", "triton", "numpy", "bltns"}
"""Modules that allowed ones have imported for themselves, by the name that stands in a chain."""


def finding(rule: str, message: str, node: ast.AST, fatal: bool = True) -> GuardFinding:
    """A finding at the node's line."""
    return GuardFinding(rule=rule, message=message, line=getattr(node, "lineno", None), fatal=fatal)


def imports(tree: ast.Module, names: Names) -> Iterator[GuardFinding]:
    """Modules that are not on the list; fatal only when something of them is used."""
    meanings = {(local, *named): None for local, named in names.imported.items()}
    meanings |= {
        (local, module, node): None for local, found in names.meanings.items() for module, node in found.items()
    }
    for local, module, node in meanings:
        whole = isinstance(node, ast.Import)
        if module in MODULES or (not whole and module.rpartition(".")[0] in MODULES):
            continue
        if (whole and module in SETUP_MODULES) or module in SETUP_CONSTANTS | HARMLESS_PARTS:
            continue
        if isinstance(node, ast.Import) and module in _IN_PART:
            continue
        yield finding("import", f"module {module} is not allowed", node, fatal=names.is_used(local))
    for node in names.star_imports:
        yield finding("import", "import * hides names from the guard", node)


def builtins(tree: ast.Module, names: Names) -> Iterator[GuardFinding]:
    """Builtins that reach around the guard, and reading files."""
    asked = {id(_asked_for_a_name(node)) for node in ast.walk(tree)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in BUILTINS_REFUSED:
            if id(node) not in asked and (node.id not in names.rebound or node in names.called):
                yield finding("builtin", f"{node.id} is not allowed", node)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield from _builtin_call(node, node.func.id, names)
        elif isinstance(node, ast.Name) and node.id in _BY_NAME and node not in names.called:
            if isinstance(node.ctx, ast.Load):
                yield finding("builtin", f"{node.id} may only be called by name", node)
        elif isinstance(node, ast.MatchClass) and node.kwd_attrs:
            yield finding("builtin", "a pattern that reads attributes is not allowed", node)


def _asked_for_a_name(node: ast.AST) -> ast.expr | None:
    """``locals`` in ``"name" in locals()``."""
    if not isinstance(node, ast.Compare) or not isinstance(node.ops[0], (ast.In, ast.NotIn)) or len(node.ops) > 1:
        return None
    call = node.comparators[0]
    return call.func if isinstance(node.left, ast.Constant) and isinstance(call, ast.Call) and not call.args else None


def _builtin_call(node: ast.Call, name: str, names: Names) -> Iterator[GuardFinding]:
    if name in ("getattr", "setattr", "delattr", "hasattr"):
        owner = dotted(node.args[0]) if node.args else "?"
        own = owner == "self" or (name in ("getattr", "hasattr") and owner.startswith("self."))
        plain = _is_plain(node.args[1] if len(node.args) > 1 else None, names, own)
        if not plain or (name in ("setattr", "delattr") and not own):
            yield finding("builtin", f"{name} is allowed with a plain literal name only", node)
    elif name == "open" and not _writes(node):
        yield finding("file", "files may be written (sources for cpp_extension.load), not read", node)
    elif name == "type" and len(node.args) != 1:
        yield finding("builtin", "type() with three arguments is not allowed", node)


def _is_plain(key: ast.expr | None, names: Names, own: bool) -> bool:
    """Whether an attribute's name can be read off; of ``self`` and its parts its beginning will do, or a short list."""
    if isinstance(key, ast.Constant):
        return isinstance(key.value, str) and not key.value.startswith("__")
    if not own or key is None:
        return False
    if isinstance(key, ast.Name):
        listed = names.listed.get(key.id, [])
        return bool(listed) and all(_is_ordinary(_beginning(each)) for each in listed)
    return _is_ordinary(_beginning(key))


def _beginning(key: ast.expr) -> str:
    """What a text that is put together begins with; empty where that is not known."""
    if isinstance(key, ast.Constant):
        return key.value if isinstance(key.value, str) else ""
    if isinstance(key, ast.JoinedStr):
        return _beginning(key.values[0]) if key.values else ""
    if isinstance(key, ast.BinOp) and isinstance(key.op, ast.Add):
        return _beginning(key.left)
    if isinstance(key, ast.BinOp) and isinstance(key.op, ast.Mod):
        return _beginning(key.left).partition("%")[0]
    return ""


def _is_ordinary(beginning: str) -> bool:
    """The beginning of a name that neither Python nor torch knows."""
    return beginning[:1].isalpha() and not any(word.startswith(beginning) for word in _OWN_NAMES)


def _writes(node: ast.Call) -> bool:
    mode = node.args[1] if len(node.args) > 1 else next((k.value for k in node.keywords if k.arg == "mode"), None)
    return isinstance(mode, ast.Constant) and mode.value in ("w", "wt", "x")


def attributes(tree: ast.Module, names: Names) -> Iterator[GuardFinding]:
    """Dunders, private parts of imported modules, refused parts of torch, uses of file modules."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    switched_off = {id(node.func) for node in calls if _switches_off(node)}
    given = {one for language in LANGUAGES for one in language.arrays(tree, names)}
    described = {id(keyword.value) for node in calls if _describes(node) for keyword in node.keywords}
    for node in (node for node in names.outermost_attributes if id(node) not in described):
        parts = dotted(node).split(".")
        yield from _dunder(node, parts)
        found = names.meanings_of(node)
        if not found and id(node) not in given:
            yield from _file_method(node, parts)
        for full in found:
            if not (full in _AUTOCASTS and id(node) in switched_off):
                yield from _part_of_module(node, full, names)
    for local, meanings in names.meanings.items():
        for full, statement in meanings.items():
            if isinstance(statement, ast.ImportFrom) and full not in MODULES and names.is_used(local):
                yield from _part_of_module(statement, full, names)


def _describes(node: ast.Call) -> bool:
    """``"{name}".format(**self.__dict__)``, as torch's modules describe themselves; plain fields alone."""
    text = node.func.value if isinstance(node.func, ast.Attribute) and node.func.attr == "format" else None
    literal = text.value if isinstance(text, ast.Constant) and isinstance(text.value, str) else "."
    return not set(literal) & set(".[!:") and all(ast.unparse(each.value) == "self.__dict__" for each in node.keywords)


def _switches_off(node: ast.Call) -> bool:
    """A call with ``enabled=False``."""
    return any(
        keyword.arg == "enabled" and isinstance(keyword.value, ast.Constant) and keyword.value.value is False
        for keyword in node.keywords
    )


def _part_of_module(node: ast.AST, full: str, names: Names) -> Iterator[GuardFinding]:
    """What is wrong with using ``full``, a dotted name that begins with an imported module."""
    parts = full.split(".")
    if full in HARMLESS_PARTS or ".".join(parts[:2]) in HARMLESS_PARTS:
        return
    if parts[0] in _IN_PART or full not in PARTS.get(parts[0], {full}):
        yield finding("import", f"{full} is not allowed", node)
    elif full.startswith("torch."):
        yield from _torch_attribute(node, full.removeprefix("torch."))
    elif parts[0] in _FILE_MODULES:
        yield from _file_attribute(node, full, names)
    elif full.startswith(("triton.testing", "triton.profiler", "warnings.warn_explicit")):
        yield finding("timer", f"{full} is not allowed", node)
    elif full.startswith(_EVALUATORS):
        yield finding("builtin", f"{full} evaluates text", node)
    elif full.startswith(("logging.config", "logging.handlers", "logging.FileHandler")):
        yield finding("file", f"{full} is not allowed", node)
    if any(part.startswith("_") and part[:2] != "__" for part in parts[1:]) and ".init._calculate" not in full:
        yield finding("private", f"{full} is a private name of its module", node)
    foreign = [
        part
        for end, part in enumerate(parts)
        if end and part in _FOREIGN and part not in SETUP_MODULES.get(parts[0], ())
    ]
    if foreign and full not in MODULES and parts[0] not in _FILE_MODULES:
        yield finding("import", f"{foreign[0]} is not to be had through {parts[0]}", node)


def _dunder(node: ast.AST, parts: list[str]) -> Iterator[GuardFinding]:
    for part in parts:
        if part.startswith("__") and part not in DUNDERS:
            yield finding("dunder", f"{part} is not allowed", node)


def _torch_attribute(node: ast.AST, chain: str) -> Iterator[GuardFinding]:
    parts = chain.split(".")
    if parts[-1] in ("custom_fwd", "custom_bwd") or chain in HARMLESS_TORCH:
        return
    for length in range(1, len(parts) + 1):
        rule = _REFUSED_BY_CHAIN.get(".".join(parts[:length]))
        if rule is not None:
            yield finding(rule, f"torch.{chain} is not allowed", node)
            return


def _file_attribute(node: ast.AST, full: str, names: Names) -> Iterator[GuardFinding]:
    if full == "os.environ" and (node in names.environment_writes or isinstance(node, ast.ImportFrom)):
        return
    if not any(full == allowed or full.startswith(allowed + ".") for allowed in FILE_CALLS):
        yield finding("file", f"{full} is not allowed", node)


def _file_method(node: ast.AST, parts: list[str]) -> Iterator[GuardFinding]:
    if parts[-1] in (
        "read_text",
        "read_bytes",
        "iterdir",
        "glob",
        "rglob",
        "unlink",
        "rmdir",
        "symlink_to",
        "hardlink_to",
        "open",
        "readlines",
    ):
        yield finding("file", f"{parts[-1]} is not allowed", node)
    if parts[-1] in _ESCAPES and not (parts[-1] == "_version" and parts[0] == "self"):
        yield finding("escape", f"{parts[-1]} is not allowed", node)


def assignments(tree: ast.Module, names: Names) -> Iterator[GuardFinding]:
    """Nothing imported is ever changed: no patched timers, no global switches."""
    for node in ast.walk(tree):
        for target in _targets(node):
            if isinstance(target, ast.Subscript) and dotted(target.value).endswith("environ"):
                if not _allowed_variable(target.slice):
                    yield finding("environment", "this environment variable may not be set", node)
                continue
            base = target.value if isinstance(target, (ast.Attribute, ast.Subscript)) else None
            root = dotted(base).split(".")[0] if base is not None else ""
            if root in names.imported:
                yield finding("patch", f"{ast.unparse(target)} changes an imported module", target)
            elif root in names.classes and isinstance(target, ast.Attribute) and target.attr in ("forward", "__call__"):
                yield finding("patch", f"{ast.unparse(target)} changes a class", node)


def _targets(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        return [part for target in node.targets for part in _flat(target)]
    if isinstance(node, (ast.AugAssign, ast.AnnAssign, ast.For, ast.comprehension)):
        return _flat(node.target)
    if isinstance(node, ast.Delete):
        return node.targets
    if isinstance(node, (ast.With, ast.AsyncWith)):
        return [item.optional_vars for item in node.items if item.optional_vars is not None]
    return []


def _flat(target: ast.expr) -> list[ast.expr]:
    if isinstance(target, (ast.Tuple, ast.List)):
        return [part for element in target.elts for part in _flat(element)]
    return [target.value] if isinstance(target, ast.Starred) else [target]


def _allowed_variable(key: ast.expr) -> bool:
    return isinstance(key, ast.Constant) and key.value in ENVIRONMENT


def classes(tree: ast.Module, names: Names) -> Iterator[GuardFinding]:
    """Plain modules only: no tensor subclasses, no special methods."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef):
            continue
        bases = [dotted(base).split(".")[-1] for base in node.bases]
        if "Model" in bases and "Model" not in names.classes:
            yield finding("inherited_model", f"{node.name} inherits the reference", node)
        if any(base in ("Tensor", "Parameter", "TorchDispatchMode", "TorchFunctionMode") for base in bases):
            yield finding("lazy_tensor", f"{node.name} is a tensor subclass or mode", node)
        if any(keyword.arg != "frozen" for keyword in node.keywords):
            yield finding("metaclass", f"{node.name} has class keywords", node)
        for item in node.body:
            allowed = PLAIN_METHODS if set(bases) <= {"object"} else METHODS
            if isinstance(item, ast.FunctionDef) and item.name.startswith("__") and item.name not in allowed:
                yield finding("dunder", f"{node.name} defines {item.name}", item)


def statements(tree: ast.Module, names: Names) -> Iterator[GuardFinding]:
    """No try/except that goes on after a failure, but around imports; nothing asynchronous."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Try, ast.TryStar)) and _hides_failure(node):
            yield finding("try_except", "try/except may hide that the kernel failed", node)
        elif isinstance(node, (ast.AsyncFunctionDef, ast.Await, ast.AsyncFor, ast.AsyncWith)):
            yield finding("async", "asynchronous code is not allowed", node)


def _hides_failure(node: ast.Try | ast.TryStar) -> bool:
    """Whether what goes wrong inside may stay inside: a handler that always raises and plain clean-up hide nothing."""
    leaves = (ast.Return, ast.Break, ast.Continue, ast.Yield, ast.YieldFrom)
    if any(isinstance(part, leaves) for statement in node.finalbody for part in ast.walk(statement)):
        return True
    raising = all(
        isinstance(handler.body[-1], ast.Raise)
        and not any(isinstance(part, leaves) for statement in handler.body for part in ast.walk(statement))
        for handler in node.handlers
    )
    return not raising and not _only_imports(node)


def _only_imports(node: ast.Try | ast.TryStar) -> bool:
    return all(isinstance(part, (ast.Import, ast.ImportFrom)) for part in node.body)

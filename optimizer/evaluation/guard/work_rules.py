"""Rules about who does the work: own kernels, no hidden fallback, nothing kept between calls."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from artifacts.measurement import GuardFinding
from optimizer.evaluation.guard.constant import Constants
from optimizer.evaluation.guard.kept import Kept
from optimizer.evaluation.guard.languages import KERNELS
from optimizer.evaluation.guard.names import Function, Names, bound_in, decorators_of, dotted
from optimizer.evaluation.guard.python_rules import finding
from optimizer.evaluation.guard.set_up import before_inputs, runs_constructors_again
from optimizer.evaluation.guard.tables import COMPUTING_METHODS, PLAIN_MODULES, TORCH_MOVES

_OUTSIDE = {"get_inputs", "get_init_inputs", "__repr__", "extra_repr"}
_KERNEL_SOURCES = ("load_inline", "load")
_COMPILERS = ("triton.jit", "triton.autotune", "triton.heuristics", "triton.runtime.jit", *KERNELS)


def own_kernels(tree: ast.Module, names: Names) -> Iterator[GuardFinding]:
    """A candidate brings a kernel: an extension, a function that a decorator compiles or a custom library."""
    builds = any(
        isinstance(node, ast.Call) and dotted(node.func).split(".")[-1] in _KERNEL_SOURCES for node in ast.walk(tree)
    )
    if not builds and not any(_is_compiled(function, names) for function in names.every_function):
        yield finding("no_kernel", "the candidate has no kernel of its own", tree)


def _is_compiled(function: Function, names: Names) -> bool:
    """Whether a decorator compiles the function, so that none of it runs as Python."""
    meanings = (full for part in decorators_of(function) for full in names.meanings_of(part))
    return any(full.startswith(_COMPILERS) for full in meanings)


def reference_used(tree: ast.Module, names: Names) -> Iterator[GuardFinding]:
    """The task's ``Model`` is no part of a candidate; a class of its own may have that name."""
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and "Model" not in names.classes)
    for node in calls:
        if dotted(node.func).split(".")[-1] == "Model":
            yield finding("inherited_model", "the reference is constructed", node)


def fallbacks(tree: ast.Module, names: Names) -> Iterator[GuardFinding]:
    """Torch operators that compute: inside a branch they are a fallback, elsewhere they are noted.

    A branch that always goes one way while the task is evaluated is none.
    """
    modules, helpers = _torch_modules(tree, names), _torch_helpers(names)
    constants = _constants(tree, names)
    unreached = constants.unreached()
    for function in called_functions(tree, names):
        branches = {id(part) for arm in arms(function, constants) for part in ast.walk(arm)}
        parameters = {argument.arg for argument in function.args.args} - {"self", "cls"}
        for node in (node for node in ast.walk(function) if id(node) not in unreached):
            chain = compute_call(node, names)
            inside = id(node) in branches
            if inside and not chain:
                chain = _computing_method(node, parameters) or _called_part(node, names, modules, helpers)
            chain = chain or _in_container(node, names)
            if chain and (inside or isinstance(node, (ast.Dict, ast.List, ast.Tuple))):
                yield finding("fallback", f"{chain} in a branch can stand in for the kernel", node)
            elif chain:
                yield finding("torch_operators", f"{chain} is left to torch", node, fatal=False)


def _constants(tree: ast.Module, names: Names) -> Constants:
    early = before_inputs(tree)
    return Constants(tree, names, [function for function in names.every_function if function not in early])


def called_functions(tree: ast.Module, names: Names) -> list[Function]:
    """Every function but what runs before there are inputs, input makers and compiled kernels; lambdas too."""
    early = before_inputs(tree)
    return [
        function
        for function in names.every_function
        if function not in early and getattr(function, "name", "") not in _OUTSIDE and not _is_compiled(function, names)
    ]


def compute_call(node: ast.AST, names: Names) -> str:
    """The dotted name of a torch function or module that computes, or an empty string."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        return "the @ operator"
    return _computing(node.func, names) if isinstance(node, ast.Call) else ""


def _computing(node: ast.AST, names: Names) -> str:
    return next((full for full in names.meanings_of(node) if _computes(full.split("."))), "")


def _computes(full: list[str]) -> bool:
    """Whether a dotted name is one of torch's, and calling it computes."""
    if full[0] != "torch" or full[-1] in TORCH_MOVES or full[1:2] == ["cuda"] or "library" in full or "init" in full:
        return False
    if "ops" in full:
        return "aten" in full
    return not {"cpp_extension", "compiler", "jit"} & set(full) and not full[-1][:1].isupper()


def _computing_method(node: ast.AST, parameters: set[str]) -> str:
    """A computing method of an argument, such as ``x.softmax(-1)``."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return ""
    owner = node.func.value
    of_argument = isinstance(owner, ast.Name) and owner.id in parameters
    return f"{node.func.attr}()" if of_argument and node.func.attr in COMPUTING_METHODS else ""


def _called_part(node: ast.AST, names: Names, modules: set[str], helpers: set[str]) -> str:
    """A module of torch kept in ``self``, or a function of the candidate in which only torch works."""
    if not isinstance(node, ast.Call):
        return ""
    parts = dotted(node.func).split(".")
    if parts[0] == "self" and len(parts) == 2 and parts[1] in modules:
        return ".".join(parts)
    return parts[-1] if parts[-1] in helpers and parts[0] in (parts[-1], "self") else ""


def _in_container(node: ast.AST, names: Names) -> str:
    """Functions of torch from which one is chosen later."""
    if not isinstance(node, (ast.Dict, ast.List, ast.Tuple)):
        return ""
    values = node.values if isinstance(node, ast.Dict) else node.elts
    chains = (_computing(value, names) for value in values if isinstance(value, (ast.Attribute, ast.Name)))
    return next((chain for chain in chains if chain and chain.split(".")[-1] in COMPUTING_METHODS), "")


def _torch_modules(tree: ast.Module, names: Names) -> set[str]:
    """Attributes that hold a module of torch's which computes."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
            continue
        for full in names.meanings_of(node.value.func):
            name = full.rpartition(".")[2]
            if full.startswith("torch.nn.") and name[:1].isupper() and name not in PLAIN_MODULES:
                found |= {target.attr for target in node.targets if isinstance(target, ast.Attribute)}
    return found


def _torch_helpers(names: Names) -> set[str]:
    """Functions of the candidate that call computing parts of torch and nothing of the candidate's own."""
    found = set()
    for function in names.every_function:
        calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
        computes = any(compute_call(node, names) for node in ast.walk(function))
        own = any(not names.meanings_of(call.func) for call in calls)
        if computes and not own and not isinstance(function, ast.Lambda):
            found.add(function.name)
    return found


def kept_state(tree: ast.Module, names: Names) -> Iterator[GuardFinding]:
    """Nothing that depends on the inputs outlives a call."""
    persistent = _module_level(tree) | names.functions | set(names.classes)
    inner = _inside_functions(tree)
    unread = _constants(tree, names).only_updated() | names.states
    fresh = set() if runs_constructors_again(tree) else {"__init__"}
    for function in called_functions(tree, names):
        kept = persistent | inner.get(function, set())
        if getattr(function, "name", "") not in fresh:
            kept |= {"self", "cls"}
        if function not in inner or inner[function] or isinstance(function, ast.Lambda):
            yield from Kept(function, kept, unread).findings()


def _module_level(tree: ast.Module) -> set[str]:
    return {
        target.id
        for node in tree.body
        if isinstance(node, (ast.Assign, ast.AnnAssign))
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }


def _inside_functions(tree: ast.Module) -> dict[Function, set[str]]:
    """Functions inside functions, each with those variables around it that live on: where it is handed out."""
    found: dict[Function, set[str]] = {}
    for outer in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        returned = {
            node.value.id
            for node in ast.walk(outer)
            if isinstance(node, ast.Return) and isinstance(node.value, ast.Name)
        }
        for inner in ast.walk(outer):
            if isinstance(inner, ast.FunctionDef) and inner is not outer:
                around = bound_in(outer) - bound_in(inner) if inner.name in returned else set()
                found[inner] = found.get(inner, set()) | around
    return found


_BLANK = ("empty", "zeros", "new_empty", "new_zeros", "clone", "view", "reshape")


def arms(function: Function, constants: Constants) -> Iterator[ast.AST]:
    """Expressions and statements that depend on a condition: branches, and what follows one that returns."""
    for node in ast.walk(function):
        if isinstance(node, ast.If) and not constants.is_constant(node.test, function):
            yield from (*node.body, *node.orelse)
        elif isinstance(node, ast.IfExp) and not constants.is_constant(node.test, function):
            yield from (node.body, node.orelse)
        elif isinstance(node, ast.BoolOp) and not constants.is_constant(
            ast.BoolOp(node.op, node.values[:-1]), function
        ):
            yield from node.values[1:]
        elif isinstance(node, ast.While):
            yield from (*node.body, *node.orelse)
        elif isinstance(node, ast.Match):
            yield from (statement for case in node.cases for statement in case.body)
        for block in _blocks(node):
            chosen = [place for place, part in enumerate(block) if _may_answer(part, constants, function)]
            yield from block[chosen[0] + 1 :] if chosen else ()


def _blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse"):
        block = getattr(node, name, None)
        if isinstance(block, list):
            yield block


def _may_answer(statement: ast.stmt, constants: Constants, function: Function) -> bool:
    """Whether what follows runs only where a branch here has not returned an answer of its own."""
    return isinstance(statement, ast.If) and any(
        isinstance(node, ast.If)
        and not constants.is_constant(node.test, function)
        and any(map(_answers, ast.walk(node)))
        for node in ast.walk(statement)
    )


def _answers(node: ast.AST) -> bool:
    """A return of something computed; what needs no arithmetic, as for no elements at all, is none."""
    if not isinstance(node, ast.Return) or not isinstance(node.value, ast.Call):
        return False
    name = node.value.func.attr if isinstance(node.value.func, ast.Attribute) else ""
    return not name.startswith(_BLANK)

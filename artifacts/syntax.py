"""Python source to syntax trees, from any thread.

CPython keeps the depth of the tree that it is building per interpreter (3.11) and lets other threads run meanwhile: two
that parse at once now and then raise ``SystemError: AST constructor recursion depth mismatch``. One at a time loses
nothing, since parsing holds the interpreter's lock anyway.
"""

from __future__ import annotations

import ast
import os
import threading
import warnings
from typing import Any


class _Turns:
    """Whose turn it is to parse; a forked child starts with nobody's."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._anew)

    def _anew(self) -> None:
        self.lock = threading.RLock()


_TURNS = _Turns()


def parse(source: str) -> ast.Module:
    """Syntax tree of ``source``; what the parser warns of, such as unknown escapes, is the author's business.

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: as :func:`ast.parse` does.
    """
    with _TURNS.lock, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(source)


def expression(source: str) -> ast.expr:
    """Syntax tree of one expression; raises what :func:`parse` does."""
    with _TURNS.lock, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(source, mode="eval").body


def literal(source: str) -> Any:
    """What the Python literal ``source`` spells; raises what :func:`ast.literal_eval` does."""
    with _TURNS.lock:
        return ast.literal_eval(source)

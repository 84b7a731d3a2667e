"""Languages whose kernels are Python functions that a decorator compiles in the candidate's own process."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from artifacts.measurement import GuardFinding
from optimizer.evaluation.guard import numba_kernels
from optimizer.evaluation.guard.names import Names


class Watcher(Protocol):
    """What a sandbox wants to know of own kernels, and does to them."""

    calls: int

    @property
    def replacing(self) -> bool:
        """Whether kernels have to go through :meth:`wrapped` now."""
        ...

    def wrapped(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function`` of tensors, counted, and without its effect when the sandbox says so."""
        ...


class KernelLanguage(Protocol):
    """One language, as a module that has these names.

    Attributes:
        MODULE: package that candidates import; loaded before a sandbox shuts its doors.
        PARTS: dotted names of it that a candidate may use.
        KERNELS: decorators that compile a function.
    """

    MODULE: str
    PARTS: frozenset[str]
    KERNELS: tuple[str, ...]

    def rules(self, tree: ast.Module, names: Names) -> Iterator[GuardFinding]:
        """What is wrong inside kernels, and with how they are called."""
        ...

    def arrays(self, tree: ast.Module, names: Names) -> set[int]:
        """Ids of nodes that hand tensors to kernels and are refused anywhere else."""
        ...

    def watch(self, own: Watcher) -> None:
        """See to it that ``own`` learns of every call of a kernel; nothing where the package is missing."""
        ...


LANGUAGES: tuple[KernelLanguage, ...] = (numba_kernels,)
PARTS = {language.MODULE: language.PARTS for language in LANGUAGES}
KERNELS = tuple(kernel for language in LANGUAGES for kernel in language.KERNELS)

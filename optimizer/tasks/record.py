"""The record of one task to optimize."""

from __future__ import annotations

from dataclasses import dataclass

from artifacts.task import TaskRef


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One operator to make fast.

    Attributes:
        source: Python that defines ``Model``, ``get_inputs`` and ``get_init_inputs``.
        path: where it was read, for messages.
        dtype, size: of the inputs, as :class:`artifacts.trajectory.State` names them.
    """

    ref: TaskRef
    source: str
    path: str
    dtype: str = "unknown"
    size: str = "unknown"

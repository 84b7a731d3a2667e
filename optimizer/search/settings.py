"""Settings of the search of one task."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSettings:
    """How one task is searched.

    Attributes:
        steps: T, steps a task (see ``reallocate``).
        candidates: N, candidates a step.
        repairs: times in a row that a failed candidate is repaired before its parent is taken up again.
        window: fruitless children of a candidate before it is no longer a parent.
        diversity: log2 of speed that full dissimilarity from parents already taken is worth.
        near_bound: fraction of the speed-of-light bound at which a task stops early.
        reallocate: ``steps`` is what tasks take on average: one near its bound stops early, and a third of all steps go
            to the tasks that improved last; False gives every task exactly ``steps``, as recordings need it.
        confirm: the winner of each task is measured again in a new process with other seeds, and that figure is
            reported; one that fails then is replaced by the next best.
    """

    steps: int = 6
    candidates: int = 1
    repairs: int = 2
    window: int = 5
    diversity: float = 0.5
    near_bound: float = 0.9
    reallocate: bool = True
    confirm: bool = False

    def __post_init__(self) -> None:
        if self.steps < 1 or self.candidates < 1 or self.window < 1:
            raise ValueError("steps, candidates and window count from 1")
        if self.repairs < 0 or self.diversity < 0:
            raise ValueError("repairs and diversity must not be negative")
        if not 0 < self.near_bound <= 1:
            raise ValueError(f"near_bound is a fraction in 0..1, got {self.near_bound}")

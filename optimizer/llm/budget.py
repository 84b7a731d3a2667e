"""Hard limits on what a run may use, kept by reserving before using."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, fields, replace

from artifacts.errors import BudgetExceededError
from optimizer.llm.protocol import LlmAnswer

UNITS = {"usd": "USD", "tokens": "tokens", "calls": "calls", "gpu_s": "GPU seconds", "wall_s": "seconds"}
"""Quantities that a budget may limit, with their units in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetLimits:
    """What a run may use at most; None means no limit.

    Attributes:
        usd: money, for models whose price is known.
        tokens: prompt and completion together.
        calls: answers asked for, broken ones that may have been billed included.
        gpu_s: seconds on measuring devices.
        wall_s: seconds since the budget was opened, those of earlier sessions of the run included.
    """

    usd: float | None = None
    tokens: int | None = None
    calls: int | None = None
    gpu_s: float | None = None
    wall_s: float | None = None

    def __post_init__(self) -> None:
        for name in UNITS:
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ValueError(f"budget {name} must be finite and positive, got {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What was used; ``unpriced`` counts calls whose cost is unknown, so ``usd`` is a lower bound then."""

    usd: float = 0.0
    tokens: int = 0
    calls: int = 0
    gpu_s: float = 0.0
    wall_s: float = 0.0
    unpriced: int = 0

    def __add__(self, other: Spent) -> Spent:
        return Spent(**{item.name: getattr(self, item.name) + getattr(other, item.name) for item in fields(Spent)})

    def __sub__(self, other: Spent) -> Spent:
        return Spent(**{item.name: getattr(self, item.name) - getattr(other, item.name) for item in fields(Spent)})


def spent_on(answer: LlmAnswer) -> Spent:
    """Return what ``answer`` took, with the attempts that broke before it; an unknown price counts as unpriced."""
    return Spent(
        usd=(answer.cost_usd or 0.0) + answer.lost_usd,
        tokens=answer.prompt_tokens + answer.completion_tokens + answer.lost_tokens,
        calls=1 + answer.lost_calls,
        unpriced=int(answer.cost_usd is None),
    )


class Budget:
    """Counts what is used and refuses what no longer fits; belongs to one event loop.

    A call reserves the most it can take before it starts and settles what it took when it ends, so the
    limits hold as long as no call takes more than it reserved; estimates of prompt lengths are the only
    part that can be short, by what the calls in flight misjudged.

    Args:
        limits: what may be used.
        spent: what earlier sessions of the run used, so that a resumed run keeps its limits.
        clock: seconds, monotonic; for tests.
    """

    def __init__(
        self, limits: BudgetLimits, spent: Spent | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.limits = limits
        self._settled = spent or Spent()
        self._reserved = Spent()
        self._under_way = 0
        self._clock = clock
        self._opened = clock()
        self._changed = asyncio.Event()

    @property
    def spent(self) -> Spent:
        """All that was used so far."""
        return replace(self._settled, wall_s=self._settled.wall_s + self._clock() - self._opened)

    @property
    def reserved(self) -> Spent:
        """What calls under way may still use."""
        return self._reserved

    async def reserve(self, most: Spent) -> Spent:
        """Set ``most`` aside and return it; waits while only calls under way stand in the way.

        Raises:
            BudgetExceededError: it cannot fit, whatever the calls under way leave.
        """
        while True:
            self.check(most)
            if not self._shortage(self.spent + self._reserved, most):
                self._reserved += most
                self._under_way += 1
                return most
            await self._changed.wait()

    def settle(self, reserved: Spent, used: Spent) -> None:
        """Give back a reservation and count what was really used."""
        self._under_way -= 1
        self._reserved = self._reserved - reserved if self._under_way else Spent()  # no rounding may pile up
        self.add(used)

    def add(self, used: Spent) -> None:
        """Count what was used without a reservation, e.g. GPU seconds of a finished measurement."""
        self._settled += used
        self._changed.set()
        self._changed = asyncio.Event()

    def check(self, most: Spent | None = None) -> None:
        """Refuse when a limit is reached, or would be passed by ``most``.

        Raises:
            BudgetExceededError: names the limit, what was used and what was wanted.
        """
        name = self._shortage(self.spent, most or Spent())
        if name:
            limit, used, wanted = (getattr(record, name) for record in (self.limits, self.spent, most or Spent()))
            need = f", and the next call may need {_amount(wanted)}" if wanted else ""
            raise BudgetExceededError(
                f"the budget of {_amount(limit)} {UNITS[name]} is used up: {_amount(used)} spent{need}",
                "raise the limit and run the same command to resume",
            )

    def _shortage(self, used: Spent, most: Spent) -> str:
        """Name the first limit that ``used`` has reached or that ``most`` on top would pass."""
        for name in UNITS:
            limit = getattr(self.limits, name)
            if limit is None:
                continue
            before, wanted = getattr(used, name), getattr(most, name)
            if before + wanted > limit or (before >= limit and name in ("gpu_s", "wall_s")):
                return name
        return ""


def _amount(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"

"""What models cost, in ``prices.toml`` and files of the user, and the meter between calls and the budget."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path

from artifacts.codec import decode
from artifacts.errors import BadInputError
from optimizer.llm.budget import Budget, BudgetLimits, Spent
from optimizer.llm.protocol import LlmAnswer, LlmRequest

BYTES_PER_TOKEN = 3.0
"""Fewer bytes a token than common tokenizers take for code and English, so that estimates are not short."""

_SNAPSHOT = re.compile(r"-\d{4}-\d{2}-\d{2}$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """USD per million tokens; ``cached_input`` is None where an endpoint has no price of its own for it."""

    input: float
    output: float
    cached_input: float | None = None

    def __post_init__(self) -> None:
        values = (self.input, self.output, self.cached_input or 0.0)
        if not all(math.isfinite(value) and value >= 0 for value in values):
            raise ValueError(f"prices must be finite and not negative, got {values}")

    def cost(self, prompt_tokens: int, completion_tokens: int, cached_tokens: int = 0) -> float:
        """Return USD for one call; ``cached_tokens`` are part of ``prompt_tokens``."""
        cached_price = self.input if self.cached_input is None else self.cached_input
        fresh = prompt_tokens - cached_tokens
        return (fresh * self.input + cached_tokens * cached_price + completion_tokens * self.output) / 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceTable:
    """Prices by model name, with the month they were taken."""

    models: Mapping[str, Price]
    as_of: str = "unknown"

    def price(self, model: str) -> Price | None:
        """Return the price of ``model``; None when it is unknown.

        A dated snapshot (``gpt-4o-2024-08-06``) costs what its model costs unless it is listed itself.
        """
        return self.models.get(model) or self.models.get(_SNAPSHOT.sub("", model))


def load_prices(extra: Path | None = None) -> PriceTable:
    """Return the shipped prices, overridden by those in ``extra``.

    Raises:
        BadInputError: ``extra`` cannot be read or is no price file; the message names the field.
    """
    shipped = (resources.files("optimizer.llm") / "prices.toml").read_text(encoding="utf-8")
    table = _parse(shipped, "prices.toml")
    if extra is None:
        return table
    try:
        own = _parse(extra.read_text(encoding="utf-8"), str(extra))
    except (OSError, UnicodeDecodeError) as problem:
        raise BadInputError(f"cannot read the price file {extra}: {problem}", "check the path") from problem
    return PriceTable(models={**table.models, **own.models}, as_of=own.as_of)


def _parse(text: str, name: str) -> PriceTable:
    try:
        return decode(PriceTable, tomllib.loads(text))
    except tomllib.TOMLDecodeError as problem:
        raise BadInputError(
            f"{name} is not TOML: {problem}", "see optimizer/llm/prices.toml for the layout"
        ) from problem
    except BadInputError as problem:
        raise BadInputError(f"{name}: {problem.what}", "see optimizer/llm/prices.toml for the layout") from problem


class Meter:
    """Reserves the most that a call can take, and settles what it took.

    Args:
        prices: to turn tokens into money.
        budget: shared with whatever else the run spends; none limits nothing.
    """

    def __init__(self, prices: PriceTable, budget: Budget | None = None) -> None:
        self._prices = prices
        self._budget = budget or Budget(BudgetLimits())

    def require_price(self, model: str) -> None:
        """Refuse a money budget for a model whose price is unknown; without one an unknown price is fine.

        Raises:
            BadInputError: names the model and what to do.
        """
        if self._budget.limits.usd is not None and self._prices.price(model) is None:
            raise BadInputError(
                f"a budget in USD needs the price of {model!r}, which is unknown",
                "add it to a price file (--prices), or limit tokens or calls instead",
            )

    async def reserve(self, request: LlmRequest) -> Spent:
        """Set aside what ``request`` can take at most; see :meth:`optimizer.llm.budget.Budget.reserve`."""
        return await self._budget.reserve(self._spent(request, prompt_tokens(request), request.max_tokens))

    def settle(self, reserved: Spent, used: Spent) -> None:
        """Give the reservation back and count what was used."""
        self._budget.settle(reserved, used)

    def given_up(self, request: LlmRequest) -> Spent:
        """What a call that was cancelled on our side counts: its prompt."""
        return self._spent(request, prompt_tokens(request), 0)

    def lost(self, request: LlmRequest, received: int | None) -> Spent:
        """What an attempt may be charged that broke after ``received`` bytes; None when it never began."""
        if received is None:
            return Spent()
        return self._spent(request, prompt_tokens(request), min(_tokens(received), request.max_tokens))

    def priced(self, answer: LlmAnswer, request: LlmRequest) -> tuple[LlmAnswer, Spent]:
        """Return ``answer`` with its cost, and with estimated tokens where the endpoint reported none."""
        if answer.finish != "refusal" and not answer.prompt_tokens and not answer.completion_tokens:
            guess = _tokens(len(answer.text.encode("utf-8", "replace")))
            notes = (*answer.notes, "tokens are estimated: the endpoint reported none")
            answer = replace(answer, prompt_tokens=prompt_tokens(request), completion_tokens=guess, notes=notes)
        used = self._spent(request, answer.prompt_tokens, answer.completion_tokens, answer.cached_tokens)
        return replace(answer, cost_usd=None if used.unpriced else used.usd), used

    def _spent(self, request: LlmRequest, prompt: int, completion: int, cached: int = 0) -> Spent:
        price = self._prices.price(request.model)
        usd = 0.0 if price is None else price.cost(prompt, completion, cached)
        return Spent(usd=usd, tokens=prompt + completion, calls=1, unpriced=int(price is None))


def prompt_tokens(request: LlmRequest) -> int:
    """Estimate the tokens of a prompt, rather too many than too few."""
    return sum(_tokens(len(message.content.encode("utf-8", "replace"))) + 8 for message in request.messages)


def _tokens(size: int) -> int:
    """Estimate tokens of ``size`` bytes, rounded up."""
    return -int(-size // BYTES_PER_TOKEN)

"""Answers from an OpenAI-compatible endpoint: tried again, counted, and kept within a budget."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from artifacts.errors import BudgetExceededError, UnavailableError
from optimizer.llm.budget import Spent
from optimizer.llm.endpoint import Endpoint
from optimizer.llm.meter import Meter
from optimizer.llm.openai_call import OpenAiCall, Timeouts
from optimizer.llm.openai_errors import Broken
from optimizer.llm.protocol import LlmAnswer, LlmRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """A request that will be sent again, and after what pause: for people who wait for its answer.

    Attributes:
        request: what is asked.
        reason: why the last attempt gave no answer.
        wait_s: pause before the next.
        attempt, attempts: number of the next, from 1, and how many there are at most.
    """

    request: LlmRequest
    reason: str
    wait_s: float
    attempt: int
    attempts: int

    def __str__(self) -> str:
        return f"{self.reason}; asked again in {self.wait_s:.0f} s, attempt {self.attempt} of {self.attempts}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """How hard and how patiently to ask.

    Attributes:
        concurrency: calls under way at most.
        attempts: times one request is sent at most.
        first_wait_s, longest_wait_s: bounds of the growing, random pause between attempts.
        patience_s: longest pause that an endpoint may ask for.
        stream: read answers in parts, so that a dead connection is noticed early.
    """

    concurrency: int = 16
    attempts: int = 8
    first_wait_s: float = 1.0
    longest_wait_s: float = 60.0
    patience_s: float = 900.0
    stream: bool = True
    timeouts: Timeouts = field(default_factory=Timeouts)

    def __post_init__(self) -> None:
        if self.concurrency < 1 or self.attempts < 1:
            raise ValueError("concurrency and attempts count from 1")


class OpenAiClient:
    """One endpoint, many requests at a time.

    Args:
        endpoint: address and key.
        meter: counts every attempt and keeps the budget.
        settings: concurrency and patience.
        on_retry: told before each pause.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        meter: Meter,
        settings: ClientSettings | None = None,
        on_retry: Callable[[Retry], None] | None = None,
    ) -> None:
        self._settings = settings or ClientSettings()
        self._on_retry = on_retry
        self._meter = meter
        self._call = OpenAiCall(endpoint, timeouts=self._settings.timeouts, stream=self._settings.stream)
        self._slots = asyncio.Semaphore(self._settings.concurrency)
        self._resume_at = 0.0

    async def complete(self, request: LlmRequest) -> LlmAnswer:
        """Answer ``request``, trying again where that can help.

        Raises:
            BadInputError: there is a money budget and no price for the model.
            BudgetExceededError: the call does not fit into the budget any more.
            UnavailableError: the endpoint cannot be used, or did not answer in all attempts.
        """
        self._meter.require_price(request.model)
        reasons: list[str] = []
        lost = Spent()
        async with self._slots:
            while len(reasons) < self._settings.attempts:
                await self._endpoint_ready()
                try:
                    answer = await self._attempt(request)
                except Broken as broken:
                    reasons.append(broken.reason)
                    lost += self._meter.lost(broken, request)
                    await self._back_off(broken, len(reasons), request)
                    continue
                except BudgetExceededError as over:
                    if not reasons:
                        raise
                    what = f"{over.what}; attempts before it failed, the last with: {reasons[-1]}"
                    raise BudgetExceededError(what, over.fix) from over
                return _after(answer, reasons, lost)
        raise UnavailableError(
            f"no answer to {request.where} in {len(reasons)} attempts: {', '.join(reasons)}",
            "run the same command later to go on",
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._call.close()

    async def _attempt(self, request: LlmRequest) -> LlmAnswer:
        """Send ``request`` once, within the budget; whatever happens, what it took is counted."""
        reserved = await self._meter.reserve(request)
        used = self._meter.given_up(request)
        try:
            answer, used = self._meter.priced(await self._call.send(request), request)
        except Broken as broken:
            used = self._meter.lost(broken, request)
            raise
        except UnavailableError:
            used = Spent()
            raise
        finally:
            self._meter.settle(reserved, used)
        return answer

    async def _endpoint_ready(self) -> None:
        """Wait while the endpoint has asked any call to wait; all start again a little apart."""
        while (delay := self._resume_at - time.monotonic()) > 0:
            await asyncio.sleep(delay + random.uniform(0.0, self._settings.first_wait_s))

    async def _back_off(self, broken: Broken, failures: int, request: LlmRequest) -> None:
        """Pause as long as the endpoint asked, or a random time that doubles with each failure.

        Raises:
            UnavailableError: it asked for more than anybody waits.
        """
        if failures >= self._settings.attempts:
            return
        if broken.wait_s is None:
            longest = min(self._settings.first_wait_s * 2 ** (failures - 1), self._settings.longest_wait_s)
            wait_s = random.uniform(longest / 2, longest)
            self._say(broken, wait_s, failures, request)
            await asyncio.sleep(wait_s)
            return
        if broken.wait_s > self._settings.patience_s:
            raise UnavailableError(
                f"the endpoint asks to wait {broken.wait_s:.0f} s before {request.where}",
                "run the same command later to go on",
            )
        self._resume_at = max(self._resume_at, time.monotonic() + broken.wait_s)
        if broken.wait_s:
            self._say(broken, broken.wait_s, failures, request)

    def _say(self, broken: Broken, wait_s: float, failures: int, request: LlmRequest) -> None:
        if self._on_retry is not None:
            attempt, attempts = failures + 1, self._settings.attempts
            said = Retry(request=request, reason=broken.reason, wait_s=wait_s, attempt=attempt, attempts=attempts)
            self._on_retry(said)


def _after(answer: LlmAnswer, reasons: list[str], lost: Spent) -> LlmAnswer:
    """Return ``answer`` with what went wrong before it and what that may have cost."""
    if not reasons:
        return answer
    note = f"answered in attempt {len(reasons) + 1}, after {', '.join(reasons)}"
    return replace(
        answer, notes=(*answer.notes, note), lost_calls=lost.calls, lost_tokens=lost.tokens, lost_usd=lost.usd
    )

"""Answers from an OpenAI-compatible endpoint: asked again where that helps, counted, and kept within a budget.

The ``openai`` package sends, streams, joins and names errors. It does not retry, because its retries neither count what
a broken stream may be charged, nor tell those who wait why, nor stop where no credit is left.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from artifacts.errors import BudgetExceededError, UnavailableError
from optimizer.llm.budget import Spent
from optimizer.llm.files import completion_answer, error_words, request_body
from optimizer.llm.prices import Meter
from optimizer.llm.protocol import LlmAnswer, LlmRequest

KEY_VARIABLE = "OPENAI_API_KEY"
"""Environment variable that holds the key."""
URL_VARIABLE = "OPENAI_BASE_URL"
"""Environment variable that holds the address of another endpoint than OpenAI's."""
REDACTED = "[key]"
"""What stands in texts where a key was."""

ABOUT_THE_QUESTION = ("context_length_exceeded", "content_filter", "content_policy_violation", "invalid_prompt")
"""Error codes that concern one request: it is answered as refused, and the run goes on."""
NO_MORE_CREDIT = ("insufficient_quota", "billing_hard_limit_reached")
"""Codes of a 429 that waiting does not cure."""
TRANSIENT = (408, 409, 425, 429)
"""Status codes, beside 5xx, after which the same request may be sent again."""
UNKNOWN_LENGTH = 2**62
"""Bytes of an answer that timed out: it is charged as if it had been as long as its limit allows."""
DIALECT = ("max_tokens", "temperature", "stream_options")
"""Parameters that not every endpoint takes; one that is refused is sent otherwise from then on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """An OpenAI-compatible endpoint; the key shows in no representation of this record.

    ``base_url`` is None for OpenAI's own.
    """

    key: str = field(repr=False)
    base_url: str | None = None

    def redact(self, text: str) -> str:
        """Return ``text`` without the key: endpoints repeat it in errors, and could in answers."""
        return text.replace(self.key, REDACTED)


def endpoint_from_environment(environment: Mapping[str, str] = os.environ) -> Endpoint:
    """Return the endpoint that the environment names.

    Raises:
        UnavailableError: there is no key, or the address is none.
    """
    key = environment.get(KEY_VARIABLE, "").strip()
    if not key:
        raise UnavailableError(
            f"no key for the LLM endpoint: {KEY_VARIABLE} is not set",
            f"set it (any text for a server of your own, its address in {URL_VARIABLE}), or use replay or files",
        )
    address = environment.get(URL_VARIABLE, "").strip()
    if address and not address.startswith(("http://", "https://")):
        raise UnavailableError(
            f"{URL_VARIABLE} is {address!r}, which is no address", "it begins with http:// or https://"
        )
    return Endpoint(key=key, base_url=address or None)


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
    """How patiently to ask.

    Attributes:
        attempts: times one request is sent at most.
        first_wait_s, longest_wait_s: bounds of the growing, random pause between attempts.
        patience_s: longest pause that an endpoint may ask for.
        first_byte_s: for connecting and for the first part of an answer.
        stall_s: between parts of an answer; comments that only keep a connection open do not count.
        total_s: for a whole attempt.
    """

    attempts: int = 8
    first_wait_s: float = 1.0
    longest_wait_s: float = 60.0
    patience_s: float = 900.0
    first_byte_s: float = 600.0
    stall_s: float = 120.0
    total_s: float = 3600.0

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ValueError("attempts count from 1")


class _Broken(Exception):  # noqa: N818 - the retry loop's event, never shown as an error
    """An attempt failed in a way that another one may not.

    Attributes:
        reason: in words.
        received: bytes of the answer that had arrived, which the endpoint may charge for; None when it charges nothing.
        wait_s: pause that the endpoint asked for; None when it did not say.
    """

    def __init__(self, reason: str, *, received: int | None = None, wait_s: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.received = received
        self.wait_s = wait_s


class OpenAiClient:
    """One endpoint, many requests at a time.

    Args:
        endpoint: address and key.
        meter: counts every attempt and keeps the budget.
        settings: how patient it is.
        on_retry: called before each pause.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        meter: Meter,
        settings: ClientSettings | None = None,
        on_retry: Callable[[Retry], None] | None = None,
    ) -> None:
        import openai

        self._endpoint = endpoint
        self._meter = meter
        self._settings = settings or ClientSettings()
        self._on_retry = on_retry
        self._resume_at = 0.0
        self._refused: set[str] = set()
        self._client = openai.AsyncOpenAI(
            api_key=endpoint.key, base_url=endpoint.base_url, max_retries=0, timeout=self._settings.first_byte_s
        )

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
        while len(reasons) < self._settings.attempts:
            await self._endpoint_ready()
            try:
                answer = await self._attempt(request)
            except _Broken as broken:
                reasons.append(broken.reason)
                lost += self._meter.lost(request, broken.received)
                await self._back_off(broken, len(reasons), request)
            except BudgetExceededError as over:
                if not reasons:
                    raise
                what = f"{over.what}; attempts before it failed, the last with: {reasons[-1]}"
                raise BudgetExceededError(what, over.fix) from over
            else:
                return _after(answer, reasons, lost)
        raise UnavailableError(
            f"no answer to {request.where} in {len(reasons)} attempts: {', '.join(reasons)}",
            "run the same command later to resume",
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()

    async def _attempt(self, request: LlmRequest) -> LlmAnswer:
        """Send ``request`` once, within the budget; whatever happens, what it took is counted."""
        reserved = await self._meter.reserve(request)
        used = self._meter.given_up(request)
        began = time.monotonic()
        try:
            answer = await self._send(request)
            redacted = tuple(self._endpoint.redact(note) for note in answer.notes)
            answer = replace(answer, text=self._endpoint.redact(answer.text), notes=redacted)
            answer, used = self._meter.priced(replace(answer, seconds=time.monotonic() - began), request)
        except _Broken as broken:
            used = self._meter.lost(request, broken.received)
            raise
        except UnavailableError:
            used = Spent()
            raise
        finally:
            self._meter.settle(reserved, used)
        return answer

    async def _send(self, request: LlmRequest) -> LlmAnswer:
        """Answer ``request``; its cost is left open.

        Raises:
            _Broken: trying again may help.
            UnavailableError: it will not.
        """
        import openai
        from openai.lib.streaming.chat import ChatCompletionStreamState

        create: Any = self._client.chat.completions.create
        refused, joined, began = frozenset(self._refused), ChatCompletionStreamState(), False
        try:
            async with asyncio.timeout(self._settings.total_s):
                chunks = await create(**self._parameters(request), stream=True)
                began = True
                await self._join(chunks, joined)
            body: dict[str, Any] = joined.current_completion_snapshot.to_dict(warnings=False)
        except openai.APIStatusError as problem:
            return self._status_answer(problem, request, refused)
        except openai.APITimeoutError as problem:
            raise _Broken("time-out", received=_received(joined) if began else UNKNOWN_LENGTH) from problem
        except TimeoutError as problem:
            raise _Broken("the answer stalled", received=_received(joined)) from problem
        except Exception as problem:
            if isinstance(problem, openai.APIConnectionError) and not began:
                raise _Broken(f"no connection: {type(problem.__cause__ or problem).__name__}") from problem
            raise _Broken(f"the stream broke: {type(problem).__name__}", received=_received(joined)) from problem
        if not any(choice.get("finish_reason") for choice in body.get("choices", ())):
            raise _Broken("the stream ended early", received=_received(joined))
        return completion_answer(body)

    async def _join(self, chunks: Any, joined: Any) -> None:
        """Join the parts of an answer as they come."""
        patience_s = self._settings.first_byte_s
        try:
            while True:
                async with asyncio.timeout(patience_s):
                    chunk = await anext(chunks, None)
                if chunk is None:
                    return
                joined.handle_chunk(chunk)
                patience_s = self._settings.stall_s
        finally:
            await chunks.close()

    def _parameters(self, request: LlmRequest) -> dict[str, Any]:
        """Return the body of ``request`` in the endpoint's dialect."""
        body = request_body(request) | {"stream_options": {"include_usage": True}}
        if "max_tokens" in self._refused:
            body["max_completion_tokens"] = body["max_tokens"]
        return {name: value for name, value in body.items() if name not in self._refused}

    def _status_answer(self, problem: Any, request: LlmRequest, refused: frozenset[str]) -> LlmAnswer:
        """Return the answer that a refused question amounts to.

        Args:
            problem: an ``openai.APIStatusError``.
            refused: parameters that were known to be refused when the attempt was sent; others may have learnt the
                same meanwhile.

        Raises:
            _Broken: the endpoint is busy or out of order, or does not take a parameter.
            UnavailableError: it will refuse the next request too.
        """
        status, words = problem.status_code, error_words(problem.body or problem.message)
        if status in (400, 422) and problem.param in DIALECT and problem.param not in refused:
            self._refused.add(problem.param)
            raise _Broken(f"{problem.param} is not supported", wait_s=0.0)
        if (status in TRANSIENT or status >= 500) and problem.code not in NO_MORE_CREDIT:
            raise _Broken(f"status {status}", wait_s=_retry_after(problem.response.headers))
        if problem.code in ABOUT_THE_QUESTION or "maximum context length" in words:
            return LlmAnswer(text="", model=request.model, finish="refusal", notes=(f"refused: {words}",))
        hint = {401: "check the key", 403: "check the key", 404: "check the model's name and the address"}
        what = f"the endpoint refused {request.model} ({status}): {words}"
        raise UnavailableError(self._endpoint.redact(what), hint.get(status, "")) from None

    async def _endpoint_ready(self) -> None:
        """Wait while the endpoint has asked any call to wait; all start again a little apart."""
        while (delay := self._resume_at - time.monotonic()) > 0:
            await asyncio.sleep(delay + random.uniform(0.0, self._settings.first_wait_s))

    async def _back_off(self, broken: _Broken, failures: int, request: LlmRequest) -> None:
        """Pause as long as the endpoint asked, or a random time that doubles with each failure.

        Raises:
            UnavailableError: it asked for more than the settings allow.
        """
        settings, wait_s = self._settings, broken.wait_s
        if failures >= settings.attempts:
            return
        if wait_s is None:
            longest = min(settings.first_wait_s * 2 ** (failures - 1), settings.longest_wait_s)
            wait_s = random.uniform(longest / 2, longest)
        elif wait_s > settings.patience_s:
            raise UnavailableError(
                f"the endpoint asks to wait {wait_s:.0f} s before {request.where}",
                "run the same command later to resume",
            )
        else:
            self._resume_at = max(self._resume_at, time.monotonic() + wait_s)
        if wait_s and self._on_retry is not None:
            again, most = failures + 1, settings.attempts
            self._on_retry(Retry(request=request, reason=broken.reason, wait_s=wait_s, attempt=again, attempts=most))
        if broken.wait_s is None:
            await asyncio.sleep(wait_s)


def _after(answer: LlmAnswer, reasons: list[str], lost: Spent) -> LlmAnswer:
    """Return ``answer`` with what went wrong before it and what that may have cost."""
    if not reasons:
        return answer
    note = f"answered in attempt {len(reasons) + 1}, after {', '.join(reasons)}"
    return replace(
        answer, notes=(*answer.notes, note), lost_calls=lost.calls, lost_tokens=lost.tokens, lost_usd=lost.usd
    )


def _received(joined: Any) -> int:
    """Bytes that had arrived of an answer, reasoning beside it included."""
    try:
        message = joined.current_completion_snapshot.choices[0].message.to_dict(warnings=False)
    except (AssertionError, IndexError):  # nothing has
        return 0
    return sum(len(part.encode("utf-8", "replace")) for part in message.values() if isinstance(part, str))


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the pause in seconds that an endpoint asks for; None when it gives no number of them."""
    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        try:
            return max(float(headers[name]) * unit, 0.0)
        except (KeyError, ValueError):
            continue
    return None

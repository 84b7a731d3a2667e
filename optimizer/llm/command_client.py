"""Answers from a command: any coding agent's CLI or script, with the prompt on stdin and the answer on stdout.

The words are split as a shell would, and no shell runs. A command that knows what it took says so in the last line of
its stderr, as a JSON object: ``{"cost_usd": 0.02, "model": "m", "prompt_tokens": 900, "completion_tokens": 400}``, of
which each is optional.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import shutil
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from artifacts.errors import BadInputError, UnavailableError
from optimizer.llm.budget import Budget, BudgetLimits, Spent, spent_on
from optimizer.llm.openai_client import Retry
from optimizer.llm.protocol import LlmAnswer, LlmRequest

SPEAKERS = {"system": "", "user": "", "assistant": "Your last answer was:\n"}
"""What stands before a turn of a conversation that is told as one text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandSettings:
    """How patiently to ask.

    Attributes:
        attempts: times that one request is asked at most.
        total_s: for one answer, after which the process and its children are killed.
        wait_s: pause before another attempt; it doubles.
    """

    attempts: int = 3
    total_s: float = 3600.0
    wait_s: float = 5.0


class CommandClient:
    """A :class:`optimizer.llm.protocol.LlmClient` over processes of this host.

    Args:
        command: as in ``--llm command:…``.
        budget: a limit in USD needs a command that says its cost.
        on_retry: called before a request is asked again.

    Raises:
        UnavailableError: there is no such command.
    """

    def __init__(
        self,
        command: str,
        *,
        budget: Budget | None = None,
        settings: CommandSettings | None = None,
        on_retry: Callable[[Retry], None] | None = None,
    ) -> None:
        self._words = command_words(command)
        self._budget = budget or Budget(BudgetLimits())
        self._settings = settings or CommandSettings()
        self._on_retry = on_retry
        self._tells_cost = True

    async def complete(self, request: LlmRequest) -> LlmAnswer:
        """Answer ``request``, trying again where the command failed.

        Raises:
            BadInputError: there is a money budget and the command does not say what it costs.
            BudgetExceededError: no further call fits.
            UnavailableError: the command failed in all attempts.
        """
        reason = ""
        for attempt in range(self._settings.attempts):
            if attempt:
                await self._pause(request, reason, attempt)
            if self._budget.limits.usd is not None and not self._tells_cost:
                raise BadInputError(
                    f"a budget in USD needs the cost, which {self._words[0]} does not print",
                    "limit calls instead, or print it (docs/reference/llm.md)",
                )
            try:
                return await self._attempt(request)
            except _Failed as failed:
                reason = str(failed)
        raise UnavailableError(
            f"no answer to {request.where} in {self._settings.attempts} attempts: {reason}",
            "run the same command later to resume",
        )

    async def close(self) -> None:
        """Nothing is kept between answers."""

    async def _attempt(self, request: LlmRequest) -> LlmAnswer:
        reserved = await self._budget.reserve(Spent(calls=1))
        used, began = reserved, time.monotonic()
        try:
            text, told = await self._run(_prompt(request))
            answer = _answer(text, told, request.model, time.monotonic() - began)
            used = spent_on(answer)
            self._tells_cost = answer.cost_usd is not None
        finally:
            self._budget.settle(reserved, used)
        return answer

    async def _run(self, prompt: str) -> tuple[str, str]:
        """Stdout and stderr of one process; its whole group is gone afterwards, even if the caller gives up."""
        process = await asyncio.create_subprocess_exec(
            *self._words,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        try:
            talk = process.communicate(prompt.encode("utf-8", "replace"))
            out, err = (
                part.decode("utf-8", "replace") for part in await asyncio.wait_for(talk, self._settings.total_s)
            )
        except TimeoutError:
            raise _Failed(f"{self._words[0]} gave no answer in {self._settings.total_s:g} s") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        if process.returncode != 0:
            said = " ".join((err.strip() or out.strip()).splitlines()[-1:])[:300]
            raise _Failed(f"{self._words[0]} ended with {process.returncode}: {said or 'it said nothing'}")
        return out, err

    async def _pause(self, request: LlmRequest, reason: str, attempt: int) -> None:
        wait_s = self._settings.wait_s * 2 ** (attempt - 1)
        if self._on_retry is not None:
            attempts = self._settings.attempts
            self._on_retry(Retry(request=request, reason=reason, wait_s=wait_s, attempt=attempt + 1, attempts=attempts))
        await asyncio.sleep(wait_s)


class _Failed(Exception):  # noqa: N818 - the retry loop's event, never shown as an error
    """The process gave no answer."""


def command_words(command: str) -> list[str]:
    """The words of a command.

    Raises:
        UnavailableError: it is no command line, or there is no such program.
    """
    try:
        words = shlex.split(command)
    except ValueError as problem:
        raise UnavailableError(f"--llm command:{command} cannot be read: {problem}", "correct the quotes") from problem
    if not words or shutil.which(words[0]) is None:
        raise UnavailableError(f"no program {words[0] if words else ''!r} for --llm", "install it, or give its path")
    return words


def _prompt(request: LlmRequest) -> str:
    return "\n\n".join(SPEAKERS[turn.role] + turn.content for turn in request.messages) + "\n"


def _answer(text: str, told: str, model: str, seconds: float) -> LlmAnswer:
    usage = _usage(told)
    return LlmAnswer(
        text=text,
        model=str(usage.get("model") or model),
        prompt_tokens=_count(usage.get("prompt_tokens")),
        completion_tokens=_count(usage.get("completion_tokens")),
        cost_usd=_cost(usage.get("cost_usd")),
        seconds=seconds,
    )


def _usage(told: str) -> Mapping[str, Any]:
    """The last line of stderr, if it is an object."""
    try:
        found = json.loads(told.strip().rpartition("\n")[2])
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _count(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _cost(value: object) -> float | None:
    known = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < float("inf")
    return float(value) if known else None  # type: ignore[arg-type]

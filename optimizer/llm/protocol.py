"""The seam between search and language models."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass, field
from typing import Protocol

ROLES = ("system", "user", "assistant")
"""Who may speak in a conversation."""

PURPOSES = ("first", "repair", "optimize", "answer_repair", "question")
"""What a request may be for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One turn of a conversation."""

    role: str
    content: str

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise ValueError(f"unknown role {self.role!r}, one of {', '.join(ROLES)}")
        if not self.content.strip():
            raise ValueError(f"a {self.role} message must not be empty")


@dataclass(frozen=True, slots=True, kw_only=True)
class LlmRequest:
    """One question to a model; what the model sees is its identity, the labels are for people.

    Attributes:
        model: the endpoint's name of the model.
        temperature: None leaves it to the endpoint.
        max_tokens: hard limit for the answer, reasoning included.
        sample: distinguishes several answers wanted to the same question.
        purpose: one of :data:`PURPOSES`; a label, not part of the key.
        task: task id; a label, not part of the key.
        slot: place in a run that is the same when the run is repeated, e.g. ``3.0`` for step 3,
            candidate 0; a label, by which a recording made on another machine can still be found.
    """

    model: str
    messages: tuple[Message, ...]
    temperature: float | None = None
    max_tokens: int = 16384
    sample: int = 0
    purpose: str = "optimize"
    task: str = ""
    slot: str = ""

    def __post_init__(self) -> None:
        if not self.model or not self.messages:
            raise ValueError("a request needs a model and at least one message")
        if self.purpose not in PURPOSES:
            raise ValueError(f"unknown purpose {self.purpose!r}, one of {', '.join(PURPOSES)}")
        if self.temperature is not None and not 0 <= self.temperature <= 2:
            raise ValueError(f"temperature must lie in 0..2, got {self.temperature}")
        if self.max_tokens < 1 or self.sample < 0:
            raise ValueError(f"max_tokens {self.max_tokens} must be positive and sample {self.sample} not negative")

    @property
    def key(self) -> str:
        """SHA-256 (hex) over model, messages, temperature, max_tokens and sample."""
        turns = [[message.role, message.content] for message in self.messages]
        heat = None if self.temperature is None else float(self.temperature)
        content = json.dumps([1, self.model, turns, heat, self.max_tokens, self.sample], separators=(",", ":"))
        return hashlib.sha256(content.encode("ascii")).hexdigest()

    @property
    def where(self) -> str:
        """The labels in words, for messages and logs."""
        parts = [self.purpose, f"for {self.task}" if self.task else "", f"at {self.slot}" if self.slot else ""]
        return " ".join(part for part in parts if part)


@dataclass(frozen=True, slots=True, kw_only=True)
class LlmAnswer:
    """What a model answered and what that took.

    Attributes:
        text: the answer; empty when the model refused or said nothing.
        model: as the endpoint reports it.
        prompt_tokens, completion_tokens: as reported, or estimated when ``notes`` says so.
        cached_tokens: part of ``prompt_tokens`` that the endpoint billed at its cache price.
        cost_usd: None when the price of the model is unknown.
        seconds: from sending to the last byte; 0 for files and recordings that do not know it.
        recorded: True when the answer was replayed and nothing was spent now.
        finish: ``stop``, ``length`` (cut at max_tokens) or ``refusal``.
        lost_calls, lost_tokens, lost_usd: what attempts that broke before this answer may have been charged.
        notes: what a reader must know: estimated usage, retries, matched by slot instead of content.
    """

    text: str
    model: str
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    cost_usd: float | None = None
    seconds: float = 0.0
    recorded: bool = False
    finish: str = "stop"
    lost_calls: int = 0
    lost_tokens: int = 0
    lost_usd: float = 0.0
    notes: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        if min(self.prompt_tokens, self.completion_tokens, self.cached_tokens) < 0:
            raise ValueError("token counts must not be negative")
        if self.cost_usd is not None and not (math.isfinite(self.cost_usd) and self.cost_usd >= 0):
            raise ValueError(f"cost must be finite and not negative, got {self.cost_usd}")
        if self.finish not in ("stop", "length", "refusal"):
            raise ValueError(f"unknown finish {self.finish!r}")


class LlmClient(Protocol):
    """Answers requests; implementations: endpoint, recording, replay, batch, fakes in tests.

    Contract: ``complete`` may be awaited for many requests at once, as many as who asks allows; the same request
    asked twice at the same time is paid once where the client records. Errors are
    :class:`artifacts.errors.BudgetExceededError` (a hard limit: stop asking),
    :class:`artifacts.errors.UnavailableError` (the endpoint or recording cannot answer), never bare
    transport exceptions. A refusal or an empty text is an answer.
    """

    async def complete(self, request: LlmRequest) -> LlmAnswer:
        """Answer one request."""
        ...

    async def close(self) -> None:
        """Release connections and files; the client cannot be used afterwards."""
        ...

"""Requests and answers as files: OpenAI-Batch JSONL, out and in, and what a completion says."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from artifacts.errors import BadInputError
from optimizer.llm.protocol import LlmAnswer, LlmRequest

ENDPOINT: Final = "/v1/chat/completions"
"""What every line asks for."""

FINISH = {"stop": "stop", "length": "length", "content_filter": "refusal"}
"""Endpoint's word for how an answer ended → ours; others count as ``stop``."""


def request_body(request: LlmRequest) -> dict[str, Any]:
    """Return the chat-completion body of ``request``."""
    body: dict[str, Any] = {
        "model": request.model,
        "messages": [{"role": message.role, "content": message.content} for message in request.messages],
        "max_tokens": request.max_tokens,
    }
    if request.temperature is not None:
        body["temperature"] = request.temperature
    return body


def request_line(request: LlmRequest) -> dict[str, Any]:
    """Return ``request`` as one line of an OpenAI-Batch file; ``custom_id`` is its key."""
    return {"custom_id": request.key, "method": "POST", "url": ENDPOINT, "body": request_body(request)}


def write_requests(path: Path, requests: Iterable[LlmRequest]) -> int:
    """Write each distinct request once, atomically; return how many lines there are."""
    distinct = {request.key: request for request in requests}
    return write_lines(path, [request_line(request) for request in distinct.values()])


def write_lines(path: Path, records: Iterable[Mapping[str, Any]]) -> int:
    """Write one JSON object a line, all of them or none; return how many."""
    lines = [json.dumps(record, ensure_ascii=True) + "\n" for record in records]
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    with partial.open("w", encoding="ascii") as file:
        file.writelines(lines)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    return len(lines)


def answer_of(data: Mapping[str, Any]) -> tuple[str, LlmAnswer]:
    """Request key and answer of one line of a batch output (or error) file.

    Beside the Batch API's form, ``{"custom_id": …, "text": …}`` is accepted, for answers written by hand.

    Raises:
        BadInputError: it holds none.
    """
    key = data.get("custom_id")
    if not isinstance(key, str) or not key:
        raise BadInputError("custom_id is missing")
    return key, _answer(data)


def _answer(data: Mapping[str, Any]) -> LlmAnswer:
    if isinstance(data.get("text"), str):
        return LlmAnswer(text=data["text"], model=str(data.get("model", "")))
    if data.get("error"):
        raise BadInputError(f"the endpoint reported: {error_words(data['error'])}")
    response = data.get("response")
    if not isinstance(response, dict):
        raise BadInputError("neither response nor text is there")
    body = response.get("body")
    if not isinstance(body, dict) or response.get("status_code", 200) != 200:
        inner = body.get("error") if isinstance(body, dict) else body
        raise BadInputError(f"the endpoint answered {response.get('status_code')}: {error_words(inner)}")
    return completion_answer(body)


def error_words(error: object) -> str:
    """Return an endpoint's error object as one short line."""
    words = error.get("message") if isinstance(error, dict) else error
    return " ".join(str(words or error or "no reason given").split())[:300]


def completion_answer(body: Mapping[str, Any]) -> LlmAnswer:
    """Return a chat-completion body as an answer; its cost is not known here.

    Raises:
        BadInputError: the body has no choice, or fields of another kind than the API's.
    """
    choices = body.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    message = first.get("message") if isinstance(first, dict) else None
    if not isinstance(first, dict) or not isinstance(message, dict):
        raise BadInputError("the completion holds no choice")
    text = message.get("content") or ""
    if not isinstance(text, str):
        raise BadInputError(f"the content is {type(text).__name__}, not text")
    finish = "refusal" if message.get("refusal") else FINISH.get(str(first.get("finish_reason")), "stop")
    prompt, completion, cached = usage_tokens(body.get("usage"))
    return LlmAnswer(
        text=text,
        model=str(body.get("model", "")),
        prompt_tokens=prompt,
        completion_tokens=completion,
        cached_tokens=cached,
        finish=finish,
        notes=(f"refusal: {error_words(message['refusal'])}",) if message.get("refusal") else (),
    )


def usage_tokens(usage: object) -> tuple[int, int, int]:
    """Return prompt, completion and cached tokens of a usage object; 0 for what it does not say."""
    if not isinstance(usage, Mapping):
        return 0, 0, 0
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, Mapping) else 0
    values = (usage.get("prompt_tokens"), usage.get("completion_tokens"), cached)
    prompt, completion, cached_count = (max(value, 0) if isinstance(value, int) else 0 for value in values)
    return prompt, completion, min(cached_count, prompt)

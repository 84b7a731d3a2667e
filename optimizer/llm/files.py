"""Requests and answers as files: OpenAI-Batch JSONL, out and in, and what a completion says."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from artifacts.errors import BadInputError
from optimizer.llm.protocol import LlmAnswer, LlmRequest

ENDPOINT: Final = "/v1/chat/completions"
"""What every line asks for."""

FINISH = {"stop": "stop", "length": "length", "content_filter": "refusal"}
"""Endpoint's word for how an answer ended → ours; others count as ``stop``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineProblem:
    """A line that gave no answer: 1-based line and the reason."""

    line: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFile:
    """What a file of answers holds, by request key; the first answer to a key wins."""

    answers: Mapping[str, LlmAnswer]
    problems: tuple[LineProblem, ...]


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


def read_answers(path: Path) -> AnswerFile:
    """Read a batch output (or error) file; a bad line is a problem, not the end.

    Beside the Batch API's form, ``{"custom_id": …, "text": …}`` is accepted, for answers written by hand.

    Raises:
        BadInputError: the file cannot be read.
    """
    try:
        content = path.read_bytes()
    except OSError as problem:
        raise BadInputError(f"cannot read the answers {path}: {problem.strerror}", "check the path") from problem
    return parse_answers(content.split(b"\n"))


def parse_answers(lines: Iterable[bytes]) -> AnswerFile:
    """Like :func:`read_answers`, from lines."""
    answers: dict[str, LlmAnswer] = {}
    problems: list[LineProblem] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            data = _object(line)
            key, answer = _key(data), _answer(data)
        except (ValueError, BadInputError) as problem:
            problems.append(LineProblem(line=number, reason=str(problem)))
            continue
        if key in answers:
            problems.append(LineProblem(line=number, reason="a second answer to the same request"))
        else:
            answers[key] = answer
    return AnswerFile(answers=answers, problems=tuple(problems))


def _object(line: bytes) -> dict[str, Any]:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as problem:
        raise BadInputError("not JSON, or cut short") from problem
    if not isinstance(data, dict):
        raise BadInputError(f"expected an object, got {type(data).__name__}")
    return data


def _key(data: dict[str, Any]) -> str:
    key = data.get("custom_id")
    if not isinstance(key, str) or not key:
        raise BadInputError("custom_id is missing")
    return key


def _answer(data: dict[str, Any]) -> LlmAnswer:
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

"""A small OpenAI-compatible server on loopback that can misbehave in every way a real one does."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from socket import SO_LINGER, SOL_SOCKET
from types import TracebackType
from typing import Any, Self

KEY = "sk-canary-0123456789abcdef"
ANSWER = "PLAN: make it fast.\nSTRATEGY: none\n```python\nclass ModelNew:\n    pass\n```\n"


class Fault(StrEnum):
    """How one request goes wrong."""

    RATE_LIMIT = "429 with Retry-After"
    SERVER_ERROR = "500"
    RESET = "connection reset before the answer"
    CUT = "stream cut in the middle"
    CUT_QUIETLY = "stream that ends without its finish"
    SLOW = "stream that stalls"
    KEEP_ALIVE = "stream of nothing but comments"
    BAD_JSON = "malformed JSON"
    NOT_JSON = "a web page"
    ERROR_EVENT = "an error inside the stream"
    EMPTY = "an empty answer"
    REFUSAL = "a refusal"
    NO_USAGE = "no token counts"
    LENGTH = "cut at the token limit"
    BAD_KEY = "401 that repeats the key"
    NO_CREDIT = "429 for good"
    TOO_LONG = "400 about the length of the prompt"
    OLD_PARAMETER = "400 about max_tokens"


UNPAID = {Fault.RATE_LIMIT, Fault.SERVER_ERROR, Fault.RESET, Fault.BAD_KEY, Fault.NO_CREDIT, Fault.TOO_LONG}
"""Faults before the model works."""

STATUS = {
    Fault.RATE_LIMIT: (429, {"message": "slow down", "code": "rate_limit_exceeded"}),
    Fault.SERVER_ERROR: (500, {"message": "out of order"}),
    Fault.BAD_KEY: (401, {"message": f"Incorrect API key provided: {KEY}", "code": "invalid_api_key"}),
    Fault.NO_CREDIT: (429, {"message": "no credit left", "code": "insufficient_quota"}),
    Fault.TOO_LONG: (400, {"message": "too long", "code": "context_length_exceeded"}),
    Fault.OLD_PARAMETER: (400, {"message": "use max_completion_tokens", "param": "max_tokens", "code": "unsupported"}),
}


@dataclass
class Seen:
    """One chat request as the server saw it; ``question`` is the same for the same content."""

    question: str
    body: dict[str, Any]
    authorization: str
    at: float
    fault: Fault | None


@dataclass
class FakeOpenAi:
    """Serves from a thread of its own while it is a context.

    Args:
        fault: what goes wrong with the n-th chat request (from 0); None for nothing.
        answer: text for a request body.
        pause_s: time an answer takes.
        stall_s: time that a stalled answer takes.
        delivered: complete answers by question.
    """

    fault: Callable[[int, dict[str, Any]], Fault | None] = lambda number, body: None
    answer: Callable[[dict[str, Any]], str] = lambda body: ANSWER
    pause_s: float = 0.0
    stall_s: float = 30.0
    retry_after: str = "0.05"
    seen: list[Seen] = field(default_factory=list)
    delivered: Counter[str] = field(default_factory=Counter)
    tokens: int = 0
    """What the server would bill: all of every answer that it began, as far as it was sent."""
    url: str = ""

    def __enter__(self) -> Self:
        started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(started)))
        self._thread.start()
        started.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    async def _serve(self, started: threading.Event) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._open: set[asyncio.Task[None]] = set()
        server = await asyncio.start_server(self._connection, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        started.set()
        await self._stop.wait()
        server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            while await self._request(reader, writer):
                pass
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._open.discard(task)
            writer.close()

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        headers = {name.lower(): value for name, value in re.findall(r"^([\w-]+):\s*(.*?)\r$", head, re.MULTILINE)}
        content = await reader.readexactly(int(headers.get("content-length", 0)))
        return await self._chat(json.loads(content), headers, writer)

    async def _chat(self, body: dict[str, Any], headers: dict[str, str], writer: asyncio.StreamWriter) -> bool:
        fault = self.fault(len(self.seen), body)
        question = _question(body)
        self.seen.append(Seen(question, body, headers.get("authorization", ""), time.monotonic(), fault))
        await asyncio.sleep(self.pause_s)
        if fault is Fault.RESET:
            _reset(writer)
            return False
        if fault in STATUS and not (fault is Fault.OLD_PARAMETER and "max_completion_tokens" in body):
            status, error = STATUS[fault]
            more = {"retry-after": self.retry_after} if fault is Fault.RATE_LIMIT else {}
            await _send(writer, status, json.dumps({"error": error}).encode(), more)
            return True
        reply = self.answer(body)
        whole = await _stream(self, writer, body, reply, fault)
        self.delivered[question] += whole
        return whole


def tokens(body: dict[str, Any], reply: str) -> int:
    """Tokens that the server counts: four characters each."""
    return sum(len(message["content"]) for message in body["messages"]) // 4 + len(reply) // 4


def completion(body: dict[str, Any], reply: str, fault: Fault | None) -> dict[str, Any]:
    """An unstreamed answer."""
    prompt = tokens(body, "")
    message = {"role": "assistant", "content": "" if fault in (Fault.EMPTY, Fault.REFUSAL) else reply}
    if fault is Fault.REFUSAL:
        message["refusal"] = "I cannot help with that."
    finish = "length" if fault is Fault.LENGTH else "stop"
    usage = {"prompt_tokens": prompt, "completion_tokens": tokens(body, reply) - prompt, "total_tokens": 0}
    result = {"id": "c", "object": "chat.completion", "created": 0, "model": body["model"] + "-served"}
    result["choices"] = [{"index": 0, "message": message, "finish_reason": finish}]
    return result | ({} if fault is Fault.NO_USAGE else {"usage": usage})


async def _stream(
    server: FakeOpenAi, writer: asyncio.StreamWriter, body: dict[str, Any], reply: str, fault: Fault | None
) -> bool:
    whole = completion(body, reply, fault)
    choice = whole["choices"][0]
    text = choice["message"]["content"]
    deltas = [{"content": text[start : start + 20]} for start in range(0, len(text), 20)]
    deltas += [{"refusal": choice["message"]["refusal"]}] if "refusal" in choice["message"] else []
    events = [_event(whole, {"choices": [{"index": 0, "delta": delta}]}) for delta in deltas]
    end = [_event(whole, {"choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]})]
    if "usage" in whole:
        end.append(_event(whole, {"choices": [], "usage": whole["usage"]}))
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
    half = len(events) // 2
    server.tokens += tokens(body, "")
    for number, event in enumerate(events):
        if number == half and fault is not None and not await _spoil(server, writer, fault):
            return False
        _chunk(writer, event)
        server.tokens += 5
        await writer.drain()
    for event in [*end, b"data: [DONE]\n\n"]:
        _chunk(writer, event)
    writer.write(b"0\r\n\r\n")
    await writer.drain()
    return True


async def _spoil(server: FakeOpenAi, writer: asyncio.StreamWriter, fault: Fault) -> bool:
    """Do in the middle of a stream what ``fault`` says; return whether the stream goes on."""
    if fault is Fault.CUT:
        _reset(writer)
    elif fault is Fault.CUT_QUIETLY:
        writer.write(b"0\r\n\r\n")
        await writer.drain()
    elif fault is Fault.SLOW:
        await asyncio.sleep(server.stall_s)
    elif fault is Fault.KEEP_ALIVE:
        for _ in range(int(server.stall_s / 0.05)):
            _chunk(writer, b": still here\n\n")
            await writer.drain()
            await asyncio.sleep(0.05)
    elif fault in (Fault.BAD_JSON, Fault.NOT_JSON):
        _chunk(writer, b'data: {"choices": [{"del\n\n' if fault is Fault.BAD_JSON else b'data: "busy"\n\n')
        await writer.drain()
    elif fault is Fault.ERROR_EVENT:
        _chunk(writer, b'data: {"error": {"message": "overloaded"}}\n\n')
        await writer.drain()
    return fault not in _ENDS


_ENDS = {Fault.CUT, Fault.CUT_QUIETLY, Fault.SLOW, Fault.KEEP_ALIVE, Fault.BAD_JSON, Fault.NOT_JSON, Fault.ERROR_EVENT}


def _event(whole: dict[str, Any], part: dict[str, Any]) -> bytes:
    shell = {"id": whole["id"], "object": "chat.completion.chunk", "created": 0, "model": whole["model"]}
    return b"data: " + json.dumps(shell | part).encode() + b"\n\n"


def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


def _head(status: int, length: int, more: dict[str, str] | None = None) -> bytes:
    lines = {"content-type": "application/json", "content-length": str(length)} | (more or {})
    fields = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"HTTP/1.1 {status} X\r\n{fields}\r\n".encode()


async def _send(
    writer: asyncio.StreamWriter,
    status: int,
    content: bytes,
    more: dict[str, str] | None = None,
) -> None:
    writer.write(_head(status, len(content), more) + content)
    await writer.drain()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Drop the connection with a reset, as a crashed gateway does."""
    writer.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def _question(body: dict[str, Any]) -> str:
    content = {name: body.get(name) for name in ("model", "messages")}
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()

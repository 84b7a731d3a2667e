"""What every client owes to the search, whatever is behind it."""

import asyncio
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_openai import KEY, FakeOpenAi, Fault

from artifacts.errors import HtamError
from optimizer.llm.cassette import Cassette, RecordingClient, ReplayClient
from optimizer.llm.command_client import CommandClient, CommandSettings
from optimizer.llm.openai_client import ClientSettings, Endpoint, OpenAiClient
from optimizer.llm.prices import Meter, Price, PriceTable
from optimizer.llm.protocol import LlmAnswer, LlmClient, LlmRequest, Message

METER = Meter(PriceTable(models={"m": Price(input=1.0, output=1.0)}))


def request(text: str) -> LlmRequest:
    return LlmRequest(model="m", messages=(Message(role="user", content=text),), max_tokens=100, task=text)


def echo(body: dict[str, Any]) -> str:
    return "answer to " + body["messages"][0]["content"]


async def ask(client: LlmClient, *texts: str) -> list[LlmAnswer | BaseException]:
    try:
        return await asyncio.gather(*(client.complete(request(text)) for text in texts), return_exceptions=True)
    finally:
        await client.close()


COMMAND = """import json, sys
prompt = sys.stdin.read().strip()
if "z" in prompt:
    sys.exit("no answer to that")
answer = "answer to " + prompt
sys.stdout.write(answer)
usage = {"model": "m-served", "cost_usd": 0.01, "prompt_tokens": 1, "completion_tokens": len(answer) // 4}
print("thinking\\n" + json.dumps(usage), file=sys.stderr)
"""


@pytest.fixture(params=["endpoint", "command", "recording", "replay"])
def client_of(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[FakeOpenAi], LlmClient]]:
    """Each kind of client; that of a replay knows the answers to ``a`` to ``e``."""

    def make(server: FakeOpenAi) -> LlmClient:
        if request.param == "command":
            script = tmp_path / "answer it.py"
            script.write_text(COMMAND)
            command = shlex.join([sys.executable, str(script)])
            return CommandClient(command, settings=CommandSettings(attempts=2, wait_s=0.01))
        endpoint = Endpoint(key=KEY, base_url=server.url)
        direct = OpenAiClient(endpoint, meter=METER, settings=ClientSettings(attempts=2, first_wait_s=0.01))
        if request.param == "endpoint":
            return direct
        recording = RecordingClient(direct, Cassette(tmp_path / "cassette.jsonl", writable=True))
        if request.param == "recording":
            return recording
        asyncio.run(ask(recording, *"abcde"))
        return ReplayClient(Cassette(tmp_path / "cassette.jsonl"))

    return make


def test_concurrent_requests_get_their_own_answers(client_of: Callable[[FakeOpenAi], LlmClient]) -> None:
    with FakeOpenAi(answer=echo) as server:
        client = client_of(server)
        answers = asyncio.run(ask(client, *"edcba"))
    assert [answer.text for answer in answers if isinstance(answer, LlmAnswer)] == [f"answer to {x}" for x in "edcba"]


def test_an_answer_says_its_model_tokens_cost_and_whether_it_was_recorded(
    client_of: Callable[[FakeOpenAi], LlmClient],
) -> None:
    with FakeOpenAi(answer=echo) as server:
        client = client_of(server)
        (answer,) = asyncio.run(ask(client, "a"))
    assert isinstance(answer, LlmAnswer)
    assert answer.model == "m-served"
    assert answer.completion_tokens == len("answer to a") // 4
    assert answer.cost_usd is not None
    assert answer.recorded == isinstance(client, ReplayClient)


def test_what_cannot_be_answered_is_an_error_that_a_user_can_read(
    client_of: Callable[[FakeOpenAi], LlmClient],
) -> None:
    with FakeOpenAi(answer=echo, fault=lambda number, body: Fault.SERVER_ERROR if "z" in str(body) else None) as server:
        client = client_of(server)
        (problem,) = asyncio.run(ask(client, "z"))
    assert isinstance(problem, HtamError)
    assert "\n" not in str(problem)

"""A command as the model: what it is told, how it fails, what it costs and what it leaves behind."""

import asyncio
import contextlib
import os
import shlex
import sys
import time
from pathlib import Path

import pytest

from artifacts.errors import BadInputError, BudgetExceededError, UnavailableError
from optimizer.evaluation.build.command import scrubbed_environment
from optimizer.evaluation.worker.processes import ForkServer
from optimizer.llm.budget import Budget, BudgetLimits
from optimizer.llm.command_client import CommandClient, CommandSettings
from optimizer.llm.protocol import LlmAnswer, LlmRequest, Message
from optimizer.run.manifest import LlmSpec

ROLES = ("system", "user", "assistant", "user")
QUICK = CommandSettings(attempts=2, wait_s=0.01)


def python(program: str) -> str:
    return shlex.join([sys.executable, "-c", program])


def ask(client: CommandClient, *texts: str) -> LlmAnswer:
    turns = tuple(Message(role=role, content=text) for role, text in zip(ROLES, texts, strict=False))
    return asyncio.run(client.complete(LlmRequest(model="m", messages=turns)))


def test_the_words_are_no_shell_and_the_prompt_is_on_stdin() -> None:
    client = CommandClient(python("import sys; print(sys.argv[1:], sys.stdin.read())") + " '$(id)' a;b")
    answer = ask(client, "rules", "task", "x = 1", "mend it")
    assert answer.text == "['$(id)', 'a;b'] rules\n\ntask\n\nYour last answer was:\nx = 1\n\nmend it\n\n"
    assert (answer.model, answer.cost_usd, answer.prompt_tokens) == ("m", None, 0)


def test_it_is_asked_again_after_a_failure(tmp_path: Path) -> None:
    mark, told = tmp_path / "mark", []
    program = (
        f"import pathlib, sys; p = pathlib.Path({str(mark)!r}); p.exists() or p.touch() or sys.exit('busy'); print(1)"
    )
    client = CommandClient(python(program), settings=QUICK, on_retry=told.append)
    assert ask(client, "q").text == "1\n"
    assert [retry.attempt for retry in told] == [2]
    assert "ended with 1: busy" in told[0].reason


def test_one_that_hangs_is_killed_with_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the command's folder too
    client = CommandClient("sh -c 'sleep 6000 & sleep 6000'", settings=CommandSettings(attempts=1, total_s=0.5))
    with pytest.raises(UnavailableError, match=r"gave no answer in 0\.5 s"):
        ask(client, "q")
    deadline = time.monotonic() + 600
    while at_work_in(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert at_work_in(tmp_path) == []


def at_work_in(folder: Path) -> list[int]:
    """Other processes that run in the folder; those that wait to be reaped are nowhere."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cwd"):
        with contextlib.suppress(OSError):
            if path.readlink() == folder:
                found.append(int(path.parent.name))
    return [pid for pid in found if pid != os.getpid()]


@pytest.mark.parametrize("words", ["no-such-program-anywhere", "'open quote", ""])
def test_what_cannot_be_run_is_one_line(words: str) -> None:
    with pytest.raises(UnavailableError) as problem:
        CommandClient(words)
    assert "\n" not in str(problem.value)


def test_a_budget_in_money_needs_a_command_that_says_its_cost() -> None:
    client = CommandClient("cat", budget=Budget(BudgetLimits(usd=1.0)), settings=QUICK)
    assert ask(client, "q").cost_usd is None
    with pytest.raises(BadInputError, match="cost"):
        ask(client, "q")
    cost = python("import sys; print('a'); print('{\"cost_usd\": 0.7}', file=sys.stderr)")
    client = CommandClient(cost, budget=Budget(BudgetLimits(usd=0.6)), settings=QUICK)
    assert ask(client, "q").cost_usd == 0.7
    with pytest.raises(BudgetExceededError):
        asyncio.run(_second(client))


async def _second(client: CommandClient) -> None:
    request = LlmRequest(model="m", messages=(Message(role="user", content="q"),))
    for _ in range(2):
        await client.complete(request)


def test_keys_stay_out_of_the_processes_of_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {name: f"sk-{name}" for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "MY_AGENT_TOKEN")}
    for name, value in keys.items():
        monkeypatch.setenv(name, value)
    assert (
        ask(CommandClient(python("import os; print(os.environ['MY_AGENT_TOKEN'])")), "q").text == "sk-MY_AGENT_TOKEN\n"
    )
    server = ForkServer()
    try:
        environment = Path(f"/proc/{server.pid}/environ").read_bytes()
    finally:
        server.close()
    assert b"PYTHONPATH" in environment
    assert b"sk-" not in environment
    assert not set(keys) & set(scrubbed_environment())
    assert os.environ["MY_AGENT_TOKEN"]


def test_it_is_named_in_full_by_the_option() -> None:
    assert LlmSpec.parse("command:claude -p --model 'x: y'").name == "claude -p --model 'x: y'"

import asyncio
import socket
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from fake_openai import ANSWER, KEY, FakeOpenAi, Fault

from artifacts.errors import BadInputError, BudgetExceededError, UnavailableError
from optimizer.llm.budget import Budget, BudgetLimits, spent_on
from optimizer.llm.cassette import Cassette, RecordingClient
from optimizer.llm.openai_client import ClientSettings, Endpoint, OpenAiClient, Retry, endpoint_from_environment
from optimizer.llm.prices import Meter, Price, PriceTable
from optimizer.llm.protocol import LlmAnswer, LlmRequest, Message

PRICES = PriceTable(models={"m": Price(input=1000.0, output=2000.0)})
QUICK = {"first_wait_s": 0.01}


def request(text: str = "make it fast", sample: int = 0, model: str = "m") -> LlmRequest:
    return LlmRequest(model=model, messages=(Message(role="user", content=text),), max_tokens=200, sample=sample)


def client(
    server: FakeOpenAi,
    budget: Budget | None = None,
    on_retry: Callable[[Retry], None] | None = None,
    **settings: object,
) -> OpenAiClient:
    chosen = ClientSettings(**(QUICK | settings))  # type: ignore[arg-type]
    endpoint = Endpoint(key=KEY, base_url=server.url)
    return OpenAiClient(endpoint, meter=Meter(PRICES, budget), settings=chosen, on_retry=on_retry)


def ask(asked: OpenAiClient, requests: Iterable[LlmRequest]) -> list[LlmAnswer | BaseException]:
    async def all_of_them() -> list[LlmAnswer | BaseException]:
        try:
            return await asyncio.gather(*(asked.complete(one) for one in requests), return_exceptions=True)
        finally:
            await asked.close()

    return asyncio.run(all_of_them())


def ask_one(asked: OpenAiClient, one: LlmRequest | None = None) -> LlmAnswer:
    (answer,) = ask(asked, [one or request()])
    if isinstance(answer, BaseException):
        raise answer
    return answer


def first(*faults: Fault | None):  # type: ignore[no-untyped-def]
    """The given faults for the first requests, then none."""
    return lambda number, body: faults[number] if number < len(faults) else None


def test_an_answer_arrives_with_its_tokens_and_cost() -> None:
    with FakeOpenAi() as server:
        answer = ask_one(client(server))
    assert answer.text == ANSWER
    assert (answer.model, answer.finish, answer.recorded) == ("m-served", "stop", False)
    assert (answer.prompt_tokens, answer.completion_tokens) == (3, len(ANSWER) // 4)
    assert answer.cost_usd == pytest.approx((3 * 1000 + len(ANSWER) // 4 * 2000) / 1e6)


@pytest.mark.parametrize(
    "fault",
    [
        Fault.RATE_LIMIT,
        Fault.SERVER_ERROR,
        Fault.RESET,
        Fault.CUT,
        Fault.CUT_QUIETLY,
        Fault.BAD_JSON,
        Fault.NOT_JSON,
        Fault.ERROR_EVENT,
        Fault.OLD_PARAMETER,
    ],
)
def test_a_broken_attempt_is_made_again(fault: Fault) -> None:
    with FakeOpenAi(fault=first(fault, fault)) as server:
        answer = ask_one(client(server))
    assert answer.text == ANSWER
    assert "after" in answer.notes[-1]
    assert sum(server.delivered.values()) == 1


@pytest.mark.parametrize("fault", [Fault.SLOW, Fault.KEEP_ALIVE])
def test_an_attempt_that_stalls_is_made_again(fault: Fault) -> None:
    told: list[Retry] = []
    with FakeOpenAi(fault=first(fault, fault), stall_s=600.0) as server:
        answer = ask_one(client(server, on_retry=told.append, stall_s=0.5))
    assert answer.text == ANSWER
    assert [retry.reason for retry in told[:2]] == ["the answer stalled"] * 2


def test_an_empty_answer_is_an_answer_and_is_not_paid_again() -> None:
    with FakeOpenAi(fault=first(Fault.EMPTY)) as server:
        answer = ask_one(client(server))
    assert (answer.text, answer.finish, len(server.seen)) == ("", "stop", 1)


@pytest.mark.parametrize(("fault", "finish"), [(Fault.REFUSAL, "refusal"), (Fault.LENGTH, "length")])
def test_refusals_and_cut_answers_say_so(fault: Fault, finish: str) -> None:
    with FakeOpenAi(fault=first(fault)) as server:
        assert ask_one(client(server)).finish == finish


def test_a_question_that_the_endpoint_cannot_take_is_refused_without_ending_the_run() -> None:
    with FakeOpenAi(fault=first(Fault.TOO_LONG)) as server:
        answer = ask_one(client(server))
    assert answer.finish == "refusal"
    assert "too long" in answer.notes[0]


@pytest.mark.parametrize("fault", [Fault.BAD_KEY, Fault.NO_CREDIT])
def test_what_waiting_does_not_cure_is_one_clear_error_at_once(fault: Fault) -> None:
    with FakeOpenAi(fault=lambda number, body: fault) as server, pytest.raises(UnavailableError, match="refused m"):
        ask_one(client(server))
    assert len(server.seen) == 1


def test_an_endpoint_that_stays_broken_is_given_up_with_its_reasons() -> None:
    with FakeOpenAi(fault=lambda number, body: Fault.SERVER_ERROR) as server:
        with pytest.raises(UnavailableError, match="3 attempts: status 500, status 500, status 500"):
            ask_one(client(server, attempts=3))
        assert len(server.seen) == 3


def test_an_address_where_nobody_listens_is_unavailable() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # so that nobody else listens there
        server = FakeOpenAi(url=f"http://127.0.0.1:{closed.getsockname()[1]}/v1")
        with pytest.raises(UnavailableError, match="no connection"):
            ask_one(client(server, attempts=2))


def test_many_calls_at_once_learn_the_endpoints_dialect() -> None:
    with FakeOpenAi(fault=lambda number, body: Fault.OLD_PARAMETER, pause_s=0.05) as server:
        answers = ask(client(server), [request(str(number)) for number in range(12)])
    assert all(isinstance(answer, LlmAnswer) for answer in answers)
    assert set(server.delivered.values()) == {1}


def test_retry_after_holds_back_all_calls() -> None:
    with FakeOpenAi(fault=first(Fault.RATE_LIMIT), retry_after="0.7") as server:
        told: list[Retry] = []
        asked = client(server, on_retry=told.append)

        async def held_back() -> None:
            first_call = asyncio.ensure_future(asked.complete(request("0")))
            while not told:
                await asyncio.sleep(0.01)
            await asyncio.gather(first_call, asked.complete(request("1")), asked.complete(request("2")))
            await asked.close()

        asyncio.run(held_back())
    gaps = [later.at - server.seen[0].at for later in server.seen[1:]]
    assert min(gaps) >= 0.7


def test_a_wait_beyond_patience_is_an_error_and_not_a_long_sleep() -> None:
    server = FakeOpenAi(fault=first(Fault.RATE_LIMIT), retry_after="7200")
    with server, pytest.raises(UnavailableError, match="7200 s"):
        ask_one(client(server, patience_s=60.0))


def test_tokens_are_estimated_where_the_endpoint_counts_none() -> None:
    with FakeOpenAi(fault=first(Fault.NO_USAGE)) as server:
        answer = ask_one(client(server))
    assert answer.completion_tokens >= len(ANSWER) // 4
    assert "estimated" in answer.notes[0]


def test_a_money_budget_needs_a_price() -> None:
    with FakeOpenAi() as server, pytest.raises(BadInputError, match="'mystery'"):
        ask_one(client(server, Budget(BudgetLimits(usd=1.0))), request(model="mystery"))
    assert server.seen == []


def test_a_budget_that_failing_attempts_used_up_says_what_failed() -> None:
    with FakeOpenAi(fault=lambda number, body: Fault.CUT) as server, pytest.raises(BudgetExceededError) as over:
        ask_one(client(server, Budget(BudgetLimits(calls=1))))
    assert "attempts before it failed, the last with:" in str(over.value)


def test_an_unknown_price_without_a_money_budget_leaves_the_cost_open() -> None:
    budget = Budget(BudgetLimits(calls=5))
    with FakeOpenAi() as server:
        answer = ask_one(client(server, budget), request(model="mystery"))
    assert answer.cost_usd is None
    assert budget.spent.unpriced == 1


@pytest.mark.parametrize(
    "limits", [BudgetLimits(usd=1.5), BudgetLimits(tokens=800), BudgetLimits(calls=7)], ids=["usd", "tokens", "calls"]
)
def test_a_budget_stops_the_calls_and_is_never_passed(limits: BudgetLimits) -> None:
    budget = Budget(limits)
    with FakeOpenAi(pause_s=0.01) as server:
        answers = ask(client(server, budget), [request(str(number)) for number in range(60)])
    refused = [answer for answer in answers if isinstance(answer, BudgetExceededError)]
    paid = [answer for answer in answers if isinstance(answer, LlmAnswer)]
    assert len(paid) + len(refused) == 60
    assert len(paid) == sum(server.delivered.values()) > 0
    assert refused
    assert server.tokens <= (limits.tokens or 10**9)
    assert len(server.seen) <= (limits.calls or 10**9)
    assert sum(answer.cost_usd or 0.0 for answer in paid) <= (limits.usd or 10**9)


def test_broken_streams_are_charged_because_the_endpoint_may_charge_them() -> None:
    budget = Budget(BudgetLimits())
    with FakeOpenAi(fault=first(Fault.CUT, Fault.RATE_LIMIT)) as server:
        answer = ask_one(client(server, budget))
    assert budget.spent.calls == 2
    assert budget.spent.tokens > answer.prompt_tokens + answer.completion_tokens
    told, counted = spent_on(answer), budget.spent
    assert (told.calls, told.tokens, told.usd) == (counted.calls, counted.tokens, pytest.approx(counted.usd))


def test_a_cancelled_call_gives_its_reservation_back() -> None:
    budget = Budget(BudgetLimits(calls=5))

    async def cancel_soon(asked: OpenAiClient) -> None:
        task = asyncio.create_task(asked.complete(request()))
        while not server.seen:
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await asked.close()

    with FakeOpenAi(pause_s=60.0) as server:
        asyncio.run(cancel_soon(client(server, budget)))
    assert budget.reserved.calls == 0
    assert budget.spent.calls == 1


def test_the_key_comes_from_the_environment_and_its_absence_is_one_line() -> None:
    endpoint = endpoint_from_environment({"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": "http://x/v1"})
    assert (endpoint.key, endpoint.base_url) == (KEY, "http://x/v1")
    assert KEY not in repr(endpoint)
    with pytest.raises(UnavailableError, match="OPENAI_API_KEY is not set") as caught:
        endpoint_from_environment({})
    assert "\n" not in str(caught.value)


def test_an_address_that_is_none_is_refused_before_anything_is_sent() -> None:
    with pytest.raises(UnavailableError, match="'localhost:8000'"):
        endpoint_from_environment({"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": "localhost:8000"})


@pytest.mark.parametrize("fault", [None, Fault.BAD_KEY])
def test_an_endpoint_that_repeats_the_key_does_not_spread_it(
    fault: Fault | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    with FakeOpenAi(answer=lambda body: f"{ANSWER} your key is {KEY}", fault=lambda number, body: fault) as server:
        inner = client(server)
        recording = RecordingClient(inner, Cassette(tmp_path / "c.jsonl", writable=True))
        (answer,) = ask(recording, [request()])  # type: ignore[arg-type]
    assert server.seen[0].authorization == f"Bearer {KEY}"
    assert KEY not in str(answer) + repr(answer) + caplog.text + (tmp_path / "c.jsonl").read_text()


def test_who_waits_is_told_of_each_retry_before_its_pause_and_why() -> None:
    told: list[Retry] = []
    with FakeOpenAi(first(Fault.SERVER_ERROR, Fault.RATE_LIMIT)) as server:
        ask_one(client(server, on_retry=told.append))
    assert [(retry.attempt, retry.attempts, retry.request) for retry in told] == [(2, 8, request()), (3, 8, request())]
    assert str(told[0]).startswith("status 500; asked again in 0 s, attempt 2 of 8")
    assert told[1].reason == "status 429"

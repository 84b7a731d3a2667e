"""A whole suite through the search loop against an endpoint that breaks in every way, 32 calls at once."""

import asyncio
import hashlib
import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fake_openai import KEY, FakeOpenAi, Fault

from artifacts.candidate import Language
from artifacts.errors import BudgetExceededError
from artifacts.measurement import Measurement, Outcome, Timing
from artifacts.runlog import RunLog
from artifacts.task import TaskRef
from optimizer.arms import make_arm
from optimizer.evaluation.job import EvaluationJob
from optimizer.llm.budget import Budget, BudgetLimits
from optimizer.llm.cassette import Cassette, RecordingClient
from optimizer.llm.openai_client import ClientSettings, Endpoint, OpenAiClient
from optimizer.llm.prices import Meter, Price, PriceTable
from optimizer.prompting.context import Target
from optimizer.prompting.request import PromptSettings
from optimizer.search.effects import EffectLog
from optimizer.search.session import Session, Standing
from optimizer.search.settings import SearchSettings
from optimizer.search.task_search import RunSettings
from optimizer.selection import SelectionSettings
from optimizer.tasks import Task

PRICES = PriceTable(models={"m": Price(input=1.0, output=2.0)})


def fresh_code(body: dict[str, Any]) -> str:
    """Another candidate for every question; one answer in ten holds no code at first."""
    digest = hashlib.sha256(json.dumps(body["messages"]).encode()).hexdigest()
    if int(digest, 16) % 10 == 0 and len(body["messages"]) == 2:
        return "I would rather explain it."
    return f"PLAN: try {digest[:6]}\n```python\nTAG = {digest!r}\n\nclass ModelNew:\n    pass\n```\n"


class InstantBench:
    """Measures everything at once; the time follows from the source."""

    async def measure(self, job: EvaluationJob) -> Measurement:
        time = 10.0 + int(hashlib.sha256(job.candidate_source.encode()).hexdigest()[:4], 16) % 90
        timing = Timing(median_us=time, low_us=time, high_us=time)
        eager = Timing(median_us=100.0, low_us=100.0, high_us=100.0)
        return Measurement(
            outcome=Outcome.CORRECT, stage="timing", device="cpu", timing=timing, baselines={"eager_fp32": eager}
        )


def one_in_four(seed: int) -> Callable[[int, dict[str, Any]], Fault | None]:
    """All faults that can be cured, but for stalls: with 32 calls at once a busy machine looks like one."""
    dice = random.Random(seed)
    others = (Fault.BAD_KEY, Fault.NO_CREDIT, Fault.SLOW, Fault.KEEP_ALIVE)
    curable = [fault for fault in Fault if fault not in others]
    plan = [dice.choice(curable) if dice.random() < 1 / 4 else None for _ in range(20_000)]
    return lambda number, body: plan[number]


def sit_down(path: Path, server: FakeOpenAi, tasks: int, budget: Budget) -> Standing:
    """One session of a run over ``tasks`` tasks, as ``htam optimize`` puts it together."""
    refs = [TaskRef(task_id=f"test/-/{number}", suite="test", family="softmax") for number in range(tasks)]
    found = [Task(ref=ref, source=f"# {ref.task_id}", path="", dtype="float32", size="small") for ref in refs]
    run = RunSettings(
        run="load",
        seed=1,
        backend="cpu",
        target=Target(arch="cpu", language=Language.CPP),
        search=SearchSettings(steps=6, candidates=1, reallocate=False),
        prompt=PromptSettings(model="m", language=Language.CPP, device="cpu", max_tokens=500),
    )
    chosen = ClientSettings(attempts=20, first_wait_s=0.01)

    async def advance() -> Standing:
        log = RunLog.open(path) if RunLog.is_run(path) else RunLog.create(path, {})
        inner = OpenAiClient(Endpoint(key=KEY, base_url=server.url), meter=Meter(PRICES, budget), settings=chosen)
        client = RecordingClient(inner, Cassette(path / "cassette.jsonl", writable=True))
        arm = make_arm("feedback", None, SelectionSettings())
        try:
            parts = {"llm": client, "evaluations": InstantBench(), "budget": budget}
            return await Session(found, arm, run, EffectLog(log), at_once=32, **parts).advance()  # type: ignore[arg-type]
        finally:
            await client.close()
            log.close()

    return asyncio.run(advance())


def steps_of(path: Path) -> Counter[str]:
    return Counter(event.key.rsplit("/", 1)[0] for event in RunLog.open(path).events() if event.kind == "step")


def answered(path: Path) -> int:
    """Questions with an answer, each once, without those that the endpoint refused before it worked."""
    entries = Cassette(path / "cassette.jsonl").entries
    assert len({entry.key for entry in entries}) == len(entries)
    return sum(not any(note.startswith("refused") for note in entry.answer.notes) for entry in entries)


def test_60_tasks_of_6_steps_finish_and_nothing_is_paid_twice(tmp_path: Path) -> None:
    budget = Budget(BudgetLimits(usd=1000.0, tokens=10**8))
    with FakeOpenAi(fault=one_in_four(0), answer=fresh_code) as server:
        standing = sit_down(tmp_path / "run", server, 60, budget)
    assert standing.complete
    assert set(steps_of(tmp_path / "run").values()) == {6}
    assert len(steps_of(tmp_path / "run")) == 60
    assert budget.spent.tokens >= server.tokens
    recorded = Cassette(tmp_path / "run" / "cassette.jsonl").spent()
    assert (recorded.calls, recorded.tokens) == (budget.spent.calls, budget.spent.tokens)
    assert sum(server.delivered.values()) == answered(tmp_path / "run")


def test_a_suite_stops_within_its_budget_and_goes_on_without_paying_again(tmp_path: Path) -> None:
    budget = Budget(BudgetLimits(tokens=100_000))
    with FakeOpenAi(fault=one_in_four(1), answer=fresh_code) as server:
        first = sit_down(tmp_path / "run", server, 20, budget)
        assert isinstance(first.problem, BudgetExceededError)
        assert server.tokens <= budget.spent.tokens <= 100_000
        used = Cassette(tmp_path / "run" / "cassette.jsonl").spent()
        assert 0.8 * budget.spent.tokens <= used.tokens <= budget.spent.tokens  # less only by calls that never ended
        second = sit_down(tmp_path / "run", server, 20, Budget(BudgetLimits(tokens=10**7), used))
    assert second.complete
    assert set(steps_of(tmp_path / "run").values()) == {6}
    assert sum(server.delivered.values()) == answered(tmp_path / "run")

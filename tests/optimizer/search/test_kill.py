"""Killed with SIGKILL wherever it is, a run goes on to the log that it would have had."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from artifacts.runlog import RunLog
from optimizer.search.settings import SearchSettings

KILLS = 50
SETTINGS = SearchSettings(steps=4, candidates=2, confirm=True)


def content(path: Path) -> dict[tuple[str, str], Any]:
    return {(event.kind, event.key): event.payload for event in RunLog.open(path).events()}


def sit(run: Any, calls: Path) -> None:
    """One session whose calls to model and evaluator are written down before they are made."""

    def note(what: str) -> None:
        with calls.open("a") as file:
            file.write(what + "\n")

    complete, evaluate = run.model.complete, run.evaluator.evaluate

    async def asked(request: Any) -> Any:
        note(f"answer {request.task}/{request.slot}".replace(".answer", "/again"))
        await asyncio.sleep(random.random() * 0.002)
        return await complete(request)

    def measured(jobs: Any) -> Any:
        for job in jobs:
            note(f"measurement {job.job_id}")
            time.sleep(random.random() * 0.001)
            yield from evaluate([job])

    run.model.complete, run.evaluator.evaluate = asked, measured
    log = run.effect_log()
    try:
        asyncio.run(run.session(log).advance())
    finally:
        log.log.close()


def sit_until_killed(run: Any, calls: Path, growth: int) -> bool:
    """Whether a session in a child process came to its end before it was killed ``growth`` bytes into its log."""
    log = run.path / "events.jsonl"
    end = growth + (log.stat().st_size if log.exists() else 0)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            random.seed(growth)
            sit(run, calls)
            code = 0
        finally:
            os._exit(code)
    while not log.exists() or log.stat().st_size < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            assert status == 0
            return True
        time.sleep(0.0002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_run_killed_at_fifty_points_ends_like_one_that_was_not(make_run: Callable[..., Any], tmp_path: Path) -> None:
    whole = make_run("whole", tasks=4, settings=SETTINGS)
    sit(whole, tmp_path / "calls")
    draw, calls, kills, number = random.Random(11), tmp_path / "calls", 0, 0
    while kills < KILLS:
        killed = make_run(f"killed_{number}", tasks=4, settings=SETTINGS)
        killed.effect_log()
        finished = False
        while not finished:
            before = set(content(killed.path))
            calls.write_text("")
            finished = sit_until_killed(killed, calls, draw.randrange(1, 40_000))
            kills += not finished
            assert not {tuple(line.split(" ", 1)) for line in calls.read_text().splitlines()} & before
        assert content(killed.path) == content(whole.path)
        number += 1

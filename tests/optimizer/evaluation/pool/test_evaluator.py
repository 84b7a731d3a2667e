"""Both sides of a pool in one process, with a scripted evaluator behind the worker."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from artifacts.errors import UnavailableError
from artifacts.measurement import Measurement
from artifacts.outcome import Outcome
from optimizer.evaluation.hosts import Device
from optimizer.evaluation.job import EvaluationJob
from optimizer.evaluation.pool.evaluator import PoolEvaluator, PoolSettings, device_name
from optimizer.evaluation.pool.folder import PoolFolder
from optimizer.evaluation.pool.serving import PoolWorker

CPU = Device(backend="cpu", index=0, name="cpu", key="cpu")
QUICK = PoolSettings(poll_s=0.01, patience_s=600.0)


class Scripted:
    """Says what it was asked; fails where the candidate says so."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.hold: threading.Event | None = None

    def evaluate(self, jobs: Iterable[EvaluationJob]) -> Iterator[tuple[str, Measurement]]:
        for job in jobs:
            self.asked.append(job.job_id)
            if self.hold is not None:
                self.hold.wait()
            if "unavailable" in job.candidate_source:
                raise UnavailableError("the device is gone")
            outcome = Outcome.INFRA_ERROR if "flaky" in job.candidate_source else Outcome.WRONG_RESULT
            yield job.job_id, Measurement(outcome=outcome, stage="any", device="cpu", error=job.job_id)

    def close(self) -> None:
        """Nothing to end."""


def job(name: str, source: str = "b") -> EvaluationJob:
    return EvaluationJob(job_id=name, task_id="t", task_source="a", candidate_source=source, backend="cpu", seed=1)


@contextmanager
def serving(path: Path, evaluator: Scripted) -> Iterator[PoolWorker]:
    worker = PoolWorker(PoolFolder(path, lease_s=600.0), evaluator, [CPU], lanes=2)
    thread = threading.Thread(target=worker.serve)
    thread.start()
    try:
        yield worker
    finally:
        worker.stop()
        thread.join()


def until(condition: Callable[[], object]) -> None:
    """Wait for what comes, however slow the machine is."""
    end = time.monotonic() + 600
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_worker_that_is_idle_for_long_enough_leaves(tmp_path: Path) -> None:
    PoolWorker(PoolFolder(tmp_path), Scripted(), [CPU], lanes=2, idle_s=0.0).serve()
    assert list((tmp_path / "workers").iterdir()) == []


class SlowThreads(ThreadPoolExecutor):
    """Still begins its second lane when the signal comes that the first one causes."""

    begun = 0

    def submit(self, *words: Any, **named: Any) -> Future[Any]:
        lane = super().submit(*words, **named)
        self.begun += 1
        if self.begun == 2:
            until(lambda: False)
        return lane


@pytest.mark.parametrize("threads", [ThreadPoolExecutor, SlowThreads])
def test_a_worker_that_is_interrupted_gives_back_what_it_has_and_publishes_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: type[ThreadPoolExecutor]
) -> None:
    monkeypatch.setattr("optimizer.evaluation.pool.serving.ThreadPoolExecutor", threads)
    pool, scripted, let_go = PoolFolder(tmp_path), Scripted(), threading.Event()
    scripted.hold = let_go
    key = pool.submit(job("a"))
    worker = PoolWorker(pool, scripted, [CPU], lanes=2)

    def interrupt() -> None:
        until(lambda: worker.busy and scripted.asked)
        signal.raise_signal(signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        worker.serve()
    thread.join()
    left = {name: len(list((tmp_path / name).iterdir())) for name in ("jobs", "leases", "workers")}
    assert left == {"jobs": 1, "leases": 0, "workers": 0}
    let_go.set()
    until(lambda: not worker._held)
    assert not pool.has_result(key)


def test_results_wait_for_a_search_that_was_killed_and_are_gone_once_it_has_closed(tmp_path: Path) -> None:
    scripted = Scripted()
    with serving(tmp_path, scripted):
        killed = PoolEvaluator(tmp_path, QUICK)
        assert len(list(killed.evaluate([job("a"), job("b")]))) == 2
        again = PoolEvaluator(tmp_path, QUICK)  # the first one never closed
        assert len(list(again.evaluate([job("a"), job("b"), job("c")]))) == 3
        again.close()
    assert sorted(scripted.asked) == ["a", "b", "c"]
    assert list((tmp_path / "results").iterdir()) == []


def test_after_an_infrastructure_error_the_job_is_done_anew(tmp_path: Path) -> None:
    scripted = Scripted()
    with serving(tmp_path, scripted):
        evaluator = PoolEvaluator(tmp_path, QUICK)
        for _ in range(2):
            assert [found.outcome for _, found in evaluator.evaluate([job("a", "flaky")])] == [Outcome.INFRA_ERROR]
        evaluator.close()
    assert scripted.asked == ["a", "a"]


def test_a_worker_whose_evaluator_cannot_work_gives_its_job_back_and_leaves(tmp_path: Path) -> None:
    pool = PoolFolder(tmp_path)
    pool.submit(job("a", "unavailable"))
    with pytest.raises(UnavailableError, match="device is gone"):
        PoolWorker(pool, Scripted(), [CPU], lanes=2).serve()
    assert [path.name[-2:] for path in (tmp_path / "jobs").iterdir()] == [".0"]
    assert list((tmp_path / "workers").iterdir()) == []


def test_a_job_of_another_version_is_answered_and_not_fatal(tmp_path: Path) -> None:
    pool = PoolFolder(tmp_path)
    key = pool.submit(job("a"))
    (tmp_path / "jobs" / f"cpu.{key}.0").write_text('{"new_field": 1}', encoding="utf-8")
    with serving(tmp_path, Scripted()):
        until(lambda: pool.has_result(key))
    found = pool.result(key)
    assert found is not None
    assert (found.outcome, "same version" in found.error) == (Outcome.INFRA_ERROR, True)


def test_without_a_worker_the_search_says_how_to_start_one(tmp_path: Path) -> None:
    evaluator = PoolEvaluator(tmp_path, PoolSettings(poll_s=0.01, patience_s=0.3))
    begin = time.monotonic()
    with pytest.raises(UnavailableError, match=r"--pool"):
        list(evaluator.evaluate([job("a")]))
    assert time.monotonic() - begin > 0.3


def test_a_worker_of_another_backend_does_not_count(tmp_path: Path) -> None:
    pool = PoolFolder(tmp_path)
    pool.beat(PoolWorker(pool, Scripted(), [Device(backend="cuda", index=0, name="H200", key="x")], lanes=1).card)
    with pytest.raises(UnavailableError, match="no worker serves"):
        list(PoolEvaluator(tmp_path, PoolSettings(poll_s=0.01, patience_s=0.1)).evaluate([job("a")]))


def test_closing_withdraws_what_nobody_has_begun(tmp_path: Path) -> None:
    evaluator = PoolEvaluator(tmp_path, PoolSettings(poll_s=0.01, patience_s=0.0))
    with pytest.raises(UnavailableError):
        list(evaluator.evaluate([job("a")]))
    assert len(list((tmp_path / "jobs").iterdir())) == 1
    evaluator.close()
    assert list((tmp_path / "jobs").iterdir()) == []


def test_a_search_that_was_killed_leaves_its_jobs_and_nothing_else(tmp_path: Path) -> None:
    killed = PoolEvaluator(tmp_path, PoolSettings(poll_s=0.01, patience_s=0.0))
    with pytest.raises(UnavailableError):
        list(killed.evaluate([job("a")]))
    left = sorted(path.parent.name for path in tmp_path.rglob("*") if path.is_file() and path.parent != tmp_path)
    assert left == ["jobs"]  # it never closed


def test_closing_ends_a_wait_in_another_thread(tmp_path: Path) -> None:
    evaluator = PoolEvaluator(tmp_path, QUICK)
    ended: list[str] = []

    def wait() -> None:
        try:
            list(evaluator.evaluate([job("a")]))
        except UnavailableError as problem:
            ended.append(str(problem))

    thread = threading.Thread(target=wait)
    thread.start()
    until(lambda: any((tmp_path / "jobs").glob("cpu.*")))
    evaluator.close()
    thread.join(600)
    assert ended == ["the evaluator was closed"]


def test_a_folder_that_was_emptied_is_filled_again(tmp_path: Path) -> None:
    PoolFolder(tmp_path, lease_s=0.4)
    evaluator = PoolEvaluator(tmp_path, QUICK)
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.extend(name for name, _ in evaluator.evaluate([job("a")])))
    thread.start()
    until(lambda: any((tmp_path / "jobs").glob("cpu.*")))
    next((tmp_path / "jobs").glob("cpu.*")).unlink()
    with serving(tmp_path, Scripted()):
        thread.join(600)
    assert found == ["a"]


def test_devices_of_two_kinds_do_not_share_a_pool(tmp_path: Path) -> None:
    pool = PoolFolder(tmp_path)
    first = PoolWorker(pool, Scripted(), [Device(backend="cuda", index=0, name="H200", key="x")], lanes=1)
    pool.beat(first.card)
    second = PoolWorker(pool, Scripted(), [Device(backend="cuda", index=0, name="A800", key="y")], lanes=1)
    with pytest.raises(UnavailableError, match="H200"):
        second.serve()


def test_a_search_learns_from_the_workers_what_they_measure_on(tmp_path: Path) -> None:
    pool = PoolFolder(tmp_path)
    pool.beat(PoolWorker(pool, Scripted(), [Device(backend="cuda", index=0, name="H200", key="x")], lanes=1).card)
    assert device_name(tmp_path, "cuda") == "H200"
    with pytest.raises(UnavailableError, match="backend cpu"):
        device_name(tmp_path, "cpu", patience_s=0.0)

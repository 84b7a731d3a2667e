"""The queue: nothing is lost, nothing is done twice, whoever dies when."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from artifacts.errors import UnavailableError
from artifacts.measurement import Measurement
from artifacts.outcome import Outcome
from optimizer.evaluation.job import EvaluationJob
from optimizer.evaluation.pool import folder as folder_module
from optimizer.evaluation.pool.entry import Entry, job_key
from optimizer.evaluation.pool.folder import ATTEMPTS, KEEP_S, PART_S, Card, PoolFolder, file_time


def job(name: str, backend: str = "cpu") -> EvaluationJob:
    return EvaluationJob(job_id=name, task_id="t", task_source="a", candidate_source="b", backend=backend, seed=1)


def measurement(text: str = "no") -> Measurement:
    return Measurement(outcome=Outcome.WRONG_RESULT, stage="correctness", device="cpu", error=text)


def card(worker: str) -> Card:
    return Card(worker=worker, host="here", pid=1, devices={"cpu": "cpu"})


def names(pool: PoolFolder, folder: str) -> list[str]:
    return sorted(path.name for path in (pool.path / folder).iterdir())


@pytest.fixture
def pool(tmp_path: Path) -> PoolFolder:
    return PoolFolder(tmp_path / "pool", lease_s=10.0)


def test_a_job_that_is_sent_twice_is_one_job(pool: PoolFolder) -> None:
    assert pool.submit(job("a")) == pool.submit(job("a"))
    assert len(names(pool, "jobs")) == 1


def test_jobs_that_differ_anywhere_have_keys_of_their_own() -> None:
    assert len({job_key(job("a")), job_key(job("b")), job_key(job("a", "cuda"))}) == 3


def test_a_claimed_or_finished_job_is_not_sent_again(pool: PoolFolder) -> None:
    key = pool.submit(job("a"))
    claimed = pool.claim("w", ["cpu"])
    assert claimed is not None
    pool.submit(job("a"))
    assert names(pool, "jobs") == []
    pool.publish(key, measurement())
    pool.release(claimed[0])
    pool.submit(job("a"))
    assert names(pool, "jobs") == []


def test_a_worker_takes_only_jobs_of_its_backends(pool: PoolFolder) -> None:
    pool.submit(job("a", "cuda"))
    assert pool.claim("w", ["cpu"]) is None
    assert pool.claim("w", ["cpu", "cuda"]) is not None


def test_the_oldest_job_is_taken_first(pool: PoolFolder) -> None:
    for age, name in enumerate("cab"):
        key = pool.submit(job(name))
        os.utime(pool.path / "jobs" / f"cpu.{key}.0", (1000 + age, 1000 + age))
    taken = [claimed[1] for _ in range(3) if (claimed := pool.claim("w", ["cpu"])) is not None]
    assert [json.loads(text)["job_id"] for text in taken] == ["c", "a", "b"]


def test_many_workers_at_once_never_hold_the_same_job(pool: PoolFolder) -> None:
    keys = {pool.submit(job(str(number))) for number in range(60)}
    taken: list[str] = []

    def work(worker: str) -> None:
        while (claimed := pool.claim(worker, ["cpu"])) is not None:
            taken.append(claimed[0].key)

    threads = [threading.Thread(target=work, args=(f"w{number}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == sorted(keys)


def test_the_first_result_of_a_job_stays(pool: PoolFolder) -> None:
    assert pool.publish("k", measurement("first"))
    assert not pool.publish("k", measurement("second"))
    found = pool.result("k")
    assert found is not None
    assert found.error == "first"


def test_what_a_lost_worker_had_goes_back_and_what_a_living_one_has_does_not(pool: PoolFolder) -> None:
    for name in "ab":
        pool.submit(job(name))
    pool.beat(card("dead"))
    pool.claim("dead", ["cpu"])
    now = pool.beat(card("alive"))
    pool.claim("alive", ["cpu"])
    os.utime(pool.path / "workers" / "dead.json", (now - 11, now - 11))
    assert pool.repair(now) == 1
    assert [name.endswith(".1") for name in names(pool, "jobs")] == [True]
    assert [Entry.parse(name).worker for name in names(pool, "leases")] == ["alive"]  # type: ignore[union-attr]
    assert [each.worker for each in pool.living(now)] == ["alive"]


def test_a_result_that_was_published_just_before_the_death_is_not_measured_again(pool: PoolFolder) -> None:
    key = pool.submit(job("a"))
    pool.claim("dead", ["cpu"])
    pool.publish(key, measurement())
    pool.repair(pool.beat(card("alive")))
    assert (names(pool, "jobs"), names(pool, "leases")) == ([], [])


def test_a_job_that_takes_every_worker_with_it_ends_as_an_infrastructure_error(pool: PoolFolder) -> None:
    key = pool.submit(job("a"))
    for attempt in range(ATTEMPTS):
        assert pool.result(key) is None, attempt
        assert pool.claim(f"w{attempt}", ["cpu"]) is not None
        pool.repair(pool.beat(card("watcher")))
    found = pool.result(key)
    assert found is not None
    assert (found.outcome, "w2" in found.error) == (Outcome.INFRA_ERROR, True)
    assert (names(pool, "jobs"), names(pool, "leases")) == ([], [])


def test_a_worker_that_was_only_slow_harms_nothing_when_it_comes_back(pool: PoolFolder) -> None:
    key = pool.submit(job("a"))
    slow = pool.claim("slow", ["cpu"])
    pool.repair(pool.beat(card("watcher")))
    quick = pool.claim("quick", ["cpu"])
    assert slow is not None
    assert quick is not None
    pool.publish(key, measurement("slow"))
    pool.release(slow[0])
    assert names(pool, "leases") == [quick[0].name]
    assert not pool.publish(key, measurement("quick"))


def test_giving_back_counts_no_loss(pool: PoolFolder) -> None:
    pool.submit(job("a"))
    claimed = pool.claim("w", ["cpu"])
    assert claimed is not None
    pool.give_back(claimed[0])
    assert [name.endswith(".0") for name in names(pool, "jobs")] == [True]


def test_a_job_that_is_given_back_while_somebody_looks_is_seen(
    pool: PoolFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = pool.submit(job("a"))
    held = pool.claim("w", ["cpu"])
    assert held is not None
    looks: list[Path] = []

    def look(folder: Path) -> list[Entry]:
        found = entries(folder)
        if not looks:
            pool.give_back(held[0])  # after a look at what waits, before one at what is held
        looks.append(folder)
        return found

    entries = folder_module._entries
    monkeypatch.setattr(folder_module, "_entries", look)
    assert pool.known({key}) == {key}


def test_half_written_files_are_nobodys_job(pool: PoolFolder) -> None:
    (pool.path / "jobs" / ".cpu.abc.0-1234").write_text("{", encoding="utf-8")
    assert pool.claim("w", ["cpu"]) is None
    assert pool.known({"abc"}) == set()


def test_results_that_nobody_fetched_go_after_a_week(pool: PoolFolder) -> None:
    pool.publish("old", measurement())
    pool.publish("new", measurement())
    now = pool.beat(card("w"))
    os.utime(pool.path / "results" / "old.json", (now - KEEP_S - 1, now - KEEP_S - 1))
    pool.sweep(now)
    assert names(pool, "results") == ["new.json"]


def test_what_a_killed_process_had_half_written_goes_after_an_hour(pool: PoolFolder) -> None:
    now = pool.now()
    for age, name in ((PART_S + 60, ".old"), (0, ".new")):
        path = pool.path / "jobs" / name
        path.touch()
        os.utime(path, (now - age, now - age))
    pool.sweep(now)
    assert names(pool, "jobs") == [".new"]


def test_the_first_side_decides_how_long_a_lease_is(pool: PoolFolder) -> None:
    assert PoolFolder(pool.path, lease_s=99.0).lease_s == 10.0


def test_a_pool_of_another_version_is_refused(pool: PoolFolder) -> None:
    (pool.path / "pool.json").write_text('{"schema_version": 99, "lease_s": 1}', encoding="utf-8")
    with pytest.raises(UnavailableError, match="another version"):
        PoolFolder(pool.path)


def test_a_file_is_no_pool(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UnavailableError, match="cannot be used"):
        PoolFolder(tmp_path / "file")


def test_now_is_what_the_file_system_says(tmp_path: Path) -> None:
    first = file_time(tmp_path)
    (tmp_path / "later").touch()
    assert first <= (tmp_path / "later").stat().st_mtime <= file_time(tmp_path)

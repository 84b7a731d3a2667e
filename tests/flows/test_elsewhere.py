"""A flow run on another host: when it counts as lost, and what one does that was only slow."""

import fcntl
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TASK = str(ROOT / "examples/tasks/cpu/row_softmax.py")
CASSETTE = ROOT / "examples/cassettes/demo.jsonl"
FILES = {"llm": "files", "evaluator": "files", "arm": "feedback", "backend": "cpu", "steps": "1", "seed": "1"}
LOST_S = 1000.0


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    from flows import elsewhere

    monkeypatch.setattr(elsewhere, "BEAT_S", 0.05)


@pytest.fixture
def alive(tmp_path: Path) -> Path:
    (tmp_path / "run.alive").touch()
    return tmp_path / "run.alive"


def one(folder: Path, options: dict[str, str]) -> Any:
    """What the worker of a pool runs, without Prefect around it."""
    from flows.elsewhere import optimize_one

    return optimize_one.fn("task", TASK, "run", options, str(folder), "run.alive")


@contextmanager
def started(folder: Path, options: dict[str, str]) -> Iterator[Future[Any]]:
    with ThreadPoolExecutor(1) as threads:
        future = threads.submit(one, folder, options)
        try:
            yield future
        finally:
            (folder / "run.alive").unlink(missing_ok=True)


def test_a_run_leaves_where_it_stands_and_keeps_its_file_fresh(tmp_path: Path, alive: Path) -> None:
    os.utime(alive, (0, 0))
    assert one(tmp_path, FILES) is None
    assert '"finished"' in (tmp_path / "run.json").read_text()
    assert alive.stat().st_mtime > 0


def test_a_run_whose_task_went_to_another_ends_all_it_started(
    tmp_path: Path,
    alive: Path,
    until: Callable[..., None],
    processes_that_mention: Callable[[str], dict[int, str]],
) -> None:
    pool = tmp_path / "pool"  # nobody serves it
    options = FILES | {"llm": f"replay:{CASSETTE}", "evaluator": f"pool:{pool}"}
    with started(tmp_path, options) as run:
        until(lambda: run.done() or any(pool.glob("jobs/cpu.*")))
        alive.unlink()
        state = run.result(600)
    assert (state.name, "another host" in state.message) == ("Crashed", True)
    assert processes_that_mention(str(tmp_path)) == {}


def test_a_run_that_was_given_up_before_it_began_does_nothing(tmp_path: Path) -> None:
    from flows.elsewhere import optimize_one

    state: Any = optimize_one("task", TASK, "run", FILES, str(tmp_path), "run.alive", return_state=True)
    assert state.name == "Crashed"
    assert list(tmp_path.iterdir()) == []


def test_a_run_waits_for_one_that_still_writes_to_its_directory(
    tmp_path: Path, alive: Path, monkeypatch: pytest.MonkeyPatch, until: Callable[..., None]
) -> None:
    from flows import elsewhere

    calls: list[object] = []
    monkeypatch.setattr(elsewhere, "htam", lambda *given, **_: calls.append(given) or "{}")
    with (tmp_path / "run.log").open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with started(tmp_path, FILES) as run:
            until(lambda: any(thread.name == "heartbeat" for thread in threading.enumerate()))
            alive.unlink()
            assert run.result(600).name == "Crashed"
    assert calls == []
    alive.touch()
    assert one(tmp_path, FILES) is None
    assert len(calls) == 1


def test_a_command_that_was_killed_is_a_crash_which_is_tried_again(
    tmp_path: Path, alive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = subprocess.Popen

    def killed(*given: object, **options: object) -> subprocess.Popen[str]:
        process: subprocess.Popen[str] = begin(*given, **options)  # type: ignore[call-overload]
        os.killpg(process.pid, signal.SIGKILL)
        return process

    monkeypatch.setattr(subprocess, "Popen", killed)
    assert one(tmp_path, FILES).name == "Crashed"


@pytest.mark.parametrize("state", ["Running", "Pending"])
def test_a_flow_run_without_a_sign_of_life_is_set_to_crashed(
    state: str, alive: Path, until: Callable[..., None]
) -> None:
    """Pending: its worker was lost between claiming it and starting its process."""
    from prefect import states

    with flow_run(getattr(states, state)()) as (client, run), waiting(client, run, alive) as waited:
        until(lambda: waited.done() or grown_old(alive))
        assert isinstance(waited.exception(600), ConnectionError)
        assert client.read_flow_run(run).state.name == "Crashed"


def test_a_flow_run_that_waits_for_a_worker_is_never_lost(alive: Path, until: Callable[..., None]) -> None:
    from prefect.states import Completed, Scheduled

    with flow_run(Scheduled()) as (client, run), waiting(client, run, alive) as waited:
        grown_old(alive)
        until(lambda: alive.stat().st_mtime > 0)
        client.set_flow_run_state(run, Completed(), force=True)
        assert waited.result(600) is None


def test_a_server_that_does_not_answer_says_nothing_of_the_run(
    alive: Path, monkeypatch: pytest.MonkeyPatch, until: Callable[..., None]
) -> None:
    import httpx
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.states import Completed, Running

    read = SyncPrefectClient.read_flow_run
    problems: list[Exception] = [httpx.ConnectError("restarting"), httpx.ReadTimeout("busy")]

    def shaky(self: SyncPrefectClient, run: Any) -> Any:
        if problems:
            raise problems.pop()
        return read(self, run)

    with flow_run(Running()) as (client, run):
        monkeypatch.setattr(SyncPrefectClient, "read_flow_run", shaky)
        with waiting(client, run, alive) as waited:
            until(lambda: not problems)
            client.set_flow_run_state(run, Completed(), force=True)
            assert waited.result(600) is None


def grown_old(alive: Path) -> bool:
    """Let more time go by than any host may be silent."""
    os.utime(alive, (0, 0))
    return False


@contextmanager
def flow_run(state: Any) -> Iterator[tuple[Any, Any]]:
    """A client, and the id of a run in ``state`` that nobody will touch."""
    from prefect import flow
    from prefect.client.orchestration import get_client

    @flow
    def nothing() -> None:
        """Does nothing."""

    with get_client(sync_client=True) as client:
        yield client, client.create_flow_run(nothing, state=state).id


@contextmanager
def waiting(client: Any, run: Any, alive: Path) -> Iterator[Future[None]]:
    from prefect.states import Completed

    from flows.elsewhere import _wait

    with ThreadPoolExecutor(1) as threads:
        waited = threads.submit(_wait, run, alive, LOST_S)
        try:
            yield waited
        finally:
            if not waited.done():
                client.set_flow_run_state(run, Completed(), force=True)


def test_each_try_asks_for_one_run_however_often_its_request_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flows import elsewhere
    from flows.suite import SuiteEntry

    asked: list[dict[str, Any]] = []

    def recorded(deployment: str, **given: Any) -> None:
        asked.append(given)
        raise ConnectionError("the server is gone")

    monkeypatch.setattr(elsewhere, "run_deployment", recorded)
    for _ in range(2):
        with pytest.raises(ConnectionError):
            elsewhere.optimize_elsewhere.fn(
                SuiteEntry(task_id="t/-/a", path=TASK, run=str(tmp_path / "run")), {}, "f/d", None, 1.0
            )
    assert [given["idempotency_key"] for given in asked] == [Path(given["parameters"]["alive"]).name for given in asked]
    assert len({given["idempotency_key"] for given in asked}) == 2

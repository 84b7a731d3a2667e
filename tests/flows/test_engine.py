import contextlib
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from artifacts.errors import BadInputError, HtamError, UnavailableError


def test_no_telemetry_unless_the_user_asks_for_it() -> None:
    import flows

    assert flows.__name__ == "flows"
    assert (os.environ["DO_NOT_TRACK"], os.environ["PREFECT_SERVER_ANALYTICS_ENABLED"]) == ("1", "false")


def test_the_home_of_prefect_is_the_users_where_he_names_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from flows import keep_home_in

    monkeypatch.setenv("PREFECT_HOME", "mine")
    keep_home_in(tmp_path)
    assert os.environ["PREFECT_HOME"] == "mine"


def test_an_unknown_runner_is_refused_with_the_known_ones() -> None:
    from flows.engine import EngineSettings

    with pytest.raises(ValueError, match="threads, processes, dask"):
        EngineSettings(runner="slurm")


def test_a_runner_whose_package_is_missing_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from flows.engine import EngineSettings, task_runner

    monkeypatch.setitem(sys.modules, "prefect_dask.task_runners", None)
    with pytest.raises(UnavailableError, match="pip install"):
        task_runner(EngineSettings(runner="dask"))


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (ConnectionError("gone"), True),
        (TimeoutError("slow"), True),
        (httpx.ConnectError("the server restarts"), True),
        (BadInputError("no such file"), False),
        (KeyError("a bug"), False),
        (FileNotFoundError("not there"), False),
    ],
)
def test_only_infrastructure_errors_are_tried_again(error: Exception, again: bool) -> None:
    from flows.engine import is_infrastructure

    assert is_infrastructure(error) is again


def test_a_task_is_tried_again_after_a_lost_connection_and_not_after_a_users_mistake() -> None:
    from prefect import flow, task

    from flows.engine import RETRY, EngineSettings, run

    calls: list[int] = []

    @task(**RETRY | {"retry_delay_seconds": 0})
    def work(number: int) -> int:
        calls.append(number)
        if number == 1 and calls.count(1) == 1:
            raise ConnectionError("gone")
        if number == 2:
            raise HtamError("wrong option")
        return number

    @flow
    def job(count: int) -> list[int]:
        return [future.result() for future in work.map(range(count))]

    assert run(job, EngineSettings(workers=1), 2) == [0, 1]
    with pytest.raises(HtamError, match="wrong option"):
        run(job, EngineSettings(workers=1), 3)
    assert (calls.count(1), calls.count(2)) == (3, 1)


def test_a_map_shows_its_progress_and_keeps_what_failed_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    from flows import engine

    class Done:
        def __init__(self, value: object) -> None:
            self.value = value

        def result(self, *, raise_on_failure: bool) -> object:
            if raise_on_failure and isinstance(self.value, Exception):
                raise self.value
            return self.value

    shown: list[float] = []
    monkeypatch.setattr(engine, "create_progress_artifact", lambda **_: "bar")
    monkeypatch.setattr(engine, "update_progress_artifact", lambda _, progress: shown.append(progress))
    lost = ConnectionError("gone")
    futures: Any = [Done(1), Done(lost), Done(3), Done(4)]
    assert engine.followed(futures, "tasks", raising=False) == [1, lost, 3, 4]
    assert shown == [25.0, 50.0, 75.0, 100.0]
    with pytest.raises(ConnectionError):
        engine.followed(futures, "tasks")
    shown.clear()
    many: Any = [Done(number) for number in range(1000)]
    assert engine.followed(many, "tasks") == list(range(1000))
    assert shown[-1] == 100.0
    assert len(shown) <= 2 * engine.UPDATES
    assert engine.followed([], "tasks") == []


def test_a_cluster_starts_beside_another_service_on_the_port_of_dask() -> None:
    from prefect import flow, task

    from flows.engine import EngineSettings, run

    @task
    def double(number: int) -> int:
        return 2 * number

    @flow
    def job() -> list[int]:
        return [future.result() for future in double.map([1, 2])]

    with socket.socket() as other:
        with contextlib.suppress(OSError):  # somebody else's service does as well
            other.bind(("", 8787))
            other.listen()
        assert run(job, EngineSettings(runner="dask", workers=1)) == [2, 4]


@pytest.mark.parametrize("runner", ["dask", "processes"])
def test_worker_processes_use_the_server_of_their_flow_and_leave_ctrl_c_to_it(runner: str) -> None:
    from prefect import flow, task
    from prefect.server.api.server import SubprocessASGIServer

    from flows.engine import EngineSettings, run

    @task
    def worker(_: int) -> tuple[str, bool]:
        import signal

        from prefect.settings import PREFECT_API_URL

        deaf = signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())
        return str(PREFECT_API_URL.value()), deaf

    @flow
    def job() -> list[tuple[str, bool]]:
        return [future.result() for future in worker.map([1, 2])]

    assert set(run(job, EngineSettings(runner=runner, workers=1))) == {(SubprocessASGIServer().api_url, True)}
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_a_task_whose_worker_process_is_killed_is_done_by_another(tmp_path: Path) -> None:
    from prefect import flow, task

    from flows.engine import RETRY, EngineSettings, run

    folder = str(tmp_path)

    @task(**RETRY)
    def work(number: int) -> int:
        import os
        import signal
        from pathlib import Path

        with (Path(folder) / f"begun-{number}").open("a") as file:
            file.write(f"{os.getpid()}\n")
        if number == 3 and not (Path(folder) / "killed").exists():
            (Path(folder) / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return number

    @flow
    def job() -> list[int]:
        return [future.result() for future in work.map(range(6))]

    assert run(job, EngineSettings(runner="dask", workers=2)) == [0, 1, 2, 3, 4, 5]
    first, second = (tmp_path / "begun-3").read_text().split()
    assert first != second

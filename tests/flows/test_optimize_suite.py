import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from artifacts.errors import HtamError
from artifacts.runlog import RunLog
from flows.supervised import htam

ROOT = Path(__file__).parents[2]
TASKS = [str(ROOT / "examples/tasks/cpu" / name) for name in ("swiglu.py", "max_pool_2d.py")]
FILES = {"llm": "files", "evaluator": "files", "arm": "feedback", "backend": "cpu", "steps": "2", "seed": "1"}


def test_every_task_of_a_suite_gets_a_run_of_its_own(tmp_path: Path) -> None:
    from flows import engine
    from flows.optimize_suite import optimize_suite

    found = engine.run(optimize_suite, engine.EngineSettings(workers=2), TASKS, str(tmp_path), FILES)
    assert len({Path(run) for run in found}) == 2
    for run in found:
        kinds = [event.kind for event in RunLog.open(Path(run)).events()]
        assert kinds[:1] == ["task_started"]
        assert Path(run).name in Path(f"{run}.html").read_text()


def test_a_task_that_cannot_be_run_stops_no_other_and_fails_the_flow(tmp_path: Path) -> None:
    from flows import engine
    from flows.optimize_suite import optimize_suite, suite_entries

    spoilt = Path(suite_entries(TASKS, str(tmp_path))[0].run)
    spoilt.mkdir(parents=True)
    (spoilt / "something").touch()
    with pytest.raises(HtamError, match="not empty"):
        engine.run(optimize_suite, engine.EngineSettings(workers=2), TASKS, str(tmp_path), FILES)
    assert len([path for path in tmp_path.iterdir() if RunLog.is_run(path)]) == 1


def test_a_users_mistake_is_told_in_the_words_of_the_command(tmp_path: Path) -> None:
    with pytest.raises(HtamError, match=r"no-such\.py"):
        htam(["optimize", "no-such.py", "--llm", "files", "--run", str(tmp_path / "run")], tmp_path / "log")
    assert "no-such.py" in (tmp_path / "log").read_text()


def test_a_command_that_was_killed_counts_as_lost_infrastructure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = subprocess.Popen

    def killed(*given: object, **options: object) -> subprocess.Popen[str]:
        process: subprocess.Popen[str] = started(*given, **options)  # type: ignore[call-overload]
        os.killpg(process.pid, signal.SIGKILL)
        return process

    monkeypatch.setattr(subprocess, "Popen", killed)
    with pytest.raises(ConnectionError, match="signal 9"):
        htam(["doctor"], tmp_path / "log")


def test_a_command_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    with pytest.raises(TimeoutError, match="ran longer"):
        htam(["doctor", "--json"], tmp_path / "log", timeout_s=0.05)


def test_a_command_ends_with_the_process_that_waits_for_it(
    tmp_path: Path, until: Callable[..., None], processes_that_mention: Callable[[str], dict[int, str]]
) -> None:
    words = ["optimize", TASKS[0], "--arm", "feedback", "--llm", "openai:silent", "--run", str(tmp_path / "run")]
    script = (
        f"from pathlib import Path; from flows.supervised import htam; htam({words!r}, Path({str(tmp_path / 'log')!r}))"
    )
    with socket.create_server(("127.0.0.1", 0)) as silent:  # an endpoint that never answers
        endpoint = {"OPENAI_BASE_URL": f"http://127.0.0.1:{silent.getsockname()[1]}/v1", "OPENAI_API_KEY": "none"}
        silent.settimeout(0.1)
        with (
            ExitStack() as asked,
            subprocess.Popen([sys.executable, "-P", "-c", script], env=os.environ | endpoint) as parent,
        ):
            try:
                until(lambda: parent.poll() is not None or asks(silent, asked))
                assert len(processes_that_mention(str(tmp_path))) >= 2  # itself and the command
            finally:
                parent.kill()
        until(lambda: not processes_that_mention(str(tmp_path)))


def asks(endpoint: socket.socket, open_until: ExitStack) -> bool:
    """Whether somebody connects just now."""
    with suppress(TimeoutError):
        open_until.enter_context(endpoint.accept()[0])
        return True
    return False


def test_a_device_is_lent_to_one_task_at_a_time() -> None:
    from flows.optimize_suite import Devices

    devices = Devices([0, 1])
    inside: list[str] = []
    together: list[list[str]] = []

    def work() -> None:
        with devices.lent() as environment:
            inside.append(environment["CUDA_VISIBLE_DEVICES"])
            together.append(list(inside))
            time.sleep(0.01)
            inside.remove(environment["CUDA_VISIBLE_DEVICES"])

    threads = [threading.Thread(target=work) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(len(now) <= 2 and len(set(now)) == len(now) for now in together)


def test_the_cpu_backend_waits_for_no_device() -> None:
    from flows.optimize_suite import Devices

    devices = Devices([])
    with devices.lent() as one, devices.lent() as two:
        assert (one, two) == ({}, {})


def test_a_mapped_failure_is_the_result_of_its_key_alone() -> None:
    from flows.engine import EngineSettings, mapped

    def work(key: str) -> int:
        if key == "b":
            raise HtamError("wrong")
        return len(key)

    found = mapped("cells", work, ["a", "b", "cc"], EngineSettings(workers=2))
    assert {key: value for key, value in found.items() if key != "b"} == {"a": 1, "cc": 2}
    assert isinstance(found["b"], HtamError)
    assert json.dumps(mapped("cells", work, [], EngineSettings())) == "{}"

"""Two Prefect worker processes on one host, a server on loopback; one worker is lost with all it runs."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from artifacts.runlog import RunLog
from flows.server import address, free_port, running

ROOT = Path(__file__).parents[2]
TASKS = [str(ROOT / "examples/tasks/cpu" / name) for name in ("row_softmax.py", "rms_norm.py")]
CASSETTE = ROOT / "examples/cassettes/demo.jsonl"

SUITE = """
import json, sys
from flows import engine
from flows.deployments import hand_over
from flows.optimize_suite import optimize_suite
from flows.serving import Deployment

given = json.loads(sys.argv[1])
hand_over(Deployment(name="gpus", flow="optimize-one", parameters={}, work_pool="gpus"))
settings = engine.EngineSettings(workers=4)
done = engine.run(optimize_suite, settings, **given, deployment="optimize-one/gpus", lost_s=8.0)
print(json.dumps(done))
"""


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    """What a process needs to reach a server of our own."""
    port = free_port()
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    quick = {"PREFECT_WORKER_QUERY_SECONDS": "1", "PREFECT_LOGGING_LEVEL": "WARNING"}
    with running(tmp_path / "server", port=port):
        yield clean | quick | {"PREFECT_API_URL": address(port), "PREFECT_HOME": str(tmp_path / "home")}


def start_worker(name: str, environment: dict[str, str], log: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-P", "-m", "prefect", "worker", "start", "--pool", "gpus", "--type", "process"]
    own = environment | {"CUDA_VISIBLE_DEVICES": name[-1]}
    with log.open("ab") as file:
        words = [*command, "--name", name, "--limit", "1"]
        return subprocess.Popen(words, env=own, stdout=file, stderr=file, start_new_session=True)


def until(condition: Callable[[], Any], what: Callable[[], str], limit_s: float = 150.0) -> None:
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, what()
        time.sleep(0.2)


def group_of(mark: str, among: list[int]) -> int:
    """Which of the process groups ``among`` holds the ancestors of a process that mentions ``mark``; 0 for none."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() not in (folder / "cmdline").read_bytes():
                continue
            pid = int(folder.name)
            while pid > 1:
                if os.getpgid(pid) in among:
                    return os.getpgid(pid)
                pid = int((Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    return 0


@pytest.mark.timeout(290)
def test_tasks_of_a_lost_worker_are_done_by_the_other(tmp_path: Path, environment: dict[str, str]) -> None:
    pool, log = tmp_path / "pool", tmp_path / "log"
    options = {"arm": "feedback", "llm": f"replay:{CASSETTE}", "steps": "1", "seed": "1", "evaluator": f"pool:{pool}"}
    given = {"tasks": TASKS, "runs": str(tmp_path / "runs"), "options": options}
    with log.open("ab") as file:
        command = [sys.executable, "-P", "-c", SUITE, json.dumps(given)]
        suite = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=file, text=True)
    workers = {name: start_worker(name, environment, log) for name in ("gpu-0", "gpu-1")}
    measured = threading.Event()
    try:
        jobs = pool / "jobs"
        until(lambda: jobs.is_dir() and len(list(jobs.iterdir())) == 2, lambda: log.read_text()[-3000:])
        lost = group_of("row_softmax", [worker.pid for worker in workers.values()])
        assert lost
        os.killpg(lost, signal.SIGKILL)
        threading.Thread(target=answer, args=(pool, measured), daemon=True).start()
        out, _ = suite.communicate(timeout=200)
        assert suite.returncode == 0, log.read_text()[-3000:]
    finally:
        measured.set()
        suite.kill()
        for worker in workers.values():
            worker.terminate()
            try:
                worker.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(worker.pid, signal.SIGKILL)
                worker.wait()
    runs = [Path(run) for run in json.loads(out.strip().splitlines()[-1])]
    assert len(runs) == 2
    for run in runs:
        kinds = [event.kind for event in RunLog.open(run).events()]
        assert (kinds.count("measurement"), kinds.count("task_finished")) == (1, 1)


def answer(pool: Path, ended: threading.Event) -> None:
    """A worker of the evaluation pool that finds every candidate wrong."""
    from artifacts.measurement import Measurement
    from artifacts.outcome import Outcome
    from optimizer.evaluation.pool.folder import PoolFolder

    folder = PoolFolder(pool)
    wrong = Measurement(outcome=Outcome.WRONG_RESULT, stage="correctness", device="cpu", error="not equal")
    while not ended.wait(0.2):
        claimed = folder.claim("answerer", ["cpu"])
        if claimed is not None:
            folder.publish(claimed[0].key, wrong)
            folder.release(claimed[0])

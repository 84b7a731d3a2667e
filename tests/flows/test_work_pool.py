"""Two Prefect worker processes on one host, a server on loopback; one worker is lost with all it runs."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from artifacts.measurement import Measurement
from artifacts.outcome import Outcome
from artifacts.runlog import RunLog
from flows.server import address, free_port, running
from optimizer.evaluation.pool.folder import Card, PoolFolder

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
done = engine.run(optimize_suite, settings, **given, deployment="optimize-one/gpus", lost_s=3600.0)
print(json.dumps(done))
"""
STATES = """
from prefect.client.orchestration import get_client
with get_client(sync_client=True) as client:
    for run in client.read_flow_runs():
        print(run.id, run.name, run.state_name, run.state.timestamp, run.state.message)
"""


@dataclass(frozen=True)
class House:
    """A server, and what is started beside it; all streams go to files."""

    base: Path
    environment: dict[str, str]

    @contextmanager
    def started(self, name: str, *words: str, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
        """A process with its group, of which nothing is left."""
        with (self.base / f"{name}.out").open("wb") as out, (self.base / "log").open("ab") as log:
            environment, command = self.environment | variables, [sys.executable, "-P", *words]
            process = subprocess.Popen(command, env=environment, stdout=out, stderr=log, start_new_session=True)
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def worker(self, number: int) -> AbstractContextManager[subprocess.Popen[bytes]]:
        """One worker of the work pool, for one GPU."""
        words = ("prefect", "worker", "start", "--pool", "gpus", "--type", "process", "--limit", "1")
        name = f"gpu-{number}"
        return self.started(name, "-m", *words, "--name", name, CUDA_VISIBLE_DEVICES=str(number))

    def story(self) -> str:
        """What one wants to read when a test failed."""
        with (self.base / "states.out").open("wb") as out, suppress(subprocess.TimeoutExpired):
            subprocess.run([sys.executable, "-c", STATES], env=self.environment, stdout=out, stderr=out, timeout=120)
        files = [*sorted(self.base.glob("*.out")), self.base / "log", self.base / "server" / "server.log"]
        texts = [f"--- {path.name}\n{path.read_text(errors='replace')[-6000:]}" for path in files]
        return "\n".join([f"load {os.getloadavg()}", *texts])


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    port = free_port()
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    quick = {"PREFECT_WORKER_QUERY_SECONDS": "1", "PREFECT_LOGGING_LEVEL": "INFO"}
    with running(tmp_path / "server", port=port):
        ours = {"PREFECT_API_URL": address(port), "PREFECT_HOME": str(tmp_path / "home"), "DO_NOT_TRACK": "1"}
        yield House(tmp_path, clean | quick | ours)


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


def test_tasks_of_a_lost_worker_are_done_by_the_other(tmp_path: Path, house: House, until: Callable[..., None]) -> None:
    pool = tmp_path / "pool"
    options = {"arm": "feedback", "llm": f"replay:{CASSETTE}", "steps": "1", "seed": "1", "evaluator": f"pool:{pool}"}
    given = json.dumps({"tasks": TASKS, "runs": str(tmp_path / "runs"), "options": options})
    with ExitStack() as started:
        suite = started.enter_context(house.started("suite", "-c", SUITE, given))
        workers = {}
        for number in range(2):
            process = started.enter_context(house.worker(number))
            workers[process.pid] = process

        def ended() -> bool:
            return any(process.poll() is not None for process in (suite, *workers.values()))

        until(lambda: ended() or len(list(pool.glob("jobs/cpu.*"))) == 2, house.story)
        assert not ended(), house.story()
        (alive,) = (tmp_path / "runs").glob("*row_softmax*.alive")
        lost = group_of("row_softmax", list(workers))
        assert lost, house.story()
        os.killpg(lost, signal.SIGKILL)
        workers.pop(lost).wait()
        started.enter_context(answering(pool))
        until(lambda: suite.poll() is not None or not grown_old(alive), house.story)
        until(ended, house.story)
        assert suite.poll() == 0, house.story()
    runs = [Path(run) for run in json.loads((tmp_path / "suite.out").read_text().strip().splitlines()[-1])]
    assert len(runs) == 2
    for run in runs:
        kinds = [event.kind for event in RunLog.open(run).events()]
        assert (kinds.count("measurement"), kinds.count("task_finished")) == (1, 1)
    assert list((tmp_path / "runs").glob("*.alive")) == []


def grown_old(alive: Path) -> bool:
    """Let hours go by since the last sign of life; False when the suite has looked and given the host up."""
    with suppress(FileNotFoundError):
        os.utime(alive, (0, 0))
    return alive.exists()


@contextmanager
def answering(pool: Path) -> Iterator[None]:
    """A worker of the evaluation pool that finds every candidate wrong."""
    folder, ended = PoolFolder(pool), threading.Event()
    card = Card(worker="answerer", host="here", pid=os.getpid(), devices={"cpu": "cpu"})
    wrong = Measurement(outcome=Outcome.WRONG_RESULT, stage="correctness", device="cpu", error="not equal")

    def answer() -> None:
        while not ended.wait(0.2):
            folder.beat(card)
            claimed = folder.claim(card.worker, ["cpu"])
            if claimed is not None:
                folder.publish(claimed[0].key, wrong)
                folder.release(claimed[0])

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import flows
from artifacts.candidate import Language
from artifacts.codec import encode
from artifacts.measurement import Measurement, Outcome, Timing
from artifacts.run_events import LoggedStep, TaskStarted
from artifacts.runlog import RunLog
from artifacts.task import TaskRef
from artifacts.trajectory import State


@pytest.fixture(scope="session", autouse=True)
def private_prefect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Prefect's database of this test session, and nobody else's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PREFECT_API_URL", raising=False)
        patch.setenv("PREFECT_HOME", str(tmp_path_factory.mktemp("prefect")))
        patch.setenv("PREFECT_LOGGING_LEVEL", "CRITICAL")
        patch.setenv("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "1200")  # for what never comes
        patch.setenv("PREFECT_LOGGING_TO_API_ENABLED", "false")
        flows.set_defaults()
        yield


@pytest.fixture(scope="session")
def used_home(private_prefect: None) -> Callable[[Path], None]:
    """Gives a home of Prefect the database of one that was used before: to make a new one takes ten seconds."""
    from prefect.client.orchestration import get_client

    from flows.server import embedded_server

    embedded_server()
    with get_client(sync_client=True) as client:
        client.hello()

    def fill(home: Path) -> None:
        home.mkdir(parents=True)
        mine = Path(os.environ["PREFECT_HOME"]) / "prefect.db"
        with closing(sqlite3.connect(mine)) as database, closing(sqlite3.connect(home / mine.name)) as copy:
            database.backup(copy)

    return fill


@pytest.hookimpl(tryfirst=True)  # before the groups are read
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One process runs them all, as each pays once for a Prefect server; a loaded machine takes minutes for a start."""
    for item in items:
        if "tests/flows" in str(item.path):
            item.add_marker(pytest.mark.xdist_group("prefect"))
            item.add_marker(pytest.mark.timeout(1500))


@pytest.fixture(scope="session")
def until() -> Callable[..., Any]:
    """Waits for a condition and returns it: asked again it may be something else.

    The limit is for what will never happen, not for slow machines.
    """

    def wait(condition: Callable[[], Any], what: Callable[[], object] = str, limit_s: float = 600.0) -> Any:
        end = time.monotonic() + limit_s
        while not (found := condition()):
            assert time.monotonic() < end, what()
            time.sleep(0.1)
        return found

    return wait


@pytest.fixture(scope="session")
def processes_that_mention() -> Callable[[str], dict[int, str]]:
    """Words of the living processes with a text among them or in their environment, without this one.

    Just after its start a process may show neither yet, so wait for those that should be there.
    """

    def found(text: str) -> dict[int, str]:
        there = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                words = (folder / "cmdline").read_bytes()
                if int(folder.name) != os.getpid() and text.encode() in words + (folder / "environ").read_bytes():
                    there[int(folder.name)] = words.replace(b"\0", b" ").decode()
            except OSError:
                continue
        return there

    return found


IDEAS = (
    ("Use float4 vectorized loads for coalesced memory access", "float4 v = reinterpret_cast<const float4*>(x)[i];"),
    (
        "Tile the operands in shared memory to reuse data",
        "__shared__ float tile[32][33]; tile[ty][tx] = x[i]; __syncthreads();",
    ),
    ("Fuse the bias and the activation into one kernel", "y[i] = fmaxf(x[i] + bias[i % n], 0.0f);"),
    ("Reduce within a warp by shuffles", "for (int o = 16; o; o /= 2) s += __shfl_down_sync(~0u, s, o);"),
)


def candidate(body: str, mark: str) -> str:
    source = f"__global__ void kernel(const float* x, float* y, int n) {{ int i = threadIdx.x; {body} }} // {mark}"
    return (
        f'from torch.utils.cpp_extension import load_inline\n\nSOURCE = """{source}"""\n\n\nclass ModelNew:\n    pass\n'
    )


def write_run(path: Path, name: str, *, gain: float = 1.0) -> Path:
    """A run of four steps on each of four tasks, as ``htam optimize`` logs it."""
    with RunLog.create(path, {"run_id": name}) as log:
        for number, family in enumerate(("softmax", "reduction", "matmul", "normalization")):
            task = TaskRef(task_id=f"{name}/1/{family}", suite=name, family=family, level=1)
            reference = log.add_candidate(f"class Model: pass  # {name} {family}\n")
            started = TaskStarted(task=task, source_sha256=reference, path=f"{family}.py")
            log.append("task_started", encode(started), key=task.task_id)
            parent, parent_id = log.add_candidate(candidate("y[i] = x[i];", f"{name} {number}")), "0.0"
            log.append("step", encode(logged(task, "0.0", None, parent, "", "", 100.0)), key=f"{task.task_id}/0.0")
            for index, (plan, body) in enumerate(IDEAS, 1):
                child = log.add_candidate(candidate(body, f"{name} {number} {index}"))
                time = 100.0 / 2 ** (gain * (index - 2) / 4)
                step = logged(task, f"{index}.0", parent_id, child, parent, f"{plan}.", time)
                log.append("step", encode(step), key=f"{task.task_id}/{step.step_id}")
    return path


def logged(
    task: TaskRef, step_id: str, parent_id: str | None, sha256: str, parent: str, plan: str, time: float
) -> LoggedStep:
    timing = Timing(median_us=time, low_us=time * 0.99, high_us=time * 1.01)
    eager = Timing(median_us=200.0, low_us=199.0, high_us=201.0)
    return LoggedStep(
        task_id=task.task_id,
        step_id=step_id,
        parent_id=parent_id,
        index=int(step_id.split(".")[0]),
        mode="optimize" if parent_id else "first",
        candidate_sha256=sha256,
        parent_sha256=parent,
        direction="",
        strategies=(),
        plan=plan,
        state=State(family=task.family, arch="sm_90", language=Language.CUDA),
        measurement=Measurement(
            outcome=Outcome.CORRECT, stage="timing", device="h200", timing=timing, baselines={"eager_fp32": eager}
        ),
    )


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A folder with two runs."""
    for name in ("alpha", "beta"):
        write_run(tmp_path / "runs" / name, name)
    return tmp_path / "runs"


@pytest.fixture
def add_run() -> Callable[..., Path]:
    """Writes one more run."""
    return write_run

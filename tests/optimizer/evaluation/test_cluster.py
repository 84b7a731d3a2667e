"""A Dask cluster of two worker processes on the CPU backend; one is killed in the middle of a job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

from artifacts.errors import UnavailableError
from artifacts.measurement import Measurement, Outcome
from optimizer.evaluation.job import EvaluationJob, EvaluationSettings
from optimizer.evaluation.worker import cluster as cluster_module
from optimizer.evaluation.worker.cluster import ClusterEvaluator

pytestmark = pytest.mark.timeout(1500)

TASK = """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x)


def get_inputs():
    return [torch.randn(64, 64)]
"""

CANDIDATE = """
import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

sum(range(%d))
raise ValueError("number %d")

ext = load_inline(name="never", cpp_sources="torch::Tensor own(torch::Tensor x) { return x; }", functions=["own"])


class ModelNew(nn.Module):
    def forward(self, x):
        return ext.own(x)
"""
SECONDS = 10**8
"""Rounds of a loop in whose middle a worker can be killed."""
ENDLESS = 10**15


def job(number: int, rounds: int = SECONDS) -> EvaluationJob:
    return EvaluationJob(
        job_id=f"j{number}",
        task_id="relu",
        task_source=TASK,
        candidate_source=CANDIDATE % (rounds, number),
        backend="cpu",
        seed=number,
        settings=EvaluationSettings(seeds=1, build_timeout_s=1200, run_timeout_s=600),
    )


@dataclass
class Cluster:
    """A scheduler and its workers, as an operator starts them."""

    folder: Path
    stack: ExitStack
    address: str = ""
    scheduler: subprocess.Popen[bytes] | None = None
    workers: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)

    def start(self, *words: str, **variables: str) -> subprocess.Popen[bytes]:
        own = {"HTAM_BUILD_CACHE": str(self.folder / "cache"), "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "1"}
        with (self.folder / "log").open("ab") as log:
            command, environment = [sys.executable, "-P", "-m", "dask", *words], os.environ | own | variables
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
        self.stack.callback(process.wait)
        self.stack.callback(process.kill)
        return process

    def add_worker(self, **variables: str) -> None:
        words = ["--nworkers", "1", "--nthreads", "1", "--no-nanny", "--no-dashboard"]
        process = self.start("worker", self.address, *words, "--local-directory", str(self.folder), **variables)
        self.workers[process.pid] = process

    def at_work(self) -> set[int]:
        """Living workers in the middle of a job, as the scheduler knows them at one instant."""
        with Client(self.address, set_as_default=False) as client:
            # A lambda travels by value: the scheduler cannot import this file.
            pids: set[int] = client.run_on_scheduler(
                lambda dask_scheduler: {worker.pid for worker in dask_scheduler.workers.values() if worker.processing}
            )
            return pids & self.workers.keys()

    def size(self) -> int:
        """Workers that have joined."""
        with Client(self.address, set_as_default=False) as client:
            return len(client.nthreads())

    def kill(self, worker: int) -> None:
        process = self.workers.pop(worker)
        process.kill()
        process.wait()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with ExitStack() as stack:
        made, facts = Cluster(tmp_path, stack), tmp_path / "scheduler.json"
        words = ["--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(facts)]
        made.scheduler = made.start("scheduler", *words)
        until(lambda: facts.is_file() and facts.read_text(encoding="utf-8").endswith("}"))
        made.address = json.loads(facts.read_text(encoding="utf-8"))["address"]
        yield made
    until(lambda: processes_in(str(tmp_path)) == [])


def until(condition: Callable[[], Any]) -> Any:
    """Wait for what comes, however slow the machine is, and return it: asked again it may be something else."""
    end = time.monotonic() + 600
    while not (found := condition()):
        assert time.monotonic() < end
        time.sleep(0.05)
    return found


def processes_in(text: str) -> list[str]:
    """Living processes with ``text`` among their words or in their environment, other than this one."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            said = (folder / "cmdline").read_bytes() + (folder / "environ").read_bytes()
        except OSError:
            continue
        if int(folder.name) != os.getpid() and text.encode() in said:
            found.append(said.decode(errors="replace"))
    return found


@contextmanager
def searching(cluster: Cluster, jobs: list[EvaluationJob]) -> Iterator[Future[list[tuple[str, Measurement]]]]:
    with closing(ClusterEvaluator(cluster.address)) as evaluator, ThreadPoolExecutor(1) as threads:
        yield threads.submit(lambda: list(evaluator.evaluate(jobs)))


def test_a_job_whose_worker_is_killed_is_done_by_the_other_and_every_job_has_one_result(cluster: Cluster) -> None:
    for _ in range(2):
        cluster.add_worker()
    until(lambda: cluster.size() == 2)
    with searching(cluster, [job(number) for number in range(3)]) as search:
        cluster.kill(min(until(cluster.at_work)))
        found = search.result(900)
    assert sorted(name for name, _ in found) == ["j0", "j1", "j2"]
    assert {name: f"number {name[1]}" in result.error for name, result in found} == {f"j{n}": True for n in range(3)}
    assert {result.outcome for _, result in found} == {Outcome.COMPILE_ERROR}


def test_a_job_that_takes_every_worker_with_it_ends_as_an_infrastructure_error(cluster: Cluster) -> None:
    with searching(cluster, [job(0, ENDLESS)]) as search:
        for _ in range(2):
            cluster.add_worker()
            cluster.kill(min(until(cluster.at_work)))
        ((name, result),) = search.result(900)
    assert (name, result.outcome) == ("j0", Outcome.INFRA_ERROR)
    assert "KilledWorker" in result.error


def test_a_search_whose_scheduler_is_gone_is_told_so(cluster: Cluster) -> None:
    cluster.add_worker()
    with searching(cluster, [job(0, ENDLESS)]) as search:
        until(cluster.at_work)
        assert cluster.scheduler is not None
        cluster.scheduler.kill()
        with pytest.raises(UnavailableError, match="is gone"):
            search.result(900)


def test_workers_on_different_devices_are_refused(cluster: Cluster, tmp_path: Path) -> None:
    driver = tmp_path / "nvidia-smi"
    driver.write_text("#!/bin/sh\necho '0, NVIDIA H100, GPU-a, 81559'\necho '1, NVIDIA H200, GPU-b, 143771'\n")
    driver.chmod(0o755)
    with closing(ClusterEvaluator(cluster.address)) as evaluator:
        for number, names in enumerate((["NVIDIA H100"], ["NVIDIA H100", "NVIDIA H200"])):
            cluster.add_worker(PATH=f"{tmp_path}:{os.environ['PATH']}", CUDA_VISIBLE_DEVICES=str(number))
            until(lambda: cluster.size() == len(cluster.workers))
            if len(names) == 1:
                assert evaluator.device_name("cuda") == names[0]
        with pytest.raises(UnavailableError, match="NVIDIA H100 and NVIDIA H200"):
            evaluator.device_name("cuda")


def test_a_cluster_without_workers_is_given_up(cluster: Cluster) -> None:
    with (
        closing(ClusterEvaluator(cluster.address, patience_s=0.0)) as evaluator,
        pytest.raises(UnavailableError, match="no worker serves"),
    ):
        list(evaluator.evaluate([job(0)]))


def test_an_address_without_a_scheduler_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_module, "CONNECT_S", 0.5)
    with pytest.raises(UnavailableError, match="no Dask scheduler answers"):
        ClusterEvaluator("tcp://127.0.0.1:9")

"""Two worker processes on the CPU backend; one is killed in the middle of a job."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from artifacts.measurement import Measurement
from artifacts.outcome import Outcome
from optimizer.evaluation.job import EvaluationJob, EvaluationSettings
from optimizer.evaluation.pool.evaluator import PoolEvaluator, PoolSettings
from optimizer.evaluation.pool.folder import PoolFolder, file_time

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

ext = load_inline(name="pool_relu", cpp_sources=r'''
#include <torch/types.h>
torch::Tensor own(torch::Tensor x) { return x.clone(); }  // what takes a while is the build
''', functions=["own"])


class ModelNew(nn.Module):
    def forward(self, x):
        raise ValueError("number %d")
"""


def jobs(count: int) -> list[EvaluationJob]:
    settings = EvaluationSettings(seeds=1, run_timeout_s=120)
    return [
        EvaluationJob(
            job_id=f"j{number}",
            task_id="relu",
            task_source=TASK,
            candidate_source=CANDIDATE % number,
            backend="cpu",
            seed=number,
            settings=settings,
        )
        for number in range(count)
    ]


def start_worker(pool: Path, cache: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-P", "-m", "optimizer.evaluation.worker", "--pool", str(pool)]
    command += ["--backend", "cpu", "--builders", "1", "--idle-s", "60", "--cache", str(cache)]
    return subprocess.Popen(command, stderr=subprocess.PIPE)


def processes_in(text: str) -> list[str]:
    """Living processes with ``text`` among their words, other than this one."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if int(folder.name) != os.getpid() and text.encode() in words:
            found.append(words.decode(errors="replace"))
    return found


@pytest.mark.timeout(280)
def test_a_job_whose_worker_is_killed_is_done_by_the_other_and_every_job_has_one_result(tmp_path: Path) -> None:
    pool = PoolFolder(tmp_path / "pool", lease_s=3.0)
    workers = {process.pid: process for process in (start_worker(pool.path, tmp_path / "cache") for _ in range(2))}
    try:
        while len(cards := pool.living(file_time(tmp_path / "clock"))) < 2:
            assert all(process.poll() is None for process in workers.values())
            time.sleep(0.1)
        evaluator = PoolEvaluator(pool.path, PoolSettings(poll_s=0.05))
        found: list[tuple[str, Measurement]] = []
        search = threading.Thread(target=lambda: found.extend(evaluator.evaluate(jobs(3))))
        search.start()
        victim = one_of_two_at_work(pool)
        killed = next(card.pid for card in cards if card.worker == victim)
        os.kill(killed, signal.SIGKILL)
        workers[killed].wait()
        search.join(200)
        evaluator.close()
        for pid, process in workers.items():
            if pid != killed:
                process.send_signal(signal.SIGTERM)
                assert process.wait(60) == 0
    finally:
        for process in workers.values():
            process.kill()
            process.communicate()
    assert sorted(name for name, _ in found) == ["j0", "j1", "j2"]
    assert {name: f"number {name[1]}" in result.error for name, result in found} == {f"j{n}": True for n in range(3)}
    assert {result.outcome for _, result in found} == {Outcome.RUNTIME_ERROR}
    left = {name: sorted(path.name for path in (pool.path / name).iterdir()) for name in ("jobs", "leases", "workers")}
    assert left == {"jobs": [], "leases": [], "workers": []}
    assert processes_in(str(tmp_path)) == []


def one_of_two_at_work(pool: PoolFolder) -> str:
    """Wait until both workers are in the middle of a job, which builds for seconds; one of them."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        held = {path.name.split(".")[3] for path in (pool.path / "leases").iterdir()}
        if len(held) == 2:
            return min(held)
        time.sleep(0.02)
    raise AssertionError("the workers take no jobs")

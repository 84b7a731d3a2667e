"""Two worker processes on the CPU backend; one is killed in the middle of a job."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from artifacts.outcome import Outcome
from optimizer.evaluation.job import EvaluationJob, EvaluationSettings
from optimizer.evaluation.pool.evaluator import PoolEvaluator, PoolSettings
from optimizer.evaluation.pool.folder import PoolFolder

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

sum(range(10**8))  # seconds, in whose middle a worker can be killed
raise ValueError("number %d")

ext = load_inline(name="never", cpp_sources="torch::Tensor own(torch::Tensor x) { return x; }", functions=["own"])


class ModelNew(nn.Module):
    def forward(self, x):
        return ext.own(x)
"""


def jobs(count: int) -> list[EvaluationJob]:
    settings = EvaluationSettings(seeds=1, build_timeout_s=1200, run_timeout_s=600)
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


@contextmanager
def workers(pool: Path, cache: Path, count: int) -> Iterator[dict[int, subprocess.Popen[bytes]]]:
    """Worker processes by their ids; none is left."""
    command = [sys.executable, "-P", "-m", "optimizer.evaluation.worker", "--pool", str(pool)]
    command += ["--backend", "cpu", "--builders", "1", "--idle-s", "1200", "--cache", str(cache)]
    with ExitStack() as started:
        found = {}
        for _ in range(count):
            process = started.enter_context(subprocess.Popen(command))
            started.callback(process.kill)  # before it is waited for
            found[process.pid] = process
        yield found


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


def until(condition: Callable[[], Any]) -> None:
    """Wait for what comes, however slow the machine is."""
    end = time.monotonic() + 600
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.timeout(1500)
def test_a_job_whose_worker_is_killed_is_done_by_the_other_and_every_job_has_one_result(tmp_path: Path) -> None:
    pool = PoolFolder(tmp_path / "pool", lease_s=3600.0)
    evaluator = PoolEvaluator(pool.path, PoolSettings(poll_s=0.05))
    with workers(pool.path, tmp_path / "cache", 2) as processes, ThreadPoolExecutor(1) as threads, closing(evaluator):
        until(lambda: any(process.poll() is not None for process in processes.values()) or len(living(pool)) == 2)
        search = threads.submit(lambda: list(evaluator.evaluate(jobs(3))))
        until(lambda: search.done() or len(at_work(pool)) == 2)
        victim = min(at_work(pool))
        killed = living(pool)[victim]
        processes[killed].kill()
        processes.pop(killed).wait()
        os.utime(pool.path / "workers" / f"{victim}.json", (0, 0))  # its lease is over
        assert pool.repair(pool.now()) == 1
        found = search.result(900)
        evaluator.close()
        (other,) = processes.values()
        other.send_signal(signal.SIGTERM)
        assert other.wait(600) == 0
    assert sorted(name for name, _ in found) == ["j0", "j1", "j2"]
    assert {name: f"number {name[1]}" in result.error for name, result in found} == {f"j{n}": True for n in range(3)}
    assert {result.outcome for _, result in found} == {Outcome.COMPILE_ERROR}
    left = {name: sorted(path.name for path in (pool.path / name).iterdir()) for name in ("jobs", "leases", "workers")}
    assert left == {"jobs": [], "leases": [], "workers": []}
    until(lambda: processes_in(str(tmp_path)) == [])


def living(pool: PoolFolder) -> dict[str, int]:
    """Process ids of the workers that are heard of."""
    return {card.worker: card.pid for card in pool.living(pool.now())}


def at_work(pool: PoolFolder) -> set[str]:
    """Workers in the middle of a job."""
    return {path.name.split(".")[3] for path in (pool.path / "leases").iterdir()}

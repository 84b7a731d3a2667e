"""Ctrl-C at a worker: one line, exit code 130, nothing left behind, whatever it was doing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from artifacts.codec import encode
from optimizer.evaluation.job import EvaluationJob, EvaluationSettings

TASK = """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x)


def get_inputs():
    return [torch.randn(8)]
"""
ENDLESS = """
import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

count = 0
while True:
    count += 1

ext = load_inline(name="never", cpp_sources="torch::Tensor own(torch::Tensor x) { return x; }", functions=["own"])


class ModelNew(nn.Module):
    def forward(self, x):
        return ext.own(x)
"""
REJECTED = "class ModelNew: pass\n"


def job(name: str, source: str) -> EvaluationJob:
    return EvaluationJob(
        job_id=name,
        task_id="relu",
        task_source=TASK,
        candidate_source=source,
        backend="cpu",
        seed=1,
        settings=EvaluationSettings(seeds=1, build_timeout_s=3600.0),
    )


def until(condition: Callable[[], Any], process: subprocess.Popen[str]) -> None:
    """Wait for what comes, however slow the machine is, unless the worker has ended."""
    end = time.monotonic() + 600
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.05)


@contextmanager
def worker(*words: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-P", "-m", "optimizer.evaluation.worker", *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def interrupt(process: subprocess.Popen[str]) -> None:
    """As a terminal does it: to the whole group."""
    os.killpg(process.pid, signal.SIGINT)


def ended(process: subprocess.Popen[str]) -> tuple[int, list[str]]:
    """Exit code, and the lines on standard error."""
    _, errors = process.communicate(timeout=600)
    return process.returncode, errors.splitlines()


def test_a_worker_of_a_file_of_jobs_keeps_what_is_measured(tmp_path: Path) -> None:
    jobs, out = tmp_path / "jobs.jsonl", tmp_path / "results.jsonl"
    both = [job("quick", REJECTED), job("endless", ENDLESS)]
    jobs.write_text("".join(json.dumps(encode(each)) + "\n" for each in both), encoding="utf-8")
    with worker(str(jobs), "--out", str(out), "--cache", str(tmp_path / "cache")) as process:
        until(lambda: out.is_file() and out.read_text().count("\n") == 1, process)
        interrupt(process)
        code, lines = ended(process)
    assert code == 130
    assert "interrupted" in lines[-1]
    assert [line.split(":")[0] for line in lines] == ["worker"] * len(lines), lines  # no traceback, whoever came first
    assert [json.loads(line)["job_id"] for line in out.read_text().splitlines()] == ["quick"]

"""Ctrl-C, as a user types it at a run that waits for a slow endpoint."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fake_openai import ANSWER, KEY, FakeOpenAi

from artifacts.runlog import RunLog

ROOT = Path(__file__).parents[3]
TASK = """import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return x * {factor}

def get_inputs():
    return [torch.randn(16)]

def get_init_inputs():
    return []
"""


def optimize(folder: Path, server: FakeOpenAi) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI")}
    environment |= {"PYTHONPATH": str(ROOT), "OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": server.url}
    options = ("--llm", "openai:m", "--arm", "feedback", "--evaluator", "files", "--device", "cpu", "--seed", "1")
    words = ("optimize", str(folder / "tasks"), "--run", str(folder / "run"), *options, "--concurrency", "1")
    return subprocess.Popen(
        [sys.executable, "-m", "pipeline", *words], env=environment, stderr=subprocess.PIPE, text=True
    )


def answers(folder: Path) -> int:
    return sum(event.kind == "answer" for event in RunLog.open(folder / "run").events())


def test_the_first_ctrl_c_keeps_what_is_under_way_and_asks_for_nothing_new(
    tmp_path: Path, tell_references: Callable[[Path], None]
) -> None:
    (tmp_path / "tasks").mkdir()
    for factor in range(3):
        (tmp_path / "tasks" / f"times_{factor}.py").write_text(TASK.format(factor=factor))
    asked, typed = threading.Event(), threading.Event()

    def slow(body: dict[str, Any]) -> str:
        asked.set()
        typed.wait(600)
        return ANSWER

    with FakeOpenAi(answer=slow) as server:
        optimize(tmp_path, server).communicate(timeout=600)
        tell_references(tmp_path / "run")
        first = optimize(tmp_path, server)
        assert asked.wait(600)
        first.send_signal(signal.SIGINT)
        assert first.stderr is not None
        assert any("stopping after what is under way" in line for line in first.stderr)  # handled before the answer
        typed.set()
        _, said = first.communicate(timeout=600)
        assert first.returncode == 130, said
        assert answers(tmp_path) == len(server.seen) == 1
        second = optimize(tmp_path, server)
        second.communicate(timeout=600)
        assert second.returncode == 0
        assert answers(tmp_path) == len(server.seen) == 3

"""The key of an endpoint, from the environment to everything that a run leaves behind."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_openai import KEY, FakeOpenAi, Fault

ROOT = Path(__file__).parents[3]
TASK = """import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return x * 2

def get_inputs():
    return [torch.randn(16)]

def get_init_inputs():
    return []
"""


def htam(*words: str, server: FakeOpenAi | None = None, ok: bool = True) -> str:
    """Run a command as a user would and return everything that it printed."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI")}
    environment |= {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    if server is not None:
        environment |= {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": server.url}
    done = subprocess.run(
        [sys.executable, "-m", "pipeline", *words], env=environment, capture_output=True, text=True, timeout=240
    )
    assert (done.returncode == 0) == ok, done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def task(tmp_path: Path) -> str:
    (tmp_path / "double.py").write_text(TASK)
    return str(tmp_path / "double.py")


def test_a_run_leaves_the_key_nowhere_even_if_the_endpoint_repeats_it(
    tmp_path: Path, task: str, tell_references: Callable[[Path], None]
) -> None:
    run = tmp_path / "run"
    leaky = (
        f"PLAN: the key is {KEY}\n```python\n# {KEY}\nimport torch\n\nclass ModelNew(torch.nn.Module):\n    pass\n```\n"
    )
    options = ("--llm", "openai:m", "--arm", "feedback", "--evaluator", "files", "--device", "cpu", "--steps", "1")
    with FakeOpenAi(answer=lambda body: leaky, fault=lambda number, body: Fault.CUT if number == 0 else None) as server:
        printed = htam("optimize", task, "--run", str(run), *options, server=server)
        tell_references(run)
        printed += htam("optimize", task, "--run", str(run), *options, server=server)
        printed += htam("ask", str(run), server=server)
    assert server.seen[-1].authorization == f"Bearer {KEY}"
    assert KEY not in json.dumps([seen.body for seen in server.seen])
    assert KEY not in printed
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.name == "cassette.jsonl" for path in files)
    assert [path for path in files if KEY.encode() in path.read_bytes()] == []
    assert any("[key]" in path.read_text() for path in (run / "candidates").iterdir())


def test_a_wrong_key_is_one_line_without_the_key(
    tmp_path: Path, task: str, tell_references: Callable[[Path], None]
) -> None:
    options = ("--llm", "openai:m", "--arm", "feedback", "--evaluator", "files", "--device", "cpu", "--steps", "1")
    with FakeOpenAi(fault=lambda number, body: Fault.BAD_KEY) as server:
        htam("optimize", task, "--run", str(tmp_path / "run"), *options, server=server)
        tell_references(tmp_path / "run")
        printed = htam("optimize", task, "--run", str(tmp_path / "run"), *options, server=server, ok=False)
    assert "refused m (401)" in printed
    assert "Traceback" not in printed
    assert KEY not in printed


def test_no_key_is_one_line_that_says_what_to_set(tmp_path: Path, task: str) -> None:
    options = ("--llm", "openai:m", "--arm", "feedback", "--evaluator", "files", "--device", "cpu", "--steps", "1")
    printed = htam("optimize", task, "--run", str(tmp_path / "run"), *options, ok=False)
    (line,) = [line for line in printed.splitlines() if line.startswith("htam:")]
    assert "OPENAI_API_KEY is not set" in line
    assert "Traceback" not in printed

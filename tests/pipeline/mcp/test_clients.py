"""Clients that die, clients that share a folder, and candidates that cheat."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from artifacts.runlog import RunLog

Connect = Callable[..., AbstractContextManager[Any]]
pytestmark = pytest.mark.xdist_group("mcp")
REPOSITORY = Path(__file__).parents[3]
EXPLOITS = REPOSITORY / "tests" / "exploits"
PATIENCE_S = 300
CHEATS = (
    "cached_by_pointer",
    "decoy_kernel",
    "eval_string",
    "fallback_torch_op",
    "hint_text",
    "inherited_model",
    "patched_timer",
    "reads_files",
    "returns_input",
    "subprocess_access",
    "try_except",
)


def children(pid: int) -> list[int]:
    """Processes below ``pid``, whatever session they are in."""
    found = []
    with contextlib.suppress(OSError):  # gone meanwhile
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                for child in map(int, (task / "children").read_text().split()):
                    found += [child, *children(child)]
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_with_its_client_the_server_ends_with_all_children_and_a_whole_log(root: Path, connect: Connect) -> None:
    runs = root / "died"
    words = ["--root", str(root), "--run", str(runs), "--baseline", "eager_fp32"]
    server = subprocess.Popen(
        [sys.executable, "-P", "-m", "pipeline", "mcp", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    assert server.stdin is not None
    assert server.stdout is not None
    client = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    arguments = {"task": "first.py", "candidate": "kernel.py", "wait_s": 0}
    messages = [
        {"id": 1, "method": "initialize", "params": client},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/call", "params": {"name": "evaluate", "arguments": arguments}},
    ]
    for message in messages:
        server.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
    server.stdin.flush()
    answers = [json.loads(server.stdout.readline()) for _ in range(2)]  # nothing but the protocol is printed
    assert answers[1]["result"]["structuredContent"]["state"] == "running"
    below = children(server.pid)
    assert below
    server.stdin.close()
    assert server.wait(PATIENCE_S) == 0
    server.stdout.close()
    deadline = time.monotonic() + PATIENCE_S
    while any(map(alive, below)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [pid for pid in below if alive(pid)]
    (run,) = [path.parent for path in runs.rglob("manifest.json")]
    assert next(event.kind for event in RunLog.open(run).events()) == "task_started"
    with connect(root, "--run", str(runs)) as one:
        assert one.judged(task="first.py", candidate="kernel.py")["outcome"] == "correct"
    assert [event.kind for event in RunLog.open(run).events()].count("step") == 1


def test_two_clients_on_one_root_lose_and_double_nothing(root: Path, connect: Connect) -> None:
    runs = root / "shared"
    with connect(root, "--run", str(runs)) as one, connect(root, "--run", str(runs)) as other:
        for agent, task in ((one, "first.py"), (other, "second.py")):
            agent.call("evaluate", task=task, candidate="kernel.py", wait_s=0)
            agent.call("evaluate", task=task, candidate="kernel.py", wait_s=0)  # twice before it is known
        assert "another process is writing" in other.refusal("recall", task="first.py")
        for agent, task in ((one, "first.py"), (other, "second.py")):
            assert agent.judged(task=task, candidate="kernel.py")["outcome"] == "correct"
    for path in runs.rglob("manifest.json"):
        events = list(RunLog.open(path.parent).events())
        assert [event.key.rpartition("/")[2] for event in events if event.kind == "step"] == ["0.0"]
    with connect(root, "--run", str(runs)) as later:
        known = later.call("status")
        assert [one["steps"] for one in known] == [1, 1]
        assert later.call("kernel", sha256=known[0]["best_sha256"])["source"].startswith("import torch")


def test_candidates_that_cheat_are_refused_through_the_tool(tmp_path: Path, connect: Connect) -> None:
    for task in ("softmax", "layer_norm", "relu"):
        (tmp_path / f"{task}.py").write_text((EXPLOITS / "tasks" / f"{task}.py").read_text())
    outcomes = {}
    with connect(tmp_path) as one:
        for name in CHEATS:
            text = (EXPLOITS / "candidates" / "hacks" / f"{name}.py").read_text()
            task = text.partition("# task: ")[2].split()[0]
            for shared in ("kernels.cpp", "unusual.cpp", "further.cpp"):
                text = text.replace(f"@{shared}@", (EXPLOITS / shared).read_text())
            verdict = one.judged(task=f"{task}.py", source=text)
            outcomes[name] = verdict["outcome"]
            assert verdict["outcome"] in text.partition("# expect: ")[2].splitlines()[0].split(), name
            assert verdict["reason"], name
            assert not verdict["best"], name
        assert all(not status["best_file"] for status in one.call("status"))
    assert "correct" not in outcomes.values()

"""What a coding agent can do with ``htam mcp``, and what it cannot."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from artifacts.candidate import Language
from artifacts.errors import RunLogError
from artifacts.memory.htg import refreshed
from artifacts.memory.store import MemoryStore
from artifacts.memory.tables import transition_rows
from artifacts.runlog import RunLog
from optimizer.run.opening import OpenRun
from pipeline.report.run_view import read_run

Connect = Callable[..., AbstractContextManager[Any]]
pytestmark = pytest.mark.xdist_group("mcp")  # one warm server
BROKEN = """
import torch
from torch.utils.cpp_extension import load_inline

SOURCE = "float own(float x) { return nonsense(x); }"
ext = load_inline(
    name="broken", cpp_sources=SOURCE, functions=None, no_implicit_headers=True, extra_cflags=["-O2", "-fopenmp"]
)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return ext.own(x)
"""
"""Without torch's headers, which take the compiler that decides half a minute."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A memory whose every row is of this CPU and in C++."""
    import importlib.util

    spec = importlib.util.spec_from_file_location("mined", Path(__file__).parents[1] / "mined.py")
    assert spec is not None
    assert spec.loader is not None
    mined = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(mined)
    made = mined.memory(transitions=400)
    rows = [
        replace(row, device="cpu", state=replace(row.state, arch="cpu", language=Language.CPP))
        for row in made.transitions()
    ]
    folder = tmp_path_factory.mktemp("store")
    MemoryStore(str(folder)).publish(refreshed(replace(made, table=transition_rows(rows))))
    return folder


@pytest.fixture(scope="module")
def worker(connect: Connect, root: Path, store: Path) -> Iterator[Any]:
    with connect(root, "--run", str(root / "runs"), "--memory", "mined", "--store", str(store)) as one:
        yield one


def test_there_are_at_most_ten_tools_and_each_says_what_it_answers(worker: Any) -> None:
    tools = worker._portal.call(worker.client.list_tools).tools
    assert len(tools) <= 10
    assert all(tool.description and tool.output_schema for tool in tools)
    assert not [tool.name for tool in tools if "record" in tool.name or "measurement" in tool.name]


def test_a_session_recalls_evaluates_and_ends_as_a_run_that_is_read_like_any(worker: Any, root: Path) -> None:
    recalled = worker.call("recall", task="first.py")
    assert recalled["memory"].startswith("mined@")
    assert recalled["experience"]
    assert "load_inline" in recalled["rules"]
    verdict = worker.judged(task="first.py", candidate="kernel.py", plan="one plain loop")
    assert (verdict["outcome"], verdict["best"]) == ("correct", True)
    assert verdict["speedup"] > 0
    verdict = worker.judged(task="first.py", source=BROKEN)
    assert verdict["outcome"] == "compile_error"
    assert "error:" in verdict["first_error"]
    again = worker.judged(task="first.py", candidate="kernel.py")
    assert again["handle"].endswith("/0.0")  # known: it is no second step
    assert "one plain loop" in worker.call("explain", task="first.py", step="0.0")
    assert worker.call("kernel", sha256=again["sha256"][:12])["source"].startswith("import torch")
    done = worker.judged("finish", task="first.py")
    assert done["outcome"] == "correct"
    (status,) = [item for item in worker.call("status") if item["finished"]]
    assert "ModelNew" in Path(status["best_file"]).read_text()
    view = read_run(Path(status["run"])).tasks[0]
    assert [step.measurement.outcome.value for step in view.steps] == ["correct", "compile_error"]
    assert view.confirmed is not None
    assert view.steps[1].parent == view.steps[0].sha256
    steps = [event.payload for event in RunLog.open(Path(status["run"])).events() if event.kind == "step"]
    assert all(step["shown"]["device experience"] for step in steps)
    assert "is finished" in worker.refusal("evaluate", task="first.py", source="import torch  # another")


def test_the_search_does_not_go_on_with_the_run_of_an_agent(worker: Any, root: Path) -> None:
    worker.call("recall", task="first.py")
    run = root / "runs" / f"{root.name}_first"
    before = (run / "events.jsonl").read_bytes()
    with pytest.raises(RunLogError, match="htam mcp --run"):
        OpenRun.at(run)
    assert (run / "events.jsonl").read_bytes() == before


def test_the_memory_can_be_read_part_by_part(worker: Any) -> None:
    worker.call("recall", task="second.py")
    assert worker.read("htam://memory").startswith("mined@")
    assert "Fusion" in worker.read("htam://memory/fusion")


@pytest.mark.parametrize("path", ["/etc/passwd", "../outside.py", "link.py", "folder", "no\0name", "x" * 9000, "pipe"])
def test_nothing_outside_the_root_is_read(worker: Any, root: Path, path: str) -> None:
    (root / "folder").mkdir(exist_ok=True)
    (root.parent / "outside.py").write_text("secret = 1\n")
    if not (root / "link.py").is_symlink():
        (root / "link.py").symlink_to(root.parent / "outside.py")
        os.mkfifo(root / "pipe")
    for arguments in ({"task": path, "source": "x = 1"}, {"task": "second.py", "candidate": path}):
        refused = worker.refusal("evaluate", **arguments)
        assert "is no file below" in refused
        assert "secret" not in refused
        assert "\n" not in refused
    assert "is no file below" in worker.refusal("open_run", name="other", tasks=[path])


def test_a_huge_source_is_refused_in_one_line(worker: Any, root: Path) -> None:
    (root / "huge.py").write_text("x = 1\n" * 1_000_000)
    for arguments in ({"source": "x = 1\n" * 1_000_000}, {"candidate": "huge.py"}):
        refused = worker.refusal("evaluate", task="second.py", **arguments)
        assert "give 200,000" in refused
        assert "\n" not in refused
    assert worker.call("status")[-1]["steps"] == 0


def test_the_search_asks_and_the_agent_answers(worker: Any, root: Path) -> None:
    question = worker.call("open_run", name="asked", tasks=["second.py"], steps=1)
    while question["state"] == "running":
        question = worker.call("ask", run="asked", wait_s=50)
    assert "ModelNew" in question["prompt"]
    assert "does not ask" in worker.refusal("tell", run="asked", key="another", answer="x")
    answer = f"PLAN: one loop\n```python\n{(root / 'kernel.py').read_text()}\n```\n"
    question = worker.call("tell", run="asked", key=question["key"], answer=answer, wait_s=50)
    while question["state"] == "running":
        question = worker.call("ask", run="asked", wait_s=50)
    assert question["state"] == "complete"
    assert read_run(Path(question["run"])).tasks[0].final is not None


def test_a_study_gives_no_memory_or_a_mixed_one_and_counts_evaluations(
    connect: Connect, root: Path, store: Path
) -> None:
    words = ("--memory", "mined", "--store", str(store), "--evaluations", "1", "--seed", "1")
    with connect(root, "--recall", "none", *words) as one:
        blank = one.call("recall", task="first.py")
        assert (blank["memory"], blank["experience"], blank["strategies"], blank["pitfalls"]) == ("", [], [], [])
        assert "no memory" in one.refusal("kernel", sha256="0" * 12)
        assert one.judged(task="first.py", source="import torch\n")["evaluations_left"] == 0
        assert "all 1 evaluations" in one.refusal("evaluate", task="first.py", source="import os\n")
    with connect(root, "--recall", "shuffled", "--run", str(root / "mixed"), *words) as one:
        assert one.call("recall", task="first.py")["experience"]
    (manifest,) = (root / "mixed").rglob("manifest.json")
    assert json.loads(manifest.read_text())["arm"] == "shuffled"

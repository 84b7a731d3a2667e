"""``htam bench kernelbench`` on a small benchmark in KernelBench's layout, on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from artifacts.errors import BadInputError
from artifacts.measurement import Measurement, Outcome
from artifacts.task import kernelbench_task
from optimizer.run.winners import winner_name
from pipeline.bench.evaluating import until
from pipeline.bench.kernelbench import read_problems, read_samples

ROOT = Path(__file__).parents[3]
TASK = """import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.{function}(x)

def get_inputs():
    return [torch.randn(64, 128)]

def get_init_inputs():
    return []
"""
CANDIDATE = Path(__file__).parents[1].joinpath("relu_rows.py").read_text()
ABSENT = (
    *("prefect", "faiss", "openai", "pydantic", "pyarrow", "optuna", "sentence_transformers", "sklearn", "rich"),
    *("tree_sitter", "tree_sitter_cuda", "sqlalchemy", "fastapi"),
)
"""What a GPU host with torch and click need not have."""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    level = tmp_path / "KernelBench" / "KernelBench" / "level1"
    level.mkdir(parents=True)
    for number, function in enumerate(("relu", "tanh", "sigmoid"), start=1):
        (level / f"{number}_{function.title()}.py").write_text(TASK.format(function=function))
    return tmp_path / "KernelBench"


def candidates(folder: Path, *names: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).write_text(f"# {name}\n{CANDIDATE}")
    return folder


def named(checkout: Path, folder: Path) -> list[str]:
    return [sample.name for sample in read_samples(folder, read_problems(checkout, (1,)))]


def test_winners_of_an_own_run_are_candidates(checkout: Path, tmp_path: Path) -> None:
    assert winner_name(kernelbench_task(1, "36_RMSNorm_.py").task_id) == "kernelbench_1_36_rmsnorm"
    folder = candidates(tmp_path / "best", "kernelbench_1_2_tanh.py", "kernelbench_1_1_relu.py")
    assert named(checkout, folder) == ["level_1_problem_1_sample_0", "level_1_problem_2_sample_0"]


def test_a_run_folder_of_kernelbench_gives_its_samples_in_order(checkout: Path, tmp_path: Path) -> None:
    names = [f"level_1_problem_{problem}_sample_{sample}_kernel.py" for problem in (2, 1) for sample in (10, 2)]
    folder = candidates(tmp_path / "run", *names, "level_2_problem_1_sample_0_kernel.py", "eval_results.json")
    assert named(checkout, folder) == [
        "level_1_problem_1_sample_2",
        "level_1_problem_1_sample_10",
        "level_1_problem_2_sample_2",
        "level_1_problem_2_sample_10",
    ]


def test_candidates_without_a_sample_are_numbered_by_name(checkout: Path, tmp_path: Path) -> None:
    folder = candidates(tmp_path / "mine", "level_1_problem_1_b.py", "level_1_problem_1.py", "level_1_problem_12.py")
    samples = read_samples(folder, read_problems(checkout, (1,)))
    assert [sample.number for sample in samples] == [0, 1]
    assert samples[1].source.startswith("# level_1_problem_1_b.py")


def test_two_files_of_one_sample_are_refused(checkout: Path, tmp_path: Path) -> None:
    folder = candidates(tmp_path / "run", "level_1_problem_1_sample_0_a.py", "level_1_problem_1_sample_0_b.py")
    with pytest.raises(BadInputError, match="are one sample"):
        named(checkout, folder)


@pytest.mark.parametrize(
    ("levels", "numbers", "said"), [((4,), (), "no KernelBench/level4"), ((1,), (9,), "none of the wanted problems")]
)
def test_what_a_checkout_lacks_is_named(
    levels: tuple[int, ...], numbers: tuple[int, ...], said: str, checkout: Path
) -> None:
    with pytest.raises(BadInputError, match=said):
        read_problems(checkout, levels, numbers)


def test_a_folder_without_a_candidate_is_refused(checkout: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"level_1_problem_3\.py"):
        named(checkout, candidates(tmp_path / "mine", "softmax.py"))


def test_results_are_waited_for_until_the_deadline_only(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Measurement(outcome=Outcome.TIMEOUT, stage="timing", device="cpu", error="slow")
    over, now = threading.Event(), iter((0.0, 1000.0))
    monkeypatch.setattr("pipeline.bench.evaluating.time", SimpleNamespace(monotonic=lambda: next(now)))

    def slow() -> object:
        yield "first", found
        over.wait(600)

    assert list(until(slow(), 600.0)) == [("first", found)]  # type: ignore[arg-type]
    over.set()


def test_an_evaluator_that_cannot_work_is_heard() -> None:
    def broken() -> object:
        raise RuntimeError("no fork server")
        yield

    with pytest.raises(RuntimeError, match="no fork server"):
        list(until(broken(), None))  # type: ignore[arg-type]


def htam(folder: Path, *words: object) -> subprocess.CompletedProcess[str]:
    """The command as a bare host runs it: from a checkout, without what ``ABSENT`` names."""
    for name in ABSENT:
        (folder / "absent" / name).mkdir(parents=True, exist_ok=True)
        (folder / "absent" / name / "__init__.py").write_text(f"raise ImportError('no {name} here')")
    environment = {**os.environ, "PYTHONPATH": f"{folder / 'absent'}:{ROOT}"}
    command = [sys.executable, "-P", "-m", "pipeline", *map(str, words)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1500, check=False)


@pytest.mark.timeout(1800)
@pytest.mark.xdist_group("evaluator")
def test_a_bare_host_writes_the_table_and_knows_afterwards_what_it_has_seen(checkout: Path, tmp_path: Path) -> None:
    folder = candidates(tmp_path / "mine", "level_1_problem_1.py", "level_1_problem_1_b.py", "level_1_problem_2.py")
    (folder / "level_1_problem_1_b.py").write_text(CANDIDATE.replace("module.relu_rows(x)", "torch.relu(x)"))
    out = tmp_path / "out"
    words = ("bench", "kernelbench", "--checkout", checkout, "--folder", folder, "--levels", 1, "--backend", "cpu")
    first = htam(tmp_path, *words, "--out", out)
    assert first.returncode == 0, first.stderr
    table = json.loads((out / "summary.json").read_text())
    assert table["outcomes"] == {"correct": 1, "rejected": 1, "wrong_result": 1, "no candidate": 1}
    one = next(score for score in table["scores"] if score["choice"].startswith("best"))
    assert (one["tasks"], one["fast"][0]) == (3, pytest.approx(1 / 3))
    assert "| best of up to 2 | 1 | fastest | 3 | 33 % |" in (out / "summary.md").read_text()
    assert "<html" in (out / "report.html").read_text()
    again = htam(tmp_path, *words, "--out", out)
    assert again.returncode == 0
    assert "level_1_problem" not in again.stderr  # nothing was evaluated
    assert json.loads((out / "summary.json").read_text())["candidates"] == table["candidates"]


def test_help_needs_neither_torch_nor_anything_else_that_is_heavy(tmp_path: Path) -> None:
    answer = htam(tmp_path, "bench", "kernelbench", "--help")
    assert answer.returncode == 0, answer.stderr
    assert "--cross-check" in answer.stdout


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--levels", "one"), 2, "is no list of numbers"),
        (("--folder", "nowhere"), 1, "no folder at nowhere"),
        (("--cross-check", "--backend", "cpu"), 1, "has no evaluator"),
    ],
)
def test_a_mistake_is_one_line(words: tuple[str, ...], code: int, said: str, checkout: Path, tmp_path: Path) -> None:
    folder = candidates(tmp_path / "mine", "level_1_problem_1.py")
    answer = htam(
        tmp_path,
        "bench",
        "kernelbench",
        "--checkout",
        checkout,
        "--folder",
        folder,
        "--levels",
        "1",
        "--backend",
        "cpu",
        *words,
    )
    assert (answer.returncode, "Traceback" in answer.stderr) == (code, False), answer.stderr
    assert said in answer.stderr

"""KernelBench's evaluator in a process of its own; a stand-in checkout, since the real one needs a CUDA device."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import pytest

from artifacts.errors import BadInputError, UnavailableError
from artifacts.task import kernelbench_task
from optimizer.tasks import Task
from pipeline.bench.crosscheck import CrossCheck
from pipeline.bench.kernelbench import Problem, Sample

EVALUATOR = """
import os
from dotenv import load_dotenv
from openai import OpenAI
from pydantic import BaseModel
{helper}


class KernelExecResult(BaseModel):
    compiled: bool = False
    correctness: bool = False
    metadata: dict = {{}}
    runtime: float = -1.0


def eval_kernel_against_ref(original_model_src, custom_model_src, num_correct_trials=1, num_perf_trials=10,
                            measure_performance=False, build_dir=None, device=None{more}):
    print("noise on stdout")
    if "crash" in custom_model_src:
        os._exit(7)
    if "locked" in custom_model_src:
        return None
    right = "right" in custom_model_src
    return KernelExecResult(compiled=True, correctness=right, runtime=0.25 if right else -1.0,
                            metadata={{"max_difference": ["0.3"]}})
"""


def checkout(folder: Path, *, old: bool = False) -> Path:
    package = folder / "src" if old else folder / "src" / "kernelbench"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "utils.py").write_text("from google import generativeai\nimport together\n")
    text = EVALUATOR.format(helper="from . import utils", more="" if old else ', backend="cuda", precision=None')
    (package / "eval.py").write_text(text)
    return folder


def sample(source: str, number: int = 0) -> Sample:
    task = Task(ref=kernelbench_task(1, "19_ReLU.py"), source="class Model: ...", path="19_ReLU.py")
    return Sample(problem=Problem(level=1, number=19, task=task), number=number, source=source)


def test_what_is_no_verdict_is_told_from_others_and_a_verdict_is_asked_for_once(tmp_path: Path) -> None:
    check = CrossCheck(checkout=checkout(tmp_path / "kb"), path=tmp_path / "verdicts.jsonl")
    right, locked, crash = check.verdicts([sample("right"), sample("locked", 1), sample("crash", 2)]).values()
    assert (right.correct, right.time_us) == (True, 250.0)
    assert locked.correct is None
    assert (crash.correct, "ended with 7" in crash.error) == (None, True)
    with check.path.open("a") as file:
        file.write('{"key": "cut in the mid')  # a process that was killed as it wrote
    asked: list[str] = []
    both = [sample("right"), sample("wrong", 3)]
    _, wrong = check.verdicts(both, listener=lambda one, _: asked.append(one.source)).values()
    assert (wrong.correct, wrong.error) == (False, "max_difference: ['0.3']")
    assert asked == ["wrong"]
    assert len(check.verdicts(both, deadline=time.monotonic())) == 2


def test_the_older_layout_of_the_benchmark_gives_its_verdict(tmp_path: Path) -> None:
    check = CrossCheck(checkout=checkout(tmp_path / "kb", old=True), path=tmp_path / "verdicts.jsonl")
    (right,) = check.verdicts([sample("right")]).values()
    assert (right.correct, right.time_us) == (True, 250.0)


def test_nothing_is_asked_after_the_deadline(tmp_path: Path) -> None:
    check = CrossCheck(checkout=checkout(tmp_path / "kb"), path=tmp_path / "verdicts.jsonl")
    assert check.verdicts([sample("right")], deadline=time.monotonic()) == {}


def test_a_host_without_a_cuda_device_is_told_before_anything_is_evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.bench.crosscheck.nvidia_devices", lambda: ())
    check = CrossCheck(checkout=checkout(tmp_path / "kb"), path=tmp_path / "verdicts.jsonl")
    with pytest.raises(UnavailableError, match="needs a CUDA device"):
        check.require()


def test_a_checkout_without_an_evaluator_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="has no evaluator"):
        CrossCheck(checkout=tmp_path, path=tmp_path / "verdicts.jsonl").require()


def test_the_benchmark_of_speed_asks_the_same_evaluator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(Path(__file__).parents[3] / "benchmarks"), *sys.path])
    from published_speed import PublishedCandidate, kernelbench, show
    from published_tasks import Results
    from published_tasks import Task as PublishedTask

    task = PublishedTask(level=1, problem=19, name="1/19_ReLU", source="class Model: ...")
    candidates = [PublishedCandidate(name, task, name, "cuda") for name in ("right", "wrong", "locked")]
    options = argparse.Namespace(checkout=checkout(tmp_path / "kb"), kernelbench_timeout_s=60.0)
    results = Results(tmp_path / "rows.jsonl", show)
    summary = kernelbench(candidates, options, results, time.monotonic() + 300)
    assert [row["outcome"] for row in results.rows] == ["correct", "not correct", "no verdict"]
    assert (summary["verdicts"], results.rows[0]["median_us"]) == (3, 250.0)

"""A kernel walked backwards with recorded answers, on the CPU."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from artifacts.candidate import Candidate, Language
from artifacts.device import device_spec
from artifacts.features.techniques import ABOUT, Technique
from optimizer.evaluation.job import EvaluationSettings
from optimizer.llm.cassette import Cassette
from optimizer.llm.protocol import LlmAnswer
from optimizer.prompting.request import PromptSettings, build_simplification
from optimizer.run.opening import in_words
from optimizer.tasks import load_task

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples" / "lineage" / "row_softmax"
TASK = ROOT / "examples" / "tasks" / "cpu" / "row_softmax.py"


def recorded(path: Path) -> None:
    """Answers for the first removal, and one without code for the second."""
    task = load_task(TASK)
    settings = PromptSettings(model="m", language=Language.CPP, device=in_words(device_spec("cpu")))
    expert, simpler = (Candidate((FOLDER / name).read_text()).source for name in ("expert.py", "library_exp.py"))
    told = (
        (expert, Technique.POLYNOMIAL, f"PLAN: The library's exp again.\n```python\n{simpler}\n```"),
        (simpler, Technique.SIMD, "I would rather not."),
    )
    cassette = Cassette(path, writable=True)
    for number, (source, removed, text) in enumerate(told):
        request = build_simplification(
            task.ref.task_id, task.source, source, ABOUT[removed].meaning, f"lineage.{number}", settings
        )
        cassette.append(request, LlmAnswer(text=text, model="m"))
    cassette.close()


def test_versions_become_measured_steps_from_the_simplest_up(tmp_path: Path) -> None:
    from builder.build import BuildSettings, describe, gathered, read
    from pipeline.lineage import walk_back

    recorded(tmp_path / "answers.jsonl")
    quick = EvaluationSettings(seeds=2, min_samples=10, max_samples=10, budget_s=0.1, baselines=())
    said = walk_back(
        FOLDER / "expert.py", TASK, f"replay:{tmp_path / 'answers.jsonl'}", tmp_path / "run", "cpu", 2, quick
    )
    assert "without polynomial" in said
    assert "not taken, without simd" in said
    settings = BuildSettings(name="m", model="hashing", cache=tmp_path / "cache")
    (step,) = [
        row
        for row in gathered([describe(shard, settings) for shard in read([tmp_path / "run"])]).table.to_pylist()
        if row["reward"] is not None
    ]
    assert "+polynomial" in step["moves"].split()
    ratio = step["parent_us"] / step["child_us"]
    assert step["reward"] == pytest.approx(math.log2(ratio))

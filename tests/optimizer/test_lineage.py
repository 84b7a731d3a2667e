"""A kernel walked backwards with the answers of a command, on the CPU."""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path

import pytest

from artifacts.candidate import Candidate, Language
from artifacts.codec import decode
from artifacts.features.techniques import Technique
from artifacts.measurement import Measurement, Outcome, Timing
from artifacts.run_events import LoggedStep
from artifacts.runlog import RunLog
from optimizer.evaluation.job import EvaluationSettings
from optimizer.lineage import Version, write_lineage
from optimizer.prompting.request import PromptSettings
from optimizer.tasks import load_task

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples" / "lineage" / "row_softmax"
TASK = ROOT / "examples" / "tasks" / "cpu" / "row_softmax.py"


MODEL = """
import pathlib, sys
first = min(pathlib.Path(sys.argv[1]).glob("*.txt"))
print(first.read_text())
first.unlink()
"""


def model(folder: Path) -> str:
    """A command that answers the first removal, and the second without code."""
    simpler = Candidate((FOLDER / "library_exp.py").read_text()).source
    for number, text in enumerate(
        (f"PLAN: The library's exp again.\n```python\n{simpler}\n```", "I would rather not.")
    ):
        (folder / f"{number}.txt").write_text(text)
    (folder / "model.py").write_text(MODEL)
    return f"command:{sys.executable} {folder / 'model.py'} {folder}"


def test_versions_become_measured_steps_from_the_simplest_up(tmp_path: Path) -> None:
    from builder.build import BuildSettings, describe, gathered, read
    from pipeline.lineage import walk_back

    quick = EvaluationSettings(seeds=2, min_samples=10, max_samples=10, budget_s=0.1, baselines=())
    said = walk_back(FOLDER / "expert.py", TASK, model(tmp_path), tmp_path / "run", "cpu", 2, quick)
    assert re.search(r"without polynomial: .+, [\d.]+ times the version before", said)
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


def test_notes_go_where_the_time_goes_that_they_are_about(tmp_path: Path) -> None:
    def measured(us: float, note: str, before: float | None = None) -> Measurement:
        timing = Timing(median_us=us, low_us=us, high_us=us)
        incumbent = None if before is None else Timing(median_us=before, low_us=before, high_us=before)
        return Measurement(
            outcome=Outcome.CORRECT, stage="timing", device="cpu", timing=timing, incumbent=incumbent, notes=(note,)
        )

    expert = Version(source="int a;", removed=None, measurement=measured(1.0, "the expert alone"))
    simpler = Version(source="int b;", removed=Technique.SIMD, measurement=measured(2.0, "without simd", 1.1))
    simplest = Version(source="int c;", removed=Technique.THREADS, measurement=measured(4.0, "without threads", 2.1))
    log = RunLog.create(tmp_path / "run", {})
    prompt = PromptSettings(model="m", language=Language.CPP, device="cpu")
    write_lineage(log, load_task(TASK), [(expert,), (simpler,), (simplest,)], "cpu", prompt)
    log.close()
    steps = [decode(LoggedStep, event.payload) for event in log.events() if event.kind == "step"]
    told = [(step.measurement.timing.median_us, step.measurement.notes) for step in steps]  # type: ignore[union-attr]
    assert told == [(4.0, ("without threads",)), (2.1, ("without threads",)), (1.1, ("without simd",))]

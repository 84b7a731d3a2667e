"""No number of a log, however absurd, makes a figure infinite anywhere between the reader and what people see."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from artifacts.codec import encode
from artifacts.errors import BadInputError
from artifacts.memory.export import export_lines
from artifacts.memory.htg import Memory
from artifacts.memory.manifest import Manifest
from artifacts.memory.records import Direction
from builder.cluster.record import NOTHING_YET, Labels, StrategyNode
from builder.describe.logs import Corpus, describe_log, gather
from builder.link.assemble import assemble
from builder.read.reading import discover, read
from pipeline.memory_text import shown
from pipeline.report.memory_page import memory_page

KERNEL = "__global__ void k{}(float* x) {{ x[threadIdx.x] = {}; }}"
hostile = st.one_of(
    st.sampled_from(
        [1e-320, 5e-324, 1e-3, 0.099, 0.0, -1.0, 3.7e9, 1e308, "1e999", "NaN", "-Infinity", math.inf, math.nan, 9**400]
    ),
    st.floats(),
    st.floats(min_value=0.1, max_value=3.6e9),
)


def written(folder: Path, times: list[object], other: object) -> Path:
    """A log of three tasks, each a chain of kernels, with the hostile numbers in it."""
    rows = [
        {
            "traj_id": f"t{number % 3}",
            "suite": "kernelbench",
            "task_id": f"{number % 3}_softmax",
            "level": 1,
            "step": number // 3,
            "parent_step": number // 3 - 1 if number >= 3 else None,
            "strategy": "tile",
            "code": KERNEL.format(number, number),
            "compiled": True,
            "correct": True,
            "runtime_us": times[number] if number < len(times) else 100.0 + number,
            "baseline_us": other if number == 4 else 100.0,
            "profiler": {"fraction_of_bound": other, "duration_ns": other, "dram_pct": other},
            "device": "H100",
        }
        for number in range(12)
    ]
    path = folder / "hostile.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def mined(corpus: Corpus) -> Memory:
    """The memory of a corpus whose steps are all of one strategy."""
    rows = corpus.table.num_rows
    direction = Direction(direction_id="d", name="d", description="", effect=NOTHING_YET)
    strategy = StrategyNode(strategy_id="s", direction_id="d", name="s", description="")
    labels = Labels(
        direction_ids=["d"] * rows, strategy_ids=["s"] * rows, directions=(direction,), strategies=(strategy,)
    )
    return assemble(corpus.table, labels, Manifest(name="hostile"))


def refuse(word: str) -> float:
    raise AssertionError(f"{word} is no JSON")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(times=st.lists(hostile, min_size=1, max_size=12), other=hostile)
def test_hostile_numbers_never_reach_an_effect_a_page_or_json(
    tmp_path: Path, times: list[object], other: object
) -> None:
    (log,) = discover([written(tmp_path, times, other)])
    assert read(log).records == 12
    described = describe_log(log)
    try:
        memory = mined(gather([described]))
    except BadInputError:
        return  # nothing was left to learn from
    for node in (*memory.directions, *memory.strategies):
        effect = node.effect
        assert -4.1 <= effect.mean <= 4.1
        assert effect.low <= effect.mean <= effect.high < 60
    assert not [value for value in memory.expectation.terms if not math.isfinite(value[1])]
    for text in (shown(memory, None, True), shown(memory, "s", True), *export_lines(memory)):
        json.loads(text, parse_constant=refuse)
    page = memory_page(memory)
    assert "Infinity" not in page
    assert "NaN" not in page
    assert shown(memory, "s", False)


def test_numbers_that_json_has_no_word_for_become_null() -> None:
    assert encode({"a": [math.nan, math.inf, 1.0]}) == {"a": [None, None, 1.0]}


@pytest.mark.parametrize("time", [1e-320, 0.05, 3.7e9])
def test_a_time_that_no_device_takes_is_quarantined_with_its_reason(tmp_path: Path, time: float) -> None:
    (log,) = discover([written(tmp_path, [time], 100.0)])
    (entry,) = describe_log(log).quarantined
    assert entry.line == 1
    assert "no measurement" in entry.reason

"""Which sources a memory keeps for others to adapt."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from artifacts.candidate import Language
from artifacts.measurement import Outcome
from artifacts.memory.records import LONGEST_KERNEL, Transition
from artifacts.memory.tables import transition_rows
from artifacts.task import TaskRef
from artifacts.trajectory import Provenance, Step, Trajectory, TrustFlag
from builder.describe.raw_transitions import fastest_kernels, raw_transitions
from builder.describe.steps import describe

READ = Provenance(format="x", importer_version=1, file="f", file_sha256="0" * 64)
KERNEL = "import triton\nimport triton.language as tl\n@triton.jit\ndef kernel(x):\n    tl.store(x, {})\n"
TORCH = "import torch\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return x + {}\n"


def step(name: str, time_us: float, code: str, parent: str | None = "root", **changed: object) -> Step:
    return replace(
        Step(
            step_id=name,
            parent_id=parent,
            index=0 if parent is None else 1,
            code=code,
            language=Language.TRITON,
            outcome=Outcome.CORRECT,
            provenance=READ,
            runtime_us=time_us,
            baseline_us=100.0,
        ),
        **changed,
    )


def trajectory(*steps: Step, root: str = KERNEL.format("first")) -> Trajectory:
    return Trajectory(
        trajectory_id="run",
        source="log",
        task=TaskRef(task_id="s/1", suite="s", family="matmul"),
        device="h100",
        llm="",
        steps=(step("root", 90.0, root, None), *steps),
        reference="the task",
    )


def kept(found: Trajectory) -> list[tuple[str, str]]:
    """Kernels of the raw transitions of a trajectory, with their references."""
    made = [raw.transition for raw in raw_transitions(found, describe(found))]
    assert not any(one.reference for one in made if not one.kernel)
    return [(one.kernel, one.reference) for one in made if one.kernel]


def test_the_fastest_verified_kernel_of_a_trajectory_is_kept_with_its_task() -> None:
    fast = KERNEL.format("fast")
    steps = (step("a", 50.0, KERNEL.format("slow")), step("b", 40.0, fast), step("c", 40.0, KERNEL.format("same")))
    assert kept(trajectory(*steps)) == [(fast, "the task")]


def test_what_failed_is_slow_is_not_trusted_or_is_too_long_is_not_kept() -> None:
    wrong = step("a", 1.0, KERNEL.format("wrong"), outcome=Outcome.WRONG_RESULT, runtime_us=None)
    slow = step("b", 120.0, KERNEL.format("slower than the baseline"))
    hack = step("c", 5.0, KERNEL.format("hack"), flags=frozenset({TrustFlag.HACK_PATTERN}))
    long = step("d", 5.0, KERNEL.format("long") + "#" * LONGEST_KERNEL)
    assert kept(trajectory(wrong, slow, hack, long)) == []


@pytest.mark.parametrize(("log_format", "shown"), [("other", False), ("htam", True)])
def test_narrower_numbers_are_shown_only_where_the_own_harness_let_them_pass(log_format: str, shown: bool) -> None:
    flags, read = frozenset({TrustFlag.PRECISION_DROPPED}), replace(READ, format=log_format)
    fast = step("a", 20.0, KERNEL.format("half"), flags=flags, provenance=read)
    honest = step("b", 50.0, KERNEL.format("float"), provenance=read)
    assert kept(trajectory(fast, honest)) == [((fast if shown else honest).code, "the task")]


def test_a_kernel_that_lost_its_trust_to_another_log_makes_way_for_the_next() -> None:
    run = trajectory(step("a", 50.0, KERNEL.format("x")))
    made = next(iter(raw_transitions(run, describe(run)))).transition
    repeated, sound = replace(_row(made, 0, 0, 0, 5, True), weight=0.35), _row(made, 1, 0, 0, 1, True)
    assert [row for row in fastest_kernels(transition_rows([repeated, sound]))["kernel"].to_pylist() if row] == [
        "kernel 1"
    ]


def test_what_leaves_its_work_to_torch_is_no_kernel() -> None:
    assert kept(trajectory(step("a", 5.0, TORCH.format(2)), root=TORCH.format(1))) == []


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1), st.integers(1, 5), st.booleans()), max_size=12))
def test_one_kernel_is_left_for_each_task_the_fastest(rows: list[tuple[int, int, int, bool]]) -> None:
    run = trajectory(step("a", 50.0, KERNEL.format("x")))
    made = next(iter(raw_transitions(run, describe(run)))).transition
    table = fastest_kernels(transition_rows([_row(made, number, *row) for number, row in enumerate(rows)]))
    left = {(row["task_id"], row["source"]): row["reward"] for row in table.to_pylist() if row["kernel"]}
    offered: dict[tuple[str, str], float] = {}
    for task, source, gain, offers in rows:
        if offers:
            key = (f"s/{task}", f"log{source}")
            offered[key] = max(offered.get(key, 0.0), float(gain))
    assert left == offered
    assert sum(bool(row["kernel"]) for row in table.to_pylist()) == len(offered)
    assert all(bool(row["kernel"]) == bool(row["reference"]) for row in table.to_pylist())


def _row(made: Transition, number: int, task: int, source: int, gain: int, offers: bool) -> Transition:
    return replace(
        made,
        transition_id=f"t/{number:03d}",
        task=replace(made.task, task_id=f"s/{task}"),
        source=f"log{source}",
        reward=float(gain),
        kernel=f"kernel {number}" if offers else "",
        reference="the task" if offers else "",
    )

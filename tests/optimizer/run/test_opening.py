"""What a run's manifest becomes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from artifacts.device import device_spec
from artifacts.memory.htg import Memory
from artifacts.memory.tables import transition_rows
from artifacts.task import TaskRef
from optimizer.run.opening import in_words, without_own

NORMS = ("kernelbench/1/36_rmsnorm", "cuda/-/rms_norm", "cuda/-/layer_norm", "cuda/-/gemm")


def test_a_known_device_is_named_with_its_ceilings() -> None:
    text = in_words(device_spec("NVIDIA H200"))
    for words in ("h200 (sm_90", "4800 GB/s", "67 in float32", "990 in half precision", "50 MiB of L2"):
        assert words in text


def test_a_device_without_tensor_cores_is_not_said_to_have_them() -> None:
    assert "TF32" not in in_words(device_spec("V100"))


def test_of_an_unknown_device_only_the_name_is_told() -> None:
    assert in_words(device_spec("cpu")) == "cpu"
    assert in_words(device_spec("Own Chip 7")) == "own chip 7"


@pytest.mark.parametrize(
    ("leave_out", "left"),
    [
        ("none", {"kernelbench/1/36_rmsnorm", "cuda/-/rms_norm", "cuda/-/layer_norm", "cuda/-/gemm"}),
        ("task", {"cuda/-/layer_norm", "cuda/-/gemm"}),
        ("family", {"cuda/-/gemm"}),
    ],
)
def test_a_run_forgets_its_operators_under_every_id(leave_out: str, left: set[str], memory: Memory) -> None:
    families = {"kernelbench/1/36_rmsnorm": "other", "cuda/-/gemm": "matmul"}
    known = [
        replace(row, task=replace(row.task, task_id=task), state=replace(row.state, family=family))
        for row, task in zip(memory.transitions(), NORMS, strict=False)
        for family in [families.get(task, "normalization")]
    ]
    own = TaskRef(task_id="mine/-/rmsnorm", suite="mine", family="normalization")
    kept = without_own(replace(memory, table=transition_rows(known)), [own], leave_out)
    assert set(kept.table["task_id"].to_pylist()) == left

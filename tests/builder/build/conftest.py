"""Run directories written for these tests: three tasks, two parents each, four siblings a parent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from artifacts.candidate import Language
from artifacts.codec import encode
from artifacts.measurement import Measurement, Outcome, Timing
from artifacts.run_events import LoggedStep, TaskStarted
from artifacts.runlog import RunLog
from artifacts.task import kernelbench_task
from artifacts.trajectory import State

REFERENCE = (
    "import torch\n\n\nclass Model(torch.nn.Module):\n    def forward(self, x):\n        return torch.softmax(x, 1)\n"
)
PLANS = {
    "Use float4 vectorized loads for coalesced global memory access": (60.0, "float4 v = ((float4*)x)[i];"),
    "Stage the tile in shared memory for data reuse": (80.0, "__shared__ float tile[256]; tile[threadIdx.x] = x[i];"),
    "Unroll the inner loop": (120.0, "#pragma unroll 4"),
    "Fuse the two kernels into one": (None, "fused(;"),
}


def kernel(line: str, number: int) -> str:
    """A CUDA candidate that holds ``line``; ``number`` makes sources differ."""
    body = f"""
__global__ void kernel_{number}(const float* x, float* y, int n) {{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int round_{number} = {number};
    {line}
    if (i < n) y[i] = x[i] * 2.0f;
}}
"""
    head = "import torch\nfrom torch.utils.cpp_extension import load_inline\n"
    return f'{head}SOURCE = """{body}"""\n\n\nclass ModelNew(torch.nn.Module):\n    pass\n'


def measured(time: float | None) -> Measurement:
    """A correct measurement of ``time`` µs, or a failed build when it is None."""
    if time is None:
        return Measurement(
            outcome=Outcome.COMPILE_ERROR, stage="build", device="NVIDIA A100", error="error: expected ')'"
        )
    timing = Timing(median_us=time, low_us=time, high_us=time)
    eager = Timing(median_us=100.0, low_us=100.0, high_us=100.0)
    return Measurement(
        outcome=Outcome.CORRECT, stage="timing", device="NVIDIA A100", timing=timing, baselines={"eager_fp32": eager}
    )


def write_run(root: Path, name: str, problem: str) -> Path:
    """A run directory of one task."""
    task = kernelbench_task(1, problem)
    with RunLog.create(root / name, {"run_id": name, "device": "NVIDIA A100", "model": "m"}) as log:
        reference = log.add_candidate(REFERENCE)
        log.append("task_started", encode(TaskStarted(task=task, source_sha256=reference, path="t.py")), key="t")
        parents: list[tuple[str | None, str]] = [(None, "")]
        for step in range(3):
            parent, parent_sha = parents[-1]
            for candidate, (plan, (time, line)) in enumerate(PLANS.items()):
                sha = log.add_candidate(kernel(line, 10 * step + candidate))
                factor = 0.9**step * (1 + 0.01 * len(problem))
                step_id = f"{step}.{candidate}"
                logged = LoggedStep(
                    task_id=task.task_id,
                    step_id=step_id,
                    parent_id=parent,
                    index=step,
                    mode="optimize",
                    candidate_sha256=sha,
                    parent_sha256=parent_sha,
                    direction="memory_access",
                    choice_probability=0.5,
                    strategies=(),
                    plan=plan,
                    state=State(family=task.family, arch="sm_80", language=Language.CUDA, step=step),
                    measurement=measured(None if time is None else time * factor),
                )
                log.append("step", encode(logged), key=f"{step}{candidate}")
                if candidate == 0:
                    first = (step_id, sha)
            parents.append(first)
    return root / name


@pytest.fixture
def run() -> Callable[[Path, str, str], Path]:
    """How to write a run directory."""
    return write_run


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """A folder of three runs."""
    for name, problem in (("one", "23_softmax.py"), ("two", "19_relu.py"), ("three", "47_sum_reduction.py")):
        write_run(tmp_path / "logs", name, problem)
    return tmp_path / "logs"

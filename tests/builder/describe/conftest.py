from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from artifacts.candidate import Language
from artifacts.measurement import Outcome
from artifacts.task import TaskRef
from artifacts.trajectory import Provenance, Step, Trajectory

NAIVE = """
__global__ void scale(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = 2.0f * x[i];
}
"""

MakeStep = Callable[..., Step]


@pytest.fixture
def make_step() -> MakeStep:
    """Makes a step from the few fields that a test is about."""

    def make(
        step_id: str,
        parent_id: str | None = None,
        *,
        code: str = NAIVE,
        plan: str = "",
        runtime_us: float | None = None,
        outcome: Outcome = Outcome.CORRECT,
        error: str = "",
        baseline_us: float | None = None,
        ratio: float | None = None,
        language: Language = Language.CUDA,
        profile: Mapping[str, float] | None = None,
    ) -> Step:
        return Step(
            step_id=step_id,
            parent_id=parent_id,
            index=int(step_id) if step_id.isdigit() else 0,
            code=code,
            language=language,
            outcome=outcome,
            provenance=Provenance(format="test", importer_version=1, file="a.json", file_sha256="0" * 64),
            plan=plan,
            error=error,
            runtime_us=runtime_us,
            baseline_us=baseline_us,
            ratio_to_parent=ratio,
            profile=profile or {},
        )

    return make


@pytest.fixture
def make_trajectory() -> Callable[..., Trajectory]:
    def make(*steps: Step, device: str = "A800") -> Trajectory:
        task = TaskRef(task_id="kernelbench/1/1_scale", suite="kernelbench", family="elementwise", level=1)
        return Trajectory(trajectory_id="t", source="test", task=task, device=device, llm="", steps=steps)

    return make

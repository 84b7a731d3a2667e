"""What makes a recorded step less believable, found in code and figures."""

from dataclasses import replace

import pytest

from artifacts.candidate import Language
from artifacts.measurement import Outcome
from artifacts.task import kernelbench_task
from artifacts.trajectory import Provenance, Step, Trajectory, TrustFlag
from builder.read.trust import HACK_PATTERNS, flag_trajectory, hacks_in, impossible, memory_limit_us

REFERENCE = """import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.selu(x)

def get_inputs():
    return [torch.rand(4096, 65536)]

def get_init_inputs():
    return []
"""
LIMIT_US = 2 * 4096 * 65536 * 4 / 2039 / 1000
"""Read and written once on an A800 (2,039 GB/s)."""


def step(number: int, **changes: object) -> Step:
    plain = Step(
        step_id=str(number),
        parent_id=str(number - 1) if number else None,
        index=number,
        code=f"__global__ void kernel_{number}() {{}}",
        language=Language.CUDA,
        outcome=Outcome.CORRECT,
        provenance=Provenance(format="test", importer_version=1, file="log", file_sha256="0"),
        runtime_us=2 * LIMIT_US,
    )
    return replace(plain, **changes)


def trajectory(*steps: Step, reference: str = REFERENCE, device: str = "A800", task: str = "27_SELU") -> Trajectory:
    return Trajectory(
        trajectory_id="t",
        source="test",
        task=kernelbench_task(1, task),
        device=device,
        llm="",
        steps=steps,
        reference=reference,
    )


def flags(*steps: Step, **changes: str) -> list[set[str]]:
    return [{flag.value for flag in each.flags} for each in flag_trajectory(trajectory(*steps, **changes)).steps]


HONEST = '''import torch
from torch.utils.cpp_extension import load_inline

class ModelNew(torch.nn.Module):
    """Caches nothing; the comment below is no hack."""
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(8))  # self.cache = {} would be one
        self.module = load_inline(name="k", cuda_sources=["__global__ void k() { int cache_line = 3; }"])

    def forward(self, x):
        return self.module.run(x.contiguous().data_ptr(), self.weight)
'''


def test_an_honest_step_has_no_flag():
    assert flags(step(0), step(1, code=HONEST)) == [set(), set()]


@pytest.mark.parametrize(
    ("meaning", "line"),
    [
        ("caches results", "self._cached_output = y"),
        ("caches results", "if x.data_ptr() == self.last: return self.y"),
        ("caches results", "_cache = {}"),
        ("replays a recorded graph", "graph = torch.cuda.CUDAGraph()"),
        ("changes the clock", "torch.cuda.Event = FakeEvent"),
        ("hides work in threads or processes", "import threading"),
        ("leaves work on a side stream", "s = torch.cuda.Stream()"),
        ("falls back when the kernel fails", "except RuntimeError:\n    return torch.selu(x)"),
        ("runs the reference", "class ModelNew(Model):"),
        ("looks into its caller", "frame = sys._getframe(1)"),
    ],
)
def test_each_hack_is_found_by_its_code(meaning, line):
    assert meaning in HACK_PATTERNS
    assert hacks_in(line) == (meaning,)
    assert flags(step(0), step(1, code=HONEST + line + "\n"))[1] == {"hack_pattern"}


@pytest.mark.parametrize(
    "comment", ["# self._cached_output = y", "// torch.cuda.CUDAGraph()", "/* import threading\n */"]
)
def test_a_hack_in_a_comment_is_none(comment):
    assert hacks_in("x = 1\n" + comment + "\n") == ()


def test_a_time_below_what_memory_allows_is_no_measurement():
    below = trajectory(step(0), step(1, runtime_us=0.5 * LIMIT_US))
    assert list(impossible(below)) == ["1"]
    assert "moving the bytes alone takes" in impossible(below)["1"]


def test_a_time_just_above_the_limit_is_believed():
    assert impossible(trajectory(step(0), step(1, runtime_us=1.02 * LIMIT_US))) == {}


def test_without_a_reference_the_published_size_counts_only_if_the_baseline_allows_it():
    published_us = 2 * 4096 * 393216 * 4 / 2039 / 1000
    big = (step(0, baseline_us=1.2 * published_us, runtime_us=2 * published_us), step(1, runtime_us=0.4 * published_us))
    small = (step(0, baseline_us=20.0, runtime_us=40.0), step(1, runtime_us=10.0))
    assert list(impossible(trajectory(*big, reference=""))) == ["1"]
    assert impossible(trajectory(*small, reference="")) == {}


def test_tensors_that_fit_the_cache_give_no_limit():
    tiny = REFERENCE.replace("4096, 65536", "64, 64")
    held = trajectory(step(0), reference=tiny)
    assert memory_limit_us(held) is None
    assert memory_limit_us(replace(held, reference=REFERENCE)) == pytest.approx(LIMIT_US)
    assert memory_limit_us(replace(held, reference=REFERENCE, device="some board")) is None


def test_lower_precision_than_the_reference_is_flagged_and_the_same_is_not():
    half = step(1, code=HONEST.replace("x.contiguous()", "x.half()"))
    assert flags(step(0), half)[1] == {"precision_dropped"}
    assert flags(step(0), half, reference=REFERENCE.replace("65536)", "65536, dtype=torch.float16)"))[1] == set()


@pytest.mark.parametrize("code", ["", "None", "  null\n", "NaN"])
def test_a_missing_source_is_flagged_in_every_spelling(code):
    assert flags(step(0, code=code, language=Language.TORCH)) == [{"no_code"}]


def test_code_without_a_kernel_is_flagged():
    assert flags(step(0, code="import torch\n", language=Language.TORCH)) == [{"torch_only"}]


def test_the_reference_itself_is_no_kernel_that_lacks_one():
    assert flags(step(0, code=REFERENCE, language=Language.TORCH), step(1)) == [set(), set()]


def test_a_source_seen_before_in_the_trajectory_is_flagged():
    assert flags(step(0), step(1), step(2, code=step(0).code)) == [set(), set(), {"duplicated"}]


def test_a_baseline_that_moved_is_flagged():
    steady = [step(number, baseline_us=100.0 * LIMIT_US) for number in range(3)]
    assert flags(*steady, step(3, baseline_us=130.0 * LIMIT_US))[3] == {"baseline_changed"}


def test_a_ratio_without_times_is_flagged():
    assert flags(step(0, runtime_us=None), step(1, runtime_us=None, ratio_to_parent=1.5))[1] == {"ratio_only"}


def test_flags_that_an_importer_set_are_kept():
    assert flags(step(0, flags=frozenset({TrustFlag.ONE_SEED}))) == [{"one_seed"}]

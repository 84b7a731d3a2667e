import json
from pathlib import Path

import pytest

from artifacts.candidate import Language
from artifacts.features.techniques import ABOUT, LADDERS, PLAIN, Technique, ladder_of, moves, rung, techniques
from artifacts.runlog import RunLog

ROOT = Path(__file__).resolve().parents[3]


def test_every_technique_says_what_it_is_and_stands_on_one_ladder_at_most():
    assert set(ABOUT) == set(Technique)
    rungs = [technique for ladder in LADDERS.values() for technique in ladder]
    assert len(rungs) == len(set(rungs))


def test_the_program_agrees_with_the_hand_labels_of_the_shipped_kernels():
    labels = json.loads((ROOT / "benchmarks" / "techniques_labels.json").read_text("utf-8"))["shipped"]
    logs = [RunLog.open(path) for path in ROOT.glob("examples/logs/*") if RunLog.is_run(path)]
    sources = {sha: log.candidate(sha) for log in logs for sha in log.candidates()}
    right = found = wanted = 0
    for sha, named in labels.items():
        seen = {str(technique) for technique in techniques(sources[sha])}
        right, found, wanted = right + len(seen & set(named)), found + len(seen), wanted + len(named)
    assert len(labels) >= 60
    assert right / found >= 0.95
    assert right / wanted >= 0.95


def test_launches_on_two_sides_of_a_branch_are_no_several_kernels():
    kernels = "__global__ void a(float* x) { x[0] = 1; }\n__global__ void b(float* x) { x[0] = 2; }\n"
    one = kernels + "void run(float* x, bool wide) { if (wide) { a<<<1, 32>>>(x); } else { b<<<1, 32>>>(x); } }"
    both = kernels + "void run(float* x) { a<<<1, 32>>>(x); b<<<1, 32>>>(x); }"
    assert Technique.SEVERAL_KERNELS not in techniques(one)
    assert Technique.SEVERAL_KERNELS in techniques(both)


def test_a_copy_without_overlap_is_no_pipeline():
    text = """__global__ void k(const float* x) {{
      extern __shared__ float s[];
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(0), "l"(x));
      asm volatile("cp.async.commit_group;");
      asm volatile("cp.async.wait_group {left};");
    }}"""
    assert Technique.PIPELINE not in techniques(text.format(left=0))
    assert Technique.PIPELINE in techniques(text.format(left=2))


def test_a_variable_called_half_is_no_half_precision():
    assert Technique.HALF not in techniques("__global__ void k(float* x, int half) { x[half * 2 + 1] = 0; }")
    assert Technique.HALF in techniques("__global__ void k(const half* __restrict__ x, half* __restrict__ y) { }")


def test_code_that_leaves_the_work_to_torch_has_no_technique():
    source = "import torch\nclass ModelNew(torch.nn.Module):\n    def forward(self, x):\n        return x.half() @ x"
    assert techniques(source) == frozenset()
    assert techniques("", Language.CUDA) == frozenset()


@pytest.mark.parametrize("noise", ["", "\x00", "(((((", "__global__", '"""' * 99, "for(" * 5000])
def test_garbage_has_no_technique_and_never_raises(noise):
    assert techniques(noise, Language.CUDA) == frozenset()


def test_moves_name_what_was_gained_and_lost():
    parent, child = {Technique.REGISTER_TILE, Technique.ATOMICS}, {Technique.TENSOR_MMA, Technique.ATOMICS}
    assert moves(frozenset(parent), frozenset(child)) == ("+tensor_mma", "-register_tile")


def test_a_rung_is_the_highest_one_held():
    assert rung("products", frozenset({Technique.REGISTER_TILE, Technique.TENSOR_MMA})) == "tensor_mma"
    assert rung("products", frozenset()) == PLAIN
    assert ladder_of(Technique.BULK_COPY) == "movement"
    assert ladder_of(Technique.FAST_MATH) == ""

"""Which verified kernel of a memory a prompt shows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from artifacts.candidate import Language
from artifacts.memory.htg import Memory, refreshed
from artifacts.memory.records import Transition
from artifacts.memory.tables import transition_rows
from artifacts.task import TaskRef
from artifacts.trajectory import State
from optimizer.arms import Choice, make_arm
from optimizer.arms.shuffled import shuffled
from optimizer.prompting.context import PromptContexts, Target
from optimizer.prompting.reference_kernels import ReferenceKernels
from optimizer.selection import SelectionSettings
from optimizer.tasks import Task

HERE: dict[str, Any] = {"arch": "sm_90", "language": Language.CUDA, "dtype": "float32"}
MATMUL = "import torch\ndef forward(x, y):\n    return torch.matmul(x, y)\n"
LINEAR = "import torch\ndef forward(x, w):\n    return torch.relu(torch.nn.functional.linear(x, w))\n"
CONVOLUTION = "import torch\ndef forward(x, w):\n    return torch.nn.functional.conv2d(x, w)\n"
TRANSPOSED = "import torch\ndef forward(x, w):\n    return torch.relu(torch.nn.functional.conv_transpose2d(x, w))\n"
SIGMOID = "import torch\ndef forward(x):\n    return torch.sigmoid(x)\n"
SOFTMAX = "import torch\ndef forward(x):\n    return torch.softmax(x, -1)\n"
KERNEL = '__global__ void own(float* y) {{ asm volatile("mma.sync.aligned.m16n8k8 // {}"); }}\n'


@pytest.fixture
def state(softmax_state: State) -> State:
    """Before the first candidate of a product."""
    return replace(softmax_state, **HERE, family="matmul", features=frozenset(), log2_progress=0.0)


def offer(memory: Memory, name: str, reference: str, found: float = 1.0, **change: Any) -> Transition:
    """A step that ended in a kernel for operator ``name`` whose search gained ``found``."""
    known = next(memory.transitions())
    place = {key: change.pop(key) for key in ("arch", "language", "dtype", "family") if key in change}
    before = {"log2_speedup": change.pop("speed", 1.0), "log2_progress": found - 0.5}
    fields = {
        "transition_id": f"here/{name}",
        "task": replace(known.task, task_id=f"suite/1/{name}"),
        "state": replace(known.state, **{**HERE, "family": "matmul"} | before | place),
        "reward": 0.5,
        "kernel": KERNEL.format(name),
        "reference": reference,
    }
    return replace(known, **fields | change)


def shown(memory: Memory, *offers: Transition) -> ReferenceKernels:
    return ReferenceKernels(refreshed(replace(memory, table=transition_rows(offers))), "sm_90", "cuda")


def task(source: str = MATMUL, task_id: str = "mine/-/own") -> Task:
    """A task of which the texts of the references say the same in other words."""
    return Task(ref=TaskRef(task_id=task_id, suite="mine", family="matmul"), source=f"# mine\n{source}", path="own.py")


def nearest(memory: Memory, state: State, *offers: Transition, source: str = MATMUL) -> str:
    """Name of the operator whose kernel is shown; empty for none."""
    found = shown(memory, *offers).nearest(task(source), state)
    return "" if found is None else found.operator


def test_what_is_shown_is_the_kernel_with_its_task_and_speed(memory: Memory, state: State) -> None:
    found = shown(memory, offer(memory, "product", MATMUL)).nearest(task(), state)
    assert found is not None
    assert (found.operator, found.speed, found.reference) == ("product", 1.5, MATMUL)
    assert found.source == KERNEL.format("product")


def test_an_operator_made_of_the_same_parts_is_nearest(memory: Memory, state: State) -> None:
    offers = (offer(memory, "linear", LINEAR), offer(memory, "product", MATMUL), offer(memory, "softmax", SOFTMAX))
    assert nearest(memory, state, *offers) == "product"
    assert nearest(memory, state, *offers, source=LINEAR) == "linear"


@pytest.mark.parametrize("source", [SIGMOID, SOFTMAX, CONVOLUTION], ids=["activation", "softmax", "convolution"])
def test_a_family_that_is_the_same_in_name_makes_no_kernel_alike(memory: Memory, state: State, source: str) -> None:
    fused = replace(state, family="fusion")
    assert nearest(memory, fused, offer(memory, "gated", LINEAR, 2.0, family="fusion"), source=source) == ""


def test_a_transposed_convolution_is_nearest_to_another(memory: Memory, state: State) -> None:
    offers = (offer(memory, "plain", CONVOLUTION, 1.1), offer(memory, "transposed", TRANSPOSED, 1.1))
    assert nearest(memory, state, *offers, source=TRANSPOSED.replace("relu", "tanh")) == "transposed"
    assert nearest(memory, state, *offers, source=CONVOLUTION.replace("x, w", "w, x")) == "plain"


def test_operators_on_rows_are_kin(memory: Memory, state: State) -> None:
    norm = "import torch\ndef forward(x, w):\n    return torch.nn.functional.layer_norm(x, (8,), w)\n"
    offers = (offer(memory, "norm", norm, 1.5), offer(memory, "product", MATMUL, 1.5))
    assert nearest(memory, state, *offers, source=SOFTMAX) == "norm"


def test_a_product_in_signs_is_a_product(memory: Memory, state: State) -> None:
    signs = "import torch\ndef forward(x, y):\n    return x @ y\n"
    assert nearest(memory, state, offer(memory, "product", MATMUL), source=signs) == "product"
    decorated = "import torch\nx = 1\n@torch.no_grad()\ndef forward(x):\n    return torch.softmax(x, -1)\n"
    assert nearest(memory, state, offer(memory, "product", MATMUL), source=decorated) == ""


def test_a_kernel_in_the_precision_of_the_task_goes_first(memory: Memory, state: State) -> None:
    offers = (offer(memory, "single", MATMUL, 1.5), offer(memory, "half", MATMUL, 0.5, dtype="bfloat16"))
    assert nearest(memory, replace(state, dtype="bfloat16"), *offers) == "half"
    assert nearest(memory, state, *offers) == "single"


def test_a_kernel_that_can_carry_little_is_not_worth_its_length(memory: Memory, state: State) -> None:
    assert nearest(memory, state, offer(memory, "product", MATMUL, 0.29)) == ""
    assert nearest(memory, state, offer(memory, "product", MATMUL, 0.31)) == "product"


def test_of_equals_the_one_whose_search_gained_more_is_shown(memory: Memory, state: State) -> None:
    offers = [offer(memory, name, MATMUL, found) for name, found in (("a", 0.6), ("b", 1.2), ("c", 0.9))]
    assert nearest(memory, state, *offers) == "b"


@pytest.mark.parametrize(
    "change",
    [
        {"arch": "sm_80"},
        {"language": Language.TRITON},
        {"weight": 0.1},
        {"kernel": ""},
        {"found": 0.05},
        {"speed": -2.0},
        {"family": "softmax", "reference": SOFTMAX},
    ],
    ids=["elsewhere", "other language", "not trusted", "no source", "first answer", "slow", "dissimilar"],
)
def test_what_does_not_belong_here_is_not_shown(memory: Memory, state: State, change: dict[str, Any]) -> None:
    made = offer(memory, "product", **{"reference": MATMUL} | change)
    assert nearest(memory, state, made) == ""


def test_a_candidate_that_has_the_techniques_is_not_shown_it(memory: Memory, state: State) -> None:
    offers = (offer(memory, "product", MATMUL),)
    assert nearest(memory, replace(state, features=frozenset({"shared_memory"})), *offers) == "product"
    assert nearest(memory, replace(state, features=frozenset({"shared_memory", "tensor_core_mma"})), *offers) == ""


def test_a_memory_without_kernels_shows_none(memory: Memory, state: State) -> None:
    assert shown(memory).nearest(task(), state) is None


def test_a_filter_takes_the_kernel_of_what_it_forgets(memory: Memory, state: State) -> None:
    known = refreshed(replace(memory, table=transition_rows([offer(memory, "product", MATMUL)])))
    left = known.filter(exclude_tasks=["suite/1/product"])
    assert ReferenceKernels(left, "sm_90", "cuda").nearest(task(), state) is None


@pytest.mark.parametrize("task_id", ["cuda/-/rms_norm", "kernelbench/1/36_rmsnorm", "other/2/36_3_rmsnorm"])
def test_a_kernel_of_the_same_operator_is_not_shown_under_whatever_id(
    task_id: str, memory: Memory, state: State
) -> None:
    assert shown(memory, offer(memory, "rms_norm", MATMUL)).nearest(task(task_id=task_id), state) is None


def test_a_kernel_of_the_very_reference_is_not_shown_under_another_name(memory: Memory, state: State) -> None:
    again = Task(ref=task().ref, source=MATMUL.replace("\n", "\n\n"), path="copy.py")
    assert shown(memory, offer(memory, "product", MATMUL)).nearest(again, state) is None


def test_what_the_guard_would_reject_makes_way_for_the_next(memory: Memory, state: State) -> None:
    left_to_torch = (
        "import torch\nclass ModelNew(torch.nn.Module):\n    def forward(self, x): return torch.matmul(x, x)\n"
    )
    offers = (offer(memory, "product", MATMUL, 1.4, kernel=left_to_torch), offer(memory, "other", MATMUL, 0.5))
    assert nearest(memory, state, *offers) == "other"


@pytest.mark.parametrize(("arm", "seen"), [("htam", True), ("kernel-only", True), ("experience-only", False)])
def test_arms_for_studies_show_one_part_of_the_memory(arm: str, seen: bool, memory: Memory, state: State) -> None:
    known = refreshed(replace(memory, table=transition_rows([offer(memory, "product", MATMUL)])))
    contexts = PromptContexts(make_arm(arm, known, SelectionSettings()), Target(arch="sm_90", language=Language.CUDA))
    context = contexts.of_step(task(), state, Choice(arm=arm), slot="0.0", sample=0)
    assert (context.reference_kernel is not None) is seen


def test_devices_that_nobody_knows_have_no_kernels_in_common(memory: Memory, state: State) -> None:
    known = refreshed(replace(memory, table=transition_rows([offer(memory, "product", MATMUL, arch="unknown")])))
    assert ReferenceKernels(known, "unknown", "cuda").nearest(task(), replace(state, arch="unknown")) is None


def test_a_shuffled_memory_shows_kernels_as_those_of_others(memory: Memory, state: State) -> None:
    names = [f"product_{number}" for number in range(12)]
    offers = [offer(memory, name, f"{MATMUL}# {name}") for name in names]
    silent = [offer(memory, f"silent_{number}", "", kernel="") for number in range(12)]
    mixed = shuffled(refreshed(replace(memory, table=transition_rows([*offers, *silent]))))
    rows = [row for row in mixed.table.to_pylist() if row["kernel"]]
    claimed = {row["reference"].rpartition(" ")[2]: row["kernel"] for row in rows}
    assert [row["task_id"].rpartition("/")[2] for row in rows] == list(claimed) == sorted(names)
    assert sorted(claimed.values()) == sorted(KERNEL.format(name) for name in names)
    assert sum(kernel != KERNEL.format(name) for name, kernel in claimed.items()) > len(names) // 2

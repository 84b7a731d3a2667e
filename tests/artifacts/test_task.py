from importlib import resources

import pytest
from hypothesis import given
from hypothesis import strategies as st

from artifacts.task import FAMILIES, kernelbench_task, named_task, operator_family, operator_name


@pytest.mark.parametrize(
    ("level", "name"),
    [
        (1, "23"),
        (None, "23_Softmax"),
        (None, "1_23_Softmax"),
        (1, "23_Softmax.py"),
        (None, "KernelBench/level1/23_Softmax.py"),
        (None, "KernelBench\\level1\\23_Softmax.py"),
        (None, "Softmax"),
        (None, "1_23_Softmax_test"),
    ],
)
def test_every_spelling_of_a_kernelbench_task_is_one_task(level, name):
    task = kernelbench_task(level, name)
    assert (task.task_id, task.family, task.level) == ("kernelbench/1/23_softmax", "softmax", 1)


def test_a_name_decides_before_a_number():
    assert kernelbench_task(None, "21_8_HardSigmoid").task_id == "kernelbench/1/28_hardsigmoid"


def test_a_cut_off_long_name_is_still_found():
    assert kernelbench_task(1, "72_conv_transposed_3D_asymmetric_input_asymm").task_id.startswith("kernelbench/1/72_")


def test_an_unknown_name_keeps_its_own_identity():
    assert kernelbench_task(1, "7_FlashFoo").task_id == "kernelbench/1/7_flashfoo"


def test_level_two_is_fusion_and_level_three_a_model_unless_it_is_attention_or_recurrent():
    assert kernelbench_task(2, "9").family == "fusion"
    assert kernelbench_task(3, "9").family == "model"
    assert kernelbench_task(3, "43").family == "attention"
    assert kernelbench_task(3, "39_GRU").family == "recurrent"


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("dsa_topk_indexer", "sort"),
        ("dsa_sparse_attention", "attention"),
        ("moe_fp8_block_scale", "moe"),
        ("gdn_decode", "recurrent"),
        ("gated_recurrence", "recurrent"),
        ("fused_relu_conv2d", "fusion"),
        ("LogSoftmax", "softmax"),
        ("Max_Pooling_2D", "pooling"),
        ("Argmax_over_a_dimension", "reduction"),
        ("matrix_scalar_multiplication", "elementwise"),
        ("grid_sample", "other"),
    ],
)
def test_the_family_is_read_from_the_name(name, family):
    assert operator_family(name) == family


def test_the_family_is_read_from_the_reference_when_the_name_says_nothing():
    assert operator_family("task_7", "def forward(self, x):\n    return torch.cumsum(x, 1)\n") == "scan"
    assert operator_family("task_7", "x = torch.matmul(a, b)\nreturn torch.softmax(x, 1)") == "fusion"


@given(st.sampled_from([None, 1, 2, 3, 4]), st.text(max_size=80))
def test_any_text_names_a_valid_task(level, name):
    assert kernelbench_task(level, name).family in FAMILIES
    assert named_task(name, name, level=level, source=name).family in FAMILIES


@pytest.mark.parametrize(
    "name",
    ["mnist_conv_relu_pool", "matmul_bias_relu_rowsum", "layer_norm_relu_linear", "llama_ffw", "linear_logsumexp"],
)
def test_a_heavy_operator_with_an_epilogue_is_a_fusion(name):
    assert operator_family(name) == "fusion"


@pytest.mark.parametrize("name", ["bias_gelu_residual", "swiglu", "rotary_embedding"])
def test_a_chain_of_pointwise_operators_is_elementwise_however_long(name):
    """One pass over memory: what helps it is what helps one of them, not what helps a product with an epilogue."""
    assert operator_family(name) == "elementwise"


@pytest.mark.parametrize(("name", "family"), [("depthwise_conv_2d", "convolution"), ("mnist_linear", "matmul")])
def test_a_heavy_operator_alone_is_itself(name, family):
    assert operator_family(name) == family


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("kernelbench/1/36_rmsnorm", "cuda/-/rms_norm", True),
        ("cuda/-/row_softmax", "cpu/-/row_softmax", True),
        ("kernelbench/1/23_softmax", "kernelbenchx/-/softmax", True),
        ("cuda/-/row_softmax", "cuda/-/softmax", False),
        ("cuda/-/7", "cuda/-/8", False),
    ],
)
def test_an_operator_has_one_name_in_every_suite(one, other, same):
    assert (operator_name(one) == operator_name(other)) is same


def test_every_task_of_the_suite_is_itself_under_its_own_file_name() -> None:
    table = resources.files("artifacts").joinpath("kernelbench_tasks.txt").read_text(encoding="utf-8")
    tasks = [(int(level), slug) for level, slug in (line.split()[:2] for line in table.splitlines())]
    assert len(tasks) >= 250
    for level, slug in tasks:
        wanted = f"kernelbench/{level}/{slug}"
        assert kernelbench_task(level, f"{slug}.py").task_id == wanted
        assert kernelbench_task(None, f"{level}_{slug}").task_id == wanted

"""Bytes of a task, read from its reference without running it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from artifacts.task import kernelbench_task
from artifacts.task_bytes import reference_bytes, task_bytes


def reference(body: str, head: str = "") -> str:
    return f"import torch\n{head}\n\ndef get_inputs():\n    {body}\n"


@pytest.mark.parametrize(
    ("head", "body", "inputs", "dtype"),
    [
        ("n = 4", "return [torch.rand(n, 8)]", 128, "float32"),
        ("h = w = 4", "return [torch.rand(2, h, w), torch.rand(h)]", 144, "float32"),
        ("shape = (4, 8)\nb = 2 * 2", "return [torch.randn(b, *shape).half()]", 256, "float16"),
        ("", "x = torch.rand(4, 4)\n    return [x, torch.randint(0, 2, x.shape).bool()]", 80, "float32"),
        ("", "return [torch.randint(0, 10, (8,))]", 64, "int64"),
        ("", "return [torch.ones(8, dtype=torch.bfloat16, device='cuda')]", 16, "bfloat16"),
        ("", "s = torch.rand(())\n    return [torch.rand(8) * s]", 32, "float32"),
        ("", "return [torch.randn(4, 8) for _ in range(3)]", 384, "float32"),
        ("sizes = [(4, 4), (2, 8)]", "return list(torch.randn(a, b).half() for a, b in sizes)", 64, "float16"),
        ("", "return [torch.ones(n, m) for n in range(1, 3) for m in (4, n)]", 4 * (4 + 1 + 8 + 4), "float32"),
        ("", "return [torch.rand(*(2 for _ in range(3)))]", 32, "float32"),
        ("", "a = torch.randn(4, 4)\n    return [torch.cos(a), a.T.contiguous(), 3]", 128, "float32"),
    ],
)
def test_shapes_are_read_as_people_write_them(head, body, inputs, dtype):
    found = reference_bytes(reference(body, head))
    assert found is not None
    assert (found.inputs, found.dtype) == (inputs, dtype)


@pytest.mark.parametrize(
    "body",
    [
        "return [make(3)]",
        "return [torch.rand(n)]",
        "return [torch.rand(10 ** 9)]",
        "return [torch.rand(4611686018427387904, 99)]",
        "return []",
        "return [torch.rand(-1)]",
        "return [open('/etc/passwd')]",
        "return [torch.rand(4) for _ in range(10 ** 9)]",
        "return [torch.rand(4) for _ in range(1, 2, 0)]",
        "return [torch.rand(4) for n in range(999) for m in range(999)]",
        "return [torch.rand(n) for n in (1, 2) if n > 1]",
        "return [torch.rand(4) for _ in sizes()]",
    ],
)
def test_what_cannot_be_told_is_none(body):
    assert reference_bytes(reference(body)) is None


@given(st.text(max_size=200))
def test_no_text_makes_it_raise(text):
    reference_bytes("def get_inputs():\n" + text)


def test_the_published_sizes_serve_tasks_without_a_reference():
    found = task_bytes(kernelbench_task(1, "27_SELU_"))
    assert found is not None
    assert found.inputs == 4096 * 393216 * 4
    assert found.size == "large"
    assert found.least_moved("elementwise") == 2 * found.inputs
    assert found.least_moved("reduction") == found.inputs

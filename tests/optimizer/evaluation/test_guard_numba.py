"""What Numba's compiler offers beyond loops, and ways to let others do the work around a kernel."""

import importlib.util
from pathlib import Path

import pytest

from optimizer.evaluation.guard.static import check_source
from optimizer.evaluation.sandbox.own_kernels import OwnKernels

CANDIDATES = Path(__file__).parents[2] / "exploits" / "candidates"
FILE = """
import math
import numba
import numpy as np
import torch
from numba import njit, prange
from torch import nn

TABLE = np.zeros(4)
{module}

@njit(parallel=True)
def kernel(x, y):
    {body}


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.kept = torch.zeros(4)

    def forward(self, x):
        y = torch.empty_like(x)
        {call}
        return y
"""
CALL = "kernel(x.numpy(), y.numpy())"


HELPERS = """
def through(x, place):
    kernel(x.numpy(), place.view(-1).numpy())


def again(place, x):
    through(x, place[1:])
"""


def refusals(body: str = "y[0] = x[0]", call: str = CALL, module: str = HELPERS) -> list[str]:
    source = FILE.format(body=body, call=call, module=module)
    return [finding.message for finding in check_source(source, "cpu") if finding.fatal]


@pytest.mark.parametrize(
    "body",
    [
        "for i in prange(x.size):\n        y[i] = math.exp(x[i])",
        "part = x[1:].reshape(2, 2)\n    y[:] = np.where(part > 0.0, part, np.float32(0.0)).ravel()",
        "total = numba.float64(0.0)\n    while total < 3:\n        total += 1\n    y[0] = min(total, x.shape[0])",
        "(a, b), c = (x[0], x[1]), x.dtype\n    y[0] = a if a > b else b",
    ],
)
def test_loops_and_arithmetic_are_honest(body: str) -> None:
    assert refusals(body) == []


@pytest.mark.parametrize(
    "body",
    [
        "y[:] = np.linalg.solve(x, x)",
        "y[:] = x.T.dot(x)",
        "y @= x",
        "np.random.seed(0)",
        "y[:] = (np.dot, np.add)[0](x, x)",
        "y[:] = torch.relu(x)",
        "with numba.objmode():\n        pass",
        "def inner():\n        return 1\n    y[0] = inner()",
        "import os",
        "print(x)",
        "y[:] = open('/etc/passwd')",
        "y[0] = x.ctypes.data",
        "y[0] = TABLE.__class__",
    ],
)
def test_a_kernel_uses_what_is_listed_and_nothing_else(body: str) -> None:
    assert refusals(body)


@pytest.mark.parametrize(
    "call",
    [
        "a = x.numpy()\n        kernel(a, y.numpy())",
        "kernel(x.numpy().clip(0.0), y.numpy())",
        "kernel(x.numpy(), y.numpy()) @ 2",
        "kernel(x.numpy(), TABLE)",
        "kernel(x.numpy(), self.kept.numpy())",
        "z = self.kept\n        kernel(x.numpy(), z.numpy())",
        "z = self.kept.view(4)\n        w = z[1:]\n        kernel(x.numpy(), w.numpy())",
        "through(x, self.kept)",
        "again(self.kept, x)",
        "again(place=self.kept, x=x)",
        "kernel(*(x.numpy(), y.numpy()))",
        "kernel.py_func(x, y)",
        "getattr(kernel, 'py_func')(x, y)",
        "run = kernel\n        run(x, y)",
        "list(map(kernel, [x], [y]))",
        "kernel.recompile()",
        "numba.set_num_threads(1)",
        "numba.njit(lambda a: a)(x.numpy())",
    ],
)
def test_python_calls_kernels_with_tensors_and_numbers_and_does_nothing_else_with_them(call: str) -> None:
    assert refusals(call=call)


@pytest.mark.parametrize(
    "module",
    [
        "from numba.extending import intrinsic\nintrinsic(len)",
        "from numba import cfunc\ncfunc('void()')(print)",
        "import numba.cuda\nnumba.cuda.jit(print)",
        "@njit('void()')\ndef typed():\n    pass",
        "@njit(cache=True)\ndef cached():\n    pass",
        "@njit(forceobj=True)\ndef slow():\n    pass",
        "@torch.no_grad()\n@njit\ndef twice():\n    pass",
        "def kernel(x, y):\n    y.copy_(x)",
        "compiled = njit(len)",
        "numba.config.DISABLE_JIT = True",
        "kernel = len",
    ],
)
def test_the_compiler_is_a_decorator_with_switches(module: str) -> None:
    assert refusals(module=module)


@pytest.mark.parametrize(
    "call", ["kernel(self.kept.numpy(), y.numpy())", "through(self.kept, y)", "again(y, self.kept)"]
)
def test_a_kernel_may_read_what_the_model_keeps(call: str) -> None:
    assert refusals(call=call) == []


def test_honest_candidates_of_the_suite_pass() -> None:
    files = sorted((CANDIDATES / "honest").glob("numba_*.py"))
    found = {path.name: [item for item in check_source(path.read_text(), "cpu") if item.fatal] for path in files}
    assert len(found) >= 5
    assert not any(found.values())


@pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="needs numba")
def test_calls_of_compiled_functions_are_counted_and_can_lose_their_effect() -> None:
    import torch
    from numba import njit
    from numba.core.registry import CPUDispatcher

    original = CPUDispatcher.__call__
    try:
        own = OwnKernels()

        @njit
        def doubled(x, y):
            y[:] = 2.0 * x

        x, y = torch.ones(3), torch.zeros(3)
        doubled(x.numpy(), y.numpy())
        assert (own.calls, y.tolist()) == (1, [2.0, 2.0, 2.0])
        y.zero_()
        with own.replaced(echo=False):
            doubled(x.numpy(), y.numpy())
        assert own.calls == 2
        assert y.isnan().all()
        assert x.tolist() == [1.0, 1.0, 1.0]
    finally:
        CPUDispatcher.__call__ = original

"""The static guard on Python: one rule, one test, and honest idioms that must pass."""

from __future__ import annotations

import pytest

from optimizer.evaluation.guard.static import check_source

HEAD = """
import torch
from torch import nn
from torch.utils.cpp_extension import load_inline
ext = load_inline(name="k", cpp_sources="", functions=["f"])
"""
MODEL = """
class ModelNew(nn.Module):
    def forward(self, x):
        {body}
"""


def fatal_rules(body: str = "return ext.f(x)", top: str = "") -> set[str]:
    source = HEAD + top + MODEL.format(body=body.replace("\n", "\n        "))
    return {finding.rule for finding in check_source(source, "cpu") if finding.fatal}


def test_a_plain_candidate_has_no_fatal_finding() -> None:
    assert fatal_rules() == set()


@pytest.mark.parametrize(
    ("rule", "body", "top"),
    [
        ("import", "return ext.f(x)", "import sys\nsys.exit\n"),
        ("import", "return ext.f(x)", "from torch import *\n"),
        ("builtin", "return ext.f(x)", "eval('1')\n"),
        ("builtin", "return getattr(torch, 'a' + 'b')(x)", ""),
        ("builtin", "return getattr(x, name)", ""),
        ("builtin", "return ext.f(x)", "reader = open\n"),
        ("file", "return ext.f(x)", "open('/etc/passwd')\n"),
        ("file", "return ext.f(x)", "import os\nos.listdir('.')\n"),
        ("file", "return ext.f(x)", "from pathlib import Path\nPath('a').read_text()\n"),
        ("environment", "return ext.f(x)", "import os\nos.environ['LD_PRELOAD'] = 'x'\n"),
        ("dunder", "return ext.f(x).__class__", ""),
        ("private", "return torch._C._get_tracing_state()", ""),
        ("patch", "return ext.f(x)", "torch.allclose = print\n"),
        ("patch", "return ext.f(x)", "backend = torch.backends\nbackend.cudnn.allow_tf32 = True\n"),
        ("state", "return ext.f(x)", "torch.set_num_threads(1)\n"),
        ("precision", "with torch.autocast('cpu'):\n    return ext.f(x)", ""),
        ("stream", "with torch.cuda.stream(torch.cuda.Stream()):\n    return ext.f(x)", ""),
        ("graph", "return ext.f(x)", "GRAPH = torch.cuda.CUDAGraph()\n"),
        ("timer", "return ext.f(x)", "E = torch.cuda.Event\n"),
        ("compiler", "return ext.f(x)", "fast = torch.compile(nn.ReLU())\n"),
        ("try_except", "try:\n    return ext.f(x)\nexcept RuntimeError:\n    return x", ""),
        ("try_except", "try:\n    return ext.f(x)\nfinally:\n    return x", ""),
        (
            "try_except",
            "try:\n    return ext.f(x)\nexcept RuntimeError:\n    if x.ndim:\n        return x\n    raise",
            "",
        ),
        ("import", "return ext.f(x)", "import sys\nsys.modules\n"),
        ("import", "return ext.f(x)", "import operator\noperator.matmul\n"),
        ("module", "return ext.f(x)", "import sys\nkept = [sys]\n"),
        ("precision", "with torch.autocast('cpu', enabled=True):\n    return ext.f(x)", ""),
        ("dunder", "return ext.f(x)", "class M(nn.Module):\n    def __call__(self, x):\n        return x\n"),
        ("lazy_tensor", "return ext.f(x)", "class T(torch.Tensor):\n    pass\n"),
        ("metaclass", "return ext.f(x)", "class M(nn.Module, metaclass=type):\n    pass\n"),
        ("inherited_model", "return ext.f(x)", "class M(Model):\n    pass\n"),
        ("inherited_model", "return Model()(x)", ""),
        ("fallback", "if x.shape[0] > 3:\n    return torch.relu(x)\nreturn ext.f(x)", ""),
        ("fallback", "return ext.f(x) if x.sum() > 0 else x @ x", ""),
        ("cache", "self.kept = ext.f(x)\nreturn self.kept", ""),
        ("cache", "y = ext.f(x)\nCACHE[x.shape] = y\nreturn y", "CACHE = {}\n"),
        ("cache", "y = ext.f(x)\nself.all.append(y)\nreturn y", ""),
        ("cache", "global LAST\nLAST = ext.f(x)\nreturn LAST", ""),
        ("async", "return ext.f(x)", "async def later():\n    pass\n"),
    ],
)
def test_a_forbidden_construct_is_fatal(rule: str, body: str, top: str) -> None:
    assert rule in fatal_rules(body, top)


@pytest.mark.parametrize(
    ("body", "top"),
    [
        ("return ext.f(x)", "import sys\n"),
        ("input = x.contiguous()\nreturn ext.f(input)", ""),
        ("if not x.is_contiguous():\n    x = x.contiguous()\nreturn ext.f(x)", ""),
        ("y = torch.empty_like(x)\next.f(x, y)\nreturn y", ""),
        ("if self.w is None:\n    self.w = torch.empty_like(x)\nreturn ext.f(x, self.w)", ""),
        ("self.shape = x.shape\nreturn ext.f(x)", ""),
        ("return ext.f(x.view(-1, x.size(-1))).reshape(x.shape)", ""),
        ("return ext.f(x)", "import os\nos.environ['TORCH_CUDA_ARCH_LIST'] = '9.0'\n"),
        ("return ext.f(x)", "import tempfile, os\npath = os.path.join(tempfile.mkdtemp(), 'k.cu')\n"
                            "with open(path, 'w') as file:\n    file.write('')\n"),
        ("return ext.f(x)", "try:\n    import triton\nexcept ImportError:\n    triton = None\n"),
        ("return ext.f(x)", "if __name__ == '__main__':\n    import time\n    time.time()\n"),
        ("with torch.no_grad():\n    return ext.f(x)", ""),
        ("return ext.f(x, torch.cuda.current_stream().cuda_stream)", ""),
        ("assert x.dtype == torch.float32\nreturn ext.f(x)", ""),
        ("return ext.f(x)", "def get_inputs():\n    return [torch.relu(torch.rand(3)) if True else None]\n"),
    ],
)  # fmt: skip
def test_honest_idioms_pass(body: str, top: str) -> None:
    assert fatal_rules(body, top) == set()


def test_torch_operators_outside_branches_are_noted_only() -> None:
    source = HEAD + MODEL.format(body="return ext.f(torch.matmul(x, x))")
    assert [(finding.rule, finding.fatal) for finding in check_source(source, "cpu")] == [("torch_operators", False)]


def test_a_candidate_without_any_kernel_is_refused() -> None:
    source = "from torch import nn\n" + MODEL.format(body="return x")
    assert "no_kernel" in {finding.rule for finding in check_source(source, "cpu")}


def test_text_that_is_no_python_is_left_to_the_import() -> None:
    assert check_source("def (", "cpu") == ()


def test_findings_name_their_line() -> None:
    (finding,) = check_source(HEAD + "eval('1')\n" + MODEL.format(body="return ext.f(x)"), "cpu")
    assert finding.line == 6

"""The static guard: ways around its tables, and honest code that looks like them."""

from __future__ import annotations

import pytest

from optimizer.evaluation.guard.static import check_source

HEAD = """
import torch
from torch import nn
from torch.utils.cpp_extension import load_inline
ext = load_inline(name="k", cpp_sources="", functions=["f"])
"""
END = """
class ModelNew(nn.Module):
    def forward(self, x):
        return ext.f(x)
"""


def fatal_rules(text: str) -> set[str]:
    return {finding.rule for finding in check_source(HEAD + text, "cpu") if finding.fatal}


def in_forward(body: str) -> str:
    return "class ModelNew(nn.Module):\n    def forward(self, x):\n        " + body.replace("\n", "\n        ") + "\n"


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ("file", "from os import system\nsystem('true')\n"),
        ("state", "from torch import set_num_threads as s\ns(1)\n"),
        ("state", "getattr(torch, 'set_num_threads')(1)\n"),
        ("private", "getattr(torch, '_C')\n"),
        ("state", "import math as m\ndef f():\n    import torch as m\n    m.set_num_threads(1)\n"),
        ("file", "import logging.config\nlogging.config.dictConfig({})\n"),
        ("import", "import logging\nlogging.os.system('true')\n"),
        ("import", "import torch.utils.cpp_extension as ce\nce.os.system('true')\n"),
        ("import", "import torch.utils.cpp_extension as ce\nce.torch.set_num_threads(1)\n"),
        ("import", "import enum\nenum.sys.exit()\n"),
        ("import", "import copy\ncopy.copyreg\n"),
        ("file", "import logging\nlogging.FileHandler('x')\n"),
        ("file", "import pathlib\npathlib.Path('a').open('r')\n"),
        ("patch", "[0 for torch.allclose in [1]]\n"),
    ],
)
def test_another_spelling_reaches_nothing(rule: str, text: str) -> None:
    assert rule in fatal_rules(text + END)


@pytest.mark.parametrize(
    "text",
    [
        "[torch][0].set_num_threads(1)\n",
        "def f(m):\n    m.set_num_threads(1)\nf(torch)\n",
        "[torch.cuda][0].Stream()\n",
        "(t := torch).set_num_threads(1)\n",
        "t, u = torch, 1\n",
        "import numpy as np\nf = [np][0]\n",
    ],
)
def test_a_module_is_not_handed_about(text: str) -> None:
    assert fatal_rules(text + END) == {"module"}


@pytest.mark.parametrize(
    "text",
    [
        "import functools\ngetattr(nn, 'Module')\nfunctools.reduce(getattr, ['a'], nn.Module)\n",
        "def g(vars):\n    return vars\nvars(ext)\n",
        "match nn.Module:\n    case object(Softmax=f):\n        pass\n",
        in_forward("for name in ('__dict__',):\n    getattr(self, name)"),
        in_forward("getattr(self, f\"r{'egister_forward_hook'}\")"),
        in_forward("for name in ('first',):\n    name = '__dict__'\n    getattr(self, name)"),
    ],
)
def test_no_attribute_is_read_by_a_name_that_the_guard_does_not_see(text: str) -> None:
    assert "builtin" in fatal_rules(text + END)


@pytest.mark.parametrize(
    "text",
    [
        in_forward("self.y = ext.f(x)\nreturn self.y") + "class Z:\n    def forward(self, x):\n        pass\n",
        "def jitless(f):\n    return f\nclass M:\n    @jitless\n    def forward(self, x):\n        self.y=x\n",
        "kept = []\nstore = lambda t: kept.append(t)\n" + END,
        "kept = []\n" + in_forward("(lambda t: kept.append(t))(ext.f(x))\nreturn kept[0]"),
        in_forward("for t in [x]:\n    self.y = ext.f(t)\nreturn self.y"),
        in_forward("for self.y in [ext.f(x)]:\n    pass\nreturn self.y"),
        "kept = []\n" + in_forward("[kept.append(ext.f(t)) for t in (x,)]\nreturn kept[0]"),
        in_forward("with ext.f(x) as t:\n    self.y = t\nreturn self.y"),
        in_forward("match x:\n    case t:\n        self.y = t\nreturn self.y"),
        in_forward("setattr(self, 'y', ext.f(x))\nreturn self.y"),
    ],
)  # fmt: skip
def test_results_are_followed_wherever_they_go(text: str) -> None:
    assert "cache" in fatal_rules(text)


@pytest.mark.parametrize(
    "text",
    [
        "run = lambda x: torch.relu(x) if x.shape[0] > 3 else ext.f(x)\n" + END,
        in_forward("while x.shape[0] > 3:\n    return torch.relu(x)\nreturn ext.f(x)"),
        in_forward("return x.shape[0] > 3 and torch.relu(x) or ext.f(x)"),
        in_forward("match x.shape[0]:\n    case 3:\n        return torch.relu(x)\nreturn ext.f(x)"),
        in_forward("if x.shape[0] == 3:\n    return ext.f(x)\nreturn torch.relu(x)"),
        in_forward("return {True: torch.relu, False: ext.f}[x.shape[0] > 3](x)"),
        in_forward("if x.shape[0] > 3:\n    return x.relu()\nreturn ext.f(x)"),
        "def slow(x):\n    return torch.relu(x)\n"
        + in_forward("if x.shape[0] > 3:\n    return slow(x)\nreturn ext.f(x)"),
        "class M(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.r = nn.ReLU()\n"
        "    def forward(self, x):\n        if x.shape[0]:\n            return self.r(x)\n        return ext.f(x)\n",
    ],
)
def test_a_branch_of_any_kind_holds_no_operator_of_torch(text: str) -> None:
    assert "fallback" in fatal_rules(text)


@pytest.mark.parametrize(
    "text",
    [
        "import time\nclock = time.perf_counter\n" + in_forward("return clock()"),
        "import time\n" + in_forward("return time.time()"),
        "import time\ntime.sleep(3)\n",
        "import numpy as np\nnp.load('x')\n",
        "import numpy as np\n" + in_forward("return np.exp(x)"),
        "import numpy as np\nf = lambda x: np.exp(x)\n",
        "from numpy import load\nload('x')\n",
    ],
)
def test_clocks_and_numpy_do_not_run_with_the_candidate(text: str) -> None:
    assert "import" in fatal_rules(text + END)


@pytest.mark.parametrize(
    "text",
    [
        "def f(x: \"__import__('os')\"):\n    pass\n",
        "def f(x) -> list[\"__import__('os')\"]:\n    pass\n",
        "def f(x: 'no hint'):\n    pass\neval('1')\n",
        "import typing\ntyping.get_type_hints(print)\n",
        "import functools\nfunctools.singledispatch(print)\n",
    ],
)
def test_hints_are_code(text: str) -> None:
    assert "builtin" in fatal_rules(text + END)


def test_contents_do_not_leave_torch() -> None:
    assert fatal_rules(in_forward("return x.numpy() @ x.numpy()")) == {"escape"}


@pytest.mark.parametrize("text", ["x = " + "-" * 50000 + "1\n", "x = lambda: torch" + ".a" * 30000 + "\n"])
def test_text_that_no_parser_survives_is_refused(text: str) -> None:
    assert fatal_rules(text + END) == {"nesting"}


def test_a_file_is_read_as_it_will_be_imported() -> None:
    hidden = "# coding: utf-7\n" + HEAD + "# +AAo-import os\n" + END
    assert {finding.rule for finding in check_source(hidden, "cpu")} == {"encoding"}


@pytest.mark.parametrize(
    "text",
    [
        "import time\nSTARTED = time.time()\n" + END,
        "import numpy as np\nPI = np.pi\nFACTOR = float(np.sqrt(2.0))\n" + END,
        "try:\n    import triton\nexcept ImportError:\n    triton = None\nHAS = triton is not None\n" + END,
        "from string import Template\nTEXT = Template('$a').substitute(a=1)\n" + END,
        "import re\nTEXT = re.sub('a', 'b', 'c')\n" + END,
        "import copy\n" + in_forward("copy = ext.f(x)\nreturn copy"),
        "F = torch.nn.functional\n" + in_forward("return ext.f(F.pad(x, (0, 1)))"),
        in_forward("for name in ('first', 'second'):\n    x = ext.f(x, getattr(self, name).weight)\nreturn x"),
        in_forward("for i in range(3):\n    x = ext.f(x, getattr(self, f'weight_{i}'))\nreturn x"),
        in_forward("if self.version != self.linear.weight._version:\n    self.version = self.linear.weight._version\n"
                   "return ext.f(x)"),
        in_forward("self.work.copy_(self.linear.weight)\nreturn ext.f(x, self.work)"),
        in_forward("if x.numel() == 0:\n    return torch.empty_like(x)\nreturn ext.f(torch.matmul(x, x))"),
        "from typing import Literal, Optional\ndef f(x: 'torch.Tensor', y: Optional['ModelNew'], z: Literal['a b']):\n"
        "    pass\n" + END,
        "class M(nn.Module):\n    @torch.compiler.disable\n    def forward(self, x):\n        return ext.f(x)\n",
        "TEXT = " + "'a' + " * 500 + "'b'\n" + END,
        "import operator, sys, platform\nfrom functools import reduce\nN = reduce(operator.mul, (2, 3))\n"
        "FLAGS = ['-O3'] if sys.platform != 'win32' and platform.machine() == 'x86_64' else []\n" + END,
        "try:\n    lib = load_inline(name='b')\nexcept Exception as error:\n    print(error)\n    raise\n" + END,
        in_forward("with torch.cuda.amp.autocast(enabled=False):\n    return ext.f(x)"),
    ],
)  # fmt: skip
def test_honest_code_of_the_same_kinds_passes(text: str) -> None:
    assert fatal_rules(text) == set()

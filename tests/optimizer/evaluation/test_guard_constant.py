"""A branch is a fallback where contents or sizes decide it, not where a device, a mode or a setting does."""

from __future__ import annotations

import pytest

from optimizer.evaluation.guard.static import check_source

HEAD = """
import torch
from torch import nn
from torch.utils.cpp_extension import load_inline
ext = load_inline(name="k", cpp_sources="", functions=["f"])
READY = torch.cuda.is_available()
LOG = []
"""
CLASS = """
class ModelNew(nn.Module):
    def __init__(self, dim, bias=True, log=[]):
        super().__init__()
        self.dim = dim
        self.bias = bias
        self.log = log
        self.count = 0
        self.sizes = [dim]
        self.layers = nn.ModuleList([nn.Linear(3, 3)])
        self.bn = nn.BatchNorm1d(3)
        self.ext = ext

    def forward(self, x, mask=None):
        {body}
"""


def fatal_rules(body: str, more: str = "", task: str = "") -> set[str]:
    source = HEAD + CLASS.format(body=body.replace("\n", "\n        ")) + more
    return {finding.rule for finding in check_source(source, "cuda", task) if finding.fatal}


def either(test: str, before: str = "") -> str:
    return f"{before}\nif {test}:\n    return ext.f(x)\nelse:\n    return torch.softmax(x, -1)"


@pytest.mark.parametrize(
    "test",
    [
        "x.is_cuda",
        "x.device.type == 'cuda'",
        "not x.is_cuda or x.dtype != torch.float32",
        "x.dtype in (torch.float16, torch.bfloat16)",
        "x.dim() == 3 and self.dim == 1",
        "len(x.shape) == 3",
        "self.dim == 2 or self.dim == -1",
        "self.training",
        "self.bias",
        "self.ext is not None",
        "mask is None",
        "READY",
        "torch.cuda.is_available() and torch.cuda.get_device_capability()[0] >= 8",
        "self.bn.track_running_stats",
        "len(self.layers) > 1",
        "isinstance(x, torch.Tensor)",
        "hasattr(self, 'layers')",
        "torch.is_grad_enabled()",
    ],
)
def test_what_stays_while_a_task_is_evaluated_makes_no_fallback(test: str) -> None:
    assert fatal_rules(either(test)) == set()


@pytest.mark.parametrize(
    ("test", "before"),
    [
        ("x.shape[0] == 61", ""),
        ("x.numel() > 1000", ""),
        ("x.sum() > 0", ""),
        ("x[0] > 0", ""),
        ("self.count > 4", "self.count += 1"),
        ("self.log", "self.log.append(1)"),
        ("len(self.sizes) > 3", "self.sizes.append(1)"),
        ("self.sizes", "self.sizes[0] = 0"),
        ("LOG", "LOG.append(1)"),
        ("self.bn.running_mean[0] > 0", ""),
        ("self.bn.weight.sum() > 0", ""),
        ("hasattr(self, 'seen')", "self.seen = 1"),
        ("self.kept is None", "self.kept = x.shape"),
        ("self.training", "self.train(x.shape[0] > 3)"),
        ("flag", "flag = x.sum() > 0"),
        ("x.ndim == 1", "x = torch.empty([1] * int(x.sum() > 0))"),
        ("probe.ndim == 1", "probe = torch.empty([1] * bool(x.sum()))"),
        ("y.is_cuda", "y, z = pick(x)"),
        ("x.is_cuda", "x = x.cpu() if x.sum() > 0 else x"),
        ("ORDER[0]", ""),
    ],
)
def test_what_may_change_from_call_to_call_makes_one(test: str, before: str) -> None:
    assert "fallback" in fatal_rules(either(test, before))


def test_what_is_made_of_an_input_is_where_the_input_is() -> None:
    assert fatal_rules(either("y.is_cuda and y.dim() == 2", "y = self.bn(x).flatten(1)")) == set()


def test_the_last_turn_of_a_loop_may_be_another() -> None:
    turns = """for i, layer in enumerate(self.layers):
    if i < len(self.layers) - 1:
        x = ext.f(x)
    else:
        x = torch.relu(x)
return x"""
    assert fatal_rules(turns) == set()
    assert "fallback" in fatal_rules(turns.replace("enumerate(self.layers)", "enumerate(x)"))


def test_what_follows_a_constant_branch_that_answers_is_no_fallback() -> None:
    assert fatal_rules("if x.is_cuda:\n    return ext.f(x)\nreturn torch.softmax(x, -1)") == set()
    inner = "if x.is_cuda:\n    if x.shape[0] > 3:\n        return ext.f(x)\nreturn torch.softmax(x, -1)"
    assert "fallback" in fatal_rules(inner)


def test_a_derivative_that_nobody_asks_for_may_choose() -> None:
    derivative = """
class Own(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, bias):
        return ext.f(x, bias)

    @staticmethod
    def backward(ctx, g):
        bias = ctx.saved_tensors[0]
        return g, g.sum(0) if bias is not None else None
"""
    assert fatal_rules("return Own.apply(x, None)", derivative) == set()
    assert "fallback" in fatal_rules("return Own.backward(x, x)[0]", derivative)


def test_running_statistics_that_nothing_reads_are_no_cache() -> None:
    update = "self.mean = 0.9 * self.mean + 0.1 * x\n{}return ext.f(x)"
    assert fatal_rules(update.format("")) == set()
    assert fatal_rules(update.format("if not self.training:\n    x = x - self.mean\n")) == set()
    assert "cache" in fatal_rules(update.format("x = x + self.mean\n"))
    assert "cache" in fatal_rules(update.format("x = x + list(self.buffers())[0]\n"))
    assert "cache" in fatal_rules("self.eval()\n" + update.format("if not self.training:\n    x = x - self.mean\n"))


def test_a_state_of_the_task_may_be_kept_under_its_name() -> None:
    task = (
        "class Model:\n    def forward(self, x):\n        self.hidden = x + self.hidden\n        return self.hidden\n"
    )
    keeps = "self.hidden = ext.f(x)\nreturn self.hidden"
    assert fatal_rules(keeps, task=task) == set()
    assert "cache" in fatal_rules(keeps)
    assert "cache" in fatal_rules(keeps.replace("hidden", "output"), task=task)


@pytest.mark.parametrize(
    "line",
    [
        "return ext.f(getattr(self.bn, f'weight_{1}'))",
        "return ext.f(getattr(self.layers, 'weight_ih_l' + str(0)))",
        "return ext.f(getattr(self.layers, 'bias_l%d' % 0))",
    ],
)
def test_parameters_may_be_read_by_names_put_together(line: str) -> None:
    assert fatal_rules(line) == set()


@pytest.mark.parametrize(
    "line",
    [
        "return getattr(x, f'weight_{1}')",
        "return getattr(torch, 'soft' + 'max')(x, -1)",
        "return getattr(self.bn, 'f%s' % 'orward')(x)",
        "return getattr(self.bn, 'st' + 'ate_dict')()",
        "return getattr(self.bn, '_' + 'forward_hooks')",
        "return getattr(self.bn, self.name)",
    ],
)
def test_a_name_that_may_be_any_is_refused(line: str) -> None:
    assert "builtin" in fatal_rules(line)


def test_habits_that_do_nothing_pass() -> None:
    more = """
from einops import rearrange
from torch.nn.modules.utils import _pair
import os
FOLDER = os.path.expanduser("~") if "FOLDER" not in globals() else ""


class Layer(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.size = _pair(size)
        delattr(self, "size")

    def extra_repr(self):
        return "{size}, eps={eps}".format(**self.__dict__)

    def forward(self, x):
        return ext.f(rearrange(x, "a b -> b a"))
"""
    assert fatal_rules("return ext.f(x)", more) == set()


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("return '{x.__class__}'.format(**self.__dict__)", "dunder"),
        ("return self.__dict__", "dunder"),
        ("return locals()['x']", "builtin"),
        ("delattr(torch, 'softmax')", "builtin"),
    ],
)
def test_the_same_words_for_other_ends_do_not(line: str, rule: str) -> None:
    assert rule in fatal_rules(line)


def test_a_class_of_its_own_may_be_called_model() -> None:
    base = """
class Model(nn.Module):
    pass


class Other(Model):
    def forward(self, x):
        return ext.f(x)
"""
    assert fatal_rules("return ext.f(x)", base) == set()
    assert "inherited_model" in fatal_rules("return ext.f(x)", base.replace("class Model(", "class Base("))

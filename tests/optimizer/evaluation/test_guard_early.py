"""The static guard on what runs before there are inputs, and on what only looks like it."""

from __future__ import annotations

import textwrap

import pytest

from optimizer.evaluation.guard.static import check_source

HEAD = """
import torch
from torch import nn
from torch.utils.cpp_extension import load_inline
ext = load_inline(name="k", cpp_sources="", functions=["f"])
kept = []
"""


def fatal_rules(text: str) -> set[str]:
    return {finding.rule for finding in check_source(HEAD + textwrap.dedent(text), "cpu") if finding.fatal}


@pytest.mark.parametrize(
    "text",
    [
        """
        class Holder:
            def __init__(self, x):
                kept.append(ext.f(x))
        class ModelNew(nn.Module):
            def forward(self, x):
                Holder(x)
                return kept[0]
        """,
        """
        class Holder:
            def __init__(self, x):
                kept.append(x)
        class Heir(Holder):
            pass
        class ModelNew(nn.Module):
            def forward(self, x):
                Heir(ext.f(x))
                return kept[0]
        """,
        """
        class ModelNew(nn.Module):
            def __init__(self, x=None):
                self.y = x
            def forward(self, x):
                self.__init__(ext.f(x))
                return self.y
        """,
        """
        class ModelNew(nn.Module):
            def __init__(self):
                self.keep(1)
            def keep(self, y):
                self.y = y
            def forward(self, x):
                self.keep(ext.f(x))
                return self.y
        """,
        """
        class ModelNew(nn.Module):
            def __init__(self):
                self._call_impl(1)
            def _call_impl(self, x):
                self.y = ext.f(x)
                return self.y
        """,
        """
        class ModelNew(nn.Module):
            def __init__(self):
                self.run = self.keep
            def keep(self, x):
                self.y = ext.f(x)
                return self.y
            def forward(self, x):
                return self.run(x)
        """,
        """
        class Op:
            def __call__(self, x):
                self.y = ext.f(x)
                return self.y
        op = Op()
        class ModelNew(nn.Module):
            def forward(self, x):
                return op(x)
        """,
    ],
)
def test_what_also_runs_later_keeps_nothing(text: str) -> None:
    assert "cache" in fatal_rules(text)


@pytest.mark.parametrize(
    "text",
    [
        """
        class ModelNew(nn.Module):
            def __init__(self, n):
                super().__init__()
                self.layers = self._make(n)
            def _make(self, n):
                self.width = 2 * n
                return self._one(n)
            def _one(self, n):
                self.depth = n
                return nn.Linear(n, self.width)
            def forward(self, x):
                return ext.f(x, self.layers.weight)
        """,
        """
        class Op:
            def __init__(self, f):
                self.f = f
            def __call__(self, x):
                return self.f(x)
        op = Op(ext.f)
        class ModelNew(nn.Module):
            def forward(self, x):
                return op(x)
        """,
        """
        class Tile:
            def __init__(self, x):
                self.rows = x
        class ModelNew(nn.Module):
            def forward(self, x):
                return ext.f(x, Tile(x).rows)
        """,
        """
        from torch.cuda.amp import custom_fwd
        class Apply(torch.autograd.Function):
            @staticmethod
            @custom_fwd
            def forward(ctx, x):
                return ext.f(x)
            @staticmethod
            def backward(ctx, g):
                d = None
                if ctx.needs_input_grad[0]:
                    d = g.sum(0)
                return d
        class ModelNew(nn.Module):
            def forward(self, x):
                return Apply.apply(x)
        """,
    ],
)
def test_construction_and_plain_objects_are_free(text: str) -> None:
    assert fatal_rules(text) == set()


def test_only_a_backward_function_may_ask_what_is_needed() -> None:
    text = """
    class Apply(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            if ctx.needs_input_grad[0]:
                return ext.f(x)
            return torch.relu(x)
    """
    assert "fallback" in fatal_rules(text)

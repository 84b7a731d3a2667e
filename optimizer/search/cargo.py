"""What a strategy brings along: of its recipes and templates, those that were learnt on operators like the one at hand.

A template is shown only where it fits. Three lines of somebody's attention kernel in the prompt of a convolution cost
tokens and lead astray; the name and intent of the strategy say as much.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc

from artifacts.candidate import Language
from artifacts.memory.htg import Memory
from artifacts.memory.records import Excerpt, Strategy
from optimizer.search.rote import by_rote

KIN = (
    frozenset({"reduction", "normalization", "softmax", "loss"}),
    frozenset({"convolution", "pooling"}),
    frozenset({"elementwise", "fusion"}),
)
"""Families whose kernels are built alike: rows that are reduced, windows that slide, chains of pointwise operators."""


def nearness(family: str, other: str) -> int:
    """0 for the same operator family, 1 for kin, 2 for others."""
    if family == other:
        return 0
    return 1 if any({family, other} <= group for group in KIN) else 2


_MARKS = (
    (Language.CUDA, re.compile(r"__global__|__device__|__shared__|threadIdx|blockIdx|<<<|#include <cuda")),
    (Language.TRITON, re.compile(r"\btl\.|@triton|\btriton\.")),
    (Language.CPP, re.compile(r"#pragma omp|\bat::parallel_for")),
)
"""What gives the language of a piece of code away; pieces without any mark may be in any."""

_TRITON_WORDS = re.compile(r"\btriton\b|\btl\.", re.IGNORECASE)
"""What prose about Triton says, and no other prose."""

_HOST = re.compile(r"^\s*(?:def|class|import|from) |\bself\.|\btorch\.[a-z]", re.MULTILINE)
"""What Python says; in a template for C++ it is somebody's wrapper, or the very call that is to be replaced."""


class Cargo:
    """Chooses texts of a memory's strategies for candidates in one language."""

    def __init__(self, memory: Memory, language: Language) -> None:
        self._memory = memory
        self._language = language

    def fitting(self, strategy: Strategy, family: str) -> Strategy:
        """``strategy`` with the recipe and template that fit an operator of ``family``.

        A recipe of another family is kept where there is none of its own, because prose carries over, but not one that
        speaks of Triton to somebody who writes C++, nor one that only lists features of code; a template is not, unless
        the strategy has conditions that single out where it belongs.
        """
        return replace(strategy, recipe=self._recipe(strategy, family), template=self._template(strategy, family))

    def _recipe(self, strategy: Strategy, family: str) -> str:
        known = [*self.near_first(strategy.recipes, family), *strategy.recipes]
        texts = [item.text for item in known] or [strategy.recipe]
        return next((text for text in texts if self.worth_reading(text)), "")

    def worth_reading(self, recipe: str) -> bool:
        """Whether a recipe says more than features of code, and nothing of a language that is not asked for."""
        foreign = self._language is not Language.TRITON and _TRITON_WORDS.search(recipe)
        return not foreign and not by_rote(recipe)

    def _template(self, strategy: Strategy, family: str) -> str:
        fitting = [item.text for item in self.near_first(strategy.templates, family)]
        if strategy.when or not strategy.templates:
            fitting.append(strategy.template)
        return next((text for text in fitting if self._spoken(text)), "")

    def near_first(self, items: Sequence[Excerpt], family: str) -> list[Excerpt]:
        """Excerpts from the same family, then from its kin, each in their order; none from others."""
        kin = next((group for group in KIN if family in group), frozenset({family}))
        near = [item for item in items if self._origins.get(item.transition_id, ("", ""))[0] in kin]
        return sorted(near, key=lambda item: self.origin(item)[0] != family)

    def origin(self, item: Excerpt) -> tuple[str, str]:
        """Operator family and device architecture of the transition that gave an excerpt."""
        return self._origins[item.transition_id]

    def _spoken(self, text: str) -> bool:
        spoken = next((name for name, mark in _MARKS if mark.search(text)), None)
        return spoken is self._language or (spoken is None and not _HOST.search(text))

    @cached_property
    def _origins(self) -> dict[str, tuple[str, str]]:
        """Family and architecture of each transition that gave an excerpt."""
        excerpts = [item for strategy in self._memory.strategies for item in (*strategy.recipes, *strategy.templates)]
        named = pa.array(sorted({item.transition_id for item in excerpts}), pa.string())
        table = self._memory.table.select(["transition_id", "state_family", "state_arch"])
        found = table.filter(pc.is_in(table["transition_id"].cast(pa.string()), named))
        return {row["transition_id"]: (row["state_family"], row["state_arch"]) for row in found.to_pylist()}

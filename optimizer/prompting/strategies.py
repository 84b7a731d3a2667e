"""Retrieved strategies: of their recipes and templates, those that fit the operator and the language at hand.

A template is shown only where it fits. Three lines of an attention kernel in the prompt of a convolution cost tokens
and mislead; the name and intent of the strategy say as much.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc

from artifacts.candidate import Language
from artifacts.features import FEATURES
from artifacts.memory.htg import Memory
from artifacts.memory.records import Excerpt, Strategy
from artifacts.trajectory import State
from optimizer.applicability import barred, inapplicable
from optimizer.prompting.text import brief

KIN = (
    frozenset({"reduction", "normalization", "softmax", "loss"}),
    frozenset({"convolution", "pooling"}),
    frozenset({"elementwise", "fusion"}),
)
"""Families whose kernels are built alike: rows that are reduced, windows that slide, chains of pointwise operators."""

MOST_RECIPES = 3
LEAST_GAIN = math.log2(1.05)
MOST_GAIN = math.log2(8)
"""Beyond it the kernel that was replaced teaches nothing about the one at hand."""
LONGEST_RECIPE = 400

_MARKS = (
    (Language.CUDA, re.compile(r"__global__|__device__|__shared__|threadIdx|blockIdx|<<<|#include <cuda")),
    (Language.TRITON, re.compile(r"\btl\.|@triton|\btriton\.")),
    (Language.NUMBA, re.compile(r"@(?:nb\.|numba\.)?njit|\bprange\b")),
    (Language.CPP, re.compile(r"#pragma omp|\bat::parallel_for")),
)
"""What gives the language of a piece of code away; pieces without any mark may be in any."""

_TRITON_WORDS = re.compile(r"\btriton\b|\btl\.", re.IGNORECASE)
"""What prose about Triton says, and no other prose."""

_HOST = re.compile(r"^\s*(?:def|class|import|from) |\bself\.|\btorch\.[a-z]", re.MULTILINE)
"""What Python says; in a template for C++ it is a wrapper, or the very call that is to be replaced."""

_FEATURE_LIST = re.compile(r"(?:introduce|drop|use more of) (.+)", re.IGNORECASE)
_GENERATED_PHRASE = re.compile(
    r"(?:fuse .+ into one own \w+ kernel|replace .+ by an own \w+ kernel|write an own \w+ kernel"
    r"|replace the \w+ kernel by native torch operations|rewrite the \w+ kernel in \w+|rewrite with the same features"
    r"|tune sizes and constants|resubmit the parent unchanged)",
    re.IGNORECASE,
)
_FEATURE_NAMES = frozenset(name.replace("_", " ") for name in FEATURES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What a step did that gained elsewhere; ``gain`` in log2, ``source`` is its transition."""

    name: str
    text: str
    family: str
    arch: str
    gain: float
    source: str


def nearness(family: str, other: str) -> int:
    """0 for the same operator family, 1 for kin, 2 for others."""
    if family == other:
        return 0
    return 1 if any({family, other} <= group for group in KIN) else 2


def auto_generated(recipe: str) -> bool:
    """Whether the first sentence of a recipe only lists code features.

    ``builder/describe/difference.py`` writes such recipes where a log has no plan. They serve clustering; in a prompt
    "introduce block 2d, unroll" only takes the place of a thought.
    """
    sentence = recipe.strip().split(". ")[0].rstrip(".")
    return all(_generated(part) for part in sentence.split("; "))


class StrategyTexts:
    """Chooses texts of a memory's strategies for candidates in one language."""

    def __init__(self, memory: Memory, language: Language) -> None:
        self._memory = memory
        self._language = language

    def fitting(self, strategy: Strategy, family: str) -> Strategy:
        """``strategy`` with the recipe and template that fit an operator of ``family``.

        A recipe of another family is kept where there is none of its own, because prose carries over; one about Triton
        is not shown to a model that writes C++. A template of another family is kept only where the strategy has
        conditions that single out where it belongs.
        """
        return replace(strategy, recipe=self._recipe(strategy, family), template=self._template(strategy, family))

    def readable(self, recipe: str) -> bool:
        """Whether a recipe says more than code features, and nothing of a language that is not asked for."""
        foreign = self._language is not Language.TRITON and _TRITON_WORDS.search(recipe)
        return not foreign and not auto_generated(recipe)

    def recipes_elsewhere(self, state: State) -> tuple[Recipe, ...]:
        """At most :data:`MOST_RECIPES` recipes that gained on operators of this kind, one a strategy.

        Shown when memory has no direction to give and knows nothing of the device; same operator family first, then
        same device.
        """
        found = []
        for strategy in self._memory.strategies:
            if barred(strategy.strategy_id, state) or inapplicable(strategy.direction_id, state):
                continue
            near = [self._as_recipe(strategy, item) for item in self._gaining(strategy, state)]
            found += sorted(near, key=lambda recipe: _order(recipe, state))[:1]
        return tuple(sorted(found, key=lambda recipe: _order(recipe, state))[:MOST_RECIPES])

    def _recipe(self, strategy: Strategy, family: str) -> str:
        known = [*self._near_first(strategy.recipes, family), *strategy.recipes]
        texts = [item.text for item in known] or [strategy.recipe]
        return next((text for text in texts if self.readable(text)), "")

    def _template(self, strategy: Strategy, family: str) -> str:
        fitting = [item.text for item in self._near_first(strategy.templates, family)]
        if strategy.when or not strategy.templates:
            fitting.append(strategy.template)
        return next((text for text in fitting if self._in_language(text)), "")

    def _in_language(self, code: str) -> bool:
        found = next((name for name, mark in _MARKS if mark.search(code)), None)
        return found is self._language or (found is None and not _HOST.search(code))

    def _gaining(self, strategy: Strategy, state: State) -> list[Excerpt]:
        """Recipes from the same or kin families on the same kind of device that gained a credible amount."""
        on_cpu = state.arch == "cpu"
        return [
            item
            for item in self._near_first(strategy.recipes, state.family)
            if LEAST_GAIN <= item.gain <= MOST_GAIN
            and (self._origin(item)[1] == "cpu") == on_cpu
            and self.readable(item.text)
        ]

    def _as_recipe(self, strategy: Strategy, item: Excerpt) -> Recipe:
        family, arch = self._origin(item)
        text = brief(" ".join(item.text.split()), LONGEST_RECIPE)
        source = item.transition_id
        return Recipe(name=strategy.name, text=text, family=family, arch=arch, gain=item.gain, source=source)

    def _near_first(self, items: Sequence[Excerpt], family: str) -> list[Excerpt]:
        """Excerpts from the same family, then from its kin, each in their order; none from others."""
        kin = next((group for group in KIN if family in group), frozenset({family}))
        near = [item for item in items if self._origins.get(item.transition_id, ("", ""))[0] in kin]
        return sorted(near, key=lambda item: self._origin(item)[0] != family)

    def _origin(self, item: Excerpt) -> tuple[str, str]:
        return self._origins[item.transition_id]

    @cached_property
    def _origins(self) -> dict[str, tuple[str, str]]:
        """Operator family and device architecture of each transition that gave an excerpt."""
        excerpts = [item for strategy in self._memory.strategies for item in (*strategy.recipes, *strategy.templates)]
        named = pa.array(sorted({item.transition_id for item in excerpts}), pa.string())
        table = self._memory.table.select(["transition_id", "state_family", "state_arch"])
        found = table.filter(pc.is_in(table["transition_id"].cast(pa.string()), named))
        return {row["transition_id"]: (row["state_family"], row["state_arch"]) for row in found.to_pylist()}


def _order(recipe: Recipe, state: State) -> tuple[bool, bool, float, str]:
    return recipe.family != state.family, recipe.arch != state.arch, -recipe.gain, recipe.text


def _generated(part: str) -> bool:
    found = _FEATURE_LIST.fullmatch(part)
    if found is None:
        return _GENERATED_PHRASE.fullmatch(part) is not None
    return all(name in _FEATURE_NAMES for name in found[1].split(", "))

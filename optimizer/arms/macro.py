"""A macro policy over directions in the manner of QiMeng-Kernel's macro thinking, micro coding (arXiv 2511.20100).

As published: a learned policy issues one semantic action at a time and a language model codes it. Otherwise here: the
policy is a multinomial logistic regression over the state, fitted to the memory's transitions with weights
``exp(advantage)`` (advantage-weighted cloning, offline), where the paper trains a small language model with PPO; an
action is a direction of the memory (not yet a move of its edges) without a region of the code; the memory's texts and
kernels are not shown.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from artifacts.memory.attention import saturation
from artifacts.memory.htg import Memory
from artifacts.trajectory import State
from optimizer.applicability import inapplicable
from optimizer.arms.protocol import Arm, ArmContext, Choice
from optimizer.selection import SelectionSettings

FAILED = -1.0
"""Advantage, in log2, that a step without a correct child counts for."""

FURTHEST = 2.0
"""Advantages beyond it, on either side, count for it."""

MOST_ROWS = 50_000
"""Transitions that a policy is fitted to, the last of the memory."""


@dataclass(frozen=True, slots=True)
class Policy:
    """Probabilities of directions in a state."""

    vectors: Any
    model: Any

    def probabilities(self, state: State) -> dict[str, float]:
        """Direction id → probability; sums to 1."""
        found = self.model.predict_proba(self.vectors.transform([facts_of(state)]))[0]
        return dict(zip(map(str, self.model.classes_), map(float, found), strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class MacroArm(Arm):
    """Draws a direction from the policy; ``policy`` is None where the memory knows fewer than two directions."""

    memory: Memory
    settings: SelectionSettings
    policy: Policy | None
    name: str = "macro"

    def choose(self, context: ArmContext) -> Choice:
        """Choose by the policy's probabilities among directions that make sense."""
        known = {} if self.policy is None else self.policy.probabilities(context.state)
        able = {name: chance for name, chance in known.items() if self._sensible(name, context.state)}
        fresh = {name: chance for name, chance in able.items() if name not in context.taken} or able
        if not fresh:
            return Choice(arm=self.name, gate="the policy knows no direction that makes sense here: no direction")
        chosen = context.draw("move").choices(list(fresh), list(fresh.values()))[0]
        return Choice(arm=self.name, direction=chosen, probability=fresh[chosen] / sum(fresh.values()))

    def _sensible(self, name: str, state: State) -> bool:
        masked = saturation(self.memory.direction(name), state, self.settings.attention)
        return not masked and not inapplicable(name, state)


def learned(memory: Memory) -> Policy | None:
    """The policy that the memory's transitions speak for; None when they know fewer than two directions."""
    from sklearn.feature_extraction import DictVectorizer
    from sklearn.linear_model import LogisticRegression

    advantages = memory.advantages[-MOST_ROWS:]
    start = len(memory) - len(advantages)
    recent = np.arange(len(memory)) >= start
    rows = list(memory.transitions(recent))
    known = [place for place, row in enumerate(rows) if row.direction_id]
    names = [rows[place].direction_id for place in known]
    if len(set(names)) < 2:
        return None
    values = [FAILED if math.isnan(advantages[place]) else float(advantages[place]) for place in known]
    weights = np.exp(np.clip(values, -FURTHEST, FURTHEST)) * [rows[place].weight for place in known]
    vectors = DictVectorizer()
    points = vectors.fit_transform([facts_of(rows[place].state) for place in known])
    model = LogisticRegression(max_iter=1000)
    return Policy(vectors, model.fit(points, names, sample_weight=weights))


def facts_of(state: State) -> Mapping[str, float]:
    """What the policy looks at: operator, language, limit, how near it is, last direction, techniques."""
    words = {
        f"family={state.family}",
        f"language={state.language.value}",
        f"bottleneck={state.bottleneck.value}",
        f"size={state.size}",
        f"after={state.history[-1] if state.history else ''}",
        *(f"has {feature}" for feature in state.features),
    }
    return dict.fromkeys(sorted(words), 1.0) | {"fraction": state.fraction_of_bound or 0.0}

"""A macro policy over moves in the manner of QiMeng-Kernel's macro thinking, micro coding (arXiv 2511.20100).

As published: a learned policy issues one semantic action at a time and a language model codes it. Otherwise here: the
policy is a multinomial logistic regression over the state, fitted to the memory's transitions with weights
``exp(advantage)`` (advantage-weighted cloning, offline), where the paper trains a small language model with PPO; an
action is a move that these transitions made, without a region of the code; the memory's texts and kernels are not
shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from artifacts.features.techniques import ABOUT, Technique, shown_by
from artifacts.memory.edges import applicable, sensible
from artifacts.memory.htg import Memory
from artifacts.trajectory import State
from optimizer.arms.protocol import Arm, ArmContext, Choice

FAILED = -1.0
"""Advantage, in log2, that a step without a correct child counts for."""

FURTHEST = 2.0
"""Advantages beyond it, on either side, count for it."""

MOST_ROWS = 50_000
"""Transitions that a policy is fitted to, the last of the memory."""


@dataclass(frozen=True, slots=True)
class Policy:
    """Probabilities of moves in a state."""

    vectors: Any
    model: Any

    def probabilities(self, state: State) -> dict[str, float]:
        """Move → probability; sums to 1."""
        found = self.model.predict_proba(self.vectors.transform([facts_of(state)]))[0]
        return dict(zip(map(str, self.model.classes_), map(float, found), strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class MacroArm(Arm):
    """Draws a move from the policy; ``policy`` is None where the memory's transitions made fewer than two moves."""

    policy: Policy | None
    name: str = "macro"

    def choose(self, context: ArmContext) -> Choice:
        """Choose by the policy's probabilities among moves that apply to the kernel at hand and make sense for it."""
        state = context.state
        if state.runtime_us is None:
            return Choice(arm=self.name, gate="there is no kernel yet that a move could change")
        held = shown_by(state.features)
        able = {
            move: chance
            for move, chance in ({} if self.policy is None else self.policy.probabilities(state)).items()
            if applicable(move, held, state.arch) and sensible(move, held, state.family)
        }
        fresh = {move: chance for move, chance in able.items() if move not in context.taken} or able
        if not fresh:
            return Choice(arm=self.name, gate="the policy knows no move that applies here")
        chosen = context.draw("move").choices(list(fresh), list(fresh.values()))[0]
        return Choice(
            arm=self.name,
            move=chosen,
            probability=fresh[chosen] / sum(fresh.values()),
            instructions=ABOUT[Technique(chosen[1:])].instruction,
        )


def learned(memory: Memory) -> Policy | None:
    """The policy that the memory's transitions speak for; None when they made fewer than two moves.

    Each technique that a step gained counts as a move of its own; what a step gave up is not taught.
    """
    from sklearn.feature_extraction import DictVectorizer
    from sklearn.linear_model import LogisticRegression

    timed = memory.columns.parent_timed
    timed = timed & (np.cumsum(timed[::-1])[::-1] <= MOST_ROWS)
    advantages = np.nan_to_num(memory.advantages[timed], nan=FAILED).clip(-FURTHEST, FURTHEST)
    made = [
        (move, facts_of(row.state), row.weight * worth)
        for row, worth in zip(memory.transitions(timed), np.exp(advantages), strict=True)
        for move in row.moves
        if move.startswith("+")
    ]
    if len({move for move, _, _ in made}) < 2:
        return None
    moves, points, weights = zip(*made, strict=True)
    vectors = DictVectorizer()
    model = LogisticRegression(max_iter=1000).fit(vectors.fit_transform(points), moves, sample_weight=weights)
    return Policy(vectors, model)


def facts_of(state: State) -> Mapping[str, float]:
    """What the policy looks at: operator, language, limit, how near it is, techniques."""
    words = {
        f"family={state.family}",
        f"language={state.language.value}",
        f"bottleneck={state.bottleneck.value}",
        f"size={state.size}",
        *(f"has {feature}" for feature in state.features),
    }
    return dict.fromkeys(sorted(words), 1.0) | {"fraction": state.fraction_of_bound or 0.0}

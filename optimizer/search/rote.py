"""Recipes that a program wrote from the features of two sources: labels of a change, nothing that one could follow.

``builder/describe/wording.py`` writes them where a log has no plan. They serve clustering; in a prompt "introduce block
2d, unroll" only takes the place of a thought.
"""

from __future__ import annotations

import re

from artifacts.features import FEATURES

_LIST = re.compile(r"(?:introduce|drop|use more of) (.+)", re.IGNORECASE)
_PHRASE = re.compile(
    r"(?:fuse .+ into one own \w+ kernel|replace .+ by an own \w+ kernel|write an own \w+ kernel"
    r"|replace the \w+ kernel by native torch operations|rewrite the \w+ kernel in \w+|rewrite with the same features"
    r"|tune sizes and constants|resubmit the parent unchanged)",
    re.IGNORECASE,
)
_NAMES = frozenset(name.replace("_", " ") for name in FEATURES)


def by_rote(recipe: str) -> bool:
    """Whether the first sentence of a recipe only lists features."""
    sentence = recipe.strip().split(". ")[0].rstrip(".")
    return all(_listed(part) for part in sentence.split("; "))


def _listed(part: str) -> bool:
    found = _LIST.fullmatch(part)
    if found is None:
        return _PHRASE.fullmatch(part) is not None
    return all(name in _NAMES for name in found[1].split(", "))

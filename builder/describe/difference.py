"""The difference between two sources in features, and whether it keeps what a plan promised."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from artifacts.candidate import source_hash
from artifacts.features import CodeFeatures, code_features
from builder.describe.clauses import Clause, clauses, weight_at
from builder.glossary import find_terms, terms

_TERM_FEATURES = {term.name: term.features for term in terms()}
_NUMBER = re.compile(r"\b\d+\b")
_BY_NUMBER = frozenset({"block_size", "grid_size", "tile_size", "autotune", "occupancy", "launch_bounds"})
_DROPPING = re.compile(
    r"\b(?:without|instead of|rather than|remov\w+|eliminat\w+|avoid\w*|drop\w*|no longer|not|replac\w+)"
    r"\s+[\w\s-]{0,30}$",
    re.I,
)
_DEED = 0.3
"""Weight of a clause (see ``builder.describe.clauses``) from which its terms are what the plan means to do."""

_DENIABLE = frozenset(
    {
        *(
            "shared_memory",
            "cache_blocking",
            "vector_load",
            "read_only_cache",
            "texture",
            "constant_memory",
            "restrict",
        ),
        *("async_copy", "software_pipeline", "warp_shuffle", "warp_vote", "atomics", "cooperative_groups", "grid_sync"),
        *("tensor_core_wmma", "tensor_core_mma", "tensor_core_wgmma", "triton_dot", "tf32", "library_flags"),
        *("half_precision", "bfloat16", "launch_bounds", "cuda_streams", "torch_compile"),
        *("triton_autotune", "triton_num_warps", "triton_num_stages", "torch_script", "avx", "tma"),
        *("triton_block_pointer", "omp_parallel", "omp_simd", "omp_collapse", "omp_schedule"),
    }
)
"""Features found so surely that their absence says something; the others are found by habits of naming."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Child against parent.

    Attributes:
        added, removed: features that appeared and vanished.
        more, less: features whose number of occurrences rose and fell, the added and removed among them.
        same_code: the normalised sources are equal.
        child: all features of the child.
        sources: parent and child.
    """

    added: frozenset[str]
    removed: frozenset[str]
    more: frozenset[str]
    less: frozenset[str]
    same_code: bool
    child: frozenset[str]
    sources: tuple[str, str]

    @property
    def numbers_changed(self) -> bool:
        """Whether some integer literal is new or gone; looked for when asked, since few plans are about sizes."""
        parent, child = self.sources
        return _numbers(parent) != _numbers(child)


@functools.lru_cache(maxsize=1024)
def difference(parent: str, child: str) -> Difference:
    """Compare two sources; an empty parent makes everything new."""
    before, after = code_features(parent), code_features(child)
    old, new = before.names, after.names
    return Difference(
        added=new - old,
        removed=old - new,
        more=_risen(before, after),
        less=_risen(after, before),
        same_code=parent == child or source_hash(parent) == source_hash(child),
        child=new,
        sources=(parent, child),
    )


def followed(plan: str, change: Difference) -> bool | None:
    """Whether the difference shows what ``plan`` promised.

    True when a promised feature appeared or changed its number (or, for plans about sizes, a number changed); False
    when the code is unchanged or the child has none of the promised features that are surely found where they are;
    None when the plan promises nothing that features can show, or only what was there already.
    """
    if change.same_code:
        return False
    found = find_terms(plan)
    promises = [
        _TERM_FEATURES[name] for name, starts in found.items() if _TERM_FEATURES[name] and not _dropped(plan, starts)
    ]
    if any(features & (change.more | change.less) for features in promises):
        return True
    if found.keys() & _BY_NUMBER and change.numbers_changed:
        return True
    parts = clauses(plan)
    deeds = [_TERM_FEATURES[name] for name, starts in found.items() if _is_deed(plan, parts, starts)]
    testable = [features for features in deeds if features and features <= _DENIABLE]
    if testable and not any(features & change.child for features in testable):
        return False
    return None


@functools.lru_cache(maxsize=1024)
def _numbers(code: str) -> frozenset[str]:
    return frozenset(_NUMBER.findall(code))


def _risen(before: CodeFeatures, after: CodeFeatures) -> frozenset[str]:
    return frozenset(name for name, count in after.counts.items() if count > before.counts.get(name, 0))


def _is_deed(plan: str, parts: tuple[Clause, ...], starts: tuple[int, ...]) -> bool:
    return any(weight_at(parts, start) >= _DEED for start in starts) and not _dropped(plan, starts)


def _dropped(plan: str, starts: tuple[int, ...]) -> bool:
    return all(_DROPPING.search(plan[max(0, start - 60) : start]) for start in starts)

"""The code difference of a step in features: whether it keeps what a plan promised, and a text written from it."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass

from artifacts.candidate import Language, source_hash
from artifacts.features import FEATURES, CodeFeatures, code_features, detect_language
from artifacts.features.extract import short_lines
from builder.describe.glossary import find_terms, terms
from builder.describe.plan import Clause, clauses, weight_at

_TERM_FEATURES = {term.name: term.features for term in terms()}
_NUMBER = re.compile(r"\d(?<!\w\d)\d*\b")
_BY_NUMBER = frozenset({"block_size", "grid_size", "tile_size", "autotune", "occupancy", "launch_bounds"})
_DROPPING = re.compile(
    r"\b(?:without|instead of|rather than|remov\w+|eliminat\w+|avoid\w*|drop\w*|no longer|not"
    r"|replac\w+(?!.*\b(?:by|with)\b))"  # what stands behind "by" is what comes
    r"\s+[\w\s-]{0,30}$",
    re.I,
)
_DEED = 0.3
"""Weight of a clause (see ``builder.describe.plan``) from which its terms are what the plan means to do."""

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


_MOST = 5
_TELLING = frozenset(
    {
        *("tensor_core_wmma", "tensor_core_mma", "tensor_core_wgmma", "tma", "async_copy", "double_buffering", "fp8"),
        *("online_softmax", "welford", "split_k", "persistent_kernel", "warp_specialization", "cuda_graph", "im2col"),
        *(
            "winograd_or_fft",
            "polynomial_approximation",
            "torch_compile",
            "half_precision",
            "bfloat16",
            "register_tiling",
        ),
        *("fused_epilogue", "triton_autotune", "vector_load", "warp_shuffle", "shared_memory", "cuda_streams", "avx"),
    }
)
"""Features that name a technique by themselves; they come first."""

_MINOR = frozenset(
    {
        *("boundary_check", "wide_index", "predication", "division_modulo", "no_grad", "stock_extension", "early_exit"),
        *("restrict", "library_flags", "transposed_layout", "double_precision", "in_place", "multiple_launches"),
        *("template_constants", "inline_asm", "activation_in_kernel", "library_primitives"),
    }
)
"""Features that come along with others; they are named when there is nothing else."""

_COMMENT = re.compile(
    r"//[ \t]*(.+)|/\*+\s*(.+?)\s*\*+/|^[ \t]*#(?!\s*(?:include|pragma|define|if|endif|else|undef))[ \t]*(.+)",
    re.MULTILINE,
)
_BOILERPLATE = re.compile(
    r"(?:ensure|make sure|check|calculate|compute|get|allocate|create|set ?up|define|import|handle|initiali[sz]e|load"
    r"|store|launch|return|convert|early exit|fallback|note|todo|input|output|forward|call)\b|\W",
    re.IGNORECASE,
)
_COMMENTS_READ = 60
_WIDEST = 1_000
"""Characters of a line in which a comment is looked for."""


def written(change: Difference, parent_code: str, child_code: str) -> str:
    """A strategy text from the difference, with the first telling comment that the parent lacks."""
    if change.same_code:
        return "Resubmit the parent unchanged."
    parts = [part for part in (_own_kernel(change, parent_code, child_code), *_features(change)) if part]
    if not parts and change.more - _MINOR:
        parts.append(f"Use more of {_words(change.more)}")
    if not parts:
        parts.append("Tune sizes and constants" if change.numbers_changed else "Rewrite with the same features")
    text = "; ".join(parts)
    comment = telling_comment(child_code, known=parent_code)
    return f"{text[0].upper()}{text[1:]}. {comment}" if comment else f"{text[0].upper()}{text[1:]}."


@functools.lru_cache(maxsize=1024)
def telling_comment(code: str, known: str = "") -> str:
    """First comment of ``code`` that names a term of the glossary and is not in ``known``; empty when none does.

    Comments that announce a routine act (check, allocate, launch, ...) tell nothing.
    """
    for number, match in enumerate(_COMMENT.finditer(short_lines(code[:100_000], _WIDEST))):
        words = next((group for group in match.groups() if group), "").strip(" *=-")
        fitting = 12 <= len(words) <= 240 and not _BOILERPLATE.match(words)
        if fitting and words not in known and find_terms(words):
            return words
        if number > _COMMENTS_READ:
            break
    return ""


def _own_kernel(change: Difference, parent_code: str, child_code: str) -> str:
    """What to say when torch operations gave way to kernels, or kernels to torch operations."""
    before, after = detect_language(parent_code), detect_language(child_code)
    if not parent_code.strip() or before is after:
        return ""
    gone = sorted(name for name in change.removed if name.startswith("torch_"))
    if before is Language.TORCH:
        kernel = f"own {after.value} kernel"
        if len(gone) > 1:
            return f"fuse {_words(gone)} into one {kernel}"
        return f"replace {_words(gone)} by an {kernel}" if gone else f"write an {kernel}"
    if after is Language.TORCH:
        return f"replace the {before.value} kernel by native torch operations"
    return f"rewrite the {before.value} kernel in {after.value}"


def _features(change: Difference) -> Iterable[str]:
    added = change.added - _MINOR or (change.added if not change.removed - _MINOR else frozenset())
    removed = change.removed - _MINOR or (change.removed if not added else frozenset())
    if added:
        yield f"introduce {_words(added)}"
    if removed:
        yield f"drop {_words(removed)}"


def _words(names: Iterable[str]) -> str:
    order = list(FEATURES)
    ranked = sorted(names, key=lambda name: (name in _MINOR, name not in _TELLING, order.index(name)))
    return ", ".join(name.replace("_", " ") for name in ranked[:_MOST])

"""Strategy texts written from a code difference, for steps without a plan that holds."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable

from artifacts.candidate import Language
from artifacts.features import FEATURES, detect_language
from artifacts.features.source import short_lines
from builder.describe.difference import Difference
from builder.glossary import find_terms

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

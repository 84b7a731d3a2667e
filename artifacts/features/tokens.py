"""Features that single identifiers or short patterns of C-family text give away."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Mapping

_WORD = re.compile(r"[A-Za-z_]\w*")
_WORD_END = re.compile(r"\w")
_DIGITS = "0123456789"
_BLANKED = {code: " " for code in range(128) if not (chr(code).isalnum() or chr(code) == "_")}
"""Characters of ASCII that are no part of a word."""

EXACT: Mapping[str, str] = {
    "__shared__": "shared_memory",
    "__ldg": "read_only_cache",
    "__restrict__": "restrict",
    "__restrict": "restrict",
    "__constant__": "constant_memory",
    "tex2D": "texture",
    "tex1Dfetch": "texture",
    "cudaTextureObject_t": "texture",
    "memcpy_async": "async_copy",
    "CUtensorMap": "tma",
    "cuTensorMapEncodeTiled": "tma",
    "mbarrier": "software_pipeline",
    "__launch_bounds__": "launch_bounds",
    "cooperative_groups": "cooperative_groups",
    "this_grid": "grid_sync",
    "cudaLaunchCooperativeKernel": "grid_sync",
    "wmma": "tensor_core_wmma",
    "mma_sync": "tensor_core_wmma",
    "ldmatrix": "tensor_core_mma",
    "wgmma": "tensor_core_wgmma",
    "tcgen05": "tensor_core_wgmma",
    "fmaf": "fma",
    "fma": "fma",
    "rsqrtf": "fast_math",
    "use_fast_math": "fast_math",
    "exp2f": "exp2",
    "exp2": "exp2",
    "ex2": "exp2",
    "asm": "inline_asm",
    "__asm__": "inline_asm",
    "int64_t": "wide_index",
    "size_t": "wide_index",
    "half": "half_precision",
    "__half": "half_precision",
    "__half2": "half_precision",
    "half2": "half_precision",
    "kHalf": "half_precision",
    "kFloat16": "half_precision",
    "__nv_bfloat16": "bfloat16",
    "__nv_bfloat162": "bfloat16",
    "nv_bfloat16": "bfloat16",
    "kBFloat16": "bfloat16",
    "tf32": "tf32",
    "__dp4a": "int8",
    "int8_t": "int8",
    "double": "double_precision",
    "cudaStreamCreate": "cuda_streams",
    "cudaStreamCreateWithFlags": "cuda_streams",
    "getStreamFromPool": "cuda_streams",
    "cudaGraphLaunch": "cuda_graph",
    "cutlass": "vendor_library",
    "cute": "vendor_library",
    "cub": "library_primitives",
    "thrust": "library_primitives",
    "BlockScan": "scan",
    "InclusiveSum": "scan",
    "ExclusiveSum": "scan",
    "inclusive_scan": "scan",
    "__brev": "fast_math",
    "__saturatef": "fast_math",
    "parallel_for": "omp_parallel",
    "cudaAccessPolicyWindow": "cache_hints",
    "cudaStreamAttrValue": "cache_hints",
    "tanhf": "activation_in_kernel",
    "tanh": "activation_in_kernel",
    "erff": "activation_in_kernel",
    "gelu": "activation_in_kernel",
    "relu": "activation_in_kernel",
    "sigmoid": "activation_in_kernel",
    "silu": "activation_in_kernel",
}
"""Identifier → feature."""

VECTOR_TYPES = frozenset(
    [
        "float2",
        "float4",
        "double2",
        "int2",
        "int4",
        "uint2",
        "uint4",
        "half2",
        "__half2",
        "short4",
        "char4",
        "uchar4",
        "float8",
        "longlong2",
        "ulonglong2",
    ]
)

PREFIXES: tuple[tuple[str, str], ...] = (
    ("__shfl_", "warp_shuffle"),
    ("__ballot_sync", "warp_vote"),
    ("__any_sync", "warp_vote"),
    ("__all_sync", "warp_vote"),
    ("__match_", "warp_vote"),
    ("__reduce_", "warp_vote"),
    ("__activemask", "warp_vote"),
    ("__pipeline_", "software_pipeline"),
    ("__ldc", "cache_hints"),
    ("__ldlu", "cache_hints"),
    ("__stc", "cache_hints"),
    ("__stw", "cache_hints"),
    ("__exp", "fast_math"),
    ("__log", "fast_math"),
    ("__fdivide", "fast_math"),
    ("__frcp", "fast_math"),
    ("__frsqrt", "fast_math"),
    ("__sin", "fast_math"),
    ("__cos", "fast_math"),
    ("__tanh", "fast_math"),
    ("__pow", "fast_math"),
    ("__fmaf", "fma"),
    ("__hfma", "fma"),
    ("atomic", "atomics"),
    ("__nv_fp8", "fp8"),
    ("cublas", "vendor_library"),
    ("cudnn", "vendor_library"),
    ("dnnl", "vendor_library"),
    ("_mm256_", "avx"),
    ("_mm512_", "avx"),
    ("_mm_", "avx"),
    ("__m256", "avx"),
    ("__m512", "avx"),
    ("vld1q_", "avx"),
)
"""Identifier prefix → feature."""

WORD_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), name)
    for pattern, name in (
        (r"swizzl", "swizzle"),
        (r"prefetch|^next_?(?:val|frag|tile|load|vec)|^(?:val|frag|v|x)_?next$", "prefetch"),
        (r"split_?k|^k_?splits?$|num_?splits", "split_k"),
        (r"group_?(?:size_)?m$|raster|morton|hilbert|super_?(?:tile|block)", "tile_rasterization"),
        (r"warp_?(?:role|speciali)|producer_warp|is_producer", "warp_specialization"),
        (r"tile_?counter|work_?counter|next_tile|tile_scheduler|persistent", "persistent_kernel"),
        (r"welford", "welford"),
        (r"im2col", "im2col"),
        (r"winograd|cufft", "winograd_or_fft"),
        (r"transpos|permut", "transposed_layout"),
        (r"horner|minimax|poly(?!morph)|_approx|taylor", "polynomial_approximation"),
        (r"^(?:inclusive|exclusive|block|warp)_?scan|^scan_|prefix_?sum|segmented_?scan", "scan"),
        (r"blockreduce|block_?reduce|reduce_?block", "block_reduce"),
        (r"ping_?pong|double_?buf|smem\w*_(?:a|b)[01]$|^buf(?:fer)?[01]$|_buf[01]$", "double_buffering"),
        (r"online_?softmax|m_?(?:old|prev)$|^(?:old|prev)_?(?:m|max)$|max_?(?:old|prev)$", "online_softmax"),
    )
)
"""Pattern anywhere in an identifier → feature."""

PATTERNS: tuple[tuple[str, str, re.Pattern[str], str], ...] = tuple(
    (word, text, re.compile(pattern), name)
    for word, text, pattern, name in (
        ("extern", "", r"extern\s+__shared__", "dynamic_shared_memory"),
        ("async", "", r"cp\.async(?!\.bulk)|cp_async(?!_bulk)|__pipeline_memcpy_async", "async_copy"),
        ("bulk", "", r"cp\.async\.bulk|cp_async_bulk", "tma"),
        ("async", "", r"cp\.async\.(?:wait|commit)|cp_async_(?:wait|commit)", "software_pipeline"),
        ("pipeline", "", r"cuda::pipeline|make_pipeline", "software_pipeline"),
        ("mma", "", r"\bmma\.sync|\bmma_m\d+n\d+", "tensor_core_mma"),
        ("nc", "ld.global.nc", r"ld\.global\.nc", "read_only_cache"),
        ("global", ".global.", r"(?:ld|st)\.global\.(?:cs|cg|lu|wt)", "cache_hints"),
        ("L2", "L2::", r"\.L2::|evict_(?:first|last)", "cache_hints"),
        ("unroll", "", r"#\s*pragma\s+(?:GCC\s+)?unroll", "unroll"),
        ("omp", "", r"#\s*pragma\s+omp\s+(?:[\w ]*\s)?parallel", "omp_parallel"),
        ("simd", "", r"#\s*pragma\s+omp\s[^\n]*\bsimd\b", "omp_simd"),
        ("ivdep", "", r"#\s*pragma\s+GCC\s+ivdep", "omp_simd"),
        ("collapse", "", r"#\s*pragma\s+omp\s[^\n]*\bcollapse\s*\(", "omp_collapse"),
        ("schedule", "", r"#\s*pragma\s+omp\s[^\n]*\bschedule\s*\(", "omp_schedule"),
        ("grid", "grid.sync", r"grid\.sync", "grid_sync"),
        ("long", "long long", r"long(?<!\wlong)\s+long\b", "wide_index"),
        ("", "^", r"\^\s*(?:\(\s*)?(?:row|threadIdx|tid|\w*lane|\(?\w+\s*(?:>>|/)\s*\d)", "swizzle"),
        ("threadIdx", "", r"threadIdx\.[yz]", "block_2d"),
        ("static", "", r"static\s+(?:torch::Tensor|at::Tensor|std::unordered_map)", "output_cache"),
        ("break", "", r"break(?<!\wbreak)\s*;", "early_exit"),
        ("continue", "", r"continue(?<!\wcontinue)\s*;", "early_exit"),
    )
)
"""Part of a word that must occur, text that must occur, pattern on text without comments → feature.

The first two spare most scans; empty where nothing is sure.
"""

_TORCH_CPP = tuple(re.compile(rf"{space}::(?:nn::functional::)?(\w+)\s*\(") for space in ("torch", "at"))
"""One pattern a namespace, each beginning with plain text, by which ``re`` finds the few places worth a closer look."""


def torch_calls(text: str) -> list[str]:
    """Names of the torch functions that C++ ``text`` calls."""
    found = (match for pattern in _TORCH_CPP for match in pattern.finditer(text))
    return [match[1] for match in found if not _WORD_END.match(text[match.start() - 1 : match.start()])]


def token_features(text: str) -> Counter[str]:
    """Features of comment-free C-family ``text`` by identifiers and patterns."""
    found: Counter[str] = Counter()
    words = _words(text)
    for word, count in words.items():
        for feature in _word_features(word):
            found[feature] += count
    all_words = " ".join(words)
    for word, plain, pattern, feature in PATTERNS:
        if word in all_words and plain in text:
            found[feature] += len(pattern.findall(text))
    if "__syncthreads" in words and found["warp_shuffle"] and found["shared_memory"]:
        found["block_reduce"] += 1  # warp sums meet in shared memory
    return found


def _words(text: str) -> Counter[str]:
    """How often each identifier occurs."""
    if not text.isascii():
        return Counter(_WORD.findall(text))
    # Cutting at what is no part of a word is several times faster; digits in front of a letter belong to no word.
    words = Counter(text.translate(_BLANKED).split())
    for number in [word for word in words if word[0] in _DIGITS]:
        count = words.pop(number)
        word = number.lstrip(_DIGITS)
        if word:
            words[word] += count
    return words


@functools.lru_cache(maxsize=100_000)
def _word_features(word: str) -> tuple[str, ...]:
    """Features that one identifier stands for; cached because sources share most of their words."""
    names = {feature for prefix, feature in PREFIXES if word.startswith(prefix)}
    names.update(feature for pattern, feature in WORD_PATTERNS if pattern.search(word))
    if word in EXACT:
        names.add(EXACT[word])
    if word in VECTOR_TYPES:
        names.add("vector_load")
    return tuple(sorted(names))

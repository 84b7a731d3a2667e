"""Features that single identifiers or short patterns of C-family text give away."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Mapping

_WORD = re.compile(r"[A-Za-z_]\w*")
_WORD_END = re.compile(r"\w")


def by_word(words: Mapping[str, str]) -> Mapping[str, str]:
    """Word → feature, from feature → its words separated by blanks."""
    return {word: feature for feature, listed in words.items() for word in listed.split()}


EXACT = by_word(
    {
        "shared_memory": "__shared__",
        "read_only_cache": "__ldg",
        "restrict": "__restrict__ __restrict",
        "constant_memory": "__constant__",
        "texture": "tex2D tex1Dfetch cudaTextureObject_t",
        "async_copy": "memcpy_async",
        "tma": "CUtensorMap cuTensorMapEncodeTiled",
        "software_pipeline": "mbarrier",
        "launch_bounds": "__launch_bounds__",
        "cooperative_groups": "cooperative_groups",
        "cluster": "__cluster_dims__ cluster_group this_cluster mapa",
        "dependent_launch": "griddepcontrol cudaGridDependencySynchronize",
        "grid_sync": "this_grid cudaLaunchCooperativeKernel",
        "tensor_core_wmma": "wmma mma_sync",
        "tensor_core_mma": "ldmatrix",
        "tensor_core_wgmma": "wgmma tcgen05",
        "fma": "fmaf fma",
        "fast_math": "use_fast_math __brev __saturatef",
        "exp2": "exp2f exp2 ex2",
        "inline_asm": "asm __asm__",
        "wide_index": "int64_t size_t",
        "half_precision": "__half __half2 half2 kHalf kFloat16",
        "bfloat16": "__nv_bfloat16 __nv_bfloat162 nv_bfloat16 kBFloat16",
        "tf32": "tf32",
        "int8": "__dp4a int8_t",
        "double_precision": "double",
        "cuda_streams": "cudaStreamCreate cudaStreamCreateWithFlags getStreamFromPool",
        "cuda_graph": "cudaGraphLaunch",
        "vendor_library": "cutlass cute",
        "library_primitives": "cub thrust",
        "scan": "BlockScan InclusiveSum ExclusiveSum inclusive_scan",
        "omp_parallel": "parallel_for",
        "cache_hints": "cudaAccessPolicyWindow cudaStreamAttrValue",
        "activation_in_kernel": "tanhf tanh erff gelu relu sigmoid silu",
    }
)
"""Identifier → feature."""

VECTOR_TYPES = by_word(
    {
        "vector_load": (
            "float2 float4 double2 int2 int4 uint2 uint4 half2 __half2 short4 char4 uchar4 float8 longlong2 ulonglong2"
        )
    }
)

PREFIXES = by_word(
    {
        "warp_shuffle": "__shfl_",
        "warp_vote": "__ballot_sync __any_sync __all_sync __match_ __reduce_ __activemask",
        "software_pipeline": "__pipeline_",
        "cache_hints": "__ldc __ldlu __stc __stw _mm256_stream _mm512_stream",
        "fast_math": "__exp __log __fdivide __frcp __frsqrt __sin __cos __tanh __pow",
        "fma": "__fmaf __hfma",
        "atomics": "atomicA atomicM atomicC atomicE atomicI atomicS atomicX atomicO atomicD",
        "fp8": "__nv_fp8",
        "vendor_library": "cublas cudnn dnnl",
        "avx": "_mm256_ _mm512_ _mm_ __m256 __m512 vld1q_",
    }
)
"""Identifier prefix → feature."""

WORD_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), name)
    for pattern, name in (
        (r"swizzl", "swizzle"),
        (r"^_mm_prefetch|^next_?(?:val|frag|load|vec)|^(?:val|frag|v|x)_?next$", "prefetch"),
        (r"split_?k|^k_?splits?$|num_?splits", "split_k"),
        (r"group_?(?:size_)?m$|^in_?group$|raster|morton|hilbert|super_?(?:tile|block)", "tile_rasterization"),
        (r"warp_?(?:role|speciali)|producer_warp|is_producer|^setmaxnreg", "warp_specialization"),
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

_PADDED_PITCH = (
    r"constexpr\s+int\s+(?:\w+\s*=[^;,]{0,40},\s*){0,9}\w+\s*=\s*"
    r"(?:[\w\s*/()]+\+\s*(?:1|4|8|16)|33|36|65|68|72|129|132|136|260|264)\s*[;,]"
)
"""A row pitch a few elements longer than a power of two."""
_ACCUMULATORS = (
    r"\b(?:float|double|half|__half|T|scalar_t|float[24]|int)\s+(?:\w+\s*(?:\[[^\]]+\])+\s*,\s*)?"
    r"(?:(?:acc\w*|accum\w*|c_?reg\w*|reg_?c\w*|thread_?results?)\s*\[(?!(?:64|128|192|256)\b)[^\]]+\]"
    r"|(?:r?[cC]|sums?|results?|[os])\s*(?:\[[^\]]+\]){2})"
)
_RESCALED = (
    r"\b(\w+(?:\[\w+\])?)\s*=\s*(?:\1\s*\*\s*(?:(?:__)?exp\w*\s*\(|alpha|\w*scale|corr)|"
    r"fmaf?\(\s*\1\s*,\s*(?:alpha|\w*scale|corr))"
)
"""A running sum that is rescaled when the maximum moves."""
_MOMENTS = r"\+=[^;*{]{0,200};\s*\w+\s*(?:\+=|=\s*fmaf?\()[^;]{0,100}?\b(\w+)\s*[*,]\s*\1\b"
_WARP_PARTIALS = (
    r"(?:lane\w*|(?:tid|threadIdx\.x)\s*(?:&\s*31|%\s*(?:32|warpSize|WARP_SIZE)))\s*\)?\s*==\s*[\w\s-]+\)\s*\{?\s*"
    r"\w+(?:\[\w+(?:\s*&\s*1)?\])?\[[^\]]*(?:warp|wid|>>\s*5|/\s*(?:32|warpSize|WARP_SIZE))[^\]]*\]\s*(?:\[\w+\]\s*)?="
)
"""The first lane of each warp leaves its partial result for the others."""
_HORNER = r"(?:\b(\w+)\s*=\s*(?:\1\s*\*\s*\w+\s*\+|fmaf?\(\s*(?:\w+\s*,\s*)?\1\s*,)[^;]{0,100};\s*){3}"
_STEP = r"=\s*(?:\w+\s*\*\s*\w+\s*\+|fma)"
_FACTOR = r"(?:alpha|\w*scale|corr)"
SELF_REFERRING: tuple[tuple[re.Pattern[str], re.Pattern[str], str], ...] = tuple(
    (re.compile(sign), re.compile(pattern), name)
    for sign, pattern, name in (
        (
            rf"=\s*(?:[\w[\]]+\s*\*\s*(?:_*exp|{_FACTOR})|fmaf?\([\w\s[\]]+,\s*{_FACTOR})",
            _RESCALED,
            "online_softmax",
        ),
        (rf"{_STEP}(?:[^;]{{1,300}};\s*\w+\s*{_STEP}){{2}}", _HORNER, "polynomial_approximation"),
    )
)
"""What the pattern cannot do without, pattern on text without comments → feature.

A pattern that repeats what it found is tried at every word; its sign begins with plain text and spares most texts that.
"""
PATTERNS: tuple[tuple[str, str, re.Pattern[str], str], ...] = tuple(
    (word, text, re.compile(pattern), name)
    for word, text, pattern, name in (
        ("extern", "", r"extern\s+__shared__", "dynamic_shared_memory"),
        ("async", "", r"cp\.async(?!\.bulk)|cp_async(?!_bulk)|__pipeline_memcpy_async", "async_copy"),
        ("bulk", "", r"cp\.async\.bulk(?!\.prefetch)|cp_async_bulk", "tma"),
        ("async", "", r"cp\.async\.(?:wait|commit)|cp_async_(?:wait|commit)", "software_pipeline"),
        ("pipeline", "", r"cuda::pipeline|make_pipeline", "software_pipeline"),
        ("mma", "", r"mma(?<!\wmma)(?:\.sync|_m\d+n\d+)", "tensor_core_mma"),
        ("nc", "ld.global.nc", r"ld\.global\.nc", "read_only_cache"),
        ("global", ".global.", r"(?:ld|st)\.global\.(?:cs|cg|lu|wt)", "cache_hints"),
        ("L2", "L2::", r"\.L2::|evict_(?:first|last)", "cache_hints"),
        ("unroll", "", r"#\s*pragma\s+(?:GCC\s+)?unroll", "unroll"),
        ("omp", "", r"#\s*pragma\s+omp\s+(?:[\w ]*\s)?parallel", "omp_parallel"),
        ("simd", "", r"#\s*pragma\s+omp\s[^\n]*\bsimd\b", "omp_simd"),
        ("ivdep", "", r"#\s*pragma\s+GCC\s+ivdep", "omp_simd"),
        ("collapse", "", r"#\s*pragma\s+omp\s[^\n]*\bcollapse\s*\(", "omp_collapse"),
        ("schedule", "", r"#\s*pragma\s+omp\s[^\n]*\bschedule\s*\(", "omp_schedule"),
        ("L1", "L1::", r"L1::(?:no_allocate|evict)", "cache_hints"),
        ("approx", ".approx", r"\.approx\b", "fast_math"),
        ("f16", "", r"\.f16\b|(?<!b)f16x2", "half_precision"),
        (
            "half",
            "",
            r"const\s+half\s*\*|<\s*(?:const\s+)?half\s*\*?\s*>|\bhalf\s*\*\s*(?:__restrict__|\)|>)|\bhalf\s+\w+\s*(?:\[|=\s*__)",
            "half_precision",
        ),
        ("bf16", "", r"\.bf16\b|bf16x2", "bfloat16"),
        ("SWIZZLE", "", r"TENSOR_MAP_SWIZZLE_\d", "swizzle"),
        ("", "^", r"\^[^;()]{0,30}\)\s*<<\s*[1-6]\b|\^\s*\([^()]*\)\s*\)\s*<<\s*[1-6]\b", "swizzle"),
        ("", "^", r"\^\s*\(\(\w+\s*(?:>>|&)\s*\d+\)\s*<<\s*\d", "swizzle"),
        ("constexpr", "", _PADDED_PITCH, "bank_conflict_padding"),
        ("GROUP", "", r"\bGROUP\s*\*\s*t\w?n\b", "tile_rasterization"),
        ("SPLIT", "", r"\b[Kk]\w*\s*/\s*SPLIT", "split_k"),
        ("wait", "wait_group", r"wait_group(?:\.read)?(?:\.sync\.aligned)?\s+(?:[1-9]|%0)", "overlapped_loads"),
        ("pipeline_wait", "", r"pipeline_wait_prior\(\s*[1-9A-Z]", "overlapped_loads"),
        ("shared", "&", r"\(\s*\w+\s*\+\s*1\s*\)\s*(?:&\s*1\b|%\s*2\b)", "double_buffering"),
        (
            "split",
            "",
            r"\b\w*split\w*\s*\([^;{]{0,80}(?:&\s*\w*hi\b|\bhi\b|\bbig\b)[^;{]{0,80}(?:lo|small)",
            "split_operands",
        ),
        ("", "", _ACCUMULATORS, "accumulator_tile"),
        ("", "", _MOMENTS, "joint_moments"),
        ("", "", _WARP_PARTIALS, "block_reduce"),
        ("shfl_up", "", r"__shfl_up_sync\([^;]{0,80};[^;]{0,20}\blane\w*\s*>=", "scan"),
        ("prefetch", "", r"__builtin_prefetch|\bprefetch(?!\.tensormap)[.:u]|\.prefetch\.(?!tensormap)", "prefetch"),
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
    words = Counter(_WORD.findall(text))
    for word, count in words.items():
        for feature in _word_features(word):
            found[feature] += count
    all_words = " ".join(words)
    for word, plain, pattern, feature in PATTERNS:
        if word in all_words and plain in text:
            found[feature] += len(pattern.findall(text))
    for sign, pattern, feature in SELF_REFERRING:
        if sign.search(text):
            found[feature] += len(pattern.findall(text))
    if found["accumulator_tile"] and found["dynamic_shared_memory"]:
        found["staged_tile"] += 1  # an array sized at launch has no shape to read
    return found


@functools.lru_cache(maxsize=100_000)
def _word_features(word: str) -> tuple[str, ...]:
    """Features that one identifier stands for; cached because sources share most of their words."""
    names = {feature for prefix, feature in PREFIXES.items() if word.startswith(prefix)}
    names.update(feature for pattern, feature in WORD_PATTERNS if pattern.search(word))
    if word in EXACT:
        names.add(EXACT[word])
    if word in VECTOR_TYPES:
        names.add("vector_load")
    return tuple(sorted(names))

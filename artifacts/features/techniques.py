"""Techniques of a kernel by program, the ladders they stand on, and the moves from one kernel to the next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from artifacts.candidate import Language
from artifacts.features.extract import code_features, detect_language


class Technique(StrEnum):
    """What an engineer would say a kernel does; values are what files, prompts and the command line hold."""

    REGISTER_TILE = "register_tile"
    TENSOR_WMMA = "tensor_wmma"
    TENSOR_MMA = "tensor_mma"
    TENSOR_WGMMA = "tensor_wgmma"
    VECTOR_ACCESS = "vector_access"
    ASYNC_COPY = "async_copy"
    BULK_COPY = "bulk_copy"
    SHARED_TILE = "shared_tile"
    PIPELINE = "pipeline"
    WARP_ROLES = "warp_roles"
    BANK_LAYOUT = "bank_layout"
    CACHE_POLICY = "cache_policy"
    PREFETCH = "prefetch"
    L2_ORDER = "l2_order"
    ATOMICS = "atomics"
    SHARED_REDUCTION = "shared_reduction"
    WARP_SHUFFLE = "warp_shuffle"
    CLUSTER = "cluster"
    SCAN = "scan"
    HELD_ROW = "held_row"
    ONE_PASS = "one_pass"
    SEVERAL_KERNELS = "several_kernels"
    DEPENDENT_LAUNCH = "dependent_launch"
    PERSISTENT = "persistent"
    CUDA_GRAPH = "cuda_graph"
    SPLIT_K = "split_k"
    TF32 = "tf32"
    SPLIT_PRECISION = "split_precision"
    HALF = "half"
    BFLOAT16 = "bfloat16"
    FP8 = "fp8"
    FAST_MATH = "fast_math"
    POLYNOMIAL = "polynomial"
    TRANSFORM = "transform"
    THREADS = "threads"
    SIMD = "simd"


@dataclass(frozen=True, slots=True)
class About:
    """What a technique is and how to ask for it.

    Attributes:
        meaning: one line, for reports.
        instruction: the move towards it as an order to whoever writes the kernel.
        needs: the first compute capability (times ten) that has it; 0 for any GPU, -1 for CPUs only.
    """

    meaning: str
    instruction: str
    needs: int = 0


ABOUT: Mapping[Technique, About] = MappingProxyType(
    {
        Technique.REGISTER_TILE: About(
            "each thread accumulates a tile of outputs in registers",
            "Let each thread accumulate a two-dimensional tile of outputs in registers, so that operands are reused.",
        ),
        Technique.TENSOR_WMMA: About(
            "products on tensor cores through wmma",
            "Do the products on tensor cores through the wmma interface.",
            70,
        ),
        Technique.TENSOR_MMA: About(
            "products on tensor cores through mma (tl.dot in Triton)",
            "Do the products on tensor cores with mma.sync; split float32 operands where precision must stay.",
            80,
        ),
        Technique.TENSOR_WGMMA: About(
            "products on tensor cores through warp-group mma",
            "Do the products with wgmma reading both operands from swizzled shared memory, one warp group a tile.",
            90,
        ),
        Technique.VECTOR_ACCESS: About(
            "loads and stores of 64 or 128 bits", "Load and store 128 bits at once (float4) where rows are aligned."
        ),
        Technique.ASYNC_COPY: About(
            "cp.async copies from global to shared memory",
            "Copy from global to shared memory with cp.async of 16 bytes instead of through registers.",
            80,
        ),
        Technique.BULK_COPY: About(
            "bulk copies by the tensor memory accelerator",
            "Move whole tiles with bulk or tensor copies (TMA) that one thread issues and an mbarrier completes.",
            90,
        ),
        Technique.SHARED_TILE: About(
            "input staged in shared memory",
            "Stage the input in shared memory, so that each value is read once from global memory.",
        ),
        Technique.PIPELINE: About(
            "loads of later tiles overlap the work on this one",
            "Keep two or more tiles in flight, so that loading the next overlaps the work on this one.",
        ),
        Technique.WARP_ROLES: About(
            "warps that load and warps that compute",
            "Give warps roles: one loads tiles, the others compute, with full and empty barriers between them.",
            90,
        ),
        Technique.BANK_LAYOUT: About(
            "shared memory padded or swizzled against bank conflicts",
            "Pad or XOR-swizzle the shared-memory layout, so that the lanes of a warp hit different banks.",
        ),
        Technique.CACHE_POLICY: About(
            "explicit cache policy",
            "Mark data that is used once as streaming (__ldcs, __stcs, evict-first), so that caches keep the rest.",
        ),
        Technique.PREFETCH: About("data fetched ahead of use", "Fetch the next data ahead of its use."),
        Technique.L2_ORDER: About(
            "blocks visit tiles in an order made for L2",
            "Let blocks visit the output tiles in groups of rows, so that operands are found in L2.",
        ),
        Technique.ATOMICS: About("atomic operations", "Combine partial results with atomics."),
        Technique.SHARED_REDUCTION: About(
            "partial results of a block meet in shared memory", "Combine the partial results of warps in shared memory."
        ),
        Technique.WARP_SHUFFLE: About(
            "lanes of a warp exchange registers",
            "Exchange or reduce values within a warp by shuffles instead of through shared memory.",
        ),
        Technique.CLUSTER: About(
            "thread-block clusters and distributed shared memory",
            "Let a cluster of blocks share one row or tile and exchange results through distributed shared memory.",
            90,
        ),
        Technique.SCAN: About("prefix sum over threads", "Compute the running value by a scan over warps and blocks."),
        Technique.HELD_ROW: About(
            "a row stays on chip between passes",
            "Read the row once and hold it in registers or shared memory for every later pass.",
        ),
        Technique.ONE_PASS: About(
            "statistics in one pass",
            "Compute the statistics in one pass (running maximum with rescaled sum, or merged moments).",
        ),
        Technique.SEVERAL_KERNELS: About(
            "two or more kernels one after another",
            "Move work that every block repeats into a small kernel of its own that runs before.",
        ),
        Technique.DEPENDENT_LAUNCH: About(
            "programmatic dependent launch",
            "Launch the second kernel with programmatic dependent launch, so that its start overlaps the first.",
            90,
        ),
        Technique.PERSISTENT: About(
            "as many blocks as fit, which loop over tiles",
            "Launch as many blocks as fit on the device and let each loop over tiles.",
        ),
        Technique.CUDA_GRAPH: About("a captured CUDA graph", "Capture the launches in a CUDA graph."),
        Technique.SPLIT_K: About(
            "the reduction is split over blocks",
            "Split the reduction dimension over blocks and add their partial results.",
        ),
        Technique.TF32: About("TF32 operands", "Feed the tensor cores TF32 operands.", 80),
        Technique.SPLIT_PRECISION: About(
            "operands split into high and low parts",
            "Split float32 operands into high and low parts and add three tensor-core products.",
            80,
        ),
        Technique.HALF: About("16-bit IEEE operands", "Compute the products in float16 and accumulate in float32.", 70),
        Technique.BFLOAT16: About(
            "bfloat16 operands", "Compute the products in bfloat16 and accumulate in float32.", 80
        ),
        Technique.FP8: About("8-bit floating point", "Compute the products in fp8 and accumulate in float32.", 89),
        Technique.FAST_MATH: About(
            "approximate functions", "Use approximate functions (__expf, __fdividef, ex2.approx) within tolerance."
        ),
        Technique.POLYNOMIAL: About(
            "functions by hand-written polynomials", "Replace the library function by a polynomial that vectorises."
        ),
        Technique.TRANSFORM: About(
            "fewer products by a transform (Winograd, FFT)", "Save products by a Winograd or FFT transform."
        ),
        Technique.THREADS: About("OpenMP threads", "Spread rows over threads with OpenMP.", -1),
        Technique.SIMD: About(
            "vector instructions of a CPU", "Write the inner loop so that it vectorises at full width.", -1
        ),
    }
)

LADDERS: Mapping[str, tuple[Technique, ...]] = MappingProxyType(
    {
        "products": (
            Technique.REGISTER_TILE,
            Technique.TENSOR_WMMA,
            Technique.TENSOR_MMA,
            Technique.TENSOR_WGMMA,
        ),
        "movement": (Technique.VECTOR_ACCESS, Technique.ASYNC_COPY, Technique.BULK_COPY),
        "reductions": (Technique.ATOMICS, Technique.SHARED_REDUCTION, Technique.WARP_SHUFFLE, Technique.CLUSTER),
        "passes": (Technique.HELD_ROW, Technique.ONE_PASS),
        "launches": (
            Technique.SEVERAL_KERNELS,
            Technique.DEPENDENT_LAUNCH,
            Technique.PERSISTENT,
            Technique.CUDA_GRAPH,
        ),
        "precision": (
            Technique.TF32,
            Technique.SPLIT_PRECISION,
            Technique.BFLOAT16,
            Technique.HALF,
            Technique.FP8,
        ),
    }
)
"""Rungs from the plainest; what stands below all of them is ``plain``."""
PLAIN = "plain"

_FROM_FEATURES: Mapping[Technique, tuple[str, ...]] = MappingProxyType(
    {
        Technique.REGISTER_TILE: ("accumulator_tile",),
        Technique.TENSOR_WMMA: ("tensor_core_wmma",),
        Technique.TENSOR_MMA: ("tensor_core_mma", "triton_dot"),
        Technique.TENSOR_WGMMA: ("tensor_core_wgmma",),
        Technique.VECTOR_ACCESS: ("vector_load",),
        Technique.ASYNC_COPY: ("async_copy",),
        Technique.BULK_COPY: ("tma",),
        Technique.SHARED_TILE: ("staged_tile", "async_copy", "tma", "tensor_core_wgmma"),
        Technique.PIPELINE: ("double_buffering", "overlapped_loads", "triton_num_stages"),
        Technique.WARP_ROLES: ("warp_specialization",),
        Technique.BANK_LAYOUT: ("swizzle", "bank_conflict_padding"),
        Technique.CACHE_POLICY: ("cache_hints",),
        Technique.PREFETCH: ("prefetch",),
        Technique.L2_ORDER: ("tile_rasterization",),
        Technique.ATOMICS: ("atomics",),
        Technique.SHARED_REDUCTION: ("block_reduce",),
        Technique.WARP_SHUFFLE: ("warp_shuffle", "triton_reduce"),
        Technique.CLUSTER: ("cluster",),
        Technique.SCAN: ("scan",),
        Technique.HELD_ROW: ("held_values",),
        Technique.ONE_PASS: ("online_softmax", "welford", "joint_moments"),
        Technique.SEVERAL_KERNELS: ("successive_launches",),
        Technique.DEPENDENT_LAUNCH: ("dependent_launch",),
        Technique.PERSISTENT: ("persistent_kernel",),
        Technique.CUDA_GRAPH: ("cuda_graph",),
        Technique.SPLIT_K: ("split_k",),
        Technique.TF32: ("tf32",),
        Technique.SPLIT_PRECISION: ("split_operands",),
        Technique.HALF: ("half_precision",),
        Technique.BFLOAT16: ("bfloat16",),
        Technique.FP8: ("fp8",),
        Technique.FAST_MATH: ("fast_math",),
        Technique.POLYNOMIAL: ("polynomial_approximation",),
        Technique.TRANSFORM: ("winograd_or_fft",),
        Technique.THREADS: ("omp_parallel",),
        Technique.SIMD: ("omp_simd", "avx"),
    }
)
"""Any one of the features shows the technique."""


def techniques(source: str, language: Language | None = None) -> frozenset[Technique]:
    """Techniques of ``source``; empty for code without a kernel of its own.

    Args:
        language: of the kernels, where the caller knows it; else it is read from the source.
    """
    found = detect_language(source) if language is None else language
    return frozenset() if found is Language.TORCH else shown_by(code_features(source).names)


def shown_by(names: frozenset[str]) -> frozenset[Technique]:
    """Techniques that code features show, for callers that know the features of a kernel and not its source."""
    return frozenset(technique for technique, shown in _FROM_FEATURES.items() if not names.isdisjoint(shown))


def rung(ladder: str, held: frozenset[Technique]) -> str:
    """The highest rung of ``ladder`` among the techniques ``held``; :data:`PLAIN` for none."""
    return next((str(technique) for technique in reversed(LADDERS[ladder]) if technique in held), PLAIN)


def ladder_of(technique: Technique) -> str:
    """The ladder that ``technique`` stands on; empty for one that stands alone."""
    return next((name for name, rungs in LADDERS.items() if technique in rungs), "")


def moves(parent: frozenset[Technique], child: frozenset[Technique]) -> tuple[str, ...]:
    """What the step from ``parent`` to ``child`` changed: ``+technique`` for each gained, ``-technique`` for lost."""
    gained, lost = sorted(child - parent), sorted(parent - child)
    return (*(f"+{technique}" for technique in gained), *(f"-{technique}" for technique in lost))

"""The names of all code features with their meanings, and the record of those found in one source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

FEATURES: Mapping[str, str] = MappingProxyType(
    {
        # memory hierarchy
        "shared_memory": "keeps data in on-chip shared memory",
        "dynamic_shared_memory": "shared memory sized at launch (extern __shared__)",
        "double_buffering": "two or more buffers, so that loading overlaps computing",
        "bank_conflict_padding": "shared array padded by one element to avoid bank conflicts",
        "swizzle": "XOR-swizzled shared memory layout",
        "vector_load": "loads or stores of 64 or 128 bits (float4, half2, ...)",
        "read_only_cache": "loads through the read-only cache (__ldg, ld.global.nc)",
        "restrict": "pointers marked __restrict__, so that the compiler may reorder loads",
        "cache_hints": "explicit cache policy (streaming loads, eviction policy, L2 persistence)",
        "prefetch": "loads the next data into registers or cache ahead of use",
        "constant_memory": "tables in __constant__ memory",
        "texture": "reads through texture objects",
        "async_copy": "asynchronous global-to-shared copies (cp.async, memcpy_async)",
        "tma": "bulk tensor copies by the tensor memory accelerator or tensor descriptors",
        "software_pipeline": "explicit multi-stage pipeline with commit and wait or barriers",
        "overlapped_loads": "loads of later tiles in flight while this one is worked on",
        "held_values": "values read once and kept on chip for a later pass",
        "register_tiling": "per-thread tile of accumulators in registers",
        "accumulator_tile": "a tile of products accumulated in registers",
        "cache_blocking": "loops blocked so that a tile stays in cache or shared memory",
        "staged_tile": "input staged in an array of shared memory",
        "transposed_layout": "transposes or permutes data for a better layout",
        # parallel mapping
        "grid_stride_loop": "threads stride over the data by the size of the grid",
        "block_stride_loop": "threads of one block stride over a row or tile",
        "block_2d": "two- or three-dimensional thread blocks",
        "multiple_kernels": "two or more kernels are defined",
        "multiple_launches": "two or more kernel launches",
        "successive_launches": "two or more kernels launched one after another",
        "dependent_launch": "programmatic dependent launch",
        "template_constants": "sizes fixed at compile time by templates or constexpr",
        "launch_bounds": "__launch_bounds__ limits registers for occupancy",
        "persistent_kernel": "resident blocks fetch work until none is left",
        "split_k": "the reduction dimension is split over blocks",
        "tile_rasterization": "blocks visit tiles in an order made for L2 reuse",
        "warp_specialization": "warps of one block take different roles",
        "thread_coarsening": "each thread works on several elements held in a fixed loop",
        # communication
        "warp_shuffle": "registers exchanged within a warp (__shfl_*_sync)",
        "warp_vote": "warp votes, matches or hardware warp reductions",
        "block_reduce": "tree reduction over a block through shared memory or CUB",
        "atomics": "atomic read-modify-write operations",
        "cooperative_groups": "cooperative groups",
        "grid_sync": "synchronises the whole grid inside one kernel",
        "cluster": "thread-block clusters",
        "scan": "prefix sum over threads or tiles",
        "library_primitives": "device primitives of CUB or Thrust",
        # instructions
        "unroll": "loops unrolled by pragma or static range",
        "multiple_accumulators": "independent accumulators for instruction-level parallelism",
        "fma": "explicit fused multiply-add",
        "fast_math": "approximate intrinsics or fast-math flags",
        "exp2": "exponentials in base two",
        "polynomial_approximation": "a hand-written polynomial or rational approximation",
        "inline_asm": "inline PTX or assembly",
        "wide_index": "64-bit index arithmetic",
        "division_modulo": "integer division or modulo in index arithmetic",
        "predication": "selects instead of branches",
        "boundary_check": "guards against out-of-range elements (if or mask)",
        # tensor cores and precision
        "tensor_core_wmma": "tensor cores through the wmma interface",
        "tensor_core_mma": "tensor cores through mma or ldmatrix PTX",
        "tensor_core_wgmma": "tensor cores through warp-group mma (Hopper) or tcgen05",
        "half_precision": "16-bit IEEE floats",
        "bfloat16": "bfloat16",
        "tf32": "TF32 on tensor cores",
        "split_operands": "operands split into high and low parts",
        "fp8": "8-bit floats",
        "int8": "8-bit integers or dp4a",
        "double_precision": "64-bit floats",
        # algorithm
        "online_softmax": "running maximum and rescaled sum in one pass",
        "welford": "single-pass mean and variance",
        "joint_moments": "sum and sum of squares gathered in one loop",
        "fused_epilogue": "bias, scale or activation applied before the result is stored",
        "activation_in_kernel": "activation function computed inside an own kernel",
        "winograd_or_fft": "transform-domain convolution",
        "im2col": "convolution lowered to a matrix product",
        "early_exit": "skips work that cannot matter",
        # host side
        "cuda_streams": "several CUDA streams",
        "cuda_graph": "captured CUDA graph",
        "vendor_library": "calls cuBLAS, cuDNN, CUTLASS or oneDNN directly",
        "output_cache": "keeps outputs or buffers between calls",
        "stock_extension": "built through torch's inline extension loader",
        # Triton
        "triton_kernel": "Triton kernel",
        "triton_autotune": "Triton autotuning over configurations",
        "triton_num_warps": "number of warps set",
        "triton_num_stages": "number of pipeline stages set",
        "triton_dot": "tl.dot on tiles",
        "triton_block_pointer": "block pointers",
        "triton_heuristics": "launch constants derived by heuristics",
        "triton_hints": "alignment hints (multiple_of, max_contiguous)",
        "triton_reduce": "tile reductions (tl.sum, tl.max, tl.reduce)",
        # CPU
        "omp_parallel": "OpenMP parallel loops or at::parallel_for",
        "omp_simd": "OpenMP simd loops",
        "omp_collapse": "OpenMP collapsed loop nests",
        "omp_schedule": "explicit OpenMP schedule",
        "avx": "AVX or NEON intrinsics or vector types",
        # torch level
        "torch_matmul": "matrix products left to torch",
        "torch_convolution": "convolutions left to torch",
        "torch_normalization": "normalisations left to torch",
        "torch_activation": "activations left to torch",
        "torch_softmax": "softmax left to torch",
        "torch_reduction": "reductions left to torch",
        "torch_pooling": "pooling left to torch",
        "torch_attention": "attention left to torch",
        "torch_recurrent": "recurrent layers left to torch",
        "torch_sort": "sorting or top-k left to torch",
        "torch_loss": "losses left to torch",
        "torch_compile": "torch.compile",
        "torch_script": "TorchScript",
        "channels_last": "channels-last memory format",
        "in_place": "in-place tensor operations",
        "autocast": "automatic mixed precision",
        "no_grad": "gradients switched off",
        "weight_folding": "parameters combined or converted once, outside forward",
        "library_flags": "global backend switches (cudnn.benchmark, allow_tf32)",
    }
)
"""Name → meaning; the order is the order of reports."""


@dataclass(frozen=True, slots=True)
class CodeFeatures:
    """Features found in one source: name from :data:`FEATURES` → number of occurrences, positive."""

    counts: Mapping[str, int]

    def __post_init__(self) -> None:
        unknown = sorted(set(self.counts) - set(FEATURES))
        if unknown:
            raise ValueError(f"unknown code feature {unknown[0]!r}")
        object.__setattr__(self, "counts", MappingProxyType(dict(self.counts)))

    @property
    def names(self) -> frozenset[str]:
        """Names of the features present."""
        return frozenset(self.counts)

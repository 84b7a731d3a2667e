from __future__ import annotations

import pytest

from builder.embed.encoders import Embedder, HashingEmbedder

WORDINGS = {
    "memory_access.vectorized_access": [
        "Use float4 loads to move sixteen bytes at once",
        "Vectorize the stores with 128-bit transactions",
        "Load two half2 values per instruction",
        "使用向量化加载",
    ],
    "data_reuse.shared_memory_tiling": [
        "Stage tiles of the input in shared memory",
        "Implement smem tiling so that a block reuses its data",
        "Keep the weights of a tile in shared memory to cut DRAM traffic",
        "使用共享内存分块",
    ],
    "instruction_throughput.loop_unrolling": [
        "Unroll the inner loop by four",
        "Add #pragma unroll to the reduction",
        "循环展开",
    ],
    "latency_hiding.async_copy": ["Issue cp.async copies ahead of use", "Copy asynchronously with memcpy_async"],
    "fusion.operator_fusion": ["Fuse bias and activation into one kernel", "Fuse the two element-wise operations"],
    "parameter_tuning.autotuning": ["Add autotune configs with num_warps=8", "Autotune over more configurations"],
    "build_fix.compile_errors": ["Add the missing headers and fix the syntax error", "Fix the compilation error"],
    "diagnosis.profiling": ["Profile with Nsight to identify the bottleneck"],
    "occupancy.register_pressure": ["Reduce register pressure to avoid spills", "Lower register usage per thread"],
    "parallel_mapping.parallel_reduction": ["Replace the serial sum by a warp shuffle reduction"],
}
"""Wordings written for the tests, by the strategy they mean."""


@pytest.fixture
def embedder() -> Embedder:
    return HashingEmbedder()


@pytest.fixture
def texts() -> list[str]:
    return [text for wordings in WORDINGS.values() for text in wordings]


@pytest.fixture
def meant() -> list[str]:
    return [strategy for strategy, wordings in WORDINGS.items() for _ in wordings]

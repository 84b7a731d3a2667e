import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

_CPP = r"""
torch::Tensor row_cumsum(torch::Tensor x);
"""

_CUDA = r"""
#include <torch/types.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime.h>
#include <cstdint>

namespace {

constexpr int THREADS = 256;
constexpr int WARPS = THREADS / 32;      // 8
constexpr int VEC = 4;                   // float4 of a lane
constexpr int ROW = THREADS * VEC * 4;   // 4096
constexpr int BLOCKS_PER_SM = 8;         // 2048 threads, 32 registers each

static_assert(ROW == 4096, "row width");

__device__ __forceinline__ float warp_inclusive(float v, int lane) {
#pragma unroll
    for (int d = 1; d < 32; d <<= 1) {
        const float n = __shfl_up_sync(0xffffffffu, v, d);
        if (lane >= d) v += n;
    }
    return v;
}

// sum of the totals of the warps before this one
__device__ __forceinline__ float warps_before(const float* totals, int warp, int lane) {
    const int l = lane & (WARPS - 1);
    float t = (l < warp) ? totals[l] : 0.0f;
#pragma unroll
    for (int o = WARPS / 2; o > 0; o >>= 1) t += __shfl_xor_sync(0xffffffffu, t, o);
    return t;
}

__global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
cumsum_row_kernel(const float4* __restrict__ x, float4* __restrict__ out) {
    __shared__ float totals[WARPS];
    const int lane = threadIdx.x & 31;
    const int warp = threadIdx.x >> 5;
    const int64_t base =
        (int64_t)blockIdx.x * (ROW / 4) + warp * (32 * VEC) + lane;

    float4 v[VEC];
#pragma unroll
    for (int i = 0; i < VEC; ++i) v[i] = __ldcs(x + base + i * 32);

    float inc[VEC];
#pragma unroll
    for (int i = 0; i < VEC; ++i) {
        v[i].y += v[i].x;
        v[i].z += v[i].y;
        v[i].w += v[i].z;
        inc[i] = warp_inclusive(v[i].w, lane);
    }
    // offset of each float4 inside the warp's columns, in place of the sums
    float run = 0.0f;
#pragma unroll
    for (int i = 0; i < VEC; ++i) {
        float e = __shfl_up_sync(0xffffffffu, inc[i], 1);
        const float last = __shfl_sync(0xffffffffu, inc[i], 31);
        if (lane == 0) e = 0.0f;
        inc[i] = run + e;
        run += last;
    }
    if (lane == 0) totals[warp] = run;
    __syncthreads();
    const float before = warps_before(totals, warp, lane);

#pragma unroll
    for (int i = 0; i < VEC; ++i) {
        const float o = before + inc[i];
        float4 r;
        r.x = v[i].x + o;
        r.y = v[i].y + o;
        r.z = v[i].z + o;
        r.w = v[i].w + o;
        out[base + i * 32] = r;
    }
}

// any width: tiles of THREADS columns with a carry
__global__ void __launch_bounds__(THREADS)
cumsum_any_kernel(const float* __restrict__ x, float* __restrict__ out, int64_t columns) {
    __shared__ float totals[WARPS];
    const int lane = threadIdx.x & 31;
    const int warp = threadIdx.x >> 5;
    const int64_t base = (int64_t)blockIdx.x * columns;
    float carry = 0.0f;
    for (int64_t start = 0; start < columns; start += THREADS) {
        const int64_t col = start + threadIdx.x;
        float v = (col < columns) ? x[base + col] : 0.0f;
        v = warp_inclusive(v, lane);
        if (lane == 31) totals[warp] = v;
        __syncthreads();
        const float before = warps_before(totals, warp, lane);
        const float all = warps_before(totals, WARPS, lane);
        if (col < columns) out[base + col] = v + (before + carry);
        carry += all;
        __syncthreads();
    }
}

}  // namespace

torch::Tensor row_cumsum(torch::Tensor x) {
    TORCH_CHECK(x.is_cuda(), "CUDA tensor expected");
    TORCH_CHECK(x.scalar_type() == at::kFloat, "float32 expected");
    TORCH_CHECK(x.dim() == 2, "two dimensions expected");
    const c10::cuda::CUDAGuard guard(x.device());
    auto xc = x.contiguous();
    const int64_t rows = xc.size(0), columns = xc.size(1);
    auto out = at::empty({rows, columns}, xc.options());
    if (out.numel() == 0) return out;
    TORCH_CHECK(rows <= 2147483647LL, "too many rows");

    const float* xp = xc.data_ptr<float>();
    float* op = out.data_ptr<float>();
    auto stream = at::cuda::getCurrentCUDAStream();
    const bool aligned =
        ((reinterpret_cast<uintptr_t>(xp) | reinterpret_cast<uintptr_t>(op)) & 15) == 0;
    if (aligned && columns == ROW) {
        cumsum_row_kernel<<<(unsigned int)rows, THREADS, 0, stream>>>(
            reinterpret_cast<const float4*>(xp), reinterpret_cast<float4*>(op));
    } else {
        cumsum_any_kernel<<<(unsigned int)rows, THREADS, 0, stream>>>(xp, op, columns);
    }
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return out;
}
"""

_ext = load_inline(
    name="row_cumsum_v3_t256v4_ldcs",
    cpp_sources=[_CPP],
    cuda_sources=[_CUDA],
    functions=["row_cumsum"],
    extra_cuda_cflags=["-O3"],
)


class ModelNew(nn.Module):
    def __init__(self) -> None:
        super().__init__()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _ext.row_cumsum(x)

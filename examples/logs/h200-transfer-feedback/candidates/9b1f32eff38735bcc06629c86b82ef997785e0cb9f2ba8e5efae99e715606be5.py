import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

_CPP_SRC = r"""
torch::Tensor cosine_distance_rows(torch::Tensor x, torch::Tensor y);
"""

_CUDA_SRC = r"""
#include <torch/types.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime.h>
#include <cstdint>

namespace {

constexpr int kThreads = 128;
constexpr int kRowsPerBlock = kThreads / 32;
constexpr int kBlocksPerSm = 6;
constexpr int kLongRows = 4;  // rows per warp in a block of the first wave
constexpr float kEps = 1e-8f;

// L2 policy of data that is read once: its lines are the first to be replaced.
__device__ __forceinline__ uint64_t stream_policy() {
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

__device__ __forceinline__ float4 load_stream(const float4* p, uint64_t policy) {
    float4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.L2::256B.v4.f32 "
                 "{%0, %1, %2, %3}, [%4], %5;"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "l"(p), "l"(policy));
    return v;
}

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
    for (int m = 16; m > 0; m >>= 1) {
        v += __shfl_xor_sync(0xffffffffu, v, m);
    }
    return v;
}

__device__ __forceinline__ float finish(float dot, float xx, float yy) {
    const float nx = fmaxf(sqrtf(xx), kEps);
    const float ny = fmaxf(sqrtf(yy), kEps);
    return 1.0f - (dot / nx) / ny;
}

// One warp computes the R rows row0, row0 + row_step, ...; all of them exist.
// A row has exactly VEC * 32 float4 values.
template <int VEC, int R>
__device__ __forceinline__ void warp_rows(const float* __restrict__ x,
                                          const float* __restrict__ y,
                                          float* __restrict__ out,
                                          int64_t row0, int64_t row_step, int lane) {
    const int64_t base = row0 * (int64_t)(VEC * 32) + lane;
    const int64_t step = row_step * (int64_t)(VEC * 32);
    const float4* px = reinterpret_cast<const float4*>(x) + base;
    const float4* py = reinterpret_cast<const float4*>(y) + base;
    const uint64_t policy = stream_policy();

    float4 a[VEC];
    float4 b[VEC];
#pragma unroll
    for (int i = 0; i < VEC; ++i) {
        a[i] = load_stream(px + i * 32, policy);
        b[i] = load_stream(py + i * 32, policy);
    }

    float dot[R], xx[R], yy[R];
#pragma unroll
    for (int k = 0; k < R; ++k) {
        dot[k] = 0.0f;
        xx[k] = 0.0f;
        yy[k] = 0.0f;
        if (k + 1 < R) {
            px += step;
            py += step;
        }
#pragma unroll
        for (int i = 0; i < VEC; ++i) {
            dot[k] = fmaf(a[i].x, b[i].x, dot[k]);
            xx[k]  = fmaf(a[i].x, a[i].x, xx[k]);
            yy[k]  = fmaf(b[i].x, b[i].x, yy[k]);
            dot[k] = fmaf(a[i].y, b[i].y, dot[k]);
            xx[k]  = fmaf(a[i].y, a[i].y, xx[k]);
            yy[k]  = fmaf(b[i].y, b[i].y, yy[k]);
            dot[k] = fmaf(a[i].z, b[i].z, dot[k]);
            xx[k]  = fmaf(a[i].z, a[i].z, xx[k]);
            yy[k]  = fmaf(b[i].z, b[i].z, yy[k]);
            dot[k] = fmaf(a[i].w, b[i].w, dot[k]);
            xx[k]  = fmaf(a[i].w, a[i].w, xx[k]);
            yy[k]  = fmaf(b[i].w, b[i].w, yy[k]);
            if (k + 1 < R) {  // refill the registers with the next row
                a[i] = load_stream(px + i * 32, policy);
                b[i] = load_stream(py + i * 32, policy);
            }
        }
    }

#pragma unroll
    for (int m = 16; m > 0; m >>= 1) {
#pragma unroll
        for (int k = 0; k < R; ++k) {
            dot[k] += __shfl_xor_sync(0xffffffffu, dot[k], m);
            xx[k]  += __shfl_xor_sync(0xffffffffu, xx[k], m);
            yy[k]  += __shfl_xor_sync(0xffffffffu, yy[k], m);
        }
    }

    // Lane k finishes row k.
    float d = dot[0], sx = xx[0], sy = yy[0];
#pragma unroll
    for (int k = 1; k < R; ++k) {
        if (lane == k) {
            d = dot[k];
            sx = xx[k];
            sy = yy[k];
        }
    }
    if (lane < R) out[row0 + (int64_t)lane * row_step] = finish(d, sx, sy);
}

// Blocks [0, long_blocks) come in groups of `slots` blocks (one wave) and take
// kLongRows rows per warp; the blocks after them take one row per warp.
template <int VEC>
__global__ void __launch_bounds__(kThreads, kBlocksPerSm)
cosine_rows_vec(const float* __restrict__ x, const float* __restrict__ y,
                float* __restrict__ out, int64_t rows,
                unsigned int slots, unsigned int long_blocks) {
    const int lane = threadIdx.x & 31;
    const int warp = threadIdx.x >> 5;
    const unsigned int block = blockIdx.x;

    if (block < long_blocks) {
        const unsigned int group = block / slots;
        const unsigned int slot = block - group * slots;
        const int64_t row_step = (int64_t)slots * kRowsPerBlock;
        const int64_t row0 = (int64_t)group * row_step * kLongRows
                           + (int64_t)slot * kRowsPerBlock + warp;
        warp_rows<VEC, kLongRows>(x, y, out, row0, row_step, lane);
    } else {
        const int64_t row = (int64_t)long_blocks * (kRowsPerBlock * kLongRows)
                          + (int64_t)(block - long_blocks) * kRowsPerBlock + warp;
        if (row >= rows) return;  // the whole warp leaves together
        warp_rows<VEC, 1>(x, y, out, row, 0, lane);
    }
}

// Any width and any alignment: one warp per row, scalar coalesced loads.
__global__ void __launch_bounds__(kThreads)
cosine_rows_any(const float* __restrict__ x, const float* __restrict__ y,
                float* __restrict__ out, int64_t rows, int64_t width) {
    const int lane = threadIdx.x & 31;
    const int64_t row = (int64_t)blockIdx.x * kRowsPerBlock + (threadIdx.x >> 5);
    if (row >= rows) return;  // the whole warp leaves together

    const float* px = x + row * width;
    const float* py = y + row * width;

    float dot = 0.0f, xx = 0.0f, yy = 0.0f;
#pragma unroll 4
    for (int64_t i = lane; i < width; i += 32) {
        const float a = px[i];
        const float b = py[i];
        dot = fmaf(a, b, dot);
        xx  = fmaf(a, a, xx);
        yy  = fmaf(b, b, yy);
    }

    dot = warp_sum(dot);
    xx = warp_sum(xx);
    yy = warp_sum(yy);

    if (lane == 0) out[row] = finish(dot, xx, yy);
}

}  // namespace

torch::Tensor cosine_distance_rows(torch::Tensor x, torch::Tensor y) {
    TORCH_CHECK(x.is_cuda() && y.is_cuda(), "inputs must be CUDA tensors");
    TORCH_CHECK(x.device() == y.device(), "inputs must be on one device");
    TORCH_CHECK(x.scalar_type() == at::kFloat && y.scalar_type() == at::kFloat,
                "inputs must be float32");
    TORCH_CHECK(x.dim() == 2 && y.dim() == 2, "inputs must be matrices");
    TORCH_CHECK(x.size(0) == y.size(0) && x.size(1) == y.size(1),
                "inputs must have the same shape");

    const c10::cuda::CUDAGuard guard(x.device());
    const at::Tensor xc = x.contiguous();
    const at::Tensor yc = y.contiguous();
    const int64_t rows = xc.size(0);
    const int64_t width = xc.size(1);

    at::Tensor out = at::empty({rows}, xc.options());
    if (rows == 0) return out;

    const float* px = xc.data_ptr<float>();
    const float* py = yc.data_ptr<float>();
    float* po = out.data_ptr<float>();

    const int64_t blocks = (rows + kRowsPerBlock - 1) / kRowsPerBlock;
    TORCH_CHECK(blocks <= 2147483647LL, "too many rows");
    const bool aligned =
        ((reinterpret_cast<uintptr_t>(px) | reinterpret_cast<uintptr_t>(py)) & 15u) == 0;

    cudaStream_t stream = at::cuda::getCurrentCUDAStream();
    if (width == 768 && aligned) {
        const int64_t slots =
            (int64_t)at::cuda::getCurrentDeviceProperties()->multiProcessorCount * kBlocksPerSm;
        const int64_t long_rows = (int64_t)kRowsPerBlock * kLongRows;  // rows of a long block
        const int64_t long_blocks = rows / (slots * long_rows) * slots;
        const int64_t rest = rows - long_blocks * long_rows;
        const int64_t grid = long_blocks + (rest + kRowsPerBlock - 1) / kRowsPerBlock;
        cosine_rows_vec<6><<<(unsigned int)grid, kThreads, 0, stream>>>(
            px, py, po, rows, (unsigned int)slots, (unsigned int)long_blocks);
        C10_CUDA_KERNEL_LAUNCH_CHECK();
    } else {
        cosine_rows_any<<<(unsigned int)blocks, kThreads, 0, stream>>>(px, py, po, rows, width);
        C10_CUDA_KERNEL_LAUNCH_CHECK();
    }
    return out;
}
"""

_ext = load_inline(
    name="cosine_distance_rows_roll_ext",
    cpp_sources=_CPP_SRC,
    cuda_sources=_CUDA_SRC,
    functions=["cosine_distance_rows"],
    extra_cuda_cflags=["-O3"],
)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return _ext.cosine_distance_rows(x, y)

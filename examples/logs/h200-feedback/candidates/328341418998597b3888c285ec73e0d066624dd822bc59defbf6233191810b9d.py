import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

_CPP = r"""
at::Tensor layer_norm_rows(const at::Tensor& x, const at::Tensor& weight,
                           const at::Tensor& bias, double eps);
"""

_CUDA = r"""
#include <torch/types.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <cstdint>

constexpr int THREADS = 256;
constexpr int WARPS = THREADS / 32;
constexpr int ROWS = 2;  // rows per block of the register kernel

// Sum over the block; every thread gets the result. `slots` must not be reused without a barrier.
__device__ __forceinline__ float block_sum(float v, float* slots) {
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
    if ((threadIdx.x & 31) == 0) slots[threadIdx.x >> 5] = v;
    __syncthreads();
    float t = 0.0f;
#pragma unroll
    for (int i = 0; i < WARPS; ++i) t += slots[i];
    return t;
}

// Sums over the block for ROWS values at once, sharing one barrier.
__device__ __forceinline__ void block_sum_rows(float (&v)[ROWS], float (*slots)[ROWS]) {
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) {
#pragma unroll
        for (int r = 0; r < ROWS; ++r) v[r] += __shfl_xor_sync(0xffffffffu, v[r], o);
    }
    if ((threadIdx.x & 31) == 0) {
#pragma unroll
        for (int r = 0; r < ROWS; ++r) slots[threadIdx.x >> 5][r] = v[r];
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < ROWS; ++r) v[r] = 0.0f;
#pragma unroll
    for (int i = 0; i < WARPS; ++i) {
#pragma unroll
        for (int r = 0; r < ROWS; ++r) v[r] += slots[i][r];
    }
}

// width == 4 * THREADS * V exactly; one block takes ROWS rows at once, all kept in registers,
// so that weight and bias are read, and the barriers are paid, once per ROWS rows.
template <int V>
__global__ void __launch_bounds__(THREADS, 4)
layer_norm_reg_kernel(const float4* __restrict__ x, const float4* __restrict__ weight,
                      const float4* __restrict__ bias, float4* __restrict__ out,
                      int64_t rows, float eps) {
    constexpr int W4 = V * THREADS;
    constexpr float INV = 1.0f / (float)(4 * W4);
    __shared__ float slots[2][WARPS][ROWS];
    const int tid = (int)threadIdx.x;
    const int64_t row0 = (int64_t)blockIdx.x * ROWS;

    float4 v[ROWS][V];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        // A row past the end repeats the last one; it is not stored.
        const int64_t row = (row0 + r < rows) ? row0 + r : rows - 1;
        const float4* src = x + row * W4 + tid;
#pragma unroll
        for (int i = 0; i < V; ++i) v[r][i] = src[i * THREADS];
    }

    float s[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        s[r] = 0.0f;
#pragma unroll
        for (int i = 0; i < V; ++i) s[r] += (v[r][i].x + v[r][i].y) + (v[r][i].z + v[r][i].w);
    }
    block_sum_rows(s, slots[0]);

    float q[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        const float mean = s[r] * INV;
        q[r] = 0.0f;
#pragma unroll
        for (int i = 0; i < V; ++i) {
            v[r][i].x -= mean;
            v[r][i].y -= mean;
            v[r][i].z -= mean;
            v[r][i].w -= mean;
            q[r] += (v[r][i].x * v[r][i].x + v[r][i].y * v[r][i].y) +
                    (v[r][i].z * v[r][i].z + v[r][i].w * v[r][i].w);
        }
    }
    block_sum_rows(q, slots[1]);

    float rstd[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) rstd[r] = 1.0f / sqrtf(q[r] * INV + eps);

    float4* dst = out + row0 * W4 + tid;
#pragma unroll
    for (int i = 0; i < V; ++i) {
        const float4 w = __ldg(weight + tid + i * THREADS);
        const float4 b = __ldg(bias + tid + i * THREADS);
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            float4 o;
            o.x = fmaf(v[r][i].x * rstd[r], w.x, b.x);
            o.y = fmaf(v[r][i].y * rstd[r], w.y, b.y);
            o.z = fmaf(v[r][i].z * rstd[r], w.z, b.z);
            o.w = fmaf(v[r][i].w * rstd[r], w.w, b.w);
            if (row0 + r < rows) __stcs(dst + r * W4 + i * THREADS, o);
        }
    }
}

// Any width, any alignment.
__global__ void __launch_bounds__(THREADS)
layer_norm_any_kernel(const float* __restrict__ x, const float* __restrict__ weight,
                      const float* __restrict__ bias, float* __restrict__ out,
                      int64_t width, float eps) {
    __shared__ float slots[2][WARPS];
    const float* row = x + (int64_t)blockIdx.x * width;
    float* dst = out + (int64_t)blockIdx.x * width;

    float s = 0.0f;
    for (int64_t c = threadIdx.x; c < width; c += THREADS) s += row[c];
    const float mean = block_sum(s, slots[0]) / (float)width;

    float q = 0.0f;
    for (int64_t c = threadIdx.x; c < width; c += THREADS) {
        const float d = row[c] - mean;
        q += d * d;
    }
    const float rstd = 1.0f / sqrtf(block_sum(q, slots[1]) / (float)width + eps);

    for (int64_t c = threadIdx.x; c < width; c += THREADS)
        dst[c] = fmaf((row[c] - mean) * rstd, weight[c], bias[c]);
}

static inline bool aligned16(const void* p) {
    return (reinterpret_cast<uintptr_t>(p) & 15u) == 0;
}

at::Tensor layer_norm_rows(const at::Tensor& x_in, const at::Tensor& weight_in,
                           const at::Tensor& bias_in, double eps) {
    TORCH_CHECK(x_in.is_cuda() && weight_in.is_cuda() && bias_in.is_cuda(),
                "all tensors must be on CUDA");
    TORCH_CHECK(x_in.scalar_type() == at::kFloat && weight_in.scalar_type() == at::kFloat &&
                bias_in.scalar_type() == at::kFloat, "all tensors must be float32");
    TORCH_CHECK(x_in.dim() >= 1, "x must have at least one dimension");
    const c10::cuda::CUDAGuard guard(x_in.device());

    const at::Tensor x = x_in.contiguous();
    const at::Tensor weight = weight_in.contiguous();
    const at::Tensor bias = bias_in.contiguous();
    const int64_t width = x.size(-1);
    TORCH_CHECK(weight.numel() == width && bias.numel() == width, "weight/bias must match the width");

    at::Tensor out = at::empty(x.sizes(), x.options());
    if (x.numel() == 0) return out;
    const int64_t rows = x.numel() / width;
    TORCH_CHECK(rows <= 2147483647LL, "too many rows");

    const float* xp = x.data_ptr<float>();
    const float* wp = weight.data_ptr<float>();
    const float* bp = bias.data_ptr<float>();
    float* op = out.data_ptr<float>();
    cudaStream_t stream = at::cuda::getCurrentCUDAStream();
    const unsigned grid = (unsigned)rows;
    const unsigned grid_reg = (unsigned)((rows + ROWS - 1) / ROWS);

    const bool vec = aligned16(xp) && aligned16(wp) && aligned16(bp) && aligned16(op);
    const float4* x4 = reinterpret_cast<const float4*>(xp);
    const float4* w4 = reinterpret_cast<const float4*>(wp);
    const float4* b4 = reinterpret_cast<const float4*>(bp);
    float4* o4 = reinterpret_cast<float4*>(op);
    if (vec && width == 4 * THREADS * 4) {
        layer_norm_reg_kernel<4><<<grid_reg, THREADS, 0, stream>>>(x4, w4, b4, o4, rows, (float)eps);
    } else if (vec && width == 4 * THREADS * 2) {
        layer_norm_reg_kernel<2><<<grid_reg, THREADS, 0, stream>>>(x4, w4, b4, o4, rows, (float)eps);
    } else if (vec && width == 4 * THREADS) {
        layer_norm_reg_kernel<1><<<grid_reg, THREADS, 0, stream>>>(x4, w4, b4, o4, rows, (float)eps);
    } else {
        layer_norm_any_kernel<<<grid, THREADS, 0, stream>>>(xp, wp, bp, op, width, (float)eps);
    }
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return out;
}
"""

_ext = load_inline(
    name="layer_norm_rows_ext",
    cpp_sources=_CPP,
    cuda_sources=_CUDA,
    functions=["layer_norm_rows"],
    extra_cuda_cflags=["-O3"],
)


class ModelNew(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _ext.layer_norm_rows(x, self.norm.weight, self.norm.bias, self.norm.eps)

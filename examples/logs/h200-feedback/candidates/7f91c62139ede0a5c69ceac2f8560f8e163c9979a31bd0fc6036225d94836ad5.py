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

// x is read once: its lines are the first to leave L2, so that they do not displace the output.
__device__ __forceinline__ uint64_t evict_first_policy() {
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

__device__ __forceinline__ float4 load_once(const float4* p, uint64_t policy) {
    float4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.f32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "l"(__cvta_generic_to_global(p)), "l"(policy));
    return v;
}

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

// width == 4 * THREADS * V exactly; one block per row, row kept in registers.
template <int V>
__global__ void __launch_bounds__(THREADS)
layer_norm_reg_kernel(const float4* __restrict__ x, const float4* __restrict__ weight,
                      const float4* __restrict__ bias, float4* __restrict__ out, float eps) {
    constexpr int W4 = V * THREADS;
    constexpr float INV = 1.0f / (float)(4 * W4);
    __shared__ float slots[2][WARPS];
    const int tid = (int)threadIdx.x;
    const int64_t base = (int64_t)blockIdx.x * W4 + tid;

    const uint64_t policy = evict_first_policy();
    float4 v[V];
#pragma unroll
    for (int i = 0; i < V; ++i) v[i] = load_once(x + base + i * THREADS, policy);

    float s = 0.0f;
#pragma unroll
    for (int i = 0; i < V; ++i) s += (v[i].x + v[i].y) + (v[i].z + v[i].w);
    const float mean = block_sum(s, slots[0]) * INV;

    float q = 0.0f;
#pragma unroll
    for (int i = 0; i < V; ++i) {
        v[i].x -= mean;
        v[i].y -= mean;
        v[i].z -= mean;
        v[i].w -= mean;
        q += (v[i].x * v[i].x + v[i].y * v[i].y) + (v[i].z * v[i].z + v[i].w * v[i].w);
    }
    const float rstd = 1.0f / sqrtf(block_sum(q, slots[1]) * INV + eps);

#pragma unroll
    for (int i = 0; i < V; ++i) {
        const float4 w = __ldg(weight + tid + i * THREADS);
        const float4 b = __ldg(bias + tid + i * THREADS);
        float4 o;
        o.x = fmaf(v[i].x * rstd, w.x, b.x);
        o.y = fmaf(v[i].y * rstd, w.y, b.y);
        o.z = fmaf(v[i].z * rstd, w.z, b.z);
        o.w = fmaf(v[i].w * rstd, w.w, b.w);
        out[base + i * THREADS] = o;
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

    const bool vec = aligned16(xp) && aligned16(wp) && aligned16(bp) && aligned16(op);
    const float4* x4 = reinterpret_cast<const float4*>(xp);
    const float4* w4 = reinterpret_cast<const float4*>(wp);
    const float4* b4 = reinterpret_cast<const float4*>(bp);
    float4* o4 = reinterpret_cast<float4*>(op);
    if (vec && width == 4 * THREADS * 4) {
        layer_norm_reg_kernel<4><<<grid, THREADS, 0, stream>>>(x4, w4, b4, o4, (float)eps);
    } else if (vec && width == 4 * THREADS * 2) {
        layer_norm_reg_kernel<2><<<grid, THREADS, 0, stream>>>(x4, w4, b4, o4, (float)eps);
    } else if (vec && width == 4 * THREADS) {
        layer_norm_reg_kernel<1><<<grid, THREADS, 0, stream>>>(x4, w4, b4, o4, (float)eps);
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

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

_CPP = r"""
torch::Tensor rms_norm_scale(torch::Tensor x, torch::Tensor scale, double eps);
"""

_CUDA = r"""
#include <torch/types.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime.h>
#include <cstdint>

namespace {

constexpr int THREADS = 128;
constexpr int ROW_VEC = 8;   // float4 per thread: rows of THREADS * ROW_VEC * 4 = 4096
constexpr int WARPS = THREADS / 32;

__device__ __forceinline__ float block_sum(float v) {
    __shared__ float part[WARPS];
    const int lane = threadIdx.x & 31;
    const int warp = threadIdx.x >> 5;
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
    if (lane == 0) part[warp] = v;
    __syncthreads();
    float s = part[lane & (WARPS - 1)];
#pragma unroll
    for (int o = WARPS / 2; o > 0; o >>= 1) s += __shfl_xor_sync(0xffffffffu, s, o);
    return s;
}

// width == THREADS * 4 * VEC: the row stays in registers
template <int VEC>
__global__ void __launch_bounds__(THREADS, 8)
rms_rows_kernel(const float4* __restrict__ x, const float4* __restrict__ scale,
                float4* __restrict__ out, float inv_width, float eps) {
    constexpr int ROW4 = THREADS * VEC;
    const int64_t base = (int64_t)blockIdx.x * ROW4 + threadIdx.x;
    float4 v[VEC];
#pragma unroll
    for (int i = 0; i < VEC; ++i) v[i] = x[base + i * THREADS];
    float s = 0.0f;
#pragma unroll
    for (int i = 0; i < VEC; ++i) {
        s = fmaf(v[i].x, v[i].x, s);
        s = fmaf(v[i].y, v[i].y, s);
        s = fmaf(v[i].z, v[i].z, s);
        s = fmaf(v[i].w, v[i].w, s);
    }
    s = block_sum(s);
    const float r = rsqrtf(s * inv_width + eps);
#pragma unroll
    for (int i = 0; i < VEC; ++i) {
        const float4 g = __ldg(scale + threadIdx.x + i * THREADS);
        float4 o;
        o.x = v[i].x * r * g.x;
        o.y = v[i].y * r * g.y;
        o.z = v[i].z * r * g.z;
        o.w = v[i].w * r * g.w;
        __stcs(out + base + i * THREADS, o);
    }
}

// any width
__global__ void __launch_bounds__(THREADS)
rms_any_kernel(const float* __restrict__ x, const float* __restrict__ scale,
               float* __restrict__ out, int64_t width, float inv_width, float eps) {
    const int64_t base = (int64_t)blockIdx.x * width;
    float s = 0.0f;
    for (int64_t i = threadIdx.x; i < width; i += THREADS) {
        const float v = x[base + i];
        s = fmaf(v, v, s);
    }
    s = block_sum(s);
    const float r = rsqrtf(s * inv_width + eps);
    for (int64_t i = threadIdx.x; i < width; i += THREADS)
        out[base + i] = x[base + i] * r * scale[i];
}

}  // namespace

torch::Tensor rms_norm_scale(torch::Tensor x, torch::Tensor scale, double eps) {
    TORCH_CHECK(x.is_cuda() && scale.is_cuda(), "CUDA tensors expected");
    TORCH_CHECK(x.scalar_type() == at::kFloat && scale.scalar_type() == at::kFloat,
                "float32 expected");
    TORCH_CHECK(x.dim() >= 1 && x.size(-1) == scale.numel(), "width mismatch");
    const c10::cuda::CUDAGuard guard(x.device());
    auto xc = x.contiguous();
    auto sc = scale.contiguous();
    auto out = at::empty(xc.sizes(), xc.options());
    if (xc.numel() == 0) return out;

    const int64_t width = xc.size(-1);
    const int64_t rows = xc.numel() / width;
    TORCH_CHECK(rows <= 2147483647LL, "too many rows");
    const float inv_width = (float)(1.0 / (double)width);
    const float e = (float)eps;
    auto stream = at::cuda::getCurrentCUDAStream();
    const float* xp = xc.data_ptr<float>();
    const float* sp = sc.data_ptr<float>();
    float* op = out.data_ptr<float>();
    const bool aligned =
        ((reinterpret_cast<uintptr_t>(xp) | reinterpret_cast<uintptr_t>(sp) |
          reinterpret_cast<uintptr_t>(op)) & 15) == 0;
    const unsigned int grid = (unsigned int)rows;
    if (aligned && width == THREADS * ROW_VEC * 4) {
        rms_rows_kernel<ROW_VEC><<<grid, THREADS, 0, stream>>>(
            reinterpret_cast<const float4*>(xp), reinterpret_cast<const float4*>(sp),
            reinterpret_cast<float4*>(op), inv_width, e);
    } else {
        rms_any_kernel<<<grid, THREADS, 0, stream>>>(xp, sp, op, width, inv_width, e);
    }
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return out;
}
"""

_ext = load_inline(
    name="rms_norm_scale_v2_t128",
    cpp_sources=[_CPP],
    cuda_sources=[_CUDA],
    functions=["rms_norm_scale"],
    extra_cuda_cflags=["-O3"],
)


class ModelNew(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _ext.rms_norm_scale(x, self.scale, float(self.eps))

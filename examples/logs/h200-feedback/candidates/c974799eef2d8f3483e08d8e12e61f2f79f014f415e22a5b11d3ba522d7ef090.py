import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

_cpp_src = "torch::Tensor rms_norm(torch::Tensor x, torch::Tensor scale, double eps);"

_cuda_src = r"""
#include <torch/types.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <cstdint>

constexpr int THREADS = 512;
constexpr int WARPS = THREADS / 32;

// Sum over the block; every thread receives the result. Called once per kernel.
__device__ __forceinline__ float block_sum(float s) {
    __shared__ float part[WARPS];
    const int lane = threadIdx.x & 31;
    const int warp = threadIdx.x >> 5;
    #pragma unroll
    for (int d = 16; d > 0; d >>= 1) s += __shfl_xor_sync(0xffffffffu, s, d);
    if (lane == 0) part[warp] = s;
    __syncthreads();
    s = part[lane & (WARPS - 1)];
    #pragma unroll
    for (int d = WARPS / 2; d > 0; d >>= 1) s += __shfl_xor_sync(0xffffffffu, s, d);
    return s;
}

// Row held in registers: width4 <= THREADS * VPT float4 values.
template <int VPT>
__global__ void __launch_bounds__(THREADS)
rms_norm_vec_kernel(const float4* __restrict__ x, const float4* __restrict__ scale,
                    float4* __restrict__ y, int width4, float width_f, float eps) {
    const int64_t row = blockIdx.x;
    const float4* xr = x + row * width4;
    float4* yr = y + row * width4;
    const int tid = threadIdx.x;

    float4 v[VPT];
    #pragma unroll
    for (int j = 0; j < VPT; ++j) {
        const int c = j * THREADS + tid;
        v[j] = (c < width4) ? __ldcs(xr + c) : make_float4(0.f, 0.f, 0.f, 0.f);
    }
    // The scale does not depend on the reduction: fetch it before the barrier.
    float4 g[VPT];
    #pragma unroll
    for (int j = 0; j < VPT; ++j) {
        const int c = j * THREADS + tid;
        g[j] = (c < width4) ? __ldg(scale + c) : make_float4(0.f, 0.f, 0.f, 0.f);
    }

    float s = 0.f;
    #pragma unroll
    for (int j = 0; j < VPT; ++j) {
        s += (v[j].x * v[j].x + v[j].y * v[j].y) + (v[j].z * v[j].z + v[j].w * v[j].w);
    }
    s = block_sum(s);
    const float r = rsqrtf(s / width_f + eps);

    #pragma unroll
    for (int j = 0; j < VPT; ++j) {
        const int c = j * THREADS + tid;
        if (c < width4) {
            yr[c] = make_float4(v[j].x * r * g[j].x, v[j].y * r * g[j].y,
                                v[j].z * r * g[j].z, v[j].w * r * g[j].w);
        }
    }
}

// Any width, any alignment: reads the row twice.
__global__ void __launch_bounds__(THREADS)
rms_norm_generic_kernel(const float* __restrict__ x, const float* __restrict__ scale,
                        float* __restrict__ y, int64_t width, float eps) {
    const int64_t row = blockIdx.x;
    const float* xr = x + row * width;
    float* yr = y + row * width;
    float s = 0.f;
    for (int64_t c = threadIdx.x; c < width; c += THREADS) {
        const float a = xr[c];
        s += a * a;
    }
    s = block_sum(s);
    const float r = rsqrtf(s / (float)width + eps);
    for (int64_t c = threadIdx.x; c < width; c += THREADS) {
        yr[c] = xr[c] * r * scale[c];
    }
}

torch::Tensor rms_norm(torch::Tensor x, torch::Tensor scale, double eps) {
    TORCH_CHECK(x.is_cuda() && scale.is_cuda(), "x and scale must be CUDA tensors");
    TORCH_CHECK(x.device() == scale.device(), "x and scale must be on one device");
    TORCH_CHECK(x.scalar_type() == at::kFloat && scale.scalar_type() == at::kFloat,
                "x and scale must be float32");
    TORCH_CHECK(x.dim() >= 1 && scale.dim() == 1 && x.size(-1) == scale.size(0),
                "the last dimension of x must match scale");
    const c10::cuda::CUDAGuard guard(x.device());
    auto xc = x.contiguous();
    auto sc = scale.contiguous();
    auto y = at::empty(xc.sizes(), xc.options());
    if (xc.numel() == 0) return y;
    const int64_t width = xc.size(-1);
    const int64_t rows = xc.numel() / width;
    TORCH_CHECK(rows <= 2147483647LL, "too many rows");

    const float* xp = xc.data_ptr<float>();
    const float* sp = sc.data_ptr<float>();
    float* yp = y.data_ptr<float>();
    const bool vec = (width % 4 == 0) && (width <= 4LL * THREADS * 4) &&
                     (reinterpret_cast<uintptr_t>(xp) % 16 == 0) &&
                     (reinterpret_cast<uintptr_t>(sp) % 16 == 0) &&
                     (reinterpret_cast<uintptr_t>(yp) % 16 == 0);
    auto stream = at::cuda::getCurrentCUDAStream();
    const unsigned grid = (unsigned)rows;
    if (vec) {
        const int width4 = (int)(width / 4);
        const float4* x4 = reinterpret_cast<const float4*>(xp);
        const float4* s4 = reinterpret_cast<const float4*>(sp);
        float4* y4 = reinterpret_cast<float4*>(yp);
        if (width4 <= THREADS) {
            rms_norm_vec_kernel<1><<<grid, THREADS, 0, stream>>>(x4, s4, y4, width4, (float)width, (float)eps);
        } else if (width4 <= 2 * THREADS) {
            rms_norm_vec_kernel<2><<<grid, THREADS, 0, stream>>>(x4, s4, y4, width4, (float)width, (float)eps);
        } else {
            rms_norm_vec_kernel<4><<<grid, THREADS, 0, stream>>>(x4, s4, y4, width4, (float)width, (float)eps);
        }
    } else {
        rms_norm_generic_kernel<<<grid, THREADS, 0, stream>>>(xp, sp, yp, width, (float)eps);
    }
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return y;
}
"""

_ext = load_inline(
    name="rms_norm_f32_v1",
    cpp_sources=_cpp_src,
    cuda_sources=_cuda_src,
    functions=["rms_norm"],
    extra_cuda_cflags=["-O3"],
)


class ModelNew(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _ext.rms_norm(x, self.scale, self.eps)

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

_CPP = r"""
torch::Tensor bias_gelu_scale_residual(torch::Tensor x, torch::Tensor residual,
                                       torch::Tensor bias, torch::Tensor scale);
"""

_CUDA = r"""
#include <torch/types.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <cstdint>

constexpr int THREADS = 256;
constexpr int ROWS = 4;     // rows per thread and step

// gelu_tanh(v) = 0.5 v (1 + tanh(u)) = v / (1 + exp(-2u)), u = sqrt(2/pi) (v + 0.044715 v^3)
__device__ __forceinline__ float gelu_tanh(float v)
{
    const float k = -2.0f * 0.7978845608028654f;
    const float t = v * fmaf(0.044715f * v, v, 1.0f);
    return __fdividef(v, 1.0f + __expf(k * t));
}

__device__ __forceinline__ float one(float x, float r, float b, float s)
{
    return fmaf(gelu_tanh(x + b), s, r);
}

__global__ void __launch_bounds__(THREADS)
fused_vec_kernel(const float* __restrict__ x, const float* __restrict__ res,
                 const float* __restrict__ bias, const float* __restrict__ scale,
                 float* __restrict__ y, int64_t rows, int64_t nv)
{
    const int64_t k = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (k >= nv) return;
    const float4 b = __ldg(reinterpret_cast<const float4*>(bias) + k);
    const float4 s = __ldg(reinterpret_cast<const float4*>(scale) + k);

    for (int64_t r0 = (int64_t)blockIdx.y * ROWS; r0 < rows; r0 += (int64_t)gridDim.y * ROWS) {
        const float4* xp = reinterpret_cast<const float4*>(x) + r0 * nv + k;
        const float4* rp = reinterpret_cast<const float4*>(res) + r0 * nv + k;
        float4* yp = reinterpret_cast<float4*>(y) + r0 * nv + k;
        float4 a[ROWS], c[ROWS];
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            if (r0 + i < rows) {
                a[i] = __ldg(xp + i * nv);
                c[i] = __ldg(rp + i * nv);
            } else {
                a[i] = make_float4(0.f, 0.f, 0.f, 0.f);
                c[i] = make_float4(0.f, 0.f, 0.f, 0.f);
            }
        }
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            if (r0 + i < rows) {
                float4 o;
                o.x = one(a[i].x, c[i].x, b.x, s.x);
                o.y = one(a[i].y, c[i].y, b.y, s.y);
                o.z = one(a[i].z, c[i].z, b.z, s.z);
                o.w = one(a[i].w, c[i].w, b.w, s.w);
                __stcs(yp + i * nv, o);
            }
        }
    }
}

// any width, any alignment
__global__ void __launch_bounds__(THREADS)
fused_any_kernel(const float* __restrict__ x, const float* __restrict__ res,
                 const float* __restrict__ bias, const float* __restrict__ scale,
                 float* __restrict__ y, int64_t W, int64_t total)
{
    const int64_t step = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < total; i += step) {
        const int64_t k = i % W;
        y[i] = one(x[i], res[i], bias[k], scale[k]);
    }
}

torch::Tensor bias_gelu_scale_residual(torch::Tensor x_, torch::Tensor r_,
                                       torch::Tensor b_, torch::Tensor s_)
{
    TORCH_CHECK(x_.is_cuda() && r_.is_cuda() && b_.is_cuda() && s_.is_cuda(),
                "CUDA tensors expected");
    TORCH_CHECK(x_.scalar_type() == torch::kFloat32 && r_.scalar_type() == torch::kFloat32 &&
                b_.scalar_type() == torch::kFloat32 && s_.scalar_type() == torch::kFloat32,
                "float32 expected");
    TORCH_CHECK(x_.dim() >= 1 && x_.sizes() == r_.sizes(), "x and residual of one shape expected");
    const c10::cuda::CUDAGuard guard(x_.device());
    auto x = x_.contiguous();
    auto r = r_.contiguous();
    auto b = b_.contiguous();
    auto s = s_.contiguous();
    const int64_t W = x.size(-1);
    TORCH_CHECK(b.numel() == W && s.numel() == W, "parameter width mismatch");
    auto y = torch::empty(x.sizes(), x.options());
    if (y.numel() == 0) return y;
    const int64_t rows = x.numel() / W;
    cudaStream_t st = at::cuda::getCurrentCUDAStream();

    const float* xp = x.data_ptr<float>();
    const float* rp = r.data_ptr<float>();
    const float* bp = b.data_ptr<float>();
    const float* sp = s.data_ptr<float>();
    float* yp = y.data_ptr<float>();
    const uintptr_t bits = reinterpret_cast<uintptr_t>(xp) | reinterpret_cast<uintptr_t>(rp) |
                           reinterpret_cast<uintptr_t>(bp) | reinterpret_cast<uintptr_t>(sp) |
                           reinterpret_cast<uintptr_t>(yp);

    const int64_t nv = W / 4;
    const int64_t gx = (nv + THREADS - 1) / THREADS;
    if (W % 4 == 0 && bits % 16 == 0 && gx < 2147483647LL) {
        int64_t gy = (rows + ROWS - 1) / ROWS;
        if (gy > 65535) gy = 65535;
        fused_vec_kernel<<<dim3((unsigned)gx, (unsigned)gy), THREADS, 0, st>>>(
            xp, rp, bp, sp, yp, rows, nv);
    } else {
        const int64_t total = x.numel();
        int64_t g = (total + THREADS - 1) / THREADS;
        if (g > 1048576) g = 1048576;
        fused_any_kernel<<<(unsigned)g, THREADS, 0, st>>>(xp, rp, bp, sp, yp, W, total);
    }
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return y;
}
"""

_ext = load_inline(
    name="bias_gelu_scale_residual_v1",
    cpp_sources=_CPP,
    cuda_sources=_CUDA,
    functions=["bias_gelu_scale_residual"],
    extra_cuda_cflags=["-O3"],
    verbose=False,
)


class ModelNew(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(width) * 0.1)
        self.scale = nn.Parameter(1.0 + 0.1 * torch.randn(width))

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return _ext.bias_gelu_scale_residual(x, residual, self.bias, self.scale)

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

_CPP = r"""
at::Tensor bias_gelu_scale_residual(const at::Tensor& x, const at::Tensor& residual,
                                    const at::Tensor& bias, const at::Tensor& scale);
"""

_CUDA = r"""
#include <torch/types.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <cstdint>

constexpr int THREADS = 256;
constexpr int ROWS = 4;

__device__ __forceinline__ float fused_one(float x, float b, float s, float r) {
    const float v = x + b;
    // gelu_tanh(v) = v * sigmoid(2 * sqrt(2/pi) * (v + 0.044715 v^3))
    const float k = 1.5957691216057308f;
    const float u = k * v * fmaf(0.044715f * v, v, 1.0f);
    const float e = __expf(-u);
    const float g = __fdividef(v, 1.0f + e);
    // for 2^126 < 1 + e the fast division yields 0, which is also the limit value
    return fmaf(g, s, r);
}

__global__ void __launch_bounds__(THREADS)
fused_vec4_kernel(const float4* __restrict__ x, const float4* __restrict__ residual,
                  const float4* __restrict__ bias, const float4* __restrict__ scale,
                  float4* __restrict__ out, int64_t rows, int width4, int col_blocks) {
    const int64_t row_block = (int64_t)blockIdx.x / col_blocks;
    const int col_block = (int)((int64_t)blockIdx.x - row_block * col_blocks);
    const int col = col_block * THREADS + (int)threadIdx.x;
    if (col >= width4) return;
    const int64_t row0 = row_block * ROWS;
    const int64_t base = row0 * width4 + col;

    float4 a[ROWS], r[ROWS];
    if (row0 + ROWS <= rows) {
#pragma unroll
        for (int i = 0; i < ROWS; ++i) a[i] = x[base + (int64_t)i * width4];
#pragma unroll
        for (int i = 0; i < ROWS; ++i) r[i] = residual[base + (int64_t)i * width4];
        const float4 b = bias[col];
        const float4 s = scale[col];
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            float4 o;
            o.x = fused_one(a[i].x, b.x, s.x, r[i].x);
            o.y = fused_one(a[i].y, b.y, s.y, r[i].y);
            o.z = fused_one(a[i].z, b.z, s.z, r[i].z);
            o.w = fused_one(a[i].w, b.w, s.w, r[i].w);
            __stcs(out + base + (int64_t)i * width4, o);
        }
    } else {
        const float4 b = bias[col];
        const float4 s = scale[col];
        for (int64_t row = row0; row < rows; ++row) {
            const int64_t idx = row * width4 + col;
            const float4 av = x[idx];
            const float4 rv = residual[idx];
            float4 o;
            o.x = fused_one(av.x, b.x, s.x, rv.x);
            o.y = fused_one(av.y, b.y, s.y, rv.y);
            o.z = fused_one(av.z, b.z, s.z, rv.z);
            o.w = fused_one(av.w, b.w, s.w, rv.w);
            __stcs(out + idx, o);
        }
    }
}

// Any width, any alignment.
__global__ void __launch_bounds__(THREADS)
fused_scalar_kernel(const float* __restrict__ x, const float* __restrict__ residual,
                    const float* __restrict__ bias, const float* __restrict__ scale,
                    float* __restrict__ out, int64_t total, int64_t width) {
    const int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < total; i += step) {
        const int64_t c = i % width;
        out[i] = fused_one(x[i], bias[c], scale[c], residual[i]);
    }
}

static inline bool aligned16(const void* p) {
    return (reinterpret_cast<uintptr_t>(p) & 15u) == 0;
}

at::Tensor bias_gelu_scale_residual(const at::Tensor& x_in, const at::Tensor& residual_in,
                                    const at::Tensor& bias_in, const at::Tensor& scale_in) {
    TORCH_CHECK(x_in.is_cuda() && residual_in.is_cuda() && bias_in.is_cuda() && scale_in.is_cuda(),
                "all tensors must be on CUDA");
    TORCH_CHECK(x_in.scalar_type() == at::kFloat && residual_in.scalar_type() == at::kFloat &&
                bias_in.scalar_type() == at::kFloat && scale_in.scalar_type() == at::kFloat,
                "all tensors must be float32");
    TORCH_CHECK(x_in.dim() >= 1, "x must have at least one dimension");
    TORCH_CHECK(x_in.sizes() == residual_in.sizes(), "x and residual must have the same shape");
    const c10::cuda::CUDAGuard guard(x_in.device());

    const at::Tensor x = x_in.contiguous();
    const at::Tensor residual = residual_in.contiguous();
    const at::Tensor bias = bias_in.contiguous();
    const at::Tensor scale = scale_in.contiguous();
    const int64_t width = x.size(-1);
    TORCH_CHECK(bias.numel() == width && scale.numel() == width, "bias/scale must match the width");

    at::Tensor out = at::empty(x.sizes(), x.options());
    const int64_t total = x.numel();
    if (total == 0) return out;

    const float* xp = x.data_ptr<float>();
    const float* rp = residual.data_ptr<float>();
    const float* bp = bias.data_ptr<float>();
    const float* sp = scale.data_ptr<float>();
    float* op = out.data_ptr<float>();
    cudaStream_t stream = at::cuda::getCurrentCUDAStream();

    const int64_t rows = total / width;
    const int64_t width4 = width / 4;
    const int64_t col_blocks = (width4 + THREADS - 1) / THREADS;
    const int64_t blocks = col_blocks * ((rows + ROWS - 1) / ROWS);
    const bool vec = (width % 4 == 0) && width4 <= 1000000000LL && blocks <= 2147483647LL &&
                     aligned16(xp) && aligned16(rp) && aligned16(bp) && aligned16(sp) && aligned16(op);
    if (vec) {
        fused_vec4_kernel<<<(unsigned)blocks, THREADS, 0, stream>>>(
            reinterpret_cast<const float4*>(xp), reinterpret_cast<const float4*>(rp),
            reinterpret_cast<const float4*>(bp), reinterpret_cast<const float4*>(sp),
            reinterpret_cast<float4*>(op), rows, (int)width4, (int)col_blocks);
    } else {
        int64_t grid = (total + THREADS - 1) / THREADS;
        if (grid > 8192) grid = 8192;
        fused_scalar_kernel<<<(unsigned)grid, THREADS, 0, stream>>>(xp, rp, bp, sp, op, total, width);
    }
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return out;
}
"""

_ext = load_inline(
    name="bias_gelu_scale_residual_ext",
    cpp_sources=_CPP,
    cuda_sources=_CUDA,
    functions=["bias_gelu_scale_residual"],
    extra_cuda_cflags=["-O3"],
)


class ModelNew(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(width) * 0.1)
        self.scale = nn.Parameter(1.0 + 0.1 * torch.randn(width))

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return _ext.bias_gelu_scale_residual(x, residual, self.bias, self.scale)

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

_CPP = r"""
torch::Tensor layernorm_forward(torch::Tensor x, torch::Tensor w, torch::Tensor b, double eps);
"""

_CUDA = r"""
#include <torch/types.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <cstdint>

constexpr int THREADS = 256;
constexpr int NWARPS = THREADS / 32;

// Sum over the block; `buf` must not be reused for another reduction.
__device__ __forceinline__ float block_sum(float v, float* buf)
{
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
    if ((threadIdx.x & 31) == 0) buf[threadIdx.x >> 5] = v;
    __syncthreads();
    float s = 0.f;
#pragma unroll
    for (int i = 0; i < NWARPS; ++i) s += buf[i];
    return s;
}

// W % 4 == 0, W <= 4 * THREADS * NV, 16-byte aligned pointers. FULL: W == 4 * THREADS * NV.
template <int NV, bool FULL>
__global__ void __launch_bounds__(THREADS, (NV <= 4 ? 8 : (NV <= 8 ? 4 : 2)))
ln_vec_kernel(const float* __restrict__ x, const float* __restrict__ w,
              const float* __restrict__ b, float* __restrict__ y,
              int W, float inv_w, float eps)
{
    __shared__ float buf0[NWARPS];
    __shared__ float buf1[NWARPS];
    const int64_t row = blockIdx.x;
    const float4* xr = reinterpret_cast<const float4*>(x + row * W);
    float4* yr = reinterpret_cast<float4*>(y + row * W);
    const float4* w4 = reinterpret_cast<const float4*>(w);
    const float4* b4 = reinterpret_cast<const float4*>(b);
    const int nv = W >> 2;

    float4 v[NV];
#pragma unroll
    for (int i = 0; i < NV; ++i) {
        const int k = i * THREADS + (int)threadIdx.x;
        v[i] = make_float4(0.f, 0.f, 0.f, 0.f);
        if (FULL || k < nv) v[i] = __ldg(xr + k);
    }

    float s = 0.f;
#pragma unroll
    for (int i = 0; i < NV; ++i) s += (v[i].x + v[i].y) + (v[i].z + v[i].w);
    const float mean = block_sum(s, buf0) * inv_w;

    float q = 0.f;
#pragma unroll
    for (int i = 0; i < NV; ++i) {
        const int k = i * THREADS + (int)threadIdx.x;
        if (FULL || k < nv) {
            v[i].x -= mean; v[i].y -= mean; v[i].z -= mean; v[i].w -= mean;
            q = fmaf(v[i].x, v[i].x, q);
            q = fmaf(v[i].y, v[i].y, q);
            q = fmaf(v[i].z, v[i].z, q);
            q = fmaf(v[i].w, v[i].w, q);
        }
    }
    const float var = block_sum(q, buf1) * inv_w;
    const float rstd = 1.0f / sqrtf(var + eps);

#pragma unroll
    for (int i = 0; i < NV; ++i) {
        const int k = i * THREADS + (int)threadIdx.x;
        if (FULL || k < nv) {
            const float4 g = __ldg(w4 + k);
            const float4 h = __ldg(b4 + k);
            float4 o;
            o.x = fmaf(v[i].x * rstd, g.x, h.x);
            o.y = fmaf(v[i].y * rstd, g.y, h.y);
            o.z = fmaf(v[i].z * rstd, g.z, h.z);
            o.w = fmaf(v[i].w * rstd, g.w, h.w);
            __stcs(yr + k, o);
        }
    }
}

// any width, any alignment
__global__ void __launch_bounds__(THREADS)
ln_any_kernel(const float* __restrict__ x, const float* __restrict__ w,
              const float* __restrict__ b, float* __restrict__ y,
              int64_t W, float inv_w, float eps)
{
    __shared__ float buf0[NWARPS];
    __shared__ float buf1[NWARPS];
    const int64_t row = blockIdx.x;
    const float* xr = x + row * W;
    float* yr = y + row * W;
    float s = 0.f;
    for (int64_t k = threadIdx.x; k < W; k += THREADS) s += xr[k];
    const float mean = block_sum(s, buf0) * inv_w;
    float q = 0.f;
    for (int64_t k = threadIdx.x; k < W; k += THREADS) {
        const float d = xr[k] - mean;
        q = fmaf(d, d, q);
    }
    const float var = block_sum(q, buf1) * inv_w;
    const float rstd = 1.0f / sqrtf(var + eps);
    for (int64_t k = threadIdx.x; k < W; k += THREADS)
        yr[k] = fmaf((xr[k] - mean) * rstd, w[k], b[k]);
}

template <int NV>
static void launch_vec(const float* x, const float* w, const float* b, float* y,
                       int64_t rows, int W, float inv_w, float eps, cudaStream_t st)
{
    if (W == 4 * THREADS * NV)
        ln_vec_kernel<NV, true><<<(unsigned)rows, THREADS, 0, st>>>(x, w, b, y, W, inv_w, eps);
    else
        ln_vec_kernel<NV, false><<<(unsigned)rows, THREADS, 0, st>>>(x, w, b, y, W, inv_w, eps);
}

torch::Tensor layernorm_forward(torch::Tensor x_, torch::Tensor w_, torch::Tensor b_, double eps)
{
    TORCH_CHECK(x_.is_cuda() && w_.is_cuda() && b_.is_cuda(), "CUDA tensors expected");
    TORCH_CHECK(x_.scalar_type() == torch::kFloat32 && w_.scalar_type() == torch::kFloat32 &&
                b_.scalar_type() == torch::kFloat32, "float32 expected");
    TORCH_CHECK(x_.dim() >= 1, "x needs at least one dimension");
    const c10::cuda::CUDAGuard guard(x_.device());
    auto x = x_.contiguous();
    auto w = w_.contiguous();
    auto b = b_.contiguous();
    const int64_t W = x.size(-1);
    TORCH_CHECK(w.numel() == W && b.numel() == W, "parameter width mismatch");
    auto y = torch::empty(x.sizes(), x.options());
    if (y.numel() == 0) return y;
    const int64_t rows = x.numel() / W;
    TORCH_CHECK(rows < 2147483647LL, "too many rows");
    cudaStream_t st = at::cuda::getCurrentCUDAStream();

    const float* xp = x.data_ptr<float>();
    const float* wp = w.data_ptr<float>();
    const float* bp = b.data_ptr<float>();
    float* yp = y.data_ptr<float>();
    const uintptr_t bits = reinterpret_cast<uintptr_t>(xp) | reinterpret_cast<uintptr_t>(wp) |
                           reinterpret_cast<uintptr_t>(bp) | reinterpret_cast<uintptr_t>(yp);
    const float inv_w = (float)(1.0 / (double)W);
    const float e = (float)eps;

    if (W % 4 == 0 && bits % 16 == 0 && W <= 4 * THREADS * 16) {
        const int Wi = (int)W;
        if (W <= 4 * THREADS)
            launch_vec<1>(xp, wp, bp, yp, rows, Wi, inv_w, e, st);
        else if (W <= 4 * THREADS * 2)
            launch_vec<2>(xp, wp, bp, yp, rows, Wi, inv_w, e, st);
        else if (W <= 4 * THREADS * 4)
            launch_vec<4>(xp, wp, bp, yp, rows, Wi, inv_w, e, st);
        else if (W <= 4 * THREADS * 8)
            launch_vec<8>(xp, wp, bp, yp, rows, Wi, inv_w, e, st);
        else
            launch_vec<16>(xp, wp, bp, yp, rows, Wi, inv_w, e, st);
    } else {
        ln_any_kernel<<<(unsigned)rows, THREADS, 0, st>>>(xp, wp, bp, yp, W, inv_w, e);
    }
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return y;
}
"""

_ext = load_inline(
    name="layernorm_row_regs_v3_t256_b8",
    cpp_sources=_CPP,
    cuda_sources=_CUDA,
    functions=["layernorm_forward"],
    extra_cuda_cflags=["-O3"],
    verbose=False,
)


class ModelNew(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _ext.layernorm_forward(x, self.norm.weight, self.norm.bias, self.norm.eps)

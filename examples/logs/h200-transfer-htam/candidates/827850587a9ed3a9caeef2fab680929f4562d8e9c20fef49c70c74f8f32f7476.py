import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

_cpp_src = r"""
torch::Tensor upsample2x_bilinear(torch::Tensor x);
"""

_cuda_src = r"""
#include <torch/types.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <cstdint>
#include <climits>

constexpr int R = 4;          // input rows per thread (2 * R output rows)
constexpr int THREADS = 192;

// horizontal pass: four output columns from two input columns and their neighbours
__device__ __forceinline__ float4 hblend(float l, float2 m, float r) {
    float4 o;
    const float a = 0.75f * m.x;
    const float b = 0.75f * m.y;
    o.x = fmaf(0.25f, l, a);
    o.y = fmaf(0.25f, m.y, a);
    o.z = fmaf(0.25f, m.x, b);
    o.w = fmaf(0.25f, r, b);
    return o;
}

// vertical pass: 0.75 * near + 0.25 * far
__device__ __forceinline__ float4 vblend(float4 nearv, float4 farv) {
    float4 o;
    o.x = fmaf(0.25f, farv.x, 0.75f * nearv.x);
    o.y = fmaf(0.25f, farv.y, 0.75f * nearv.y);
    o.z = fmaf(0.25f, farv.z, 0.75f * nearv.z);
    o.w = fmaf(0.25f, farv.w, 0.75f * nearv.w);
    return o;
}

// Even widths. HC, WC: sizes known at compile time, or 0 for run-time sizes.
template <int HC, int WC>
__global__ void __launch_bounds__(THREADS)
up2_vec_kernel(const float* __restrict__ x, float* __restrict__ y, int Hr, int Wr) {
    const int H = HC > 0 ? HC : Hr;
    const int W = WC > 0 ? WC : Wr;
    const int w2 = W / 2;
    const int groups = (H + R - 1) / R;
    const int items = groups * w2;
    const int bpp = (items + THREADS - 1) / THREADS;   // blocks per plane

    const int bid = (int)blockIdx.x;
    const int plane = bid / bpp;
    const int item = (bid - plane * bpp) * THREADS + (int)threadIdx.x;
    if (item >= items) return;
    const int g = item / w2;
    const int t = item - g * w2;

    const int h0 = g * R;
    const int c = 2 * t;
    const int cl = c > 0 ? c - 1 : 0;
    const int cr = c + 2 < W ? c + 2 : W - 1;

    const size_t plane_in = (size_t)H * (size_t)W;
    const float* xp = x + (size_t)plane * plane_in;

    float2 m[R + 2];
    float l[R + 2];
    float r[R + 2];
#pragma unroll
    for (int i = 0; i < R + 2; ++i) {
        int h = h0 - 1 + i;
        h = h < 0 ? 0 : h;
        h = h > H - 1 ? H - 1 : h;
        const float* row = xp + (size_t)h * (size_t)W;
        m[i] = __ldg(reinterpret_cast<const float2*>(row + c));
        l[i] = __ldg(row + cl);
        r[i] = __ldg(row + cr);
    }

    const size_t ow = 2 * (size_t)W;
    float* yp = y + (size_t)plane * plane_in * 4 + (size_t)(2 * h0) * ow + (size_t)(4 * t);

    float4 prev = hblend(l[0], m[0], r[0]);
    float4 cur = hblend(l[1], m[1], r[1]);
#pragma unroll
    for (int i = 0; i < R; ++i) {
        const float4 next = hblend(l[i + 2], m[i + 2], r[i + 2]);
        if (h0 + i < H) {
            __stcs(reinterpret_cast<float4*>(yp + (size_t)(2 * i) * ow), vblend(cur, prev));
            __stcs(reinterpret_cast<float4*>(yp + (size_t)(2 * i + 1) * ow), vblend(cur, next));
        }
        prev = cur;
        cur = next;
    }
}

// Any shape: one output element per step.
__global__ void __launch_bounds__(256)
up2_scalar_kernel(const float* __restrict__ x, float* __restrict__ y,
                  int64_t H, int64_t W, int64_t total) {
    const int64_t OW = 2 * W;
    const int64_t OH = 2 * H;
    const int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < total; i += step) {
        const int64_t ox = i % OW;
        const int64_t q = i / OW;
        const int64_t oy = q % OH;
        const int64_t plane = q / OH;
        const int64_t cn = ox >> 1;
        int64_t cf = (ox & 1) ? cn + 1 : cn - 1;
        cf = cf < 0 ? 0 : (cf > W - 1 ? W - 1 : cf);
        const int64_t rn = oy >> 1;
        int64_t rf = (oy & 1) ? rn + 1 : rn - 1;
        rf = rf < 0 ? 0 : (rf > H - 1 ? H - 1 : rf);
        const float* xp = x + plane * H * W;
        const float a = fmaf(0.25f, __ldg(xp + rn * W + cf), 0.75f * __ldg(xp + rn * W + cn));
        const float b = fmaf(0.25f, __ldg(xp + rf * W + cf), 0.75f * __ldg(xp + rf * W + cn));
        y[i] = fmaf(0.25f, b, 0.75f * a);
    }
}

torch::Tensor upsample2x_bilinear(torch::Tensor x_in) {
    TORCH_CHECK(x_in.is_cuda(), "input must be a CUDA tensor");
    TORCH_CHECK(x_in.scalar_type() == at::kFloat, "input must be float32");
    TORCH_CHECK(x_in.dim() == 4, "input must have four dimensions");
    const c10::cuda::CUDAGuard guard(x_in.device());

    at::Tensor x = x_in.contiguous();
    const int64_t N = x.size(0);
    const int64_t C = x.size(1);
    const int64_t H = x.size(2);
    const int64_t W = x.size(3);
    at::Tensor y = at::empty({N, C, 2 * H, 2 * W}, x.options());
    const int64_t total = y.numel();
    if (total == 0) return y;

    const float* xp = x.data_ptr<float>();
    float* yp = y.data_ptr<float>();
    auto stream = at::cuda::getCurrentCUDAStream();

    const int64_t planes = N * C;
    const int64_t items = ((H + R - 1) / R) * (W / 2);
    const int64_t bpp = (items + THREADS - 1) / THREADS;
    const bool vec_ok = (W % 2 == 0)
        && (reinterpret_cast<uintptr_t>(xp) % 8 == 0)
        && (reinterpret_cast<uintptr_t>(yp) % 16 == 0)
        && H < (int64_t)(1 << 28) && W < (int64_t)(1 << 28)
        && items < (int64_t)(1 << 30)
        && planes * bpp <= (int64_t)INT_MAX;

    if (vec_ok) {
        const unsigned int grid = (unsigned int)(planes * bpp);
        if (H == 96 && W == 96) {
            up2_vec_kernel<96, 96><<<grid, THREADS, 0, stream>>>(xp, yp, (int)H, (int)W);
        } else {
            up2_vec_kernel<0, 0><<<grid, THREADS, 0, stream>>>(xp, yp, (int)H, (int)W);
        }
        C10_CUDA_KERNEL_LAUNCH_CHECK();
    } else {
        int64_t blocks = (total + 255) / 256;
        if (blocks > 132 * 64) blocks = 132 * 64;
        up2_scalar_kernel<<<(unsigned int)blocks, 256, 0, stream>>>(xp, yp, H, W, total);
        C10_CUDA_KERNEL_LAUNCH_CHECK();
    }
    return y;
}
"""

_ext = load_inline(
    name="upsample2x_bilinear_ext",
    cpp_sources=_cpp_src,
    cuda_sources=_cuda_src,
    functions=["upsample2x_bilinear"],
    extra_cuda_cflags=["-O3"],
    verbose=False,
)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _ext.upsample2x_bilinear(x)

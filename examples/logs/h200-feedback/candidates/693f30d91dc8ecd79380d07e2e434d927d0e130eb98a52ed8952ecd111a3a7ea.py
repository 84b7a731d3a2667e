import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

_CPP = r"""
at::Tensor rotary_half_split(const at::Tensor& x, const at::Tensor& cosine, const at::Tensor& sine);
"""

_CUDA = r"""
#include <torch/types.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <cstdint>

constexpr int THREADS = 256;
constexpr int BLOCKS_PER_SM = 4;
constexpr int D = 2;   // planes (batch x head) in flight per thread

__device__ __forceinline__ float4 rotate_low(float4 lo, float4 hi, float4 c, float4 s) {
    float4 o;
    o.x = fmaf(lo.x, c.x, -(hi.x * s.x));
    o.y = fmaf(lo.y, c.y, -(hi.y * s.y));
    o.z = fmaf(lo.z, c.z, -(hi.z * s.z));
    o.w = fmaf(lo.w, c.w, -(hi.w * s.w));
    return o;
}

__device__ __forceinline__ float4 rotate_high(float4 lo, float4 hi, float4 c, float4 s) {
    float4 o;
    o.x = fmaf(hi.x, c.x, lo.x * s.x);
    o.y = fmaf(hi.y, c.y, lo.y * s.y);
    o.z = fmaf(hi.z, c.z, lo.z * s.z);
    o.w = fmaf(hi.w, c.w, lo.w * s.w);
    return o;
}

// half4: float4 per half row; positions = tokens * half4. Each thread keeps its table entries and
// walks over `per_group` planes with a ring of D prefetched planes.
__global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
rotary_vec4_kernel(const float4* __restrict__ x, const float4* __restrict__ cosine,
                   const float4* __restrict__ sine, float4* __restrict__ out,
                   int planes, unsigned positions, unsigned half4, int per_group) {
    const unsigned pos = blockIdx.x * (unsigned)THREADS + threadIdx.x;   // below 2^32 by the host check
    if (pos >= positions) return;
    const unsigned token = pos / half4;
    // token * 2 * half4 + (pos - token * half4): float4 offset of the low part
    const int64_t in_plane = (int64_t)pos + (int64_t)token * half4;
    const int64_t plane_size = (int64_t)positions * 2;   // float4 per plane
    const int64_t plane0 = (int64_t)blockIdx.y * per_group;
    const int64_t left = (int64_t)planes - plane0;
    if (left <= 0) return;
    const int n = left < per_group ? (int)left : per_group;
    const int64_t base = plane0 * plane_size + in_plane;
    const float4* src = x + base;
    float4* dst = out + base;

    float4 lo[D], hi[D];
#pragma unroll
    for (int j = 0; j < D; ++j) {
        if (j < n) {
            lo[j] = src[0];
            hi[j] = src[half4];
        }
        src += plane_size;
    }
    const float4 c_lo = __ldg(cosine + in_plane);
    const float4 c_hi = __ldg(cosine + in_plane + half4);
    const float4 s_lo = __ldg(sine + in_plane);
    const float4 s_hi = __ldg(sine + in_plane + half4);

#pragma unroll 1
    for (int i0 = 0; i0 < n; i0 += D) {
#pragma unroll
        for (int j = 0; j < D; ++j) {
            const int left_here = n - i0 - j;    // planes not yet written, this one included
            if (left_here > 0) {
                const float4 o_lo = rotate_low(lo[j], hi[j], c_lo, s_lo);
                const float4 o_hi = rotate_high(lo[j], hi[j], c_hi, s_hi);
                if (left_here > D) {
                    lo[j] = src[0];
                    hi[j] = src[half4];
                }
                __stcs(dst, o_lo);
                __stcs(dst + half4, o_hi);
            }
            src += plane_size;
            dst += plane_size;
        }
    }
}

// Any even width, any alignment.
__global__ void __launch_bounds__(THREADS)
rotary_any_kernel(const float* __restrict__ x, const float* __restrict__ cosine,
                  const float* __restrict__ sine, float* __restrict__ out,
                  int64_t total, int64_t table, int64_t width) {
    const int64_t half = width / 2;
    const int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < total; i += step) {
        const int64_t t = i % table;
        const int64_t d = i % width;
        const float rotated = d < half ? -x[i + half] : x[i - half];
        out[i] = fmaf(x[i], cosine[t], rotated * sine[t]);
    }
}

static inline bool aligned16(const void* p) {
    return (reinterpret_cast<uintptr_t>(p) & 15u) == 0;
}

at::Tensor rotary_half_split(const at::Tensor& x_in, const at::Tensor& cosine_in,
                             const at::Tensor& sine_in) {
    TORCH_CHECK(x_in.is_cuda() && cosine_in.is_cuda() && sine_in.is_cuda(),
                "all tensors must be on CUDA");
    TORCH_CHECK(x_in.scalar_type() == at::kFloat && cosine_in.scalar_type() == at::kFloat &&
                sine_in.scalar_type() == at::kFloat, "all tensors must be float32");
    TORCH_CHECK(x_in.dim() >= 2, "x must have at least two dimensions");
    const c10::cuda::CUDAGuard guard(x_in.device());

    const at::Tensor x = x_in.contiguous();
    const at::Tensor cosine = cosine_in.contiguous();
    const at::Tensor sine = sine_in.contiguous();
    const int64_t width = x.size(-1);
    const int64_t tokens = x.size(-2);
    TORCH_CHECK(width % 2 == 0, "the width must be even");
    TORCH_CHECK(cosine.dim() == 2 && cosine.size(0) == tokens && cosine.size(1) == width,
                "cosine must be (tokens, width)");
    TORCH_CHECK(sine.dim() == 2 && sine.size(0) == tokens && sine.size(1) == width,
                "sine must be (tokens, width)");

    at::Tensor out = at::empty(x.sizes(), x.options());
    const int64_t total = x.numel();
    if (total == 0) return out;

    const float* xp = x.data_ptr<float>();
    const float* cp = cosine.data_ptr<float>();
    const float* sp = sine.data_ptr<float>();
    float* op = out.data_ptr<float>();
    cudaStream_t stream = at::cuda::getCurrentCUDAStream();

    const int64_t table = tokens * width;
    const int64_t planes = total / table;
    const int64_t half4 = width / 8;
    const int64_t positions = tokens * half4;
    const int64_t pos_blocks = (positions + THREADS - 1) / THREADS;
    // as many plane groups as stay resident together with all position blocks: a single wave
    const int64_t resident =
        (int64_t)at::cuda::getCurrentDeviceProperties()->multiProcessorCount * BLOCKS_PER_SM;
    int64_t groups = pos_blocks > 0 ? resident / pos_blocks : 1;
    if (groups > planes) groups = planes;
    if (groups < 1) groups = 1;
    const int64_t per_group = (planes + groups - 1) / groups;
    groups = (planes + per_group - 1) / per_group;
    const bool vec = width % 8 == 0 && positions <= 2147483647LL && planes <= 1000000000LL &&
                     groups <= 65535LL &&
                     aligned16(xp) && aligned16(cp) && aligned16(sp) && aligned16(op);
    if (vec) {
        rotary_vec4_kernel<<<dim3((unsigned)pos_blocks, (unsigned)groups), THREADS, 0, stream>>>(
            reinterpret_cast<const float4*>(xp), reinterpret_cast<const float4*>(cp),
            reinterpret_cast<const float4*>(sp), reinterpret_cast<float4*>(op),
            (int)planes, (unsigned)positions, (unsigned)half4, (int)per_group);
    } else {
        int64_t grid = (total + THREADS - 1) / THREADS;
        if (grid > 16384) grid = 16384;
        rotary_any_kernel<<<(unsigned)grid, THREADS, 0, stream>>>(xp, cp, sp, op, total, table, width);
    }
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return out;
}
"""

_ext = load_inline(
    name="rotary_half_split_ext",
    cpp_sources=_CPP,
    cuda_sources=_CUDA,
    functions=["rotary_half_split"],
    extra_cuda_cflags=["-O3"],
)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        return _ext.rotary_half_split(x, cosine, sine)

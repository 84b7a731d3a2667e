import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

_CPP = r"""
torch::Tensor column_softmax(torch::Tensor x, torch::Tensor weight);
"""

_CUDA = r"""
#include <torch/types.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime.h>
#include <cfloat>
#include <cstdint>

namespace {

constexpr float kLog2e = 1.4426950408889634f;

__device__ __forceinline__ float ex2(float t) {
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(t));
    return r;
}

// exp(d) for d <= 0
__device__ __forceinline__ float exp_of(float d) { return ex2(d * kLog2e); }

// (m, s) <- combination of two partial (max, sum of exp) pairs; maxima are never -inf
__device__ __forceinline__ void combine(float& m, float& s, float m2, float s2) {
    const float d = m - m2;
    const float f = exp_of(-fabsf(d));
    s = d > 0.0f ? fmaf(s2, f, s) : fmaf(s, f, s2);
    m = fmaxf(m, m2);
}

__device__ __forceinline__ float4 load_stream(const float* p) {
    float4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "l"(p));
    return v;
}

__device__ __forceinline__ void copy_async16(uint32_t dst, const float* src) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(dst), "l"(src) : "memory");
}

// ---------------------------------------------------------------------------
// Resident kernel: 1024 rows, 512 columns, strips of 16 columns.
// ---------------------------------------------------------------------------
constexpr int kRows = 1024;
constexpr int kCols = 512;
constexpr int kStrip = 16;
constexpr int kStripsPerMatrix = kCols / kStrip;          // 32
constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;                     // 16
constexpr int kRowsPerPass = kThreads / (kStrip / 4);     // 128
constexpr int kPasses = kRows / kRowsPerPass;             // 8
constexpr int kPassStride = kRowsPerPass * kCols;         // floats
constexpr int kDynamicShared = kRows * kStrip * 4;        // 64 KB

__device__ __forceinline__ void finish_strip(float4 (&v)[kPasses], float* __restrict__ out,
                                             float w, float2* red, int lane, int warp) {
    // Maximum of this thread's rows, for each of its four columns.
    float4 m = make_float4(-FLT_MAX, -FLT_MAX, -FLT_MAX, -FLT_MAX);
#pragma unroll
    for (int i = 0; i < kPasses; ++i) {
        m.x = fmaxf(m.x, v[i].x);
        m.y = fmaxf(m.y, v[i].y);
        m.z = fmaxf(m.z, v[i].z);
        m.w = fmaxf(m.w, v[i].w);
    }
    // Exponentials against the own maximum, kept in registers.
    float4 s = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (int i = 0; i < kPasses; ++i) {
        v[i].x = exp_of(v[i].x - m.x);
        v[i].y = exp_of(v[i].y - m.y);
        v[i].z = exp_of(v[i].z - m.z);
        v[i].w = exp_of(v[i].w - m.w);
        s.x += v[i].x;
        s.y += v[i].y;
        s.z += v[i].z;
        s.w += v[i].w;
    }

    // Warp: lanes with the same (lane & 3) share four columns. Halve the columns
    // that a lane keeps in the first two steps.
    {
        const bool up = (lane & 16) != 0;
        float ma = up ? m.z : m.x, mb = up ? m.w : m.y;
        float sa = up ? s.z : s.x, sb = up ? s.w : s.y;
        const float oma = up ? m.x : m.z, omb = up ? m.y : m.w;
        const float osa = up ? s.x : s.z, osb = up ? s.y : s.w;
        const float rma = __shfl_xor_sync(0xffffffffu, oma, 16);
        const float rsa = __shfl_xor_sync(0xffffffffu, osa, 16);
        const float rmb = __shfl_xor_sync(0xffffffffu, omb, 16);
        const float rsb = __shfl_xor_sync(0xffffffffu, osb, 16);
        combine(ma, sa, rma, rsa);
        combine(mb, sb, rmb, rsb);

        const bool up2 = (lane & 8) != 0;
        float mk = up2 ? mb : ma, sk = up2 ? sb : sa;
        const float mo = up2 ? ma : mb, so = up2 ? sa : sb;
        const float rm = __shfl_xor_sync(0xffffffffu, mo, 8);
        const float rs = __shfl_xor_sync(0xffffffffu, so, 8);
        combine(mk, sk, rm, rs);

        const float qm = __shfl_xor_sync(0xffffffffu, mk, 4);
        const float qs = __shfl_xor_sync(0xffffffffu, sk, 4);
        combine(mk, sk, qm, qs);

        if ((lane & 4) == 0) {
            const int c = 4 * (lane & 3) + 2 * ((lane >> 4) & 1) + ((lane >> 3) & 1);
            red[warp * kStrip + c] = make_float2(mk, sk);
        }
    }
    __syncthreads();

    // Every warp combines the pairs of all warps: lane = column + 16 * half.
    float M, S;
    {
        const float2* p = red + (lane >> 4) * (kWarps / 2) * kStrip + (lane & 15);
        M = -FLT_MAX;
        S = 0.0f;
#pragma unroll
        for (int g = 0; g < kWarps / 8; ++g) {
            const float2 a = p[(4 * g + 0) * kStrip];
            const float2 b = p[(4 * g + 1) * kStrip];
            const float2 c = p[(4 * g + 2) * kStrip];
            const float2 d = p[(4 * g + 3) * kStrip];
            const float n = fmaxf(fmaxf(a.x, b.x), fmaxf(c.x, d.x));
            float t = a.y * exp_of(a.x - n);
            t = fmaf(b.y, exp_of(b.x - n), t);
            t = fmaf(c.y, exp_of(c.x - n), t);
            t = fmaf(d.y, exp_of(d.x - n), t);
            combine(M, S, n, t);
        }
        const float rM = __shfl_xor_sync(0xffffffffu, M, 16);
        const float rS = __shfl_xor_sync(0xffffffffu, S, 16);
        combine(M, S, rM, rS);
    }
    const float R = w / S;

    const int q = (lane & 3) * 4;
    float4 f;
    f.x = exp_of(m.x - __shfl_sync(0xffffffffu, M, q + 0)) * __shfl_sync(0xffffffffu, R, q + 0);
    f.y = exp_of(m.y - __shfl_sync(0xffffffffu, M, q + 1)) * __shfl_sync(0xffffffffu, R, q + 1);
    f.z = exp_of(m.z - __shfl_sync(0xffffffffu, M, q + 2)) * __shfl_sync(0xffffffffu, R, q + 2);
    f.w = exp_of(m.w - __shfl_sync(0xffffffffu, M, q + 3)) * __shfl_sync(0xffffffffu, R, q + 3);

#pragma unroll
    for (int i = 0; i < kPasses; ++i) {
        const float4 o = make_float4(v[i].x * f.x, v[i].y * f.y, v[i].z * f.z, v[i].w * f.w);
        __stcs(reinterpret_cast<float4*>(out + i * kPassStride), o);
    }
}

__global__ void __launch_bounds__(kThreads, 2)
column_softmax_resident_kernel(const float* __restrict__ x, const float* __restrict__ weight,
                               float* __restrict__ y, int strips) {
    extern __shared__ float4 stage[];                       // kPasses * kThreads
    __shared__ float2 red[2][kWarps * kStrip];

    const int tid = threadIdx.x;
    const int lane = tid & 31;
    const int warp = tid >> 5;
    const int in_strip = (tid >> 2) * kCols + (tid & 3) * 4;

    const int strip_a = blockIdx.x;
    const int strip_b = blockIdx.x + gridDim.x;
    const bool has_b = strip_b < strips;                    // the same for the whole block

    const int64_t off_a = static_cast<int64_t>(strip_a / kStripsPerMatrix) * (kRows * kCols)
                        + (strip_a % kStripsPerMatrix) * kStrip + in_strip;
    const int64_t off_b = static_cast<int64_t>(strip_b / kStripsPerMatrix) * (kRows * kCols)
                        + (strip_b % kStripsPerMatrix) * kStrip + in_strip;

    float4 v[kPasses];
    {
        const float* p = x + off_a;
#pragma unroll
        for (int i = 0; i < kPasses; ++i) v[i] = load_stream(p + i * kPassStride);
    }
    if (has_b) {
        const float* p = x + off_b;
        const uint32_t dst = static_cast<uint32_t>(__cvta_generic_to_shared(stage + tid));
#pragma unroll
        for (int i = 0; i < kPasses; ++i)
            copy_async16(dst + i * (kThreads * 16), p + i * kPassStride);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");

    const float wa = weight[(strip_a % kStripsPerMatrix) * kStrip + (lane & 15)];
    finish_strip(v, y + off_a, wa, red[0], lane, warp);

    if (has_b) {
        const float wb = weight[(strip_b % kStripsPerMatrix) * kStrip + (lane & 15)];
        // Each thread reads back only what it copied itself: no barrier needed.
        asm volatile("cp.async.wait_group 0;" ::: "memory");
#pragma unroll
        for (int i = 0; i < kPasses; ++i) v[i] = stage[i * kThreads + tid];
        finish_strip(v, y + off_b, wb, red[1], lane, warp);
    }
}

// ---------------------------------------------------------------------------
// Any other shape.
// ---------------------------------------------------------------------------
constexpr int kAnyRows = 16;

__global__ void __launch_bounds__(32 * kAnyRows)
column_softmax_any_kernel(const float* __restrict__ x, const float* __restrict__ weight,
                          float* __restrict__ y, int64_t rows, int64_t cols, int64_t tiles) {
    __shared__ float2 part[kAnyRows][32];
    const int tx = threadIdx.x;
    const int ty = threadIdx.y;
    const int64_t batch = static_cast<int64_t>(blockIdx.x) / tiles;
    const int64_t col = (static_cast<int64_t>(blockIdx.x) % tiles) * 32 + tx;
    const int64_t base = batch * rows * cols + col;
    const bool active = col < cols;

    float m = -FLT_MAX;
    float s = 0.0f;
    if (active) {
        for (int64_t r = ty; r < rows; r += kAnyRows) {
            const float t = x[base + r * cols];
            const float n = fmaxf(m, t);
            s = fmaf(s, exp_of(m - n), exp_of(t - n));
            m = n;
        }
    }
    part[ty][tx] = make_float2(m, s);
    __syncthreads();
    float M = -FLT_MAX;
#pragma unroll
    for (int k = 0; k < kAnyRows; ++k) M = fmaxf(M, part[k][tx].x);
    float S = 0.0f;
#pragma unroll
    for (int k = 0; k < kAnyRows; ++k) S = fmaf(part[k][tx].y, exp_of(part[k][tx].x - M), S);

    if (active) {
        const float R = weight[col] / S;
        for (int64_t r = ty; r < rows; r += kAnyRows)
            y[base + r * cols] = exp_of(x[base + r * cols] - M) * R;
    }
}

}  // namespace

torch::Tensor column_softmax(torch::Tensor x_in, torch::Tensor weight_in) {
    TORCH_CHECK(x_in.is_cuda() && weight_in.is_cuda(), "column_softmax: CUDA tensors expected");
    TORCH_CHECK(x_in.scalar_type() == at::kFloat && weight_in.scalar_type() == at::kFloat,
                "column_softmax: float32 expected");
    TORCH_CHECK(x_in.dim() == 3, "column_softmax: a batch of matrices expected");
    TORCH_CHECK(weight_in.dim() == 1 && weight_in.size(0) == x_in.size(2),
                "column_softmax: one weight for each column expected");

    const c10::cuda::CUDAGuard guard(x_in.device());
    const at::Tensor x = x_in.contiguous();
    const at::Tensor weight = weight_in.contiguous();
    at::Tensor y = at::empty(x.sizes(), x.options());
    if (x.numel() == 0) return y;

    const int64_t batch = x.size(0), rows = x.size(1), cols = x.size(2);
    const float* xp = x.data_ptr<float>();
    const float* wp = weight.data_ptr<float>();
    float* yp = y.data_ptr<float>();
    cudaStream_t stream = at::cuda::getCurrentCUDAStream();

    const bool aligned = ((reinterpret_cast<uintptr_t>(xp) | reinterpret_cast<uintptr_t>(yp)) & 15) == 0;
    if (rows == kRows && cols == kCols && aligned && batch <= (int64_t(1) << 24)) {
        C10_CUDA_CHECK(cudaFuncSetAttribute(column_softmax_resident_kernel,
                                            cudaFuncAttributeMaxDynamicSharedMemorySize,
                                            kDynamicShared));
        C10_CUDA_CHECK(cudaFuncSetAttribute(column_softmax_resident_kernel,
                                            cudaFuncAttributePreferredSharedMemoryCarveout, 64));
        const int strips = static_cast<int>(batch) * kStripsPerMatrix;
        const int blocks = (strips + 1) / 2;
        column_softmax_resident_kernel<<<blocks, kThreads, kDynamicShared, stream>>>(xp, wp, yp, strips);
        C10_CUDA_KERNEL_LAUNCH_CHECK();
    } else {
        const int64_t tiles = (cols + 31) / 32;
        TORCH_CHECK(batch * tiles <= 2147483647LL, "column_softmax: too many columns");
        const dim3 block(32, kAnyRows);
        column_softmax_any_kernel<<<static_cast<unsigned int>(batch * tiles), block, 0, stream>>>(
            xp, wp, yp, rows, cols, tiles);
        C10_CUDA_KERNEL_LAUNCH_CHECK();
    }
    return y;
}
"""

_ext = load_inline(
    name="column_softmax_weighted_ext",
    cpp_sources=_CPP,
    cuda_sources=_CUDA,
    functions=["column_softmax"],
    extra_cuda_cflags=["-O3"],
)


class ModelNew(nn.Module):
    def __init__(self, columns: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(columns) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _ext.column_softmax(x, self.weight)

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

_CPP = r"""
torch::Tensor window_attn_f32(torch::Tensor q, torch::Tensor k, torch::Tensor v, int64_t window);
"""

_CUDA = r"""
#include <torch/types.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime.h>
#include <cstdint>

namespace {

constexpr int D = 64;        // head width
constexpr int BM = 64;       // queries per block
constexpr int BN = 32;       // keys per tile
constexpr int THREADS = 64;  // two warps, 32 queries each

__device__ __forceinline__ float ex2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ void cp_async16(float* dst, const float* src, int bytes) {
    uint32_t d = static_cast<uint32_t>(__cvta_generic_to_shared(dst));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n"
                 :: "r"(d), "l"(src), "r"(bytes) : "memory");
}
__device__ __forceinline__ void cp_commit() {
    asm volatile("cp.async.commit_group;\n" ::: "memory");
}
__device__ __forceinline__ void cp_wait_all() {
    asm volatile("cp.async.wait_group 0;\n" ::: "memory");
}

// Copies a 32 x 64 tile. With SWIZZLE the 16-byte chunk c of row r goes to place c ^ (r / 4).
template <bool SWIZZLE>
__device__ __forceinline__ void load_tile(float* dst, const float* __restrict__ src,
                                          int key0, int length, int tid) {
    const int r0 = tid >> 4;
    const int c = tid & 15;
#pragma unroll
    for (int u = 0; u < 8; ++u) {
        const int r = r0 + 4 * u;   // r / 4 == u
        const int key = key0 + r;
        const bool ok = key < length;
        const float* s = src + (size_t)(ok ? key : 0) * D + c * 4;
        const int place = SWIZZLE ? (c ^ u) : c;
        cp_async16(dst + r * D + place * 4, s, ok ? 16 : 0);
    }
}

__global__ void __launch_bounds__(THREADS, 4)
window_attn_kernel(const float* __restrict__ q, const float* __restrict__ k,
                   const float* __restrict__ v, float* __restrict__ out,
                   int length, int ntiles, int window, float qscale) {
    __shared__ __align__(128) float Qs[BM * D];
    __shared__ __align__(128) float Ks[BN * D];
    __shared__ __align__(128) float Vs[BN * D];
    __shared__ __align__(128) float Ps[2 * 32 * BN];

    const int tid = threadIdx.x;
    const int warp = tid >> 5;
    const int lane = tid & 31;
    // Lane order chosen so that 128-bit loads of a half warp merge into one wavefront.
    const int cx = (lane >> 1) & 7;
    const int ry = (lane & 1) | ((lane >> 4) << 1);

    const int bh = blockIdx.x / ntiles;
    const int q0 = (blockIdx.x - bh * ntiles) * BM;
    const size_t head = (size_t)bh * (size_t)length * D;
    const float* qh = q + head;
    const float* kh = k + head;
    const float* vh = v + head;

    const int wq0 = q0 + warp * 32;
    // Tiles needed by the block, and by this warp.
    const int blo = q0 - window + 1;
    const int t0 = (blo > 0 ? blo : 0) / BN;
    const int t1 = (q0 + BM - 1) / BN;
    const int wlo = wq0 - window + 1;
    const int wt0 = (wlo > 0 ? wlo : 0) / BN;
    const int wt1 = (wq0 + 31) / BN;

    load_tile<true>(Ks, kh, t0 * BN, length, tid);
    cp_commit();

    // Queries, scaled by log2(e)/sqrt(D); chunk c of row r at place c ^ (r & 3).
    {
        const int r0 = tid >> 4;   // 0..3, equals r & 3
        const int c = tid & 15;
#pragma unroll
        for (int u = 0; u < 16; ++u) {
            const int r = r0 + 4 * u;
            float4 x = make_float4(0.f, 0.f, 0.f, 0.f);
            if (q0 + r < length) {
                x = *reinterpret_cast<const float4*>(qh + (size_t)(q0 + r) * D + c * 4);
            }
            x.x *= qscale; x.y *= qscale; x.z *= qscale; x.w *= qscale;
            *reinterpret_cast<float4*>(Qs + r * D + ((c ^ r0) << 2)) = x;
        }
    }

    float o[8][8];
    float m[8], l[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        m[i] = -1e30f;
        l[i] = 0.f;
#pragma unroll
        for (int c = 0; c < 8; ++c) o[i][c] = 0.f;
    }

    const float* Qw = Qs + (warp * 32 + ry) * D;   // rows ry + 4 i
    const float* Kw = Ks + (cx * 4) * D;           // rows 4 cx + j
    const float* Vw = Vs + cx * 4;                 // columns 4 cx .. and 32 + 4 cx ..
    float* Pw = Ps + warp * (32 * BN) + ry * BN;   // rows ry + 4 i
    const int pf = ((ry & 1) << 2) | (ry >> 1);

    for (int t = t0; t <= t1; ++t) {
        const bool active = (t >= wt0) && (t <= wt1);   // same for the whole warp

        cp_wait_all();
        __syncthreads();   // K tile visible; everyone is done with the V tile and P
        load_tile<false>(Vs, vh, t * BN, length, tid);
        cp_commit();

        if (active) {
            float s[8][4];
#pragma unroll
            for (int i = 0; i < 8; ++i)
#pragma unroll
                for (int j = 0; j < 4; ++j) s[i][j] = 0.f;

#pragma unroll 4
            for (int d4 = 0; d4 < D / 4; ++d4) {
                const float* qp = Qw + ((d4 ^ ry) << 2);
                const float* kp = Kw + ((d4 ^ cx) << 2);
                float4 a[8], b[4];
#pragma unroll
                for (int j = 0; j < 4; ++j) b[j] = *reinterpret_cast<const float4*>(kp + j * D);
#pragma unroll
                for (int i = 0; i < 8; ++i) a[i] = *reinterpret_cast<const float4*>(qp + i * 4 * D);
#pragma unroll
                for (int i = 0; i < 8; ++i)
#pragma unroll
                    for (int j = 0; j < 4; ++j) s[i][j] = fmaf(a[i].x, b[j].x, s[i][j]);
#pragma unroll
                for (int i = 0; i < 8; ++i)
#pragma unroll
                    for (int j = 0; j < 4; ++j) s[i][j] = fmaf(a[i].y, b[j].y, s[i][j]);
#pragma unroll
                for (int i = 0; i < 8; ++i)
#pragma unroll
                    for (int j = 0; j < 4; ++j) s[i][j] = fmaf(a[i].z, b[j].z, s[i][j]);
#pragma unroll
                for (int i = 0; i < 8; ++i)
#pragma unroll
                    for (int j = 0; j < 4; ++j) s[i][j] = fmaf(a[i].w, b[j].w, s[i][j]);
            }

            const int key0 = t * BN;
            if (key0 + BN - 1 > wq0 || wq0 + 31 - key0 >= window) {
                const float ninf = __int_as_float(0xff800000);
#pragma unroll
                for (int i = 0; i < 8; ++i)
#pragma unroll
                    for (int j = 0; j < 4; ++j) {
                        const int back = (wq0 + ry + 4 * i) - (key0 + cx * 4 + j);
                        if ((unsigned)back >= (unsigned)window) s[i][j] = ninf;
                    }
            }

            float mx[8];
#pragma unroll
            for (int i = 0; i < 8; ++i)
                mx[i] = fmaxf(fmaxf(s[i][0], s[i][1]), fmaxf(s[i][2], s[i][3]));
#pragma unroll
            for (int x = 2; x <= 8; x <<= 1)
#pragma unroll
                for (int i = 0; i < 8; ++i)
                    mx[i] = fmaxf(mx[i], __shfl_xor_sync(0xffffffffu, mx[i], x));

#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const float mn = fmaxf(m[i], mx[i]);
                const float alpha = ex2(m[i] - mn);
                m[i] = mn;
                float4 p;
                p.x = ex2(s[i][0] - mn);
                p.y = ex2(s[i][1] - mn);
                p.z = ex2(s[i][2] - mn);
                p.w = ex2(s[i][3] - mn);
                l[i] = fmaf(l[i], alpha, (p.x + p.y) + (p.z + p.w));
#pragma unroll
                for (int c = 0; c < 8; ++c) o[i][c] *= alpha;
                *reinterpret_cast<float4*>(Pw + i * 4 * BN + ((cx ^ pf) << 2)) = p;
            }
        }

        cp_wait_all();
        __syncthreads();   // V tile and P visible; everyone is done with the K tile
        if (t < t1) load_tile<true>(Ks, kh, (t + 1) * BN, length, tid);
        cp_commit();

        if (active) {
#pragma unroll 2
            for (int kc = 0; kc < BN / 4; ++kc) {
                const float* pp = Pw + ((kc ^ pf) << 2);
                const float* vp = Vw + kc * 4 * D;
                float p[8][4];
#pragma unroll
                for (int i = 0; i < 8; ++i) {
                    const float4 x = *reinterpret_cast<const float4*>(pp + i * 4 * BN);
                    p[i][0] = x.x; p[i][1] = x.y; p[i][2] = x.z; p[i][3] = x.w;
                }
#pragma unroll
                for (int kk = 0; kk < 4; ++kk) {
                    const float4 v0 = *reinterpret_cast<const float4*>(vp + kk * D);
                    const float4 v1 = *reinterpret_cast<const float4*>(vp + kk * D + 32);
#pragma unroll
                    for (int i = 0; i < 8; ++i) {
                        o[i][0] = fmaf(p[i][kk], v0.x, o[i][0]);
                        o[i][1] = fmaf(p[i][kk], v0.y, o[i][1]);
                        o[i][2] = fmaf(p[i][kk], v0.z, o[i][2]);
                        o[i][3] = fmaf(p[i][kk], v0.w, o[i][3]);
                        o[i][4] = fmaf(p[i][kk], v1.x, o[i][4]);
                        o[i][5] = fmaf(p[i][kk], v1.y, o[i][5]);
                        o[i][6] = fmaf(p[i][kk], v1.z, o[i][6]);
                        o[i][7] = fmaf(p[i][kk], v1.w, o[i][7]);
                    }
                }
            }
        }
    }
    cp_wait_all();

#pragma unroll
    for (int x = 2; x <= 8; x <<= 1)
#pragma unroll
        for (int i = 0; i < 8; ++i)
            l[i] += __shfl_xor_sync(0xffffffffu, l[i], x);

    float* oh = out + head;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const int row = wq0 + ry + 4 * i;
        if (row < length) {
            const float inv = (l[i] == 0.f) ? 0.f : 1.f / l[i];
            float* op = oh + (size_t)row * D + cx * 4;
            *reinterpret_cast<float4*>(op) =
                make_float4(o[i][0] * inv, o[i][1] * inv, o[i][2] * inv, o[i][3] * inv);
            *reinterpret_cast<float4*>(op + 32) =
                make_float4(o[i][4] * inv, o[i][5] * inv, o[i][6] * inv, o[i][7] * inv);
        }
    }
}

torch::Tensor prepare(const torch::Tensor& x) {
    torch::Tensor y = x.contiguous();
    if (reinterpret_cast<uintptr_t>(y.data_ptr<float>()) % 16 != 0) y = y.clone();
    return y;
}

}  // namespace

torch::Tensor window_attn_f32(torch::Tensor q, torch::Tensor k, torch::Tensor v, int64_t window) {
    TORCH_CHECK(q.is_cuda() && k.is_cuda() && v.is_cuda(), "CUDA tensors expected");
    TORCH_CHECK(q.scalar_type() == torch::kFloat32 && k.scalar_type() == torch::kFloat32 &&
                v.scalar_type() == torch::kFloat32, "float32 expected");
    TORCH_CHECK(q.dim() == 4 && q.size(3) == D, "q must be [batch, heads, length, 64]");
    TORCH_CHECK(q.sizes() == k.sizes() && q.sizes() == v.sizes(), "q, k, v must have one shape");
    const c10::cuda::CUDAGuard guard(q.device());

    torch::Tensor qc = prepare(q);
    torch::Tensor kc = prepare(k);
    torch::Tensor vc = prepare(v);
    torch::Tensor out = torch::empty(qc.sizes(), qc.options());
    if (out.numel() == 0) return out;

    const int64_t length = q.size(2);
    const int64_t heads = q.size(0) * q.size(1);
    TORCH_CHECK(length < (int64_t(1) << 30), "length too large");
    const int64_t ntiles = (length + BM - 1) / BM;
    const int64_t blocks = ntiles * heads;
    TORCH_CHECK(blocks < (int64_t(1) << 31), "too many blocks");
    int64_t w = window;
    if (w < 0) w = 0;
    if (w > length) w = length;

    C10_CUDA_CHECK(cudaFuncSetAttribute(window_attn_kernel,
                                        cudaFuncAttributePreferredSharedMemoryCarveout, 100));
    const float qscale = 0.125f * 1.4426950408889634f;
    window_attn_kernel<<<(unsigned)blocks, THREADS, 0, at::cuda::getCurrentCUDAStream()>>>(
        qc.data_ptr<float>(), kc.data_ptr<float>(), vc.data_ptr<float>(), out.data_ptr<float>(),
        (int)length, (int)ntiles, (int)w, qscale);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return out;
}
"""

_ext = load_inline(
    name="window_attn_f32_ext",
    cpp_sources=[_CPP],
    cuda_sources=[_CUDA],
    functions=["window_attn_f32"],
    extra_cuda_cflags=["-O3"],
    verbose=False,
)


class ModelNew(nn.Module):
    def __init__(self, window: int) -> None:
        super().__init__()
        self.window = window

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return _ext.window_attn_f32(q, k, v, self.window)

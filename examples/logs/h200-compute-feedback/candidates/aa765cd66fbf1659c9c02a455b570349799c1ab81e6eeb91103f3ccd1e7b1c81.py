import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

CPP = r"""
torch::Tensor causal_attention(torch::Tensor q, torch::Tensor k, torch::Tensor v);
"""

CUDA = r"""
#include <torch/types.h>
#include <c10/cuda/CUDAException.h>
#include <ATen/cuda/CUDAContext.h>
#include <algorithm>
#include <cmath>
#include <cstdint>

constexpr int D = 64, BM = 64, BN = 64, NT = 128;
constexpr int QP = 68, KP = 68, VP = 64, PP = 80;      // row pitches in floats
constexpr int SMEM = (BM * QP + BN * KP + BN * VP + BM * PP) * 4;

__device__ __forceinline__ void cp16(float* dst, const float* src, bool ok) {
    const unsigned d = (unsigned)__cvta_generic_to_shared(dst);
    const int n = ok ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(d), "l"(src), "r"(n)
                 : "memory");
}
__device__ __forceinline__ void commit() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
__device__ __forceinline__ void wait1() { asm volatile("cp.async.wait_group 1;\n" ::: "memory"); }

template <int PITCH>
__device__ __forceinline__ void load_tile(float* dst, const float* base, int row0, int rows) {
#pragma unroll
    for (int i = 0; i < 64 * 16 / NT; ++i) {
        const int e = threadIdx.x + i * NT;
        const int r = e >> 4, c = (e & 15) * 4;
        const bool ok = row0 + r < rows;
        cp16(dst + r * PITCH + c, ok ? base + (int64_t)(row0 + r) * D + c : base, ok);
    }
}

__global__ void __launch_bounds__(NT, 3)
attn_kernel(const float* __restrict__ q, const float* __restrict__ k,
            const float* __restrict__ v, float* __restrict__ o,
            int Lq, int Lk, float scale_log2) {
    extern __shared__ __align__(16) float sm[];
    float* Qs = sm;
    float* Ks = Qs + BM * QP;
    float* Vs = Ks + BN * KP;
    float* Ps = Vs + BN * VP;

    const int t = threadIdx.x, lane = t & 31, warp = t >> 5;
    const int lx = lane & 15;                     // columns lx + 16 j, or d = 4 lx ..
    const int ty = warp * 2 + (lane >> 4);        // rows ty + 8 i
    const int qb = gridDim.y - 1 - blockIdx.y;    // longest first
    const int q0 = qb * BM;
    const int64_t head = blockIdx.x;
    const float* qh = q + head * Lq * D;
    const float* kh = k + head * Lk * D;
    const float* vh = v + head * Lk * D;
    const int tiles = min(qb + 1, (Lk + BN - 1) / BN);

    load_tile<QP>(Qs, qh, q0, Lq);
    load_tile<KP>(Ks, kh, 0, Lk);
    commit();
    load_tile<VP>(Vs, vh, 0, Lk);
    commit();

    float acc[8][4], mx[8], sum[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        mx[i] = -INFINITY;
        sum[i] = 0.f;
#pragma unroll
        for (int j = 0; j < 4; ++j) acc[i][j] = 0.f;
    }

    for (int kt = 0; kt < tiles; ++kt) {
        const int n0 = kt * BN;
        wait1();                 // keys of this tile (and the queries)
        __syncthreads();

        float s[8][4];
#pragma unroll
        for (int i = 0; i < 8; ++i)
#pragma unroll
            for (int j = 0; j < 4; ++j) s[i][j] = 0.f;
#pragma unroll 4
        for (int d = 0; d < D; d += 4) {
            float4 kf[4];
#pragma unroll
            for (int j = 0; j < 4; ++j)
                kf[j] = *reinterpret_cast<const float4*>(Ks + (lx + 16 * j) * KP + d);
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const float4 a = *reinterpret_cast<const float4*>(Qs + (ty + 8 * i) * QP + d);
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    s[i][j] = fmaf(a.x, kf[j].x, s[i][j]);
                    s[i][j] = fmaf(a.y, kf[j].y, s[i][j]);
                    s[i][j] = fmaf(a.z, kf[j].z, s[i][j]);
                    s[i][j] = fmaf(a.w, kf[j].w, s[i][j]);
                }
            }
        }
        __syncthreads();         // everyone is done with these keys
        if (kt + 1 < tiles) load_tile<KP>(Ks, kh, n0 + BN, Lk);
        commit();

        const bool edge = n0 + BN - 1 > q0 || n0 + BN > Lk;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const int row = q0 + ty + 8 * i;
            float m = mx[i];
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                float u = s[i][j] * scale_log2;
                if (edge) {
                    const int col = n0 + lx + 16 * j;
                    if (col > row || col >= Lk) u = -INFINITY;
                }
                s[i][j] = u;
                m = fmaxf(m, u);
            }
#pragma unroll
            for (int w = 8; w > 0; w >>= 1)
                m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, w));
            // column 0 is visible to every row, so m is finite from the first tile on
            const float corr = exp2f(mx[i] - m);
            mx[i] = m;
            float p = 0.f;
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const float e = exp2f(s[i][j] - m);
                p += e;
                Ps[(ty + 8 * i) * PP + lx + 16 * j] = e;
            }
            sum[i] = fmaf(sum[i], corr, p);
#pragma unroll
            for (int j = 0; j < 4; ++j) acc[i][j] *= corr;
        }

        wait1();                 // values of this tile
        __syncthreads();
#pragma unroll 4
        for (int n = 0; n < BN; n += 4) {
            float4 vf[4];
#pragma unroll
            for (int j = 0; j < 4; ++j)
                vf[j] = *reinterpret_cast<const float4*>(Vs + (n + j) * VP + lx * 4);
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const float4 p = *reinterpret_cast<const float4*>(Ps + (ty + 8 * i) * PP + n);
                const float pv[4] = {p.x, p.y, p.z, p.w};
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    acc[i][0] = fmaf(pv[j], vf[j].x, acc[i][0]);
                    acc[i][1] = fmaf(pv[j], vf[j].y, acc[i][1]);
                    acc[i][2] = fmaf(pv[j], vf[j].z, acc[i][2]);
                    acc[i][3] = fmaf(pv[j], vf[j].w, acc[i][3]);
                }
            }
        }
        __syncthreads();         // everyone is done with these values
        if (kt + 1 < tiles) load_tile<VP>(Vs, vh, n0 + BN, Lk);
        commit();
    }
    asm volatile("cp.async.wait_group 0;\n" ::: "memory");

#pragma unroll
    for (int i = 0; i < 8; ++i) {
        float l = sum[i];
#pragma unroll
        for (int w = 8; w > 0; w >>= 1) l += __shfl_xor_sync(0xffffffffu, l, w);
        const float inv = 1.f / l;
        const int row = q0 + ty + 8 * i;
        if (row < Lq)
            *reinterpret_cast<float4*>(o + (head * Lq + row) * D + lx * 4) =
                make_float4(acc[i][0] * inv, acc[i][1] * inv, acc[i][2] * inv, acc[i][3] * inv);
    }
}

static at::Tensor ready(const at::Tensor& x) {
    TORCH_CHECK(x.is_cuda() && x.scalar_type() == at::kFloat && x.dim() >= 3 && x.size(-1) == D,
                "float32 CUDA tensors of width 64 expected");
    auto y = x.detach().contiguous();
    if (reinterpret_cast<uintptr_t>(y.data_ptr<float>()) & 15) y = y.clone();
    return y;
}

torch::Tensor causal_attention(torch::Tensor q_, torch::Tensor k_, torch::Tensor v_) {
    auto q = ready(q_), k = ready(k_), v = ready(v_);
    auto out = at::empty(q.sizes(), q.options());
    if (q.numel() == 0) return out;
    const int64_t Lq = q.size(-2), Lk = k.size(-2);
    const int64_t heads = q.numel() / (Lq * D);
    TORCH_CHECK(Lk > 0 && k.numel() == heads * Lk * D && v.numel() == heads * Lk * D,
                "shapes do not match");
    C10_CUDA_CHECK(cudaFuncSetAttribute(
        attn_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM));
    dim3 grid((unsigned)heads, (unsigned)((Lq + BM - 1) / BM));
    const float scale_log2 = (float)(1.4426950408889634 / std::sqrt((double)D));
    attn_kernel<<<grid, NT, SMEM, at::cuda::getCurrentCUDAStream()>>>(
        q.data_ptr<float>(), k.data_ptr<float>(), v.data_ptr<float>(), out.data_ptr<float>(),
        (int)Lq, (int)Lk, scale_log2);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return out;
}
"""

ext = load_inline(
    name="causal_attention_fp32_v1",
    cpp_sources=CPP,
    cuda_sources=CUDA,
    functions=["causal_attention"],
    extra_cuda_cflags=["-O3"],
)


class ModelNew(nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return ext.causal_attention(q, k, v)

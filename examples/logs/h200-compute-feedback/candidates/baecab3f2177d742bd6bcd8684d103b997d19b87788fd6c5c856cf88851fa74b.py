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

constexpr int D = 64, BM = 128, BN = 64, NT = 256;
constexpr int KP = 80, VP = 68;                        // row pitches in floats
constexpr int QF = 8 * 8 * 2 * 128;                    // m-tile, k step, (hi, lo), fragment
constexpr int KV = BN * KP + BN * VP;                  // floats of one stage
constexpr int SMEM = (QF + 2 * KV) * 4;

__device__ __forceinline__ void cp16(float* dst, const float* src, bool ok) {
    const unsigned d = (unsigned)__cvta_generic_to_shared(dst);
    const int n = ok ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(d), "l"(src), "r"(n)
                 : "memory");
}

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

// v = hi + lo, hi rounded to 11 significant bits, the difference is exact
__device__ __forceinline__ void split(float v, uint32_t& hi, uint32_t& lo) {
    hi = (__float_as_uint(v) + 0x1000u) & 0xffffe000u;
    lo = __float_as_uint(v - __uint_as_float(hi));
}

__device__ __forceinline__ void mma(float (&c)[4], const uint4& a, uint32_t b0, uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

__global__ void __launch_bounds__(NT, 1)
attn_kernel(const float* __restrict__ q, const float* __restrict__ k,
            const float* __restrict__ v, float* __restrict__ o,
            int Lq, int Lk, float scale_log2) {
    extern __shared__ __align__(16) float sm[];
    float* Qf = sm;
    float* kv = sm + QF;

    const int t = threadIdx.x, lane = t & 31, warp = t >> 5;
    const int g = lane >> 2, tq = lane & 3;
    const int wr = warp & 3;                      // rows 32 wr .. of the tile
    const int kh = warp >> 2;                     // keys 32 kh .. of a step
    const int64_t head = blockIdx.x;
    const float* qh = q + head * Lq * D;
    const float* kp_ = k + head * Lk * D;
    const float* vp_ = v + head * Lk * D;
    const int nq = (Lq + BM - 1) / BM;

#pragma unroll 1
    for (int pass = 0; pass < 2; ++pass) {
        const int far = nq - 1 - (int)blockIdx.y;
        const int qb = pass == 0 ? far : (int)blockIdx.y;
        if (pass == 1 && qb >= far) break;        // the middle tile is done once
        const int q0 = qb * BM;
        const int tiles = (min(q0 + BM, Lk) + BN - 1) / BN;

        __syncthreads();                          // shared memory of the last pass is free
        load_tile<KP>(kv, kp_, 0, Lk);
        load_tile<VP>(kv + BN * KP, vp_, 0, Lk);
        asm volatile("cp.async.commit_group;\n" ::: "memory");

        // queries: scaled, split, in fragment order
#pragma unroll 2
        for (int i = 0; i < 8; ++i) {
            const int e = t + i * NT;
            const int ln = e & 31, kk = (e >> 5) & 7, mt = e >> 8;
            const int row = q0 + mt * 16 + (ln >> 2);
            const int col = (kk >> 1) * 16 + (ln & 3) * 4 + (kk & 1) * 2;
            float2 u = make_float2(0.f, 0.f), w = make_float2(0.f, 0.f);
            if (row < Lq) u = *reinterpret_cast<const float2*>(qh + (int64_t)row * D + col);
            if (row + 8 < Lq) w = *reinterpret_cast<const float2*>(qh + (int64_t)(row + 8) * D + col);
            uint4 hi, lo;
            split(u.x * scale_log2, hi.x, lo.x);
            split(w.x * scale_log2, hi.y, lo.y);
            split(u.y * scale_log2, hi.z, lo.z);
            split(w.y * scale_log2, hi.w, lo.w);
            uint4* dst = reinterpret_cast<uint4*>(Qf + (mt * 8 + kk) * 256);
            dst[ln] = hi;
            dst[32 + ln] = lo;
        }

        float acc[2][8][4], mx[2][2], sum[2][2];
#pragma unroll
        for (int m = 0; m < 2; ++m) {
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                mx[m][h] = -INFINITY;
                sum[m][h] = 0.f;
            }
#pragma unroll
            for (int n = 0; n < 8; ++n)
#pragma unroll
                for (int j = 0; j < 4; ++j) acc[m][n][j] = 0.f;
        }
        const int rw = q0 + wr * 32;              // first row of this warp

#pragma unroll 1
        for (int kt = 0; kt < tiles; ++kt) {
            const int n0 = kt * BN;
            asm volatile("cp.async.wait_group 0;\n" ::: "memory");
            __syncthreads();
            if (kt + 1 < tiles) {
                float* nx = kv + ((kt + 1) & 1) * KV;
                load_tile<KP>(nx, kp_, n0 + BN, Lk);
                load_tile<VP>(nx + BN * KP, vp_, n0 + BN, Lk);
                asm volatile("cp.async.commit_group;\n" ::: "memory");
            }
            const int kb = n0 + kh * 32;          // first key of this warp
            if (kb > rw + 31 || kb >= Lk) continue;
            const float* Ks = kv + (kt & 1) * KV + (kh * 32 + g) * KP + tq * 4;
            const float* Vs = kv + (kt & 1) * KV + BN * KP + (kh * 32 + 2 * tq) * VP + g * 4;

            float s[2][4][4];
#pragma unroll
            for (int m = 0; m < 2; ++m)
#pragma unroll
                for (int n = 0; n < 4; ++n)
#pragma unroll
                    for (int j = 0; j < 4; ++j) s[m][n][j] = 0.f;

#pragma unroll
            for (int kp = 0; kp < 4; ++kp) {
                float4 kf[4];
#pragma unroll
                for (int n = 0; n < 4; ++n)
                    kf[n] = *reinterpret_cast<const float4*>(Ks + n * 8 * KP + kp * 16);
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    uint4 ah[2], al[2];
#pragma unroll
                    for (int m = 0; m < 2; ++m) {
                        const uint4* src = reinterpret_cast<const uint4*>(
                            Qf + ((wr * 2 + m) * 8 + kp * 2 + e) * 256);
                        ah[m] = src[lane];
                        al[m] = src[32 + lane];
                    }
                    uint32_t bh[4][2], bl[4][2];
#pragma unroll
                    for (int n = 0; n < 4; ++n) {
                        split(e ? kf[n].z : kf[n].x, bh[n][0], bl[n][0]);
                        split(e ? kf[n].w : kf[n].y, bh[n][1], bl[n][1]);
                    }
#pragma unroll
                    for (int m = 0; m < 2; ++m)
#pragma unroll
                        for (int n = 0; n < 4; ++n) mma(s[m][n], al[m], bh[n][0], bh[n][1]);
#pragma unroll
                    for (int m = 0; m < 2; ++m)
#pragma unroll
                        for (int n = 0; n < 4; ++n) mma(s[m][n], ah[m], bl[n][0], bl[n][1]);
#pragma unroll
                    for (int m = 0; m < 2; ++m)
#pragma unroll
                        for (int n = 0; n < 4; ++n) mma(s[m][n], ah[m], bh[n][0], bh[n][1]);
                }
            }

            if (kb + 31 > rw || kb + 32 > Lk) {
#pragma unroll
                for (int m = 0; m < 2; ++m)
#pragma unroll
                    for (int n = 0; n < 4; ++n)
#pragma unroll
                        for (int j = 0; j < 4; ++j) {
                            const int row = rw + m * 16 + g + (j >> 1) * 8;
                            const int col = kb + n * 8 + 2 * tq + (j & 1);
                            if (col > row || col >= Lk) s[m][n][j] = -INFINITY;
                        }
            }
#pragma unroll
            for (int m = 0; m < 2; ++m)
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    float top = mx[m][h];
#pragma unroll
                    for (int n = 0; n < 4; ++n)
                        top = fmaxf(top, fmaxf(s[m][n][2 * h], s[m][n][2 * h + 1]));
                    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
                    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
                    const float ref = top == -INFINITY ? 0.f : top;
                    const float corr = exp2f(mx[m][h] - ref);
                    mx[m][h] = top;
                    float p = 0.f;
#pragma unroll
                    for (int n = 0; n < 4; ++n) {
                        s[m][n][2 * h] = exp2f(s[m][n][2 * h] - ref);
                        s[m][n][2 * h + 1] = exp2f(s[m][n][2 * h + 1] - ref);
                        p += s[m][n][2 * h] + s[m][n][2 * h + 1];
                    }
                    sum[m][h] = fmaf(sum[m][h], corr, p);
#pragma unroll
                    for (int n = 0; n < 8; ++n) {
                        acc[m][n][2 * h] *= corr;
                        acc[m][n][2 * h + 1] *= corr;
                    }
                }

            // k index t of the mma is key 2 t, t + 4 is key 2 t + 1; column g of n-tile
            // 4 h + j is d = 32 h + 4 g + j
#pragma unroll
            for (int kk = 0; kk < 4; ++kk) {
                uint4 ph[2], pl[2];
#pragma unroll
                for (int m = 0; m < 2; ++m) {
                    split(s[m][kk][0], ph[m].x, pl[m].x);
                    split(s[m][kk][2], ph[m].y, pl[m].y);
                    split(s[m][kk][1], ph[m].z, pl[m].z);
                    split(s[m][kk][3], ph[m].w, pl[m].w);
                }
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const float4 v0 =
                        *reinterpret_cast<const float4*>(Vs + kk * 8 * VP + h * 32);
                    const float4 v1 =
                        *reinterpret_cast<const float4*>(Vs + (kk * 8 + 1) * VP + h * 32);
                    uint32_t bh[4][2], bl[4][2];
                    split(v0.x, bh[0][0], bl[0][0]);
                    split(v0.y, bh[1][0], bl[1][0]);
                    split(v0.z, bh[2][0], bl[2][0]);
                    split(v0.w, bh[3][0], bl[3][0]);
                    split(v1.x, bh[0][1], bl[0][1]);
                    split(v1.y, bh[1][1], bl[1][1]);
                    split(v1.z, bh[2][1], bl[2][1]);
                    split(v1.w, bh[3][1], bl[3][1]);
#pragma unroll
                    for (int m = 0; m < 2; ++m)
#pragma unroll
                        for (int j = 0; j < 4; ++j)
                            mma(acc[m][4 * h + j], pl[m], bh[j][0], bh[j][1]);
#pragma unroll
                    for (int m = 0; m < 2; ++m)
#pragma unroll
                        for (int j = 0; j < 4; ++j)
                            mma(acc[m][4 * h + j], ph[m], bl[j][0], bl[j][1]);
#pragma unroll
                    for (int m = 0; m < 2; ++m)
#pragma unroll
                        for (int j = 0; j < 4; ++j)
                            mma(acc[m][4 * h + j], ph[m], bh[j][0], bh[j][1]);
                }
            }
        }

        // merge the two halves of the keys
        __syncthreads();
        float4* mo = reinterpret_cast<float4*>(kv);
        float* ml = kv + 16 * 128 * 4;
        const int id = t & 127;
        if (kh == 1) {
#pragma unroll
            for (int m = 0; m < 2; ++m) {
#pragma unroll
                for (int n = 0; n < 8; ++n)
                    mo[(m * 8 + n) * 128 + id] =
                        make_float4(acc[m][n][0], acc[m][n][1], acc[m][n][2], acc[m][n][3]);
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    ml[(m * 2 + h) * 128 + id] = mx[m][h];
                    ml[(4 + m * 2 + h) * 128 + id] = sum[m][h];
                }
            }
        }
        __syncthreads();
        if (kh == 0) {
#pragma unroll
            for (int m = 0; m < 2; ++m) {
                float c0[2], c1[2];
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const float m1 = ml[(m * 2 + h) * 128 + id];
                    const float l1 = ml[(4 + m * 2 + h) * 128 + id];
                    const float top = fmaxf(mx[m][h], m1);
                    const float e0 = exp2f(mx[m][h] - top), e1 = exp2f(m1 - top);
                    float l = sum[m][h] * e0 + l1 * e1;
                    l += __shfl_xor_sync(0xffffffffu, l, 1);
                    l += __shfl_xor_sync(0xffffffffu, l, 2);
                    const float inv = 1.f / l;
                    c0[h] = e0 * inv;
                    c1[h] = e1 * inv;
                }
#pragma unroll
                for (int n = 0; n < 8; ++n) {
                    const float4 w = mo[(m * 8 + n) * 128 + id];
                    acc[m][n][0] = acc[m][n][0] * c0[0] + w.x * c1[0];
                    acc[m][n][1] = acc[m][n][1] * c0[0] + w.y * c1[0];
                    acc[m][n][2] = acc[m][n][2] * c0[1] + w.z * c1[1];
                    acc[m][n][3] = acc[m][n][3] * c0[1] + w.w * c1[1];
                }
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const int row = rw + m * 16 + g + h * 8;
                    if (row < Lq) {
                        float* dst = o + (head * Lq + row) * D + tq * 8;
#pragma unroll
                        for (int z = 0; z < 2; ++z) {
                            *reinterpret_cast<float4*>(dst + z * 32) =
                                make_float4(acc[m][4 * z][2 * h], acc[m][4 * z + 1][2 * h],
                                            acc[m][4 * z + 2][2 * h], acc[m][4 * z + 3][2 * h]);
                            *reinterpret_cast<float4*>(dst + z * 32 + 4) = make_float4(
                                acc[m][4 * z][2 * h + 1], acc[m][4 * z + 1][2 * h + 1],
                                acc[m][4 * z + 2][2 * h + 1], acc[m][4 * z + 3][2 * h + 1]);
                        }
                    }
                }
            }
        }
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
    const int64_t nq = (Lq + BM - 1) / BM;
    dim3 grid((unsigned)heads, (unsigned)((nq + 1) / 2));
    const float scale_log2 = (float)(1.4426950408889634 / std::sqrt((double)D));
    attn_kernel<<<grid, NT, SMEM, at::cuda::getCurrentCUDAStream()>>>(
        q.data_ptr<float>(), k.data_ptr<float>(), v.data_ptr<float>(), out.data_ptr<float>(),
        (int)Lq, (int)Lk, scale_log2);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return out;
}
"""

ext = load_inline(
    name="causal_attention_fp32_split_mma_v2",
    cpp_sources=CPP,
    cuda_sources=CUDA,
    functions=["causal_attention"],
    extra_cuda_cflags=["-O3"],
)


class ModelNew(nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return ext.causal_attention(q, k, v)

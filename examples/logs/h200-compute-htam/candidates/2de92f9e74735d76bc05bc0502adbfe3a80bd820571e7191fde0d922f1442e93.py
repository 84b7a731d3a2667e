import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

_CPP = "torch::Tensor causal_attention(torch::Tensor q, torch::Tensor k, torch::Tensor v);"

_CUDA = r"""
#include <torch/types.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <cuda_runtime.h>
#include <math_constants.h>

constexpr int D = 64, BQ = 64, BKV = 64, THREADS = 128;
constexpr int PITCH = D + 4;                 // floats: conflict-free ldmatrix and 16-byte loads
constexpr int TILE = 64 * PITCH;
constexpr int SMEM_BYTES = 3 * TILE * 4;

// 64x64 tile from global rows into rows of PITCH floats
__device__ __forceinline__ void load_tile(const float* __restrict__ src, float* dst) {
#pragma unroll
    for (int it = 0; it < 8; ++it) {
        const int idx = threadIdx.x + it * THREADS;
        const unsigned d = (unsigned)__cvta_generic_to_shared(dst + (idx >> 4) * PITCH + (idx & 15) * 4);
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(d), "l"(src + idx * 4) : "memory");
    }
}
__device__ __forceinline__ void cp_commit() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
__device__ __forceinline__ void cp_wait() { asm volatile("cp.async.wait_group 0;\n" ::: "memory"); }

__device__ __forceinline__ void ldsm4(float (&r)[4], unsigned addr) {
    unsigned u[4];
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(u[0]), "=r"(u[1]), "=r"(u[2]), "=r"(u[3]) : "r"(addr) : "memory");
#pragma unroll
    for (int i = 0; i < 4; ++i) r[i] = __uint_as_float(u[i]);
}

// x = hi + lo exactly; hi is x rounded to 11 significant bits.
__device__ __forceinline__ void split(float v, unsigned& hi, unsigned& lo) {
    hi = (__float_as_uint(v) + 0x1000u) & 0xffffe000u;
    lo = __float_as_uint(v - __uint_as_float(hi));
}

// The same with hi cut off after 11 significant bits.
__device__ __forceinline__ void split_cut(float v, unsigned& hi, unsigned& lo) {
    hi = __float_as_uint(v) & 0xffffe000u;
    lo = __float_as_uint(v - __uint_as_float(hi));
}

// Two values as a bf16 pair, the first in the lower half (for the correction terms only).
__device__ __forceinline__ unsigned pack2(unsigned first, unsigned second) {
    unsigned d;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;\n"
        : "=r"(d) : "f"(__uint_as_float(second)), "f"(__uint_as_float(first)));
    return d;
}

// Correction operand of A: low parts in k slots 0..7, high parts in slots 8..15; slots 2 t and
// 2 t + 1 are the places t and t + 4 of the main product.
__device__ __forceinline__ void pack_a(unsigned (&x)[4], const unsigned (&h)[4], const unsigned (&l)[4]) {
    x[0] = pack2(l[0], l[2]);
    x[1] = pack2(l[1], l[3]);
    x[2] = pack2(h[0], h[2]);
    x[3] = pack2(h[1], h[3]);
}

__device__ __forceinline__ void mma(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void mma_corr(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__global__ void __launch_bounds__(THREADS, 4)
attention_kernel(const float* __restrict__ Q, const float* __restrict__ K, const float* __restrict__ V,
                 float* __restrict__ O, int heads, int length, float scale) {
    extern __shared__ __align__(16) float sm[];
    float* q_s = sm;               // [query][d]
    float* k_s = sm + TILE;        // [key][d]
    float* v_s = sm + 2 * TILE;    // [key][d]

    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int g = lane >> 2, t = lane & 3;
    const int nq = length / BQ;
    const int head = blockIdx.x % heads;
    const int level = blockIdx.x / heads;
    int qt = nq - 1 - level;
    if ((nq & 3) == 0 && ((level >> 2) & 1)) qt = nq - 1 - ((level & ~3) + 3 - (level & 3));

    const size_t base = (size_t)head * length * D;
    const float* kp = K + base;
    const float* vp = V + base;

    load_tile(Q + base + (size_t)qt * BQ * D, q_s);
    load_tile(kp, k_s);
    cp_commit();

    const unsigned q_addr = (unsigned)__cvta_generic_to_shared(
        q_s + (warp * 16 + (lane & 15)) * PITCH + (lane >> 4) * 4);
    const unsigned k_addr = (unsigned)__cvta_generic_to_shared(
        k_s + ((lane >> 4) * 8 + (lane & 7)) * PITCH + ((lane >> 3) & 1) * 4);
    const float* v_ptr = v_s + 2 * t * PITCH + 4 * g;

    // Rows g and g + 8 of the warp. Column c of the n8 tile i of half h of O is 32 h + 4 c + i.
    float o[2][4][4], m[2], l[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        m[h] = -CUDART_INF_F;
        l[h] = 0.0f;
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
            for (int e = 0; e < 4; ++e) o[h][i][e] = 0.0f;
    }

    for (int kt = 0; kt <= qt; ++kt) {
        cp_wait();
        __syncthreads();           // keys are here, the previous values have been used
        load_tile(vp + (size_t)kt * BKV * D, v_s);
        cp_commit();

        float s[8][4];
#pragma unroll
        for (int j = 0; j < 8; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) s[j][e] = 0.0f;
#pragma unroll
        for (int ks = 0; ks < 8; ++ks) {
            unsigned ah[4], ax[4];
            {
                float r[4];
                unsigned al[4];
                ldsm4(r, q_addr + ks * 32);
#pragma unroll
                for (int e = 0; e < 4; ++e) split(r[e], ah[e], al[e]);
                pack_a(ax, ah, al);
            }
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                unsigned bh[4][2], bph[4], bpl[4];
#pragma unroll
                for (int p = 0; p < 2; ++p) {
                    float r[4];
                    ldsm4(r, k_addr + (half * 2 + p) * 16 * PITCH * 4 + ks * 32);
#pragma unroll
                    for (int u = 0; u < 2; ++u) {
                        const int j = 2 * p + u;
                        unsigned l0, l1;
                        split(r[2 * u], bh[j][0], l0);
                        split(r[2 * u + 1], bh[j][1], l1);
                        bph[j] = pack2(bh[j][0], bh[j][1]);
                        bpl[j] = pack2(l0, l1);
                    }
                }
#pragma unroll
                for (int j = 0; j < 4; ++j) mma_corr(s[half * 4 + j], ax, bph[j], bpl[j]);
#pragma unroll
                for (int j = 0; j < 4; ++j) mma(s[half * 4 + j], ah, bh[j][0], bh[j][1]);
            }
        }

        if (kt == qt) {
#pragma unroll
            for (int j = 0; j < 8; ++j)
#pragma unroll
                for (int e = 0; e < 4; ++e)
                    if (8 * j + 2 * t + (e & 1) > warp * 16 + g + 8 * (e >> 1)) s[j][e] = -CUDART_INF_F;
        }

        float alpha[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float mx = fmaxf(s[0][2 * h], s[0][2 * h + 1]);
#pragma unroll
            for (int j = 1; j < 8; ++j) mx = fmaxf(mx, fmaxf(s[j][2 * h], s[j][2 * h + 1]));
            mx = fmaxf(mx, __shfl_xor_sync(0xffffffffu, mx, 1));
            mx = fmaxf(mx, __shfl_xor_sync(0xffffffffu, mx, 2));
            mx = fmaxf(mx * scale, m[h]);  // finite: every row sees at least one key in every tile
            alpha[h] = exp2f(m[h] - mx);
            m[h] = mx;
            float sum = 0.0f;
#pragma unroll
            for (int j = 0; j < 8; ++j) {
                s[j][2 * h] = exp2f(fmaf(s[j][2 * h], scale, -mx));
                s[j][2 * h + 1] = exp2f(fmaf(s[j][2 * h + 1], scale, -mx));
                sum += s[j][2 * h] + s[j][2 * h + 1];
            }
            l[h] = l[h] * alpha[h] + sum;
        }

        cp_wait();
        __syncthreads();           // values are here, the keys have been used
        if (kt < qt) load_tile(kp + (size_t)(kt + 1) * BKV * D, k_s);
        cp_commit();

        // In a k step the keys 2 t and 2 t + 1 take the places t and t + 4, as s has them.
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float pv[4][4];
#pragma unroll
            for (int i = 0; i < 4; ++i)
#pragma unroll
                for (int e = 0; e < 4; ++e) pv[i][e] = 0.0f;
#pragma unroll
            for (int j = 0; j < 8; ++j) {
                unsigned ah[4], ax[4];
                {
                    unsigned al[4];
                    split_cut(s[j][0], ah[0], al[0]);
                    split_cut(s[j][2], ah[1], al[1]);
                    split_cut(s[j][1], ah[2], al[2]);
                    split_cut(s[j][3], ah[3], al[3]);
                    pack_a(ax, ah, al);
                }
                const float4 x = *reinterpret_cast<const float4*>(v_ptr + 8 * j * PITCH + 32 * h);
                const float4 y = *reinterpret_cast<const float4*>(v_ptr + (8 * j + 1) * PITCH + 32 * h);
                const float xs[4] = {x.x, x.y, x.z, x.w};
                const float ys[4] = {y.x, y.y, y.z, y.w};
                unsigned bh[4][2], bph[4], bpl[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    unsigned l0, l1;
                    split_cut(xs[i], bh[i][0], l0);
                    split_cut(ys[i], bh[i][1], l1);
                    bph[i] = pack2(bh[i][0], bh[i][1]);
                    bpl[i] = pack2(l0, l1);
                }
#pragma unroll
                for (int i = 0; i < 4; ++i) mma_corr(pv[i], ax, bph[i], bpl[i]);
#pragma unroll
                for (int i = 0; i < 4; ++i) mma(pv[i], ah, bh[i][0], bh[i][1]);
            }
#pragma unroll
            for (int i = 0; i < 4; ++i)
#pragma unroll
                for (int e = 0; e < 4; ++e) o[h][i][e] = fmaf(o[h][i][e], alpha[e >> 1], pv[i][e]);
        }
    }

#pragma unroll
    for (int r = 0; r < 2; ++r) {
        float sum = l[r];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        const float inv = 1.0f / sum;
        float* op = O + base + (size_t)(qt * BQ + warp * 16 + 8 * r + g) * D + 8 * t;
#pragma unroll
        for (int h = 0; h < 2; ++h)
#pragma unroll
            for (int c = 0; c < 2; ++c)
                *reinterpret_cast<float4*>(op + 32 * h + 4 * c) =
                    make_float4(o[h][0][2 * r + c] * inv, o[h][1][2 * r + c] * inv,
                                o[h][2][2 * r + c] * inv, o[h][3][2 * r + c] * inv);
    }
}

torch::Tensor causal_attention(torch::Tensor q, torch::Tensor k, torch::Tensor v) {
    q = q.contiguous();
    k = k.contiguous();
    v = v.contiguous();
    TORCH_CHECK(q.is_cuda() && q.scalar_type() == at::kFloat && k.scalar_type() == at::kFloat &&
                v.scalar_type() == at::kFloat, "float32 expected");
    TORCH_CHECK(q.dim() == 4 && q.sizes() == k.sizes() && q.sizes() == v.sizes(), "equal shapes expected");
    const int heads = (int)(q.size(0) * q.size(1));
    const int length = (int)q.size(2);
    TORCH_CHECK(q.size(3) == D && length % BQ == 0, "width 64 and a length divisible by 64 expected");
    auto out = at::empty_like(q);
    const float scale = 0.125f * 1.4426950408889634f;
    C10_CUDA_CHECK(cudaFuncSetAttribute(attention_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM_BYTES));
    C10_CUDA_CHECK(cudaFuncSetAttribute(attention_kernel, cudaFuncAttributePreferredSharedMemoryCarveout, 100));
    attention_kernel<<<heads * (length / BQ), THREADS, SMEM_BYTES, at::cuda::getCurrentCUDAStream()>>>(
        q.data_ptr<float>(), k.data_ptr<float>(), v.data_ptr<float>(), out.data_ptr<float>(),
        heads, length, scale);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return out;
}
"""

_ext = load_inline(
    name="causal_attention_split_v3",
    cpp_sources=_CPP,
    cuda_sources=_CUDA,
    functions=["causal_attention"],
    extra_cuda_cflags=["-O3"],
)


class ModelNew(nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return _ext.causal_attention(q, k, v)

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

cpp_source = "torch::Tensor sq_dist(torch::Tensor x, torch::Tensor y);"

cuda_source = r"""
#include <torch/types.h>
#include <cuda_runtime.h>
#include <cstdint>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>

constexpr int BM = 128;
constexpr int BN = 128;
constexpr int BK = 32;
constexpr int STAGES = 3;
constexpr int TILE_FLOATS = BM * BK;              // 4096 floats, the same for y
constexpr int STAGE_FLOATS = 2 * TILE_FLOATS;
constexpr int SMEM_BYTES = STAGES * STAGE_FLOATS * 4;   // 96 KB

__device__ __forceinline__ void cp_async16(void* dst, const void* src) {
    unsigned d = (unsigned)__cvta_generic_to_shared(dst);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" :: "r"(d), "l"(src) : "memory");
}
__device__ __forceinline__ void cp_commit() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
template <int N>
__device__ __forceinline__ void cp_wait() { asm volatile("cp.async.wait_group %0;\n" :: "n"(N) : "memory"); }

__device__ __forceinline__ void ldsm4(unsigned (&r)[4], unsigned addr) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(addr) : "memory");
}

// x = hi + lo exactly; hi is x rounded to 11 significant bits.
__device__ __forceinline__ void split(unsigned x, unsigned& hi, unsigned& lo) {
    hi = (x + 0x1000u) & 0xffffe000u;
    lo = __float_as_uint(__uint_as_float(x) - __uint_as_float(hi));
}

// Two values as a bf16 pair, the first in the lower half (for the correction terms only).
__device__ __forceinline__ unsigned pack2(unsigned first, unsigned second) {
    unsigned d;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;\n"
        : "=r"(d) : "f"(__uint_as_float(second)), "f"(__uint_as_float(first)));
    return d;
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

__device__ __forceinline__ float4 guarded4(const float* row, int k, int K, bool ok) {
    float4 v;
    v.x = (ok && k + 0 < K) ? row[k + 0] : 0.f;
    v.y = (ok && k + 1 < K) ? row[k + 1] : 0.f;
    v.z = (ok && k + 2 < K) ? row[k + 2] : 0.f;
    v.w = (ok && k + 3 < K) ? row[k + 3] : 0.f;
    return v;
}

template <bool EDGE>
__global__ void __launch_bounds__(256, 2)
sq_dist_kernel(const float* __restrict__ X, const float* __restrict__ Y, float* __restrict__ out,
               int M, int N, int K) {
    extern __shared__ __align__(128) float smem[];
    __shared__ float norms[BM + BN];

    const int tid = threadIdx.x;
    const int lane = tid & 31;
    const int warp = tid >> 5;
    const int row0 = blockIdx.y * BM;
    const int col0 = blockIdx.x * BN;

    // loading roles: rows lrow + 32 i, one 16-byte chunk of the 128-byte row
    const int lrow = tid >> 3;
    const int lchunk = tid & 7;
    const int y_key = (((lrow >> 2) & 3) << 1) | (lrow & 1);
    const int x_dst = lrow * BK + ((lchunk ^ (lrow & 7)) << 2);
    const int y_dst = TILE_FLOATS + lrow * BK + ((lchunk ^ y_key) << 2);
    const float* x_src = X + (long long)(row0 + lrow) * K + lchunk * 4;
    const float* y_src = Y + (long long)(col0 + lrow) * K + lchunk * 4;

    const int nk = (K + BK - 1) / BK;

    auto load_tile = [&](int kt, int stage) {
        float* s = smem + stage * STAGE_FLOATS;
        if (!EDGE) {
#pragma unroll
            for (int i = 0; i < 4; ++i)
                cp_async16(s + x_dst + i * 32 * BK, x_src + kt * BK + (long long)i * 32 * K);
#pragma unroll
            for (int i = 0; i < 4; ++i)
                cp_async16(s + y_dst + i * 32 * BK, y_src + kt * BK + (long long)i * 32 * K);
        } else {
            const int k = kt * BK + lchunk * 4;
            for (int i = 0; i < 4; ++i) {
                const int r = row0 + lrow + i * 32;
                const int c = col0 + lrow + i * 32;
                *reinterpret_cast<float4*>(s + x_dst + i * 32 * BK) =
                    guarded4(X + (long long)r * K, k, K, r < M);
                *reinterpret_cast<float4*>(s + y_dst + i * 32 * BK) =
                    guarded4(Y + (long long)c * K, k, K, c < N);
            }
        }
    };

    // computing roles: warps 2 x 4, warp tile 64 x 32 = 4 x 4 tiles of 16 x 8
    const int wm = (warp >> 2) * 64;
    const int wn = (warp & 3) * 32;
    const int lr = lane >> 2;    // rows wm + 16 i + 8 h + lr
    const int lt = lane & 3;     // columns wn + 4 lt + 0..3 and + 16
    // Column c of n8 tile j is column 16 (j >> 1) + 4 (c >> 1) + 2 (j & 1) + (c & 1) of the warp
    // tile, so that a thread's values of tiles 0, 1 (and of 2, 3) are four adjacent columns.
    const int l7 = lane & 7;
    const int lq = lane >> 3;
    const unsigned smem_base = (unsigned)__cvta_generic_to_shared(smem);
    const unsigned a_row = (unsigned)((wm + (lane & 15)) * BK) * 4u;
    const unsigned b_row = (unsigned)(TILE_FLOATS +
        (wn + 4 * (l7 >> 1) + (l7 & 1) + 2 * (lq >> 1)) * BK) * 4u;
    const int a_half = lane >> 4;   // chunk 2 ks + a_half
    const int b_half = lq & 1;

    float acc[4][4][4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) acc[i][j][e] = 0.f;
    float norm = 0.f;   // thread t < 128: row t of x; otherwise row t - 128 of y

#pragma unroll
    for (int s = 0; s < STAGES - 1; ++s) {
        if (s < nk) load_tile(s, s);
        cp_commit();
    }

    for (int kt = 0; kt < nk; ++kt) {
        cp_wait<STAGES - 2>();
        __syncthreads();
        {
            const int nt = kt + STAGES - 1;
            if (nt < nk) load_tile(nt, nt % STAGES);
            cp_commit();
        }
        const float* s = smem + (kt % STAGES) * STAGE_FLOATS;
        const unsigned su = smem_base + (unsigned)((kt % STAGES) * STAGE_FLOATS) * 4u;

        // the two tiles lie one after the other: row tid of 256 rows, any chunk order will do
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const float4 v = *reinterpret_cast<const float4*>(s + tid * BK + ((i ^ (tid & 7)) << 2));
            norm = fmaf(v.x, v.x, norm);
            norm = fmaf(v.y, v.y, norm);
            norm = fmaf(v.z, v.z, norm);
            norm = fmaf(v.w, v.w, norm);
        }

#pragma unroll
        for (int ks = 0; ks < BK / 8; ++ks) {
            // Corrections: k slots 2 t, 2 t + 1 are values t and t + 4 (x low, y high), slots
            // 2 t + 8, 2 t + 9 the same values again (x high, y low).
            unsigned bh[4][2], bph[4], bpl[4];
            const unsigned b_addr = su + b_row + (unsigned)(((2 * ks + b_half) ^ l7) << 4);
#pragma unroll
            for (int p = 0; p < 2; ++p) {
                unsigned r[4];
                ldsm4(r, b_addr + (unsigned)(p * 16 * BK * 4));
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const int j = 2 * p + h;
                    unsigned l0, l1;
                    split(r[2 * h], bh[j][0], l0);
                    split(r[2 * h + 1], bh[j][1], l1);
                    bph[j] = pack2(bh[j][0], bh[j][1]);
                    bpl[j] = pack2(l0, l1);
                }
            }
            const unsigned a_addr = su + a_row + (unsigned)(((2 * ks + a_half) ^ l7) << 4);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                unsigned r[4], ah[4], al[4], ax[4];
                ldsm4(r, a_addr + (unsigned)(i * 16 * BK * 4));
#pragma unroll
                for (int e = 0; e < 4; ++e) split(r[e], ah[e], al[e]);
                ax[0] = pack2(al[0], al[2]);
                ax[1] = pack2(al[1], al[3]);
                ax[2] = pack2(ah[0], ah[2]);
                ax[3] = pack2(ah[1], ah[3]);
#pragma unroll
                for (int j = 0; j < 4; ++j) mma_corr(acc[i][j], ax, bph[j], bpl[j]);
#pragma unroll
                for (int j = 0; j < 4; ++j) mma(acc[i][j], ah, bh[j][0], bh[j][1]);
            }
        }
    }

    norms[tid] = norm;
    __syncthreads();

    float yn[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) yn[j] = norms[BM + wn + 4 * lt + (j & 3) + (j >> 2) * 16];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        const int rl = wm + lr + 8 * i;
        const float xn = norms[rl];
        const int r = row0 + rl;
        const int c = col0 + wn + 4 * lt;
        float* dst = out + (long long)r * N + c;
        float d[8];
#pragma unroll
        for (int j = 0; j < 8; ++j)
            d[j] = fmaf(-2.0f, acc[i >> 1][j >> 1][2 * (i & 1) + (j & 1)], xn + yn[j]);
        if (!EDGE) {
            __stcs(reinterpret_cast<float4*>(dst), make_float4(d[0], d[1], d[2], d[3]));
            __stcs(reinterpret_cast<float4*>(dst + 16), make_float4(d[4], d[5], d[6], d[7]));
        } else if (r < M) {
#pragma unroll
            for (int j = 0; j < 8; ++j) {
                const int o = (j & 3) + (j >> 2) * 16;
                if (c + o < N) dst[o] = d[j];
            }
        }
    }
}

torch::Tensor sq_dist(torch::Tensor x, torch::Tensor y) {
    TORCH_CHECK(x.is_cuda() && y.is_cuda(), "expected CUDA tensors");
    TORCH_CHECK(x.scalar_type() == torch::kFloat32 && y.scalar_type() == torch::kFloat32,
                "expected float32");
    TORCH_CHECK(x.dim() == 2 && y.dim() == 2 && x.size(1) == y.size(1), "shape mismatch");
    auto xc = x.contiguous();
    auto yc = y.contiguous();
    const int M = (int)xc.size(0), N = (int)yc.size(0), K = (int)xc.size(1);
    auto out = torch::empty({M, N}, xc.options());
    if (M == 0 || N == 0) return out;
    dim3 grid((N + BN - 1) / BN, (M + BM - 1) / BM);
    auto stream = at::cuda::getCurrentCUDAStream();
    const float* xp = xc.data_ptr<float>();
    const float* yp = yc.data_ptr<float>();
    float* op = out.data_ptr<float>();
    const bool aligned = (reinterpret_cast<uintptr_t>(xp) % 16 == 0) &&
                         (reinterpret_cast<uintptr_t>(yp) % 16 == 0);
    if (aligned && K > 0 && M % BM == 0 && N % BN == 0 && K % BK == 0) {
        C10_CUDA_CHECK(cudaFuncSetAttribute(sq_dist_kernel<false>,
                       cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM_BYTES));
        sq_dist_kernel<false><<<grid, 256, SMEM_BYTES, stream>>>(xp, yp, op, M, N, K);
    } else {
        C10_CUDA_CHECK(cudaFuncSetAttribute(sq_dist_kernel<true>,
                       cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM_BYTES));
        sq_dist_kernel<true><<<grid, 256, SMEM_BYTES, stream>>>(xp, yp, op, M, N, K);
    }
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return out;
}
"""

_ext = load_inline(
    name="sq_dist_split_ext_v3",
    cpp_sources=cpp_source,
    cuda_sources=cuda_source,
    functions=["sq_dist"],
    extra_cuda_cflags=["-O3"],
)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return _ext.sq_dist(x, y)

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

cpp_source = "torch::Tensor hgemm(torch::Tensor a, torch::Tensor b);"

cuda_source = r"""
#include <torch/types.h>
#include <cuda.h>
#include <cuda_runtime.h>
#include <cuda_fp16.h>
#include <algorithm>
#include <cstdint>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>

constexpr int BM = 128;
constexpr int BN = 256;
constexpr int BK = 64;
constexpr int STAGES = 4;
constexpr int A_BYTES = BM * BK * 2;              // 16 KB
constexpr int B_BYTES = BK * BN * 2;              // 32 KB
constexpr int STAGE_BYTES = A_BYTES + B_BYTES;    // 48 KB
constexpr int SMEM_BYTES = STAGES * STAGE_BYTES;  // 192 KB
constexpr int C_STRIDE = BN * 2 + 16;             // bytes per staged output row
constexpr int GROUP_M = 16;

// ---------------------------------------------------------------- wgmma kernel

constexpr int W_SMEM = SMEM_BYTES + 1024 + 128;   // alignment, barriers
constexpr int PANEL = 64 * BK * 2;                // 64 columns of B: 8 KB

__device__ __forceinline__ void mbar_init(uint32_t bar, uint32_t count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" :: "r"(bar), "r"(count) : "memory");
}
__device__ __forceinline__ void mbar_expect(uint32_t bar, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n"
                 :: "r"(bar), "r"(bytes) : "memory");
}
__device__ __forceinline__ void mbar_wait(uint32_t bar, uint32_t parity) {
    uint32_t done;
    do {
        asm volatile("{\n"
                     ".reg .pred p;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;\n"
                     "}\n" : "=r"(done) : "r"(bar), "r"(parity) : "memory");
    } while (!done);
}
// threads 0 and 1 of a warpgroup arrive at the barrier of block 0 and 1 of the cluster
__device__ __forceinline__ void mbar_release(uint32_t bar, uint32_t t) {
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 ".reg .b32 r;\n"
                 "setp.lt.u32 p, %1, 2;\n"
                 "@p mapa.shared::cluster.u32 r, %0, %1;\n"
                 "@p mbarrier.arrive.shared::cluster.b64 _, [r];\n"
                 "}\n" :: "r"(bar), "r"(t) : "memory");
}
__device__ __forceinline__ void tma_load(uint32_t dst, const CUtensorMap* map, uint32_t bar,
                                         int c0, int c1) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4}], [%2];\n"
                 :: "r"(dst), "l"((uint64_t)map), "r"(bar), "r"(c0), "r"(c1) : "memory");
}
__device__ __forceinline__ void tma_load_both(uint32_t dst, const CUtensorMap* map, uint32_t bar,
                                              int c0, int c1) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1, {%4, %5}], [%2], %3;\n"
                 :: "r"(dst), "l"((uint64_t)map), "r"(bar), "h"((uint16_t)3), "r"(c0), "r"(c1)
                 : "memory");
}
__device__ __forceinline__ void cluster_sync_all() {
    asm volatile("barrier.cluster.arrive.release;\n" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire;\n" ::: "memory");
}
// 128-byte swizzle
__device__ __forceinline__ uint64_t smem_desc(uint32_t addr, uint32_t lbo, uint32_t sbo) {
    return (uint64_t)((addr & 0x3FFFF) >> 4) | ((uint64_t)(lbo >> 4) << 16) |
           ((uint64_t)(sbo >> 4) << 32) | ((uint64_t)1 << 62);
}
// A: K-major, B: N-major (transposed in shared memory)
__device__ __forceinline__ void wgmma_256(float (&d)[128], uint64_t da, uint64_t db) {
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "setp.ne.b32 p, %130, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 "
                 "{@REGS@}, %128, %129, p, 1, 1, 0, 1;\n"
                 "}\n"
                 : @OPS@
                 : "l"(da), "l"(db), "r"(1));
}

__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(384, 1)
hgemm_wgmma(const __grid_constant__ CUtensorMap map_a, const __grid_constant__ CUtensorMap map_b,
            __half* __restrict__ C, int N, int nk, int pairs_m, int tiles_n) {
    extern __shared__ __align__(1024) unsigned char smem[];
    const uint32_t base = ((uint32_t)__cvta_generic_to_shared(smem) + 1023u) & ~1023u;
    const uint32_t full = base + SMEM_BYTES;             // STAGES barriers of 8 bytes
    const uint32_t empty = full + STAGES * 8;

    const int tid = threadIdx.x;
    const int wg = tid >> 7;
    const int rank = blockIdx.x & 1;
    const int clusters = gridDim.x >> 1;
    const int pairs = pairs_m * tiles_n;

    if (tid == 0) {
        for (int s = 0; s < STAGES; ++s) {
            mbar_init(full + s * 8, 1);
            mbar_init(empty + s * 8, 4);                 // 2 blocks x 2 consumer warpgroups
        }
        asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
    }
    __syncthreads();
    cluster_sync_all();

    auto place = [&](int p, int& row0, int& col0) {      // grouped rasterisation of tile pairs
        const int gp = GROUP_M / 2;
        const int per_group = gp * tiles_n;
        const int group = p / per_group;
        const int in_group = p - group * per_group;
        const int first = group * gp;
        const int gsize = min(gp, pairs_m - first);
        row0 = ((first + in_group % gsize) * 2 + rank) * BM;
        col0 = (in_group / gsize) * BN;
    };

    int stage = 0;
    uint32_t phase = 0;
    if (wg == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;\n");
        if (tid == 0) {
            for (int p = blockIdx.x >> 1; p < pairs; p += clusters) {
                int row0, col0;
                place(p, row0, col0);
                for (int kt = 0; kt < nk; ++kt) {
                    mbar_wait(empty + stage * 8, phase ^ 1);
                    const uint32_t bar = full + stage * 8;
                    const uint32_t sa = base + stage * STAGE_BYTES;
                    const uint32_t sb = sa + A_BYTES + rank * 2 * PANEL;
                    const int c = col0 + rank * 128;
                    mbar_expect(bar, STAGE_BYTES);
                    tma_load(sa, &map_a, bar, kt * BK, row0);
                    tma_load_both(sb, &map_b, bar, c, kt * BK);
                    tma_load_both(sb + PANEL, &map_b, bar, c + 64, kt * BK);
                    if (++stage == STAGES) { stage = 0; phase ^= 1; }
                }
            }
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;\n");
        const int t = tid & 127;
        const int lane = t & 31;
        const int tq = lane & 3;
        const uint32_t a_off = (wg - 1) * 64 * 128;
        // The second warpgroup lags two k steps behind the first one, so that their epilogues
        // do not fall together. `lead` is the k step after which the first one lets it go.
        int lead = wg == 1 ? min(1, nk - 1) : -1;
        if (wg == 2) asm volatile("bar.sync 1, 256;\n" ::: "memory");
        for (int p = blockIdx.x >> 1; p < pairs; p += clusters) {
            int row0, col0;
            place(p, row0, col0);
            float d[128];
#pragma unroll
            for (int i = 0; i < 128; ++i) d[i] = 0.f;
            int prev = 0;
            for (int kt = 0; kt < nk; ++kt) {
                mbar_wait(full + stage * 8, phase);
                const uint32_t sa = base + stage * STAGE_BYTES;
                const uint64_t da = smem_desc(sa + a_off, 16, 1024);
                const uint64_t db = smem_desc(sa + A_BYTES, PANEL, 1024);
#pragma unroll
                for (int i = 0; i < 128; ++i) asm volatile("" : "+f"(d[i]) :: "memory");
                asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
#pragma unroll
                for (int kk = 0; kk < 4; ++kk)
                    wgmma_256(d, da + kk * 2, db + kk * 128);    // 32 and 2048 bytes
                asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
                asm volatile("wgmma.wait_group.sync.aligned 1;\n" ::: "memory");
                if (kt > 0) mbar_release(empty + prev * 8, t);
                if (kt == lead) {                        // once, in the first tile
                    asm volatile("bar.arrive 1, 256;\n" ::: "memory");
                    lead = -1;
                }
                prev = stage;
                if (++stage == STAGES) { stage = 0; phase ^= 1; }
            }
            asm volatile("wgmma.wait_group.sync.aligned 0;\n" ::: "memory");
#pragma unroll
            for (int i = 0; i < 128; ++i) asm volatile("" : "+f"(d[i]) :: "memory");
            mbar_release(empty + prev * 8, t);

            // the four lanes of a row exchange values so that each stores 16 bytes
            const int row = row0 + (wg - 1) * 64 + (t >> 5) * 16 + (lane >> 2);
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                __half* dst = C + (long long)(row + 8 * h) * N + col0 + tq * 8;
#pragma unroll
                for (int q = 0; q < 8; ++q) {
                    uint32_t v[4];
#pragma unroll
                    for (int j = 0; j < 4; ++j) {
                        const __half2 hv = __floats2half2_rn(d[(4 * q + j) * 4 + 2 * h],
                                                             d[(4 * q + j) * 4 + 2 * h + 1]);
                        v[j] = *reinterpret_cast<const uint32_t*>(&hv);
                    }
                    const bool odd = tq & 1, high = tq & 2;
                    const uint32_t r0 = __shfl_xor_sync(0xffffffffu, odd ? v[0] : v[1], 1);
                    const uint32_t r1 = __shfl_xor_sync(0xffffffffu, odd ? v[2] : v[3], 1);
                    if (odd) { v[0] = r0; v[2] = r1; } else { v[1] = r0; v[3] = r1; }
                    const uint32_t r2 = __shfl_xor_sync(0xffffffffu, high ? v[0] : v[2], 2);
                    const uint32_t r3 = __shfl_xor_sync(0xffffffffu, high ? v[1] : v[3], 2);
                    if (high) { v[0] = r2; v[1] = r3; } else { v[2] = r2; v[3] = r3; }
                    *reinterpret_cast<uint4*>(dst + q * 32) = make_uint4(v[0], v[1], v[2], v[3]);
                }
            }
        }
    }
    __syncwarp();
    cluster_sync_all();       // nobody leaves while the other block may still write here
}

// ------------------------------------------------- any shape: mma.sync kernel

__device__ __forceinline__ void cp_async16(uint32_t dst, const void* src) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" :: "r"(dst), "l"(src) : "memory");
}
__device__ __forceinline__ void cp_commit() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
template <int N>
__device__ __forceinline__ void cp_wait() { asm volatile("cp.async.wait_group %0;\n" :: "n"(N) : "memory"); }

__device__ __forceinline__ void ldsm4(uint32_t* r, uint32_t addr) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(addr) : "memory");
}
__device__ __forceinline__ void ldsm4t(uint32_t* r, uint32_t addr) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(addr) : "memory");
}
__device__ __forceinline__ void mma16816(float* c, const uint32_t* a, uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// eight halves from a row of `limit` valid columns, zeros outside
__device__ __forceinline__ uint4 guarded8(const __half* row, int c, int limit, bool ok) {
    uint32_t w[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        const int c0 = c + 2 * j;
        uint32_t lo = 0, hi = 0;
        if (ok && c0 < limit) lo = __half_as_ushort(row[c0]);
        if (ok && c0 + 1 < limit) hi = __half_as_ushort(row[c0 + 1]);
        w[j] = lo | (hi << 16);
    }
    return make_uint4(w[0], w[1], w[2], w[3]);
}

template <bool EDGE>
__global__ void __launch_bounds__(256, 1)
hgemm_kernel(const __half* __restrict__ A, const __half* __restrict__ B, __half* __restrict__ C,
             int M, int N, int K, int tiles_m, int tiles_n) {
    extern __shared__ __align__(1024) unsigned char smem[];
    const uint32_t smem_base = (uint32_t)__cvta_generic_to_shared(smem);

    const int tid = threadIdx.x;
    const int lane = tid & 31;
    const int warp = tid >> 5;

    // grouped rasterisation
    const int per_group = GROUP_M * tiles_n;
    const int group = blockIdx.x / per_group;
    const int in_group = blockIdx.x - group * per_group;
    const int first_m = group * GROUP_M;
    const int gsize = min(GROUP_M, tiles_m - first_m);
    const int row0 = (first_m + in_group % gsize) * BM;
    const int col0 = (in_group / gsize) * BN;

    // loading roles
    const int a_row = tid >> 3;          // + 32 i
    const int a_chunk = tid & 7;
    const int b_row = tid >> 5;          // + 8 i
    const int b_chunk = tid & 31;
    const uint32_t a_dst = a_row * 128 + ((a_chunk ^ (a_row & 7)) << 4);
    const uint32_t b_dst = A_BYTES + b_row * 512 + ((b_chunk ^ (b_row & 7)) << 4);
    const __half* a_src = A + (long long)(row0 + a_row) * K + a_chunk * 8;
    const __half* b_src = B + (long long)b_row * N + col0 + b_chunk * 8;

    const int nk = (K + BK - 1) / BK;

    auto load_tile = [&](int kt, int stage) {
        const uint32_t off = stage * STAGE_BYTES;
        if (!EDGE) {
            const __half* as = a_src + kt * BK;
            const __half* bs = b_src + (long long)kt * BK * N;
#pragma unroll
            for (int i = 0; i < 4; ++i)
                cp_async16(smem_base + off + a_dst + i * 32 * 128, as + (long long)i * 32 * K);
#pragma unroll
            for (int i = 0; i < 8; ++i)
                cp_async16(smem_base + off + b_dst + i * 8 * 512, bs + (long long)i * 8 * N);
        } else {
            for (int i = 0; i < 4; ++i) {
                const int r = row0 + a_row + i * 32;
                const uint4 v = guarded8(A + (long long)r * K, kt * BK + a_chunk * 8, K, r < M);
                *reinterpret_cast<uint4*>(smem + off + a_dst + i * 32 * 128) = v;
            }
            for (int i = 0; i < 8; ++i) {
                const int k = kt * BK + b_row + i * 8;
                const uint4 v = guarded8(B + (long long)k * N, col0 + b_chunk * 8, N, k < K);
                *reinterpret_cast<uint4*>(smem + off + b_dst + i * 8 * 512) = v;
            }
        }
    };

    // computing roles: warps 2 x 4, each 64 x 64
    const int wm = (warp >> 2) * 64;
    const int wn = (warp & 3) * 64;
    const int r7 = lane & 7;
    const int hi = lane >> 4;
    const uint32_t a_frag = (wm + (lane & 15)) * 128;
    const uint32_t a_sw = (uint32_t)((hi ^ r7) << 4);
    const uint32_t b_frag = A_BYTES + (lane & 15) * 512 + wn * 2;
    const uint32_t b_sw = (uint32_t)((hi ^ r7) << 4);

    float acc[4][8][4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 8; ++j)
#pragma unroll
            for (int q = 0; q < 4; ++q) acc[i][j][q] = 0.f;

    uint32_t af[2][4][4];
    uint32_t bf[2][4][4];

    auto load_frags = [&](int buf, uint32_t stage_addr, int kk) {
        const uint32_t aa = stage_addr + a_frag + (a_sw ^ (uint32_t)(kk * 32));
        const uint32_t bb = stage_addr + b_frag + kk * 16 * 512;
#pragma unroll
        for (int i = 0; i < 4; ++i) ldsm4(af[buf][i], aa + i * 16 * 128);
#pragma unroll
        for (int j = 0; j < 4; ++j) ldsm4t(bf[buf][j], bb + (b_sw ^ (uint32_t)(j * 32)));
    };

#pragma unroll
    for (int s = 0; s < STAGES - 1; ++s) {
        if (s < nk) load_tile(s, s);
        cp_commit();
    }
    cp_wait<STAGES - 2>();
    __syncthreads();
    load_frags(0, smem_base, 0);

    for (int kt = 0; kt < nk; ++kt) {
        const uint32_t cur_addr = smem_base + (kt % STAGES) * STAGE_BYTES;
        const uint32_t next_addr = smem_base + ((kt + 1) % STAGES) * STAGE_BYTES;
#pragma unroll
        for (int kk = 0; kk < 4; ++kk) {
            if (kk == 3) {
                cp_wait<STAGES - 2>();
                __syncthreads();
                load_frags(0, next_addr, 0);
            } else {
                load_frags((kk + 1) & 1, cur_addr, kk + 1);
            }
            if (kk == 0) {
                const int nt = kt + STAGES - 1;
                if (nt < nk) load_tile(nt, nt % STAGES);
                cp_commit();
            }
#pragma unroll
            for (int i = 0; i < 4; ++i)
#pragma unroll
                for (int j = 0; j < 8; ++j)
                    mma16816(acc[i][j], af[kk & 1][i], bf[kk & 1][j >> 1][(j & 1) * 2],
                             bf[kk & 1][j >> 1][(j & 1) * 2 + 1]);
        }
    }

    // epilogue through shared memory
    cp_wait<0>();
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            const int r = wm + i * 16 + (lane >> 2);
            const int c = wn + j * 8 + (lane & 3) * 2;
            *reinterpret_cast<__half2*>(smem + r * C_STRIDE + c * 2) =
                __floats2half2_rn(acc[i][j][0], acc[i][j][1]);
            *reinterpret_cast<__half2*>(smem + (r + 8) * C_STRIDE + c * 2) =
                __floats2half2_rn(acc[i][j][2], acc[i][j][3]);
        }
    }
    __syncthreads();
#pragma unroll 4
    for (int i = 0; i < 16; ++i) {
        const int r = (tid >> 5) + i * 8;
        const int c = (tid & 31) * 8;
        const uint4 v = *reinterpret_cast<const uint4*>(smem + r * C_STRIDE + c * 2);
        const int gr = row0 + r;
        const int gc = col0 + c;
        __half* dst = C + (long long)gr * N + gc;
        if (!EDGE) {
            *reinterpret_cast<uint4*>(dst) = v;
        } else if (gr < M) {
            const __half* hv = reinterpret_cast<const __half*>(smem + r * C_STRIDE + c * 2);
            for (int j = 0; j < 8; ++j)
                if (gc + j < N) dst[j] = hv[j];
        }
    }
}

typedef CUresult (*EncodeFn)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*,
                             const cuuint64_t*, const cuuint64_t*, const cuuint32_t*,
                             const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                             CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

static CUtensorMap make_map(EncodeFn encode, const void* ptr, int64_t inner, int64_t outer,
                            int box_inner, int box_outer) {
    CUtensorMap map;
    cuuint64_t dims[2] = {(cuuint64_t)inner, (cuuint64_t)outer};
    cuuint64_t strides[1] = {(cuuint64_t)inner * 2};
    cuuint32_t box[2] = {(cuuint32_t)box_inner, (cuuint32_t)box_outer};
    cuuint32_t elem[2] = {1, 1};
    const CUresult r = encode(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 2, const_cast<void*>(ptr),
                              dims, strides, box, elem, CU_TENSOR_MAP_INTERLEAVE_NONE,
                              CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                              CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    TORCH_CHECK(r == CUDA_SUCCESS, "tensor map could not be encoded");
    return map;
}

torch::Tensor hgemm(torch::Tensor a, torch::Tensor b) {
    TORCH_CHECK(a.is_cuda() && b.is_cuda(), "expected CUDA tensors");
    TORCH_CHECK(a.scalar_type() == torch::kFloat16 && b.scalar_type() == torch::kFloat16,
                "expected float16");
    TORCH_CHECK(a.dim() == 2 && b.dim() == 2 && a.size(1) == b.size(0), "shape mismatch");
    auto ac = a.contiguous();
    auto bc = b.contiguous();
    const int M = (int)ac.size(0), K = (int)ac.size(1), N = (int)bc.size(1);
    auto c = torch::empty({M, N}, ac.options());
    if (M == 0 || N == 0) return c;
    const int tiles_m = (M + BM - 1) / BM;
    const int tiles_n = (N + BN - 1) / BN;
    const unsigned blocks = (unsigned)tiles_m * (unsigned)tiles_n;
    auto stream = at::cuda::getCurrentCUDAStream();
    const __half* ap = reinterpret_cast<const __half*>(ac.data_ptr());
    const __half* bp = reinterpret_cast<const __half*>(bc.data_ptr());
    __half* cp = reinterpret_cast<__half*>(c.data_ptr());
    const bool aligned = (reinterpret_cast<uintptr_t>(ap) % 16 == 0) &&
                         (reinterpret_cast<uintptr_t>(bp) % 16 == 0);
    if (aligned && K > 0 && M % (2 * BM) == 0 && N % BN == 0 && K % BK == 0) {
        void* fn = nullptr;
        cudaDriverEntryPointQueryResult found;
        C10_CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &fn, 12000,
                                                        cudaEnableDefault, &found));
        TORCH_CHECK(fn != nullptr && found == cudaDriverEntryPointSuccess, "no tensor maps");
        EncodeFn encode = reinterpret_cast<EncodeFn>(fn);
        const CUtensorMap map_a = make_map(encode, ap, K, M, BK, BM);
        const CUtensorMap map_b = make_map(encode, bp, N, K, 64, BK);
        const int sms = at::cuda::getCurrentDeviceProperties()->multiProcessorCount;
        const int pairs = (tiles_m / 2) * tiles_n;
        const int clusters = std::max(1, std::min(sms / 2, pairs));
        C10_CUDA_CHECK(cudaFuncSetAttribute(hgemm_wgmma,
                       cudaFuncAttributeMaxDynamicSharedMemorySize, W_SMEM));
        hgemm_wgmma<<<clusters * 2, 384, W_SMEM, stream>>>(map_a, map_b, cp, N, K / BK,
                                                           tiles_m / 2, tiles_n);
    } else if (aligned && K > 0 && M % BM == 0 && N % BN == 0 && K % BK == 0) {
        C10_CUDA_CHECK(cudaFuncSetAttribute(hgemm_kernel<false>,
                       cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM_BYTES));
        hgemm_kernel<false><<<blocks, 256, SMEM_BYTES, stream>>>(ap, bp, cp, M, N, K, tiles_m, tiles_n);
    } else {
        C10_CUDA_CHECK(cudaFuncSetAttribute(hgemm_kernel<true>,
                       cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM_BYTES));
        hgemm_kernel<true><<<blocks, 256, SMEM_BYTES, stream>>>(ap, bp, cp, M, N, K, tiles_m, tiles_n);
    }
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return c;
}
"""

cuda_source = cuda_source.replace("@REGS@", ", ".join(f"%{i}" for i in range(128)))
cuda_source = cuda_source.replace("@OPS@", ", ".join(f'"+f"(d[{i}])' for i in range(128)))

_ext = load_inline(
    name="hgemm_wgmma_ext_v3",
    cpp_sources=cpp_source,
    cuda_sources=cuda_source,
    functions=["hgemm"],
    extra_cuda_cflags=["-O3", "-gencode=arch=compute_90a,code=sm_90a"],
)


class ModelNew(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return _ext.hgemm(a, b)

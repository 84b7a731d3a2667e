import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

CPP = r"""
torch::Tensor lowrank_linear(torch::Tensor x, torch::Tensor w, torch::Tensor b,
                             torch::Tensor narrow, torch::Tensor wide);
"""

CUDA = r"""
#include <torch/types.h>
#include <c10/cuda/CUDAException.h>
#include <ATen/cuda/CUDAContext.h>
#include <cuda_runtime.h>
#include <cuda_fp16.h>
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

constexpr int BK = 32, STAGES = 4;
constexpr int TILEB = 128 * 128;               // 128 rows of 128 bytes (32 hi, 32 lo parts)
constexpr int STAGEB = 3 * TILEB;              // 128 rows of A, 256 rows of B
constexpr int SMEM = STAGES * STAGEB + 1024;

__device__ __forceinline__ void wgmma(float (&d)[64], uint64_t da, uint64_t db, int acc) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
        "{@REGS@}, %64, %65, p, 1, 1, 0, 0;\n}\n"
        : @OPS@
        : "l"(da), "l"(db), "r"(acc));
}

// K-major, 128-byte swizzle, 1024 bytes between groups of 8 rows
__device__ __forceinline__ uint64_t make_desc(unsigned addr) {
    return (uint64_t)((addr & 0x3FFFFu) >> 4) | (1ull << 16) | (64ull << 32) | (1ull << 62);
}

__device__ __forceinline__ void bar_wait(unsigned bar, unsigned parity) {
    unsigned done;
    do {
        asm volatile(
            "{\n.reg .pred p;\n"
            "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
            "selp.u32 %0, 1, 0, p;\n}\n"
            : "=r"(done) : "r"(bar), "r"(parity) : "memory");
    } while (!done);
}

__device__ __forceinline__ void bar_arrive_cta(unsigned bar, unsigned cta) {
    asm volatile(
        "{\n.reg .b32 ra;\n"
        "mapa.shared::cluster.u32 ra, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [ra];\n}\n"
        ::"r"(bar), "r"(cta) : "memory");
}

__device__ __forceinline__ void cluster_sync_all() {
    asm volatile("barrier.cluster.arrive.release;\n" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire;\n" ::: "memory");
}

// four values from k on; VEC: K is a multiple of 4 (or 0) and the rows are 16-byte aligned
template <bool VEC>
__device__ __forceinline__ void load4(float (&v)[4], const float* __restrict__ p, int k, int K) {
    if (VEC) {
        float4 f = make_float4(0.f, 0.f, 0.f, 0.f);
        if (k < K) f = __ldg(reinterpret_cast<const float4*>(p + k));
        v[0] = f.x; v[1] = f.y; v[2] = f.z; v[3] = f.w;
    } else {
#pragma unroll
        for (int j = 0; j < 4; ++j) v[j] = k + j < K ? __ldg(p + k + j) : 0.f;
    }
}

__device__ __forceinline__ float max4(float m, const float (&v)[4]) {
    return fmaxf(m, fmaxf(fmaxf(fabsf(v[0]), fabsf(v[1])), fmaxf(fabsf(v[2]), fabsf(v[3]))));
}

// power of two that brings the largest value of a row into [2^14, 2^15), and its inverse
__device__ __forceinline__ float row_scale(float mx, float& inverse) {
    int e = 14;
    if (mx > 0.f && !isinf(mx)) e = max(ilogbf(mx), -100);
    inverse = ldexpf(1.f, e - 14);
    return ldexpf(1.f, 14 - e);
}

// q: start of the row in its first tile, r: row in the tile
__device__ __forceinline__ void emit4(unsigned char* __restrict__ q, int r, int k,
                                      const float (&v)[4], float scale) {
    uint32_t h[4], l[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        const float s = v[j] * scale;
        const __half hi = __float2half_rn(s);
        const __half lo = __float2half_rn(s - __half2float(hi));
        h[j] = __half_as_ushort(hi);
        l[j] = __half_as_ushort(lo);
    }
    const int c = (k & 31) >> 3;
    unsigned char* d = q + (int64_t)(k >> 5) * TILEB + (k & 4) * 2;
    *reinterpret_cast<uint2*>(d + ((c ^ (r & 7)) << 4)) =
        make_uint2(h[0] | (h[1] << 16), h[2] | (h[3] << 16));
    *reinterpret_cast<uint2*>(d + (((c + 4) ^ (r & 7)) << 4)) =
        make_uint2(l[0] | (l[1] << 16), l[2] | (l[3] << 16));
}

// Blocks 0 .. Np/8-1: 8 rows each of W + wide * narrow; the others: 8 rows of x, one per warp.
// Each row is scaled by a power of two and written as hi + lo (22 bits).
// Output: tiles of 128 rows x 32 values of k, 16 KB each: a row has 32 hi parts and then 32 lo
// parts; its 16-byte chunk c lies at chunk c ^ (row & 7). Rows of x first, then rows of W.
template <bool VEC>
__global__ void __launch_bounds__(256, 3)
prepare(const float* __restrict__ x, const float* __restrict__ w,
        const float* __restrict__ narrow, const float* __restrict__ wide,
        unsigned char* __restrict__ pack, float* __restrict__ inv,
        int M, int N, int K, int R, int Mp, int Np, int nk) {
    __shared__ __align__(16) float sw[32][8];
    __shared__ float sred[8][8];
    __shared__ float sscale[8];
    asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
    const int t = threadIdx.x, lane = t & 31, warp = t >> 5;
    const int Kp = nk * BK;
    const int wblocks = Np >> 3;

    if ((int)blockIdx.x < wblocks) {
        const int n0 = blockIdx.x * 8;
        float a[8][4];
        float mx[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) mx[i] = 0.f;

        // called by the whole block
        auto compute = [&](int k0) {
            const int k = k0 + 4 * t;
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const int n = n0 + i;
                const bool ok = n < N;
                load4<VEC>(a[i], w + (ok ? (int64_t)n * K : 0), k, ok ? K : 0);
            }
            for (int r0 = 0; r0 < R; r0 += 32) {
                __syncthreads();
                {
                    const int n = n0 + warp, r = r0 + lane;
                    sw[lane][warp] = (n < N && r < R) ? __ldg(wide + (int64_t)n * R + r) : 0.f;
                }
                __syncthreads();
                const int rn = min(32, R - r0);
                if (k < K) {
                    const float* pn = narrow + (int64_t)r0 * K;
#pragma unroll 4
                    for (int r = 0; r < rn; ++r) {
                        float f[4];
                        load4<VEC>(f, pn + (int64_t)r * K, k, K);
                        const float4 u = *reinterpret_cast<const float4*>(&sw[r][0]);
                        const float4 v = *reinterpret_cast<const float4*>(&sw[r][4]);
#pragma unroll
                        for (int j = 0; j < 4; ++j) {
                            a[0][j] = fmaf(u.x, f[j], a[0][j]);
                            a[1][j] = fmaf(u.y, f[j], a[1][j]);
                            a[2][j] = fmaf(u.z, f[j], a[2][j]);
                            a[3][j] = fmaf(u.w, f[j], a[3][j]);
                            a[4][j] = fmaf(v.x, f[j], a[4][j]);
                            a[5][j] = fmaf(v.y, f[j], a[5][j]);
                            a[6][j] = fmaf(v.z, f[j], a[6][j]);
                            a[7][j] = fmaf(v.w, f[j], a[7][j]);
                        }
                    }
                }
            }
        };

        for (int k0 = 0; k0 < Kp; k0 += 1024) {
            compute(k0);
#pragma unroll
            for (int i = 0; i < 8; ++i) mx[i] = max4(mx[i], a[i]);
        }
#pragma unroll
        for (int i = 0; i < 8; ++i) {
#pragma unroll
            for (int o = 16; o > 0; o >>= 1)
                mx[i] = fmaxf(mx[i], __shfl_xor_sync(0xffffffffu, mx[i], o));
            if (lane == 0) sred[warp][i] = mx[i];
        }
        __syncthreads();
        if (t < 8) {
            float m = 0.f;
#pragma unroll
            for (int i = 0; i < 8; ++i) m = fmaxf(m, sred[i][t]);
            float back;
            sscale[t] = row_scale(m, back);
            inv[(int64_t)Mp + n0 + t] = back;
        }
        __syncthreads();
        const int64_t row0 = (int64_t)Mp + n0;
        const int rr = (int)(row0 & 127);
        unsigned char* q = pack + (row0 >> 7) * nk * (int64_t)TILEB + rr * 128;
        for (int k0 = 0; k0 < Kp; k0 += 1024) {
            if (Kp > 1024) compute(k0);          // else the values are still here
            const int k = k0 + 4 * t;
            if (k < Kp) {
#pragma unroll
                for (int i = 0; i < 8; ++i) emit4(q + i * 128, rr + i, k, a[i], sscale[i]);
            }
        }
    } else {
        const int64_t row = (int64_t)((int)blockIdx.x - wblocks) * 8 + warp;
        if (row >= Mp) return;
        const bool ok = row < M;
        const float* p = x + (ok ? row * K : 0);
        const int Kv = ok ? K : 0;
        float v[8][4];
        float mx = 0.f;
        for (int kb = 0; kb < Kp; kb += 1024) {
#pragma unroll
            for (int i = 0; i < 8; ++i) load4<VEC>(v[i], p, kb + i * 128 + lane * 4, Kv);
#pragma unroll
            for (int i = 0; i < 8; ++i) mx = max4(mx, v[i]);
        }
#pragma unroll
        for (int o = 16; o > 0; o >>= 1) mx = fmaxf(mx, __shfl_xor_sync(0xffffffffu, mx, o));
        float back;
        const float scale = row_scale(mx, back);
        if (lane == 0) inv[row] = back;
        const int r = (int)(row & 127);
        unsigned char* q = pack + (row >> 7) * nk * (int64_t)TILEB + r * 128;
        for (int kb = 0; kb < Kp; kb += 1024) {
            if (Kp > 1024) {
#pragma unroll
                for (int i = 0; i < 8; ++i) load4<VEC>(v[i], p, kb + i * 128 + lane * 4, Kv);
            }
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const int k = kb + i * 128 + lane * 4;
                if (k < Kp) emit4(q, r, k, v[i], scale);
            }
        }
    }
}

// 64 x 128 x 32 in three products, from zero into p. The two warpgroups take turns.
__device__ __forceinline__ void mma_step(float (&p)[64], uint64_t da, uint64_t db, int wg) {
    asm volatile("bar.sync %0, 256;\n" ::"r"(1 + wg) : "memory");
    asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
    // in units of 16 bytes: hi parts at 0 and 2, lo parts at 4 and 6
    wgmma(p, da + 4, db, 0);
    wgmma(p, da, db + 4, 1);
    wgmma(p, da + 6, db + 2, 1);
    wgmma(p, da + 2, db + 6, 1);
    wgmma(p, da, db, 1);
    wgmma(p, da + 2, db + 2, 1);
    asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
    asm volatile("bar.arrive %0, 256;\n" ::"r"(2 - wg) : "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;\n" ::: "memory");
#pragma unroll
    for (int i = 0; i < 64; ++i) asm volatile("" : "+f"(p[i])::"memory");
}

__device__ __forceinline__ void add_step(float (&a)[64], const float (&p)[64]) {
#pragma unroll
    for (int i = 0; i < 64; ++i) a[i] += p[i];
#pragma unroll
    for (int i = 0; i < 64; ++i) asm volatile("" : "+f"(a[i])::"memory");
}

// d: 64 x 128 of a warpgroup; row0 and row0 + 8, columns from col0 on
__device__ __forceinline__ void store_half(const float (&d)[64], float* __restrict__ out,
                                           const float* __restrict__ invb,
                                           const float* __restrict__ bias, float ia0, float ia1,
                                           int row0, int col0, int M, int N, int even) {
    const int row1 = row0 + 8;
    float* o0 = out + (int64_t)row0 * N;
    float* o1 = out + (int64_t)row1 * N;
    if (even) {
#pragma unroll
        for (int j = 0; j < 16; ++j) {
            const int col = col0 + j * 8;
            if (col < N) {
                const float2 ib = __ldg(reinterpret_cast<const float2*>(invb + col));
                const float2 bb = __ldg(reinterpret_cast<const float2*>(bias + col));
                // powers of two: the scaling back is exact
                if (row0 < M)
                    *reinterpret_cast<float2*>(o0 + col) =
                        make_float2(d[4 * j + 0] * ia0 * ib.x + bb.x,
                                    d[4 * j + 1] * ia0 * ib.y + bb.y);
                if (row1 < M)
                    *reinterpret_cast<float2*>(o1 + col) =
                        make_float2(d[4 * j + 2] * ia1 * ib.x + bb.x,
                                    d[4 * j + 3] * ia1 * ib.y + bb.y);
            }
        }
    } else {
#pragma unroll
        for (int j = 0; j < 16; ++j) {
#pragma unroll
            for (int c = 0; c < 2; ++c) {
                const int col = col0 + j * 8 + c;
                if (col < N) {
                    const float ib = __ldg(invb + col), bb = __ldg(bias + col);
                    if (row0 < M) o0[col] = d[4 * j + c] * ia0 * ib + bb;
                    if (row1 < M) o1[col] = d[4 * j + 2 + c] * ia1 * ib + bb;
                }
            }
        }
    }
}

// A cluster of two CTAs computes 256 x 256, each CTA 128 rows of it; each loads half of the rows
// of B and multicasts them to both.
__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(384, 1)
gemm_bias(const unsigned char* __restrict__ A, const unsigned char* __restrict__ B,
          const float* __restrict__ inva, const float* __restrict__ invb,
          const float* __restrict__ bias, float* __restrict__ out,
          int M, int N, int nk, int gm, int gn, int even) {
    extern __shared__ __align__(1024) unsigned char sm[];
    __shared__ __align__(8) uint64_t bars[2 * STAGES];
    const unsigned smb = ((unsigned)__cvta_generic_to_shared(sm) + 1023u) & ~1023u;
    const unsigned full = (unsigned)__cvta_generic_to_shared(bars), empty = full + 8 * STAGES;
    const int t = threadIdx.x;
    unsigned rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;\n" : "=r"(rank));
    const int tiles = gm * gn, step = gridDim.x >> 1, tile0 = blockIdx.x >> 1;

    if (t == 0) {
        for (int i = 0; i < STAGES; ++i) {
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;\n" ::"r"(full + 8 * i) : "memory");
            // 8 consumer warps of each of the two CTAs
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 16;\n" ::"r"(empty + 8 * i)
                         : "memory");
        }
        asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
    }
    __syncthreads();
    cluster_sync_all();
    // everything above may overlap the end of the pre-pass; from here on its results are read
    asm volatile("griddepcontrol.wait;\n" ::: "memory");

    if (t < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;\n");
        if (t == 0) {
            int slot = 0;
            unsigned phase = 0;
            for (int tile = tile0; tile < tiles; tile += step) {
                const int tn = tile % gn, tm = tile / gn;
                const unsigned char* pa = A + (int64_t)(2 * tm + rank) * nk * TILEB;
                const unsigned char* pb = B + (int64_t)(2 * tn + rank) * nk * TILEB;
                for (int kt = 0; kt < nk; ++kt) {
                    bar_wait(empty + 8 * slot, phase ^ 1u);
                    const unsigned fb = full + 8 * slot, d = smb + slot * STAGEB;
                    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n"
                                 ::"r"(fb), "r"(STAGEB) : "memory");
                    asm volatile(
                        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                        "[%0], [%1], %2, [%3];\n"
                        ::"r"(d), "l"(pa + (int64_t)kt * TILEB), "r"(TILEB), "r"(fb) : "memory");
                    asm volatile(
                        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                        ".multicast::cluster [%0], [%1], %2, [%3], %4;\n"
                        ::"r"(d + TILEB * (1 + rank)), "l"(pb + (int64_t)kt * TILEB),
                          "r"(TILEB), "r"(fb), "h"((unsigned short)3) : "memory");
                    if (++slot == STAGES) { slot = 0; phase ^= 1u; }
                }
            }
        }
        __syncwarp();
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;\n");
        const int wg = (t >> 7) - 1, lane = t & 31, warp = (t >> 5) & 3;
        float p[64], acc0[64], acc1[64];
#pragma unroll
        for (int i = 0; i < 64; ++i) p[i] = 0.f;
        int slot = 0;
        unsigned phase = 0;
        // the first turn is that of warpgroup 0
        if (wg == 1) asm volatile("bar.arrive 1, 256;\n" ::: "memory");
#pragma unroll 1
        for (int tile = tile0; tile < tiles; tile += step) {
            const int tn = tile % gn, tm = tile / gn;
#pragma unroll
            for (int i = 0; i < 64; ++i) { acc0[i] = 0.f; acc1[i] = 0.f; }
#pragma unroll 1
            for (int kt = 0; kt < nk; ++kt) {
                bar_wait(full + 8 * slot, phase);
                __syncwarp();
                const unsigned base = smb + slot * STAGEB;
                const uint64_t da = make_desc(base + wg * (TILEB / 2));
                const uint64_t db = make_desc(base + TILEB);
                mma_step(p, da, db, wg);
                add_step(acc0, p);
                mma_step(p, da, db + (TILEB >> 4), wg);
                if (lane < 2) bar_arrive_cta(empty + 8 * slot, lane);
                __syncwarp();
                add_step(acc1, p);
                if (++slot == STAGES) { slot = 0; phase ^= 1u; }
            }

            const int row0 = (2 * tm + (int)rank) * 128 + wg * 64 + warp * 16 + (lane >> 2);
            const int col0 = tn * 256 + 2 * (lane & 3);
            // inva and invb are padded to whole tiles
            const float ia0 = __ldg(inva + row0), ia1 = __ldg(inva + row0 + 8);
            store_half(acc0, out, invb, bias, ia0, ia1, row0, col0, M, N, even);
            store_half(acc1, out, invb, bias, ia0, ia1, row0, col0 + 128, M, N, even);
            __syncwarp();
        }
        // takes the last turn that warpgroup 1 handed over
        if (wg == 0) asm volatile("bar.sync 1, 256;\n" ::: "memory");
        __syncwarp();
    }
    cluster_sync_all();      // the other CTA may still signal barriers of this one
}

torch::Tensor lowrank_linear(torch::Tensor x_, torch::Tensor w_, torch::Tensor b_,
                             torch::Tensor narrow_, torch::Tensor wide_) {
    TORCH_CHECK(x_.is_cuda() && x_.scalar_type() == at::kFloat && x_.dim() >= 1,
                "float32 CUDA tensor expected");
    TORCH_CHECK(w_.scalar_type() == at::kFloat && b_.scalar_type() == at::kFloat &&
                narrow_.scalar_type() == at::kFloat && wide_.scalar_type() == at::kFloat,
                "float32 weights expected");
    auto x = x_.detach().contiguous();
    auto w = w_.detach().contiguous();
    auto b = b_.detach().contiguous();
    auto nar = narrow_.detach().contiguous();
    auto wid = wide_.detach().contiguous();
    const int K = (int)w.size(1), N = (int)w.size(0), R = (int)nar.size(0);
    TORCH_CHECK(x.size(-1) == K && N > 0 && K > 0 && nar.size(1) == K && wid.size(0) == N &&
                wid.size(1) == R && b.numel() == N, "unexpected sizes");
    const int M = (int)(x.numel() / K);
    std::vector<int64_t> sizes(x.sizes().begin(), x.sizes().end());
    sizes.back() = N;
    auto out = at::empty(sizes, x.options());
    if (M == 0) return out;
    auto stream = at::cuda::getCurrentCUDAStream();
    const float* xp = x.data_ptr<float>();
    const float* wp = w.data_ptr<float>();
    const float* np = nar.data_ptr<float>();
    const float* dp = wid.data_ptr<float>();
    const float* bp = b.data_ptr<float>();
    const bool vec = (K % 4 == 0) && ((reinterpret_cast<uintptr_t>(xp) |
                                       reinterpret_cast<uintptr_t>(wp) |
                                       reinterpret_cast<uintptr_t>(np)) & 15) == 0;
    const int even = (N % 2 == 0) && (reinterpret_cast<uintptr_t>(bp) & 7) == 0;
    const int nk = (K + BK - 1) / BK, Kp = nk * BK;
    const int gm = (M + 255) / 256, gn = (N + 255) / 256;
    const int Mp = gm * 256, Np = gn * 256;
    const int64_t rows = (int64_t)Mp + Np;
    // per value two halves (4 bytes), then one inverse scale per row
    auto buf = at::empty({rows * Kp + rows}, x.options());
    float* fp = buf.data_ptr<float>();
    unsigned char* kp = reinterpret_cast<unsigned char*>(fp);
    float* ip = fp + rows * Kp;
    const unsigned blocks = (unsigned)(rows / 8);
    if (vec) {
        prepare<true><<<blocks, 256, 0, stream>>>(xp, wp, np, dp, kp, ip, M, N, K, R, Mp, Np, nk);
    } else {
        prepare<false><<<blocks, 256, 0, stream>>>(xp, wp, np, dp, kp, ip, M, N, K, R, Mp, Np, nk);
    }
    C10_CUDA_KERNEL_LAUNCH_CHECK();

    C10_CUDA_CHECK(cudaFuncSetAttribute(gemm_bias,
                                        cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM));
    const int sms = at::cuda::getCurrentDeviceProperties()->multiProcessorCount;
    const int clusters = std::max(1, std::min(gm * gn, sms / 2));
    cudaLaunchConfig_t cfg = {};
    cfg.gridDim = dim3((unsigned)(2 * clusters), 1, 1);
    cfg.blockDim = dim3(384, 1, 1);
    cfg.dynamicSmemBytes = SMEM;
    cfg.stream = stream.stream();
    cudaLaunchAttribute attr[1];
    attr[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attr[0].val.programmaticStreamSerializationAllowed = 1;
    cfg.attrs = attr;
    cfg.numAttrs = 1;
    const unsigned char* ka = kp;
    const unsigned char* kb = kp + (int64_t)Mp * 4 * Kp;
    const float* ia = ip;
    const float* ib = ip + Mp;
    float* op = out.data_ptr<float>();
    C10_CUDA_CHECK(cudaLaunchKernelEx(&cfg, gemm_bias, ka, kb, ia, ib, bp, op,
                                      M, N, nk, gm, gn, even));
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return out;
}
"""

CUDA = CUDA.replace("@REGS@", ", ".join("%%%d" % i for i in range(64)))
CUDA = CUDA.replace("@OPS@", ", ".join('"+f"(d[%d])' % i for i in range(64)))

ext = load_inline(
    name="lowrank_linear_fp32_split_wgmma_v1",
    cpp_sources=CPP,
    cuda_sources=CUDA,
    functions=["lowrank_linear"],
    extra_cuda_cflags=["-O3", "-gencode=arch=compute_90a,code=sm_90a"],
)


class ModelNew(nn.Module):
    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.full = nn.Linear(width, width)
        self.narrow = nn.Linear(width, rank, bias=False)
        self.wide = nn.Linear(rank, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return ext.lowrank_linear(x, self.full.weight, self.full.bias,
                                  self.narrow.weight, self.wide.weight)

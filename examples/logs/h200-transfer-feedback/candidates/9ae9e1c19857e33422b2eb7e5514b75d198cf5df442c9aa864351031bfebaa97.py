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

constexpr int D = 64;         // head width
constexpr int BM = 256;       // queries per block, 64 per warpgroup
constexpr int BN = 64;        // keys per tile
constexpr int THREADS = 512;  // four warpgroups, 16 queries per warp

constexpr int PART_BYTES = 64 * 128;        // 64 rows of 64 two-byte numbers, 128-byte swizzle
constexpr int TILE_BYTES = 2 * PART_BYTES;  // hi part, lo part
constexpr int K_OFF = 4 * TILE_BYTES;       // after Q of the four warpgroups
constexpr int STAGE_BYTES = 4 * TILE_BYTES; // K slots 0, 1 and V slots 0, 1
constexpr int V_IN_STAGE = 2 * TILE_BYTES;
constexpr int SMEM_BYTES = K_OFF + 2 * STAGE_BYTES + 1024;

constexpr float SHIFT = 7.f;  // probabilities are kept times 2^7; the row sum cancels it

__device__ __forceinline__ float ex2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// x = hi + lo for two numbers: hi has the 11 leading bits, lo the next 11 (packed in pairs,
// x0 in the lower part). Callers scale so that neither part leaves its range.
__device__ __forceinline__ void split2(float x0, float x1, uint32_t& hi, uint32_t& lo) {
    uint32_t h;
    float f0, f1;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(h) : "f"(x1), "f"(x0));
    asm("{\n"
        ".reg .b16 ea, eb;\n"
        "mov.b32 {ea, eb}, %2;\n"
        "cvt.f32.f16 %0, ea;\n"
        "cvt.f32.f16 %1, eb;\n"
        "}\n"
        : "=f"(f0), "=f"(f1) : "r"(h));
    const float r0 = x0 - f0;
    const float r1 = x1 - f1;
    uint32_t l;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(l) : "f"(r1), "f"(r0));
    hi = h;
    lo = l;
}

template <int N>
__device__ __forceinline__ void pin(float (&r)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) asm volatile("" : "+f"(r[i]) :: "memory");
}
template <int N>
__device__ __forceinline__ void pin(uint32_t (&r)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) asm volatile("" : "+r"(r[i]) :: "memory");
}

__device__ __forceinline__ void fence_async_proxy() {
    asm volatile("fence.proxy.async;\n" ::: "memory");
}
__device__ __forceinline__ void wg_fence() {
    asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
}
__device__ __forceinline__ void wg_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
}
__device__ __forceinline__ void wg_wait_all() {
    asm volatile("wgmma.wait_group.sync.aligned 0;\n" ::: "memory");
}

// Operand descriptor, 128-byte swizzle, 8-row groups 1024 bytes apart.
__device__ __forceinline__ uint64_t make_desc(uint32_t addr) {
    return (uint64_t)((addr & 0x3FFFFu) >> 4) | ((uint64_t)1 << 16) |
           ((uint64_t)(1024 >> 4) << 32) | ((uint64_t)1 << 62);
}

// d (64 x 64) = scale_d * d + a (64 x 16, shared memory) * b (16 x 64, shared memory, K-major)
__device__ __forceinline__ void wgmma_ss(float (&d)[32], uint64_t da, uint64_t db, int scale_d) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "setp.ne.b32 p, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, "
        "%8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, "
        "%24, %25, %26, %27, %28, %29, %30, %31}, "
        "%32, %33, p, 1, 1, 0, 0;\n"
        "}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]),
          "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),
          "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]),
          "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
          "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
        : "l"(da), "l"(db), "r"(scale_d));
}

// d (64 x 64) += a (64 x 16, registers) * b (16 x 64, shared memory, N contiguous)
__device__ __forceinline__ void wgmma_rs(float (&d)[32], uint32_t a0, uint32_t a1,
                                         uint32_t a2, uint32_t a3, uint64_t desc) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "setp.ne.b32 p, %37, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, "
        "%8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, "
        "%24, %25, %26, %27, %28, %29, %30, %31}, "
        "{%32, %33, %34, %35}, "
        "%36, p, 1, 1, 1;\n"
        "}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]),
          "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),
          "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]),
          "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
          "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(desc), "r"(1));
}

constexpr uint64_t LO = (uint64_t)(PART_BYTES >> 4);  // from the hi part to the lo part

// s = Q K^T, both as hi + lo; the small products go first.
__device__ __forceinline__ void mma_qk(float (&s)[32], uint64_t qd, uint64_t kd) {
#pragma unroll
    for (int j = 0; j < 4; ++j)
        wgmma_ss(s, qd + LO + (uint64_t)(2 * j), kd + (uint64_t)(2 * j), j > 0 ? 1 : 0);
#pragma unroll
    for (int j = 0; j < 4; ++j)
        wgmma_ss(s, qd + (uint64_t)(2 * j), kd + LO + (uint64_t)(2 * j), 1);
#pragma unroll
    for (int j = 0; j < 4; ++j)
        wgmma_ss(s, qd + (uint64_t)(2 * j), kd + (uint64_t)(2 * j), 1);
}

// o += P V, both as hi + lo.
__device__ __forceinline__ void mma_pv(float (&o)[32], const uint32_t (&phi)[16],
                                       const uint32_t (&plo)[16], uint64_t vd) {
#pragma unroll
    for (int j = 0; j < 4; ++j)
        wgmma_rs(o, plo[4 * j], plo[4 * j + 1], plo[4 * j + 2], plo[4 * j + 3],
                 vd + (uint64_t)(128 * j));
#pragma unroll
    for (int j = 0; j < 4; ++j)
        wgmma_rs(o, phi[4 * j], phi[4 * j + 1], phi[4 * j + 2], phi[4 * j + 3],
                 vd + LO + (uint64_t)(128 * j));
#pragma unroll
    for (int j = 0; j < 4; ++j)
        wgmma_rs(o, phi[4 * j], phi[4 * j + 1], phi[4 * j + 2], phi[4 * j + 3],
                 vd + (uint64_t)(128 * j));
}

// Four floats, or zeros where "ok" is false. Volatile: stays where it is written.
__device__ __forceinline__ void load4(float& a, float& b, float& c, float& d,
                                      const float* p, bool ok) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "setp.ne.b32 p, %5, 0;\n"
        "mov.f32 %0, 0f00000000;\n"
        "mov.f32 %1, 0f00000000;\n"
        "mov.f32 %2, 0f00000000;\n"
        "mov.f32 %3, 0f00000000;\n"
        "@p ld.global.nc.v4.f32 {%0, %1, %2, %3}, [%4];\n"
        "}\n"
        : "=&f"(a), "=&f"(b), "=&f"(c), "=&f"(d)
        : "l"(p), "r"((int)ok));
}

// Tile t (64 x 64) into 8 of the registers: a warp takes 4 rows, a thread 4 columns of two of
// them. "src" points at the thread's first place in tile 0, "row" is the row of that place.
template <int AT>
__device__ __forceinline__ void load_tile(float (&st)[16], const float* src, int t, int row,
                                          int length) {
    const float* p = src + (long long)t * (BN * D);
    const int r = t * BN + row;
#pragma unroll
    for (int u = 0; u < 2; ++u)
        load4(st[AT + 4 * u], st[AT + 4 * u + 1], st[AT + 4 * u + 2], st[AT + 4 * u + 3],
              p + u * 2 * D, (unsigned)(r + 2 * u) < (unsigned)length);
}

// Biased exponent of the largest magnitude in the warp.
__device__ __forceinline__ int warp_exp(float mx) {
    const uint32_t b = __reduce_max_sync(0xffffffffu, __float_as_uint(mx));
    return min(max((int)(b >> 23), 15), 254);
}

// Power of two that brings magnitudes of exponent e to [2^14, 2^15), and its inverse.
__device__ __forceinline__ float scale_of(int e) { return __int_as_float((268 - e) << 23); }
__device__ __forceinline__ float inverse_of(int e) { return __int_as_float((e - 14) << 23); }

__device__ __forceinline__ void store4(float x0, float x1, float x2, float x3, float sc, char* at) {
    uint2 h, l;
    split2(x0 * sc, x1 * sc, h.x, l.x);
    split2(x2 * sc, x3 * sc, h.y, l.y);
    *reinterpret_cast<uint2*>(at) = h;
    *reinterpret_cast<uint2*>(at + PART_BYTES) = l;
}

// The warp's 4 rows of a tile, with a scale of their own; its inverse goes to *fac.
// "tile" is the hi part of the tile, "off" the thread's first place in it.
template <int AT>
__device__ __forceinline__ void store_tile(const float (&st)[16], char* tile, int off, float* fac,
                                           int lane) {
    float mx = 0.f;
#pragma unroll
    for (int i = 0; i < 8; ++i) mx = fmaxf(mx, fabsf(st[AT + i]));
    const int e = warp_exp(mx);
    const float sc = scale_of(e);
    store4(st[AT + 0], st[AT + 1], st[AT + 2], st[AT + 3], sc, tile + off);
    store4(st[AT + 4], st[AT + 5], st[AT + 6], st[AT + 7], sc, tile + ((off ^ 32) + 256));
    if (lane == 0) *fac = inverse_of(e);
}

__global__ void __launch_bounds__(THREADS, 1)
window_attn_kernel(const float* __restrict__ q, const float* __restrict__ k,
                   const float* __restrict__ v, float* __restrict__ out,
                   int length, int nblocks, int window, int n, float qscale) {
    extern __shared__ char smem_raw[];
    // Inverse scales [stage][slot][..] of the 4-key groups, even groups first, then odd ones.
    __shared__ __align__(16) float fac_k[2][2][16];
    __shared__ __align__(16) float fac_v[2][2][16];

    const uint32_t raw = static_cast<uint32_t>(__cvta_generic_to_shared(smem_raw));
    const uint32_t base = (raw + 1023u) & ~1023u;
    char* smem = smem_raw + (base - raw);

    const int tid = threadIdx.x;
    const int gw = __shfl_sync(0xffffffffu, tid >> 5, 0);  // warp in the block
    const int wg = gw >> 2;
    const int warp = gw & 3;   // in the warpgroup
    const int lane = tid & 31;
    const int g = lane >> 2;
    const int c = lane & 3;

    const uint64_t qdesc = make_desc(base + wg * TILE_BYTES);
    const uint64_t kdesc = make_desc(base + K_OFF);

    // The thread's first place in a K or V tile: rows tr and tr + 2, columns 4 tc .. + 3.
    const int tr = 4 * gw + (lane >> 4);
    const int tc = lane & 15;
    const int off = tr * 128 + (((tc >> 1) ^ (tr & 7)) << 4) + ((tc & 1) << 3);
    const int fpos = (gw & 1) * 8 + (gw >> 1);

    const int bh = blockIdx.x / nblocks;
    const int q0 = (blockIdx.x - bh * nblocks) * BM;
    const size_t head = (size_t)bh * (size_t)length * D;
    const float* kp = k + head + tr * D + tc * 4;
    const float* vp = v + head + tr * D + tc * 4;

    // Warpgroup i of the block needs the n key tiles tb + i .. tb + i + n - 1. Step s (from n - 1
    // down to 0) holds tile tb + s in slot 0, for the warpgroups i <= s, and tile tb + s + n in
    // slot 1, for the others (only if s < 3; n >= 3).
    const int qw = q0 + wg * 64;
    const int tb = q0 / BN - (n - 1);
    const int last = (length - 1) / BN;

    float st[16];
#pragma unroll
    for (int i = 0; i < 16; ++i) st[i] = 0.f;

    auto load_step = [&](float (&x)[16], const float* src, int it) {
        const int s = n - 1 - it;
        load_tile<0>(x, src, tb + s, tr, length);
        if (s < 3) load_tile<8>(x, src, tb + s + n, tr, length);
    };
    auto store_k = [&](const float (&x)[16], int it) {
        const int s = n - 1 - it;
        const int stage = it & 1;
        char* tile = smem + K_OFF + stage * STAGE_BYTES;
        store_tile<0>(x, tile, off, &fac_k[stage][0][fpos], lane);
        if (s < 3) store_tile<8>(x, tile + TILE_BYTES, off, &fac_k[stage][1][fpos], lane);
    };
    auto store_v = [&](const float (&x)[16], int it) {
        const int s = n - 1 - it;
        const int stage = it & 1;
        char* tile = smem + K_OFF + V_IN_STAGE + stage * STAGE_BYTES;
        store_tile<0>(x, tile, off, &fac_v[stage][0][fpos], lane);
        if (s < 3) store_tile<8>(x, tile + TILE_BYTES, off, &fac_v[stage][1][fpos], lane);
    };
    // First half of a step: K of the next step is split, its V is asked for.
    auto next_k = [&](int it) {
        if (it + 1 < n) {
            store_k(st, it + 1);
            load_step(st, vp, it + 1);
        }
    };
    // Second half: V of the next step is split, K of the one after it is asked for.
    auto next_v = [&](int it) {
        if (it + 1 < n) store_v(st, it + 1);
        if (it + 2 < n) load_step(st, kp, it + 2);
    };

    float qfac;
    {
        float k0[16], v0[16], qr[32];
#pragma unroll
        for (int i = 0; i < 16; ++i) { k0[i] = 0.f; v0[i] = 0.f; }
        load_step(k0, kp, 0);
        // A warp splits the 16 rows of Q whose scores it will hold.
        const int qrow = q0 + 16 * gw + (lane >> 4);
        const float* qp = q + head + (size_t)qrow * D + tc * 4;
#pragma unroll
        for (int u = 0; u < 8; ++u)
            load4(qr[4 * u], qr[4 * u + 1], qr[4 * u + 2], qr[4 * u + 3],
                  qp + u * 2 * D, qrow + 2 * u < length);
        load_step(v0, vp, 0);
        load_step(st, kp, 1);

        store_k(k0, 0);
        float mx = 0.f;
#pragma unroll
        for (int i = 0; i < 32; ++i) mx = fmaxf(mx, fabsf(qr[i]));
        const int eq = warp_exp(mx);
        const float sc = scale_of(eq);
        qfac = inverse_of(eq) * qscale;   // log2(e) / sqrt(D) and the scale of Q
        const int qlocal = warp * 16 + (lane >> 4);
        const int qoff = qlocal * 128 + (((tc >> 1) ^ (qlocal & 7)) << 4) + ((tc & 1) << 3);
        char* qtile = smem + wg * TILE_BYTES;
#pragma unroll
        for (int u = 0; u < 8; ++u)
            store4(qr[4 * u], qr[4 * u + 1], qr[4 * u + 2], qr[4 * u + 3], sc,
                   qtile + ((qoff ^ ((u & 3) << 5)) + u * 256));
        store_v(v0, 0);
    }

    const int row_a = qw + warp * 16 + g;
    const int row_b = row_a + 8;
    const bool late = wg >= 2;   // these split K before their product, the others after it

    float o[32];
#pragma unroll
    for (int i = 0; i < 32; ++i) o[i] = 0.f;
    float m_a = -1e30f, m_b = -1e30f, l_a = 0.f, l_b = 0.f;
    float vs = __int_as_float(1 << 23);   // o is in units of this power of two

    for (int it = 0; it < n; ++it) {
        const int step = n - 1 - it;
        const int stage = it & 1;
        const int slot = wg > step ? 1 : 0;
        const int t = tb + step + (slot ? n : 0);
        const int key0 = t * BN;

        fence_async_proxy();
        __syncthreads();   // this stage is complete; everyone is done with the other one

        if (t >= 0 && t <= last && qw < length) {
            const uint64_t kd = kdesc + (uint64_t)((stage * STAGE_BYTES + slot * TILE_BYTES) >> 4);
            const uint64_t vd = kd + (uint64_t)(V_IN_STAGE >> 4);

            if (late) next_k(it);

            float s[32];
            wg_fence();
            mma_qk(s, qdesc, kd);
            wg_commit();

            if (!late) next_k(it);

            wg_wait_all();
            pin(s);

            // Scores in powers of two.
            {
                const float4* fp =
                    reinterpret_cast<const float4*>(&fac_k[stage][slot][(c >> 1) * 8]);
                const float4 fa = fp[0];
                const float4 fb = fp[1];
                const float f[8] = {fa.x, fa.y, fa.z, fa.w, fb.x, fb.y, fb.z, fb.w};
#pragma unroll
                for (int j = 0; j < 8; ++j) {
                    const float fj = fminf(qfac * f[j], 1e37f);
                    s[4 * j + 0] = __fmul_rn(s[4 * j + 0], fj);
                    s[4 * j + 1] = __fmul_rn(s[4 * j + 1], fj);
                    s[4 * j + 2] = __fmul_rn(s[4 * j + 2], fj);
                    s[4 * j + 3] = __fmul_rn(s[4 * j + 3], fj);
                }
            }

            if (key0 + BN - 1 > qw || qw + 63 - key0 >= window) {
                const float ninf = __int_as_float(0xff800000);
                const int back0 = row_a - key0 - 2 * c;
#pragma unroll
                for (int j = 0; j < 8; ++j) {
                    const int b = back0 - 8 * j;
                    if ((unsigned)(b) >= (unsigned)window) s[4 * j + 0] = ninf;
                    if ((unsigned)(b - 1) >= (unsigned)window) s[4 * j + 1] = ninf;
                    if ((unsigned)(b + 8) >= (unsigned)window) s[4 * j + 2] = ninf;
                    if ((unsigned)(b + 7) >= (unsigned)window) s[4 * j + 3] = ninf;
                }
            }

            float x_a = fmaxf(s[0], s[1]);
            float x_b = fmaxf(s[2], s[3]);
#pragma unroll
            for (int j = 1; j < 8; ++j) {
                x_a = fmaxf(x_a, fmaxf(s[4 * j + 0], s[4 * j + 1]));
                x_b = fmaxf(x_b, fmaxf(s[4 * j + 2], s[4 * j + 3]));
            }
            x_a = fmaxf(x_a, __shfl_xor_sync(0xffffffffu, x_a, 1));
            x_b = fmaxf(x_b, __shfl_xor_sync(0xffffffffu, x_b, 1));
            x_a = fmaxf(x_a, __shfl_xor_sync(0xffffffffu, x_a, 2));
            x_b = fmaxf(x_b, __shfl_xor_sync(0xffffffffu, x_b, 2));

            const float n_a = fmaxf(m_a, __fadd_rn(x_a, -SHIFT));
            const float n_b = fmaxf(m_b, __fadd_rn(x_b, -SHIFT));

            // Scales of the V groups relative to the largest one met so far; o moves to it too
            // (never upwards).
            float r[8];
            float ratio;
            {
                const float4* fp =
                    reinterpret_cast<const float4*>(&fac_v[stage][slot][(c >> 1) * 8]);
                const float4 fa = fp[0];
                const float4 fb = fp[1];
                r[0] = fa.x; r[1] = fa.y; r[2] = fa.z; r[3] = fa.w;
                r[4] = fb.x; r[5] = fb.y; r[6] = fb.z; r[7] = fb.w;
                float vm = r[0];
#pragma unroll
                for (int j = 1; j < 8; ++j) vm = fmaxf(vm, r[j]);
                vm = fmaxf(vm, __shfl_xor_sync(0xffffffffu, vm, 2));
                vm = fmaxf(vm, vs);
                // Inverse of a power of two (biased exponent 1 .. 240).
                const float inv = __int_as_float((254 << 23) - __float_as_int(vm));
                ratio = vs * inv;
                vs = vm;
#pragma unroll
                for (int j = 0; j < 8; ++j) r[j] *= inv;
            }

            const float alpha_a = ex2(m_a - n_a);
            const float alpha_b = ex2(m_b - n_b);
            m_a = n_a;
            m_b = n_b;

            uint32_t phi[16], plo[16];
            float sum_a = 0.f, sum_b = 0.f;
#pragma unroll
            for (int j = 0; j < 8; ++j) {
                const float p0 = ex2(s[4 * j + 0] - n_a);
                const float p1 = ex2(s[4 * j + 1] - n_a);
                const float p2 = ex2(s[4 * j + 2] - n_b);
                const float p3 = ex2(s[4 * j + 3] - n_b);
                sum_a += p0 + p1;
                sum_b += p2 + p3;
                split2(__fmul_rn(p0, r[j]), __fmul_rn(p1, r[j]), phi[2 * j], plo[2 * j]);
                split2(__fmul_rn(p2, r[j]), __fmul_rn(p3, r[j]), phi[2 * j + 1], plo[2 * j + 1]);
            }
            l_a = fmaf(l_a, alpha_a, sum_a);
            l_b = fmaf(l_b, alpha_b, sum_b);
            const float beta_a = alpha_a * ratio;
            const float beta_b = alpha_b * ratio;
#pragma unroll
            for (int j = 0; j < 8; ++j) {
                o[4 * j + 0] *= beta_a;
                o[4 * j + 1] *= beta_a;
                o[4 * j + 2] *= beta_b;
                o[4 * j + 3] *= beta_b;
            }

            pin(o);
            pin(phi);
            pin(plo);
            wg_fence();
            mma_pv(o, phi, plo, vd);
            wg_commit();

            next_v(it);

            wg_wait_all();
            pin(o);
            pin(phi);
            pin(plo);
        } else {
            // No tile for this warpgroup in this step: only its share of the splitting.
            next_k(it);
            next_v(it);
        }
    }

    l_a += __shfl_xor_sync(0xffffffffu, l_a, 1);
    l_b += __shfl_xor_sync(0xffffffffu, l_b, 1);
    l_a += __shfl_xor_sync(0xffffffffu, l_a, 2);
    l_b += __shfl_xor_sync(0xffffffffu, l_b, 2);
    const float inv_a = (l_a == 0.f) ? 0.f : vs / l_a;
    const float inv_b = (l_b == 0.f) ? 0.f : vs / l_b;

    float* oh = out + head;
    if (row_a < length) {
        float* op = oh + (size_t)row_a * D + 2 * c;
#pragma unroll
        for (int j = 0; j < 8; ++j)
            *reinterpret_cast<float2*>(op + 8 * j) =
                make_float2(o[4 * j + 0] * inv_a, o[4 * j + 1] * inv_a);
    }
    if (row_b < length) {
        float* op = oh + (size_t)row_b * D + 2 * c;
#pragma unroll
        for (int j = 0; j < 8; ++j)
            *reinterpret_cast<float2*>(op + 8 * j) =
                make_float2(o[4 * j + 2] * inv_b, o[4 * j + 3] * inv_b);
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
    TORCH_CHECK(length < (int64_t(1) << 29), "length too large");
    const int64_t nblocks = (length + BM - 1) / BM;
    const int64_t blocks = nblocks * heads;
    TORCH_CHECK(blocks < (int64_t(1) << 31), "too many blocks");
    int64_t w = window;
    if (w < 0) w = 0;
    if (w > length) w = length;
    // Key tiles that 64 aligned queries touch; at least 3, so that two slots do for a step.
    int64_t n = 1 + (w + BN - 2) / BN;
    if (n < 3) n = 3;

    C10_CUDA_CHECK(cudaFuncSetAttribute(window_attn_kernel,
                                        cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM_BYTES));
    C10_CUDA_CHECK(cudaFuncSetAttribute(window_attn_kernel,
                                        cudaFuncAttributePreferredSharedMemoryCarveout, 100));
    const float qscale = 0.125f * 1.4426950408889634f;
    window_attn_kernel<<<(unsigned)blocks, THREADS, SMEM_BYTES,
                         at::cuda::getCurrentCUDAStream()>>>(
        qc.data_ptr<float>(), kc.data_ptr<float>(), vc.data_ptr<float>(), out.data_ptr<float>(),
        (int)length, (int)nblocks, (int)w, (int)n, qscale);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return out;
}
"""

_ext = load_inline(
    name="window_attn_f32_wide_block_ext",
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

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

_CPP = r"""
torch::Tensor conv1x1_relu6(torch::Tensor x, torch::Tensor w, torch::Tensor bias);
"""

_CUDA = r"""
#include <torch/types.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <cuda_fp16.h>
#include <cstdint>

namespace {

constexpr int BP = 128;            // pixels a block (rows of the wgmma product)
constexpr int BF = 256;            // filters a block (columns of the wgmma product)
constexpr int BK = 32;             // channels a stage: 64 bytes hi and 64 bytes lo of a row of W
constexpr int LDX = BP + 4;        // 2 * LDX mod 32 == 8: conflict-free 8-byte fragment loads
constexpr int XST = 8;             // stages of x
constexpr int THREADS = 256;       // two warpgroups, 64 pixels each

constexpr int W_STAGE = BF * 128;               // 32 KB: hi and lo parts of one stage
constexpr int W_BYTES = 2 * W_STAGE;            // 64 KB
constexpr int X_STAGE = BK * LDX;               // floats
constexpr int SMEM_BYTES = W_BYTES + XST * X_STAGE * 4 + 1024;

constexpr float X_LIMIT = 16384.0f;   // scaled |x| stays at or below (half: 65504)
constexpr float W_LIMIT = 32768.0f;   // scaled |w| stays at or below

// limits to [0, 6] and lets NaN through, as torch does
__device__ __forceinline__ float relu6f(float v) {
    return v < 0.0f ? 0.0f : (v > 6.0f ? 6.0f : v);
}

__device__ __forceinline__ void cp_async16(float* dst, const float* src) {
    unsigned s = static_cast<unsigned>(__cvta_generic_to_shared(dst));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" :: "r"(s), "l"(src) : "memory");
}
__device__ __forceinline__ void cp_async_commit() {
    asm volatile("cp.async.commit_group;\n" ::: "memory");
}
// all but the newest XST - 2 groups are complete
__device__ __forceinline__ void cp_async_wait_stage() {
    asm volatile("cp.async.wait_group %0;\n" :: "n"(XST - 2) : "memory");
}

__device__ __forceinline__ float4 ldg_v4(const float* p) {
    float4 v;
    asm volatile("ld.global.nc.v4.f32 {%0, %1, %2, %3}, [%4];\n"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(p) : "memory");
    return v;
}

// 1 / s of a normal power of two
__device__ __forceinline__ float inv_pow2(float s) {
    return __uint_as_float(0x7f000000u - __float_as_uint(s));
}

// A power of two. Kept while m * s is within the limit, otherwise chosen so that
// m * s lies in [2^TARGET, 2^(TARGET + 1)). It never grows.
template <int TARGET>
__device__ __forceinline__ float fit_scale(float s, float m, float limit) {
    const int e = (int)(__float_as_uint(m) >> 23);
    const int f = min(254 + TARGET - e, 250);
    const float fresh = __uint_as_float((uint32_t)f << 23);
    return (m * s > limit) ? fresh : s;
}

// two scaled floats as hi + lo of 11 bits each; v - hi is exact
__device__ __forceinline__ void split2(float v0, float v1, uint32_t& h, uint32_t& l) {
    const __half2 hh = __floats2half2_rn(v0, v1);
    const float2 hf = __half22float2(hh);
    const __half2 ll = __floats2half2_rn(v0 - hf.x, v1 - hf.y);
    h = *reinterpret_cast<const uint32_t*>(&hh);
    l = *reinterpret_cast<const uint32_t*>(&ll);
}

// fragments of one stage of x: new scales of the two pixels, then the split
__device__ __forceinline__ void split_x(const float* xf, bool live, float& s0, float& s1,
                                        uint32_t (&h)[2][4], uint32_t (&l)[2][4]) {
    float2 v[8];
#pragma unroll
    for (int q = 0; q < 8; ++q) {
        const int k = (q >> 2) * 16 + ((q >> 1) & 1) * 8 + (q & 1);
        v[q] = *reinterpret_cast<const float2*>(xf + k * LDX);
    }
    float m0 = 0.0f, m1 = 0.0f;
#pragma unroll
    for (int q = 0; q < 8; ++q) {
        m0 = fmaxf(m0, fabsf(v[q].x));
        m1 = fmaxf(m1, fabsf(v[q].y));
    }
    m0 = fmaxf(m0, __shfl_xor_sync(0xffffffffu, m0, 1));
    m1 = fmaxf(m1, __shfl_xor_sync(0xffffffffu, m1, 1));
    m0 = fmaxf(m0, __shfl_xor_sync(0xffffffffu, m0, 2));
    m1 = fmaxf(m1, __shfl_xor_sync(0xffffffffu, m1, 2));
    m0 = live ? m0 : 0.0f;
    m1 = live ? m1 : 0.0f;
    s0 = fit_scale<4>(s0, m0, X_LIMIT);
    s1 = fit_scale<4>(s1, m1, X_LIMIT);
#pragma unroll
    for (int ks = 0; ks < 2; ++ks) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const float2 a = v[ks * 4 + 2 * r];
            const float2 c = v[ks * 4 + 2 * r + 1];
            split2(a.x * s0, c.x * s0, h[ks][2 * r], l[ks][2 * r]);
            split2(a.y * s1, c.y * s1, h[ks][2 * r + 1], l[ks][2 * r + 1]);
        }
    }
}

// largest |w| of a warp's part of a stage, as bits (not negative: ordered as integers)
__device__ __forceinline__ uint32_t warp_max_w(const float4 (&wr)[8]) {
    float m = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        m = fmaxf(m, fmaxf(fabsf(wr[i].x), fabsf(wr[i].y)));
        m = fmaxf(m, fmaxf(fabsf(wr[i].z), fabsf(wr[i].w)));
    }
    return __reduce_max_sync(0xffffffffu, __float_as_uint(m));
}

__device__ __forceinline__ float block_max_w(const uint32_t* swm) {
    const uint4 a = *reinterpret_cast<const uint4*>(swm);
    const uint4 c = *reinterpret_cast<const uint4*>(swm + 4);
    const uint32_t m = max(max(max(a.x, a.y), max(a.z, a.w)),
                           max(max(c.x, c.y), max(c.z, c.w)));
    return __uint_as_float(m);
}

__device__ __forceinline__ void store_w(unsigned char* stage, int off_hi, int off_lo,
                                        const float4 (&wr)[8], float sw) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        uint2 h, l;
        split2(wr[i].x * sw, wr[i].y * sw, h.x, l.x);
        split2(wr[i].z * sw, wr[i].w * sw, h.y, l.y);
        *reinterpret_cast<uint2*>(stage + off_hi + i * 4096) = h;
        *reinterpret_cast<uint2*>(stage + off_lo + i * 4096) = l;
    }
}

__device__ __forceinline__ void wgmma_fence() {
    asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
}
__device__ __forceinline__ void wgmma_wait_all() {
    asm volatile("wgmma.wait_group.sync.aligned 0;\n" ::: "memory");
}

#define ACC8(i) "+f"(d[(i) + 0]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3]), \
                "+f"(d[(i) + 4]), "+f"(d[(i) + 5]), "+f"(d[(i) + 6]), "+f"(d[(i) + 7])

// d (64 x 256, float32) += A (64 x 16, registers) * B (16 x 256, shared, rows of K)
__device__ __forceinline__ void wgmma_64x256x16(float (&d)[128], uint32_t a0, uint32_t a1,
                                                uint32_t a2, uint32_t a3, uint64_t desc) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "setp.ne.b32 p, %133, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, "
        "%8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, "
        "%24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, "
        "%40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, "
        "%56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, "
        "%72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, "
        "%88, %89, %90, %91, %92, %93, %94, %95, "
        "%96, %97, %98, %99, %100, %101, %102, %103, "
        "%104, %105, %106, %107, %108, %109, %110, %111, "
        "%112, %113, %114, %115, %116, %117, %118, %119, "
        "%120, %121, %122, %123, %124, %125, %126, %127}, "
        "{%128, %129, %130, %131}, %132, p, 1, 1, 0;\n"
        "}\n"
        : ACC8(0), ACC8(8), ACC8(16), ACC8(24), ACC8(32), ACC8(40), ACC8(48), ACC8(56),
          ACC8(64), ACC8(72), ACC8(80), ACC8(88), ACC8(96), ACC8(104), ACC8(112), ACC8(120)
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(desc), "r"(1)
        : "memory");
}

// Needs C % 32 == 0, F % 256 == 0, HW % 128 == 0 and 16-byte aligned pointers.
// Float32 product from three tensor-core products of split operands:
// x*w = xhi*whi + xhi*wlo + xlo*whi (the dropped xlo*wlo is below 2^-22 of x*w).
// The parts are halves of operands scaled by powers of two taken from the data, so that
// neither large nor small inputs leave their range; the epilogue takes the scales out.
__global__ void __launch_bounds__(THREADS, 1)
conv1x1_split_kernel(const float* __restrict__ x, const float* __restrict__ w,
                     const float* __restrict__ bias, float* __restrict__ out,
                     int C, int F, int HW, int mtiles, int ptiles) {
    extern __shared__ unsigned char smem_raw[];
    __shared__ __align__(16) uint32_t swm[8];
    // swizzled tiles start on 1024 bytes of the shared window
    const uint32_t raw_addr = static_cast<uint32_t>(__cvta_generic_to_shared(smem_raw));
    const uint32_t base_addr = (raw_addr + 1023u) & ~1023u;
    unsigned char* ws = smem_raw + (base_addr - raw_addr);
    float* xs = reinterpret_cast<float*>(ws + W_BYTES);

    const int tid = threadIdx.x;
    const int lane = tid & 31;
    const int warp = tid >> 5;

    const int mt = blockIdx.x % mtiles;
    const int nt = blockIdx.x / mtiles;
    const int b = nt / ptiles;
    const int p0 = (nt % ptiles) * BP;
    const int m0 = mt * BF;
    const int T = C / BK;

    // loader of W: eight threads a row of 32 floats, rows r + 32 i; neighbouring groups of
    // eight threads take rows four apart, which keeps the 8-byte stores free of conflicts
    const int w_j = tid >> 3;
    const int w_row = (w_j & ~7) | ((w_j & 7) >> 1) | ((w_j & 1) << 2);
    const int w_chunk = tid & 7;
    const float* wp = w + (size_t)(m0 + w_row) * C + w_chunk * 4;
    const size_t w_rows32 = (size_t)32 * C;
    const int w_hi = w_row * 128 + (((w_chunk >> 1) ^ (w_row & 7)) << 4) + (w_chunk & 1) * 8;
    const int w_lo = w_hi ^ 64;

    // loader of x: one warp a row of 128 floats, rows r + 8 i
    const float* xp = x + ((size_t)b * C + warp) * HW + p0 + lane * 4;
    const size_t x_rows8 = (size_t)8 * HW;
    const size_t x_step = (size_t)BK * HW;
    float* xdst = xs + warp * LDX + lane * 4;

    // fragments: rows g and g + 8 of a warp's 16 are the pixels 2g and 2g + 1
    const int g = lane >> 2;
    const int tq = lane & 3;
    const int pix = warp * 16 + 2 * g;
    const float* xfrag = xs + 2 * tq * LDX + pix;

    // K-major, 128-byte swizzle, 1024 bytes between groups of eight rows
    const uint64_t desc0 = (uint64_t)((base_addr & 0x3ffffu) >> 4) | ((uint64_t)1 << 16) |
                           ((uint64_t)64 << 32) | ((uint64_t)1 << 62);

    float acc[128];
#pragma unroll
    for (int i = 0; i < 128; ++i) acc[i] = 0.0f;

    float4 wr[8];
    uint32_t ah[2][4], al[2][4];
    // running scales: two pixels of x, the block's tile of W (the largest, 2^123, to begin)
    float s0 = __uint_as_float(250u << 23);
    float s1 = s0;
    float sw = s0;

    // first stage of W, first stages of x
#pragma unroll
    for (int i = 0; i < 8; ++i) wr[i] = ldg_v4(wp + i * w_rows32);
#pragma unroll
    for (int s = 0; s < XST; ++s) {
        if (s < T) {
#pragma unroll
            for (int i = 0; i < 4; ++i)
                cp_async16(xdst + s * X_STAGE + i * 8 * LDX, xp + s * x_step + i * x_rows8);
        }
        cp_async_commit();
    }
    {
        const uint32_t wm = warp_max_w(wr);
        if (lane == 0) swm[warp] = wm;
        __syncthreads();
        sw = fit_scale<8>(sw, block_max_w(swm), W_LIMIT);
        store_w(ws, w_hi, w_lo, wr, sw);
        asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
        const float* wn = wp + (T > 1 ? BK : 0);
#pragma unroll
        for (int i = 0; i < 8; ++i) wr[i] = ldg_v4(wn + i * w_rows32);
    }
    cp_async_wait_stage();           // stages 0 and 1 of x are here
    __syncthreads();
    split_x(xfrag, true, s0, s1, ah, al);
    __syncthreads();                 // slot 0 of x may be overwritten

#pragma unroll 1
    for (int t = 0; t < T; ++t) {
        const uint64_t dh = desc0 + (uint64_t)((t & 1) * (W_STAGE >> 4));
        const uint64_t dl = dh + 4;      // the lo half of the 128-byte rows
        wgmma_fence();
#pragma unroll
        for (int ks = 0; ks < 2; ++ks) {
            wgmma_64x256x16(acc, al[ks][0], al[ks][1], al[ks][2], al[ks][3], dh + ks * 2);
            wgmma_64x256x16(acc, ah[ks][0], ah[ks][1], ah[ks][2], ah[ks][3], dl + ks * 2);
            wgmma_64x256x16(acc, ah[ks][0], ah[ks][1], ah[ks][2], ah[ks][3], dh + ks * 2);
        }
        wgmma_commit();

        // while they run: later x, then the split of the next stage of x and of W
        if (t + XST < T) {
            const float* xn = xp + (size_t)(t + XST) * x_step;
            float* xd = xdst + (t & (XST - 1)) * X_STAGE;
#pragma unroll
            for (int i = 0; i < 4; ++i) cp_async16(xd + i * 8 * LDX, xn + i * x_rows8);
        }
        cp_async_commit();

        const uint32_t wm = warp_max_w(wr);
        if (lane == 0) swm[warp] = wm;

        // (behind the last stage the fragments are unused and must not move the scales)
        float n0 = s0, n1 = s1;
        uint32_t nh[2][4], nl[2][4];
        split_x(xfrag + ((t + 1) & (XST - 1)) * X_STAGE, t + 1 < T, n0, n1, nh, nl);

        __syncthreads();             // swm is complete
        const float nw = fit_scale<8>(sw, block_max_w(swm), W_LIMIT);
        store_w(ws + ((t + 1) & 1) * W_STAGE, w_hi, w_lo, wr, nw);
        asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");

        // W two stages ahead (the last rounds load the last stage again, unused)
        const int tn = (t + 2 < T) ? t + 2 : T - 1;
        const float* wn = wp + (size_t)tn * BK;
#pragma unroll
        for (int i = 0; i < 8; ++i) wr[i] = ldg_v4(wn + i * w_rows32);

        const float rw = nw * inv_pow2(sw);
        const float r0 = n0 * inv_pow2(s0) * rw;
        const float r1 = n1 * inv_pow2(s1) * rw;

        cp_async_wait_stage();       // stage t + 2 of x is here
        wgmma_wait_all();

        // a scale has changed (rare): bring the sums to the new one
        if (__any_sync(0xffffffffu, (r0 != 1.0f) || (r1 != 1.0f))) {
#pragma unroll
            for (int i = 0; i < 128; ++i) asm volatile("" : "+f"(acc[i]) :: "memory");
#pragma unroll
            for (int i = 0; i < 128; ++i) acc[i] *= (i & 2) ? r1 : r0;
#pragma unroll
            for (int i = 0; i < 128; ++i) asm volatile("" : "+f"(acc[i]) :: "memory");
        }
        s0 = n0;
        s1 = n1;
        sw = nw;
#pragma unroll
        for (int ks = 0; ks < 2; ++ks) {
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                ah[ks][e] = nh[ks][e];
                al[ks][e] = nl[ks][e];
            }
        }
        __syncthreads();
    }

#pragma unroll
    for (int i = 0; i < 128; ++i) asm volatile("" : "+f"(acc[i]) :: "memory");

    // scales, bias, limit, store: eight lanes write 64 contiguous bytes of a filter
    const float i0 = inv_pow2(s0) * inv_pow2(sw);
    const float i1 = inv_pow2(s1) * inv_pow2(sw);
    float* op = out + ((size_t)b * F + m0 + 2 * tq) * HW + p0 + pix;
    const float* bp = bias + m0 + 2 * tq;
    const size_t f_step = (size_t)8 * HW;
#pragma unroll
    for (int j = 0; j < 32; ++j) {
        const float2 bv = __ldg(reinterpret_cast<const float2*>(bp + j * 8));
        float2 u, v;
        u.x = relu6f(fmaf(acc[4 * j + 0], i0, bv.x));
        u.y = relu6f(fmaf(acc[4 * j + 2], i1, bv.x));
        v.x = relu6f(fmaf(acc[4 * j + 1], i0, bv.y));
        v.y = relu6f(fmaf(acc[4 * j + 3], i1, bv.y));
        *reinterpret_cast<float2*>(op) = u;
        *reinterpret_cast<float2*>(op + HW) = v;
        op += f_step;
    }
}

// Any shape: one output a thread, neighbouring threads on neighbouring pixels.
__global__ void conv1x1_any_kernel(const float* __restrict__ x, const float* __restrict__ w,
                                   const float* __restrict__ bias, float* __restrict__ out,
                                   int64_t C, int64_t F, int64_t HW, int64_t total) {
    const int64_t stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < total; i += stride) {
        const int64_t p = i % HW;
        const int64_t q = i / HW;
        const int64_t m = q % F;
        const int64_t b = q / F;
        const float* xp = x + b * C * HW + p;
        const float* wp = w + m * C;
        float s = 0.0f;
        for (int64_t k = 0; k < C; ++k) s = fmaf(__ldg(wp + k), __ldg(xp + k * HW), s);
        out[i] = relu6f(s + __ldg(bias + m));
    }
}

inline bool aligned16(const void* p) {
    return (reinterpret_cast<uintptr_t>(p) & 15) == 0;
}

}  // namespace

torch::Tensor conv1x1_relu6(torch::Tensor x_in, torch::Tensor w_in, torch::Tensor bias_in) {
    TORCH_CHECK(x_in.is_cuda() && w_in.is_cuda() && bias_in.is_cuda(), "CUDA tensors expected");
    TORCH_CHECK(x_in.scalar_type() == at::kFloat && w_in.scalar_type() == at::kFloat &&
                bias_in.scalar_type() == at::kFloat, "float32 expected");
    TORCH_CHECK(x_in.dim() == 4 && w_in.dim() == 4, "4-d tensors expected");
    TORCH_CHECK(w_in.size(1) == x_in.size(1) && w_in.size(2) == 1 && w_in.size(3) == 1,
                "weight does not fit the input");
    at::Tensor x = x_in.contiguous();
    at::Tensor w = w_in.contiguous();
    at::Tensor bias = bias_in.contiguous();

    const int64_t N = x.size(0), C = x.size(1), H = x.size(2), W = x.size(3);
    const int64_t F = w.size(0);
    const int64_t HW = H * W;
    TORCH_CHECK(bias.numel() == F, "bias does not fit the weight");

    at::Tensor out = at::empty({N, F, H, W}, x.options());
    const int64_t total = out.numel();
    if (total == 0) return out;

    const float* xp = x.data_ptr<float>();
    const float* wp = w.data_ptr<float>();
    const float* bp = bias.data_ptr<float>();
    float* op = out.data_ptr<float>();
    auto stream = at::cuda::getCurrentCUDAStream();

    const int64_t lim = 1LL << 30;
    const bool tiled = C >= BK && C % BK == 0 && F % BF == 0 && HW % BP == 0 &&
                       C < lim && F < lim && HW < lim &&
                       N * (F / BF) * (HW / BP) < lim &&
                       aligned16(xp) && aligned16(wp) && aligned16(bp) && aligned16(op);
    if (tiled) {
        const int mtiles = (int)(F / BF);
        const int ptiles = (int)(HW / BP);
        const int blocks = (int)(N * mtiles * ptiles);
        C10_CUDA_CHECK(cudaFuncSetAttribute(
            conv1x1_split_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM_BYTES));
        conv1x1_split_kernel<<<blocks, THREADS, SMEM_BYTES, stream>>>(
            xp, wp, bp, op, (int)C, (int)F, (int)HW, mtiles, ptiles);
        C10_CUDA_KERNEL_LAUNCH_CHECK();
    } else {
        int64_t blocks = (total + 255) / 256;
        if (blocks > 65535) blocks = 65535;
        conv1x1_any_kernel<<<(int)blocks, 256, 0, stream>>>(xp, wp, bp, op, C, F, HW, total);
        C10_CUDA_KERNEL_LAUNCH_CHECK();
    }
    return out;
}
"""

_ext = load_inline(
    name="conv1x1_relu6_wgmma_split3_f16_v3",
    cpp_sources=_CPP,
    cuda_sources=_CUDA,
    functions=["conv1x1_relu6"],
    extra_cuda_cflags=["-O3"],
    verbose=False,
)


class ModelNew(nn.Module):
    def __init__(self, channels: int, filters: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, filters, kernel_size=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _ext.conv1x1_relu6(x, self.conv.weight, self.conv.bias)

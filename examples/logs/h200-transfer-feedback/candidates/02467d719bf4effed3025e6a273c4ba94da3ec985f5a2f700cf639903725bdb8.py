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
#include <cstdint>

namespace {

constexpr int BP = 128;            // pixels a block (rows of the wgmma product)
constexpr int BF = 256;            // filters a block (columns of the wgmma product)
constexpr int BK = 32;             // channels a stage: 128 bytes of a row of W
constexpr int LDX = BP + 8;        // LDX mod 32 == 8: conflict-free 8-byte fragment loads
constexpr int XST = 4;             // stages of x
constexpr int CONSUMERS = 256;     // two warpgroups, 64 pixels each
constexpr int PRODUCERS = 128;     // one warpgroup: loads x, loads and splits W
constexpr int THREADS = CONSUMERS + PRODUCERS;

constexpr int W_PART = BF * BK * 4;             // 32 KB: hi or lo part of one stage
constexpr int W_STAGE = 2 * W_PART;             // 64 KB
constexpr int W_BYTES = 2 * W_STAGE;            // 128 KB
constexpr int X_STAGE = BK * LDX;               // floats
constexpr int X_BYTES = XST * X_STAGE * 4;
constexpr int BAR_BYTES = 64;                   // eight mbarriers
constexpr int SMEM_BYTES = W_BYTES + X_BYTES + BAR_BYTES + 1024;

// limits to [0, 6] and lets NaN through, as torch does
__device__ __forceinline__ float relu6f(float v) {
    return v < 0.0f ? 0.0f : (v > 6.0f ? 6.0f : v);
}

__device__ __forceinline__ void mbar_init(uint32_t bar, uint32_t count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" :: "r"(bar), "r"(count) : "memory");
}
__device__ __forceinline__ void mbar_arrive(uint32_t bar) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" :: "r"(bar) : "memory");
}
__device__ __forceinline__ void mbar_expect_tx(uint32_t bar, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n"
                 :: "r"(bar), "r"(bytes) : "memory");
}
__device__ __forceinline__ void mbar_wait(uint32_t bar, uint32_t parity) {
    asm volatile(
        "{\n"
        ".reg .pred P1;\n"
        "LAB_WAIT:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 P1, [%0], %1;\n"
        "@P1 bra DONE;\n"
        "bra LAB_WAIT;\n"
        "DONE:\n"
        "}\n"
        :: "r"(bar), "r"(parity) : "memory");
}
__device__ __forceinline__ void bulk_copy(uint32_t dst, const float* src, uint32_t bytes,
                                          uint32_t bar) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n"
        :: "r"(dst), "l"(src), "r"(bytes), "r"(bar) : "memory");
}

__device__ __forceinline__ float4 ldg_v4(const float* p) {
    float4 v;
    asm volatile("ld.global.nc.v4.f32 {%0, %1, %2, %3}, [%4];\n"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(p) : "memory");
    return v;
}

// high part: the value rounded to 11 significant bits; the low part v - hi is exact
__device__ __forceinline__ float hi_part(float v) {
    return __uint_as_float((__float_as_uint(v) + 0x1000u) & 0xffffe000u);
}

__device__ __forceinline__ void wgmma_fence() {
    asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
}
__device__ __forceinline__ void wgmma_wait_1() {
    asm volatile("wgmma.wait_group.sync.aligned 1;\n" ::: "memory");
}
__device__ __forceinline__ void wgmma_wait_all() {
    asm volatile("wgmma.wait_group.sync.aligned 0;\n" ::: "memory");
}

#define ACC8(i) "+f"(d[(i) + 0]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3]), \
                "+f"(d[(i) + 4]), "+f"(d[(i) + 5]), "+f"(d[(i) + 6]), "+f"(d[(i) + 7])

// d (64 x 256, float32) += A (64 x 8, registers) * B (8 x 256, shared, rows of K)
__device__ __forceinline__ void wgmma_64x256x8(float (&d)[128], uint32_t a0, uint32_t a1,
                                               uint32_t a2, uint32_t a3, uint64_t desc) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "setp.ne.b32 p, %133, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n256k8.f32.tf32.tf32 "
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
        "{%128, %129, %130, %131}, %132, p, 1, 1;\n"
        "}\n"
        : ACC8(0), ACC8(8), ACC8(16), ACC8(24), ACC8(32), ACC8(40), ACC8(48), ACC8(56),
          ACC8(64), ACC8(72), ACC8(80), ACC8(88), ACC8(96), ACC8(104), ACC8(112), ACC8(120)
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(desc), "r"(1)
        : "memory");
}

// fragments of x for half a stage (16 channels), split in high and low parts
__device__ __forceinline__ void load_half(const float* xf, uint32_t (&ah)[2][4],
                                          uint32_t (&al)[2][4]) {
    float2 xr[4];
#pragma unroll
    for (int q = 0; q < 4; ++q)
        xr[q] = *reinterpret_cast<const float2*>(xf + q * 4 * LDX);
#pragma unroll
    for (int ks = 0; ks < 2; ++ks) {
        const float v[4] = {xr[2 * ks].x, xr[2 * ks].y, xr[2 * ks + 1].x, xr[2 * ks + 1].y};
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const float h = hi_part(v[e]);
            ah[ks][e] = __float_as_uint(h);
            al[ks][e] = __float_as_uint(v[e] - h);
        }
    }
}

// the six products of half a stage, as one group
__device__ __forceinline__ void mma_half(float (&acc)[128], const uint32_t (&ah)[2][4],
                                         const uint32_t (&al)[2][4], uint64_t dh, uint64_t dl) {
    wgmma_fence();
#pragma unroll
    for (int ks = 0; ks < 2; ++ks) {
        wgmma_64x256x8(acc, al[ks][0], al[ks][1], al[ks][2], al[ks][3], dh + ks * 2);
        wgmma_64x256x8(acc, ah[ks][0], ah[ks][1], ah[ks][2], ah[ks][3], dl + ks * 2);
        wgmma_64x256x8(acc, ah[ks][0], ah[ks][1], ah[ks][2], ah[ks][3], dh + ks * 2);
    }
    wgmma_commit();
}

// Needs C % 32 == 0, F % 256 == 0, HW % 128 == 0 and 16-byte aligned pointers.
// Float32 product from three tensor-core products of split operands:
// x*w = xhi*whi + xhi*wlo + xlo*whi (the dropped xlo*wlo is below 2^-22 of x*w).
// Warpgroups 0 and 1 multiply, warpgroup 2 brings x and the split W to shared memory.
__global__ void __launch_bounds__(THREADS, 1)
conv1x1_split_kernel(const float* __restrict__ x, const float* __restrict__ w,
                     const float* __restrict__ bias, float* __restrict__ out,
                     int C, int F, int HW, int mtiles, int ptiles) {
    extern __shared__ unsigned char smem_raw[];
    // swizzled tiles start on 1024 bytes of the shared window
    const uint32_t raw_addr = static_cast<uint32_t>(__cvta_generic_to_shared(smem_raw));
    const uint32_t base_addr = (raw_addr + 1023u) & ~1023u;
    unsigned char* ws = smem_raw + (base_addr - raw_addr);
    float* xs = reinterpret_cast<float*>(ws + W_BYTES);

    const uint32_t bar_wfull = base_addr + W_BYTES + X_BYTES;   // 2 barriers
    const uint32_t bar_wempty = bar_wfull + 16;                 // 2 barriers
    const uint32_t bar_xfull = bar_wfull + 32;                  // XST barriers

    const int tid = threadIdx.x;
    const int lane = tid & 31;
    const int warp = tid >> 5;

    const int mt = blockIdx.x % mtiles;
    const int nt = blockIdx.x / mtiles;
    const int b = nt / ptiles;
    const int p0 = (nt % ptiles) * BP;
    const int m0 = mt * BF;
    const int T = C / BK;

    if (tid == 0) {
#pragma unroll
        for (int s = 0; s < 2; ++s) {
            mbar_init(bar_wfull + 8 * s, PRODUCERS / 32);
            mbar_init(bar_wempty + 8 * s, CONSUMERS / 32);
        }
#pragma unroll
        for (int s = 0; s < XST; ++s) mbar_init(bar_xfull + 8 * s, 1);
        asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
        asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
    }
    __syncthreads();

    if (tid >= CONSUMERS) {
        // ---------------- producer warpgroup ----------------
        asm volatile("setmaxnreg.dec.sync.aligned.u32 88;\n");
        const int ptid = tid - CONSUMERS;
        const bool x_warp = ptid < 32;

        // W: eight threads a row of 32 floats, rows r + 16 i
        const int w_row = ptid >> 3;
        const int w_chunk = ptid & 7;
        const float* wp = w + (size_t)(m0 + w_row) * C + w_chunk * 4;
        const size_t w_rows16 = (size_t)16 * C;
        unsigned char* wdst = ws + w_row * 128 + ((w_chunk ^ (w_row & 7)) << 4);

        // x: one lane a row of 128 floats
        const float* xp = x + ((size_t)b * C + lane) * HW + p0;
        const size_t x_step = (size_t)BK * HW;
        const uint32_t xdst = base_addr + W_BYTES + lane * (LDX * 4);

        float4 wr[16];
        {
            const float* p = wp;
#pragma unroll
            for (int i = 0; i < 16; ++i) {
                wr[i] = ldg_v4(p);
                p += w_rows16;
                asm volatile("" : "+l"(p));
            }
        }
        if (x_warp) {
#pragma unroll 1
            for (int s = 0; s < XST && s < T; ++s) {
                if (lane == 0) mbar_expect_tx(bar_xfull + 8 * s, BK * BP * 4);
                __syncwarp();
                bulk_copy(xdst + s * (X_STAGE * 4), xp, BP * 4, bar_xfull + 8 * s);
                xp += x_step;
            }
        }

#pragma unroll 1
        for (int t = 0; t < T; ++t) {
            if (t >= 2) {
                // the products of stage t - 2 are done: its W slot and its x slot are free
                mbar_wait(bar_wempty + 8 * (t & 1), (uint32_t)(((t >> 1) - 1) & 1));
                if (x_warp && t + 2 < T) {
                    const int s = (t + 2) & (XST - 1);
                    if (lane == 0) mbar_expect_tx(bar_xfull + 8 * s, BK * BP * 4);
                    __syncwarp();
                    bulk_copy(xdst + s * (X_STAGE * 4), xp, BP * 4, bar_xfull + 8 * s);
                    xp += x_step;
                }
            }
            unsigned char* wd = wdst + (t & 1) * W_STAGE;
#pragma unroll
            for (int i = 0; i < 16; ++i) {
                float4 h, l;
                h.x = hi_part(wr[i].x); l.x = wr[i].x - h.x;
                h.y = hi_part(wr[i].y); l.y = wr[i].y - h.y;
                h.z = hi_part(wr[i].z); l.z = wr[i].z - h.z;
                h.w = hi_part(wr[i].w); l.w = wr[i].w - h.w;
                *reinterpret_cast<float4*>(wd + i * 2048) = h;
                *reinterpret_cast<float4*>(wd + W_PART + i * 2048) = l;
            }
            asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
            __syncwarp();
            if (lane == 0) mbar_arrive(bar_wfull + 8 * (t & 1));

            if (t + 1 < T) {
                const float* p = wp + (size_t)(t + 1) * BK;
#pragma unroll
                for (int i = 0; i < 16; ++i) {
                    wr[i] = ldg_v4(p);
                    p += w_rows16;
                    asm volatile("" : "+l"(p));
                }
            }
        }
    } else {
        // ---------------- consumer warpgroups ----------------
        asm volatile("setmaxnreg.inc.sync.aligned.u32 208;\n");

        // fragments: rows g and g + 8 of a warp's 16 are the pixels 2g and 2g + 1
        const int g = lane >> 2;
        const int tq = lane & 3;
        const int pix = warp * 16 + 2 * g;
        const float* xfrag = xs + tq * LDX + pix;

        // K-major, 128-byte swizzle, 1024 bytes between groups of eight rows
        const uint64_t desc0 = (uint64_t)((base_addr & 0x3ffffu) >> 4) | ((uint64_t)1 << 16) |
                               ((uint64_t)64 << 32) | ((uint64_t)1 << 62);

        float acc[128];
#pragma unroll
        for (int i = 0; i < 128; ++i) acc[i] = 0.0f;

        uint32_t ah0[2][4], al0[2][4], ah1[2][4], al1[2][4];

        mbar_wait(bar_xfull, 0u);
        load_half(xfrag, ah0, al0);

#pragma unroll 1
        for (int t = 0; t < T; ++t) {
            const uint64_t dh = desc0 + (uint64_t)((t & 1) * (W_STAGE >> 4));
            const uint64_t dl = dh + (uint64_t)(W_PART >> 4);

            mbar_wait(bar_wfull + 8 * (t & 1), (uint32_t)((t >> 1) & 1));
            mma_half(acc, ah0, al0, dh, dl);

            // stage t - 1 is done: give its slots back
            wgmma_wait_1();
            if (t > 0 && lane == 0) mbar_arrive(bar_wempty + 8 * ((t - 1) & 1));

            load_half(xfrag + (t & (XST - 1)) * X_STAGE + 16 * LDX, ah1, al1);
            mma_half(acc, ah1, al1, dh + 4, dl + 4);

            // next fragments of x (the last round reads some old ones, unused)
            if (t + 1 < T)
                mbar_wait(bar_xfull + 8 * ((t + 1) & (XST - 1)),
                          (uint32_t)(((t + 1) / XST) & 1));
            wgmma_wait_1();
            load_half(xfrag + ((t + 1) & (XST - 1)) * X_STAGE, ah0, al0);
        }
        wgmma_wait_all();

#pragma unroll
        for (int i = 0; i < 128; ++i) asm volatile("" : "+f"(acc[i]) :: "memory");

        // bias, limit, store: eight lanes write 64 contiguous bytes of a filter
        float* op = out + ((size_t)b * F + m0 + 2 * tq) * HW + p0 + pix;
        const float* bp = bias + m0 + 2 * tq;
        const size_t f_step = (size_t)8 * HW;
#pragma unroll
        for (int j = 0; j < 32; ++j) {
            const float2 bv = __ldg(reinterpret_cast<const float2*>(bp + j * 8));
            float2 u, v;
            u.x = relu6f(acc[4 * j + 0] + bv.x);
            u.y = relu6f(acc[4 * j + 2] + bv.x);
            v.x = relu6f(acc[4 * j + 1] + bv.y);
            v.y = relu6f(acc[4 * j + 3] + bv.y);
            *reinterpret_cast<float2*>(op) = u;
            *reinterpret_cast<float2*>(op + HW) = v;
            op += f_step;
        }
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
    name="conv1x1_relu6_wgmma_split3_ws_v3",
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

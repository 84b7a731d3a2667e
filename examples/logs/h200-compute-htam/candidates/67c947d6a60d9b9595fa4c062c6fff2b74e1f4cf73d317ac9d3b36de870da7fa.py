import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

_CPP = "torch::Tensor sqdist_forward(torch::Tensor x, torch::Tensor y);"

_REGS = ", ".join("%%%d" % i for i in range(64))
_OUTS = ", ".join('"+f"(d[%d])' % i for i in range(64))

_CUDA = r"""
#include <torch/types.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <cuda_runtime.h>
#include <cstdint>

constexpr int BM = 128, BN = 128, BK = 32, STAGES = 2;
constexpr int TILE = 128 * BK;                       // floats of one operand tile
constexpr int STAGE = 3 * TILE;                      // A, B (high part after the split), B low part
constexpr int SMEM_BYTES = STAGES * STAGE * 4 + 1024;   // 1 KB to align

__device__ __forceinline__ void cp16(uint32_t dst, const float* src) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(dst), "l"(src) : "memory");
}

// v = hi + lo exactly: hi has 11 significant bits (rounded), lo is the remainder
__device__ __forceinline__ void split(float v, uint32_t& hi, uint32_t& lo) {
    hi = (__float_as_uint(v) + 0x1000u) & 0xffffe000u;
    lo = __float_as_uint(v - __uint_as_float(hi));
}

// 128-byte swizzle, K contiguous, 8 rows are 1024 bytes
__device__ __forceinline__ uint64_t make_desc(uint32_t addr) {
    return (uint64_t)((addr & 0x3FFFF) >> 4) | ((uint64_t)1 << 16) |
           ((uint64_t)(1024 >> 4) << 32) | ((uint64_t)1 << 62);
}

// d[64 x 128] += a[64 x 8] (registers) * b[128 x 8]^T (shared)
__device__ __forceinline__ void wgmma_128(float (&d)[64], const uint32_t (&a)[4], uint64_t db) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "setp.ne.b32 p, %69, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k8.f32.tf32.tf32 "
        "{@REGS@}, "
        "{%64, %65, %66, %67}, %68, p, 1, 1;\n"
        "}\n"
        : @OUTS@
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(db), "r"(1));
}

__device__ __forceinline__ void fence_regs(float (&d)[64]) {
#pragma unroll
    for (int i = 0; i < 64; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// Warpgroup tile 64 x 128, 16 rows a warp. d[(2p + h) * 4 + 2e + o]: row 8 e + g of the warp,
// column 16 p + 4 q + 2 h + o of the tile (B rows are permuted in shared memory for that).
// Shared rows are 8 chunks of 16 bytes; chunk c lies at c ^ (row & 7).
__global__ void __launch_bounds__(256, 2)
sqdist_kernel(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ C, int N, int K) {
    extern __shared__ float4 raw4[];
    __shared__ __align__(16) float norms[BN];
    const uint32_t raw_addr = (uint32_t)__cvta_generic_to_shared(raw4);
    const uint32_t base = (raw_addr + 1023u) & ~1023u;
    float* sm = reinterpret_cast<float*>(reinterpret_cast<unsigned char*>(raw4) + (base - raw_addr));

    const int n0 = blockIdx.x * BN, m0 = blockIdx.y * BM;
    const int t = threadIdx.x, lane = t & 31, w = t >> 5;
    const int g = lane >> 2, q = lane & 3;
    const int kt = K / BK;

    // copy mapping: rows cr + 32 i, 16-byte chunk cc
    const int cr = t >> 3, cc = t & 7;
    const float* pa = A + (size_t)(m0 + cr) * K + cc * 4;
    const float* pb = B + (size_t)(n0 + cr) * K + cc * 4;
    // row 4 q + 2 h + o of 16 goes to 8 h + 2 q + o
    const int pr = (cr & 16) | ((cr & 2) << 2) | ((cr & 12) >> 1) | (cr & 1);
    const int oa = cr * BK + ((cc ^ (cr & 7)) << 2);
    const int ob = TILE + pr * BK + ((cc ^ (pr & 7)) << 2);
    const uint32_t da = base + (uint32_t)oa * 4;
    const uint32_t db = base + (uint32_t)ob * 4;

    auto load = [&](int k) {
        if (k < kt) {
            const uint32_t s = (uint32_t)((k & 1) * STAGE * 4);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                cp16(da + s + i * 32 * BK * 4, pa + (size_t)(i * 32) * K + k * BK);
                cp16(db + s + i * 32 * BK * 4, pb + (size_t)(i * 32) * K + k * BK);
            }
        }
        asm volatile("cp.async.commit_group;\n" ::: "memory");
    };

    load(0);
    load(1);

    float d[64];
#pragma unroll
    for (int i = 0; i < 64; ++i) d[i] = 0.0f;
    fence_regs(d);
    float sy[4] = {0.0f, 0.0f, 0.0f, 0.0f};      // squares of this thread's chunks of rows cr + 32 i of B
    float sx0 = 0.0f, sx1 = 0.0f;                // squares of this thread's part of rows g and g + 8 of A

    const int arow = (w * 16 + g) * BK + q;

#pragma unroll 1
    for (int k = 0; k < kt; ++k) {
        float* st = sm + (k & 1) * STAGE;
        if (k == 0) {
            asm volatile("cp.async.wait_group 1;\n" ::: "memory");
        } else {
            asm volatile("cp.async.wait_group 0;\n" ::: "memory");
        }
        // split the part of B that this thread copied: high part in place, low part one tile further
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            float4* ph = reinterpret_cast<float4*>(st + ob + i * 32 * BK);
            float4* pl = reinterpret_cast<float4*>(st + ob + i * 32 * BK + TILE);
            const float4 v = *ph;
            sy[i] = fmaf(v.x, v.x, sy[i]);
            sy[i] = fmaf(v.y, v.y, sy[i]);
            sy[i] = fmaf(v.z, v.z, sy[i]);
            sy[i] = fmaf(v.w, v.w, sy[i]);
            uint32_t h0, h1, h2, h3, l0, l1, l2, l3;
            split(v.x, h0, l0);
            split(v.y, h1, l1);
            split(v.z, h2, l2);
            split(v.w, h3, l3);
            *ph = make_float4(__uint_as_float(h0), __uint_as_float(h1), __uint_as_float(h2), __uint_as_float(h3));
            *pl = make_float4(__uint_as_float(l0), __uint_as_float(l1), __uint_as_float(l2), __uint_as_float(l3));
        }
        asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
        __syncthreads();
        if (k > 0) load(k + 1);         // into the stage whose products all warps have waited for

        uint32_t ah[4][4], al[4][4];
#pragma unroll
        for (int kk = 0; kk < 4; ++kk) {
            const float* a = st + arow;
            const int o0 = ((2 * kk) ^ g) << 2;
            const int o1 = ((2 * kk + 1) ^ g) << 2;
            const float v0 = a[o0], v1 = a[8 * BK + o0], v2 = a[o1], v3 = a[8 * BK + o1];
            sx0 = fmaf(v0, v0, sx0);
            sx1 = fmaf(v1, v1, sx1);
            sx0 = fmaf(v2, v2, sx0);
            sx1 = fmaf(v3, v3, sx1);
            split(v0, ah[kk][0], al[kk][0]);
            split(v1, ah[kk][1], al[kk][1]);
            split(v2, ah[kk][2], al[kk][2]);
            split(v3, ah[kk][3], al[kk][3]);
        }
        const uint32_t sb = base + (uint32_t)(((k & 1) * STAGE + TILE) * 4);
        const uint64_t dh = make_desc(sb);
        const uint64_t dl = make_desc(sb + TILE * 4);
        asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
#pragma unroll
        for (int kk = 0; kk < 4; ++kk) {
            wgmma_128(d, ah[kk], dl + (uint64_t)(kk * 2));
            wgmma_128(d, al[kk], dh + (uint64_t)(kk * 2));
            wgmma_128(d, ah[kk], dh + (uint64_t)(kk * 2));
        }
        asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 0;\n" ::: "memory");
    }
    fence_regs(d);
    asm volatile("cp.async.wait_group 0;\n" ::: "memory");

    // norms of B: 8 neighbouring lanes hold one row; norms of A: the 4 lanes of a quad
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        float s = sy[i];
        s += __shfl_xor_sync(0xffffffffu, s, 1);
        s += __shfl_xor_sync(0xffffffffu, s, 2);
        s += __shfl_xor_sync(0xffffffffu, s, 4);
        if (cc == 0) norms[cr + 32 * i] = s;
    }
    sx0 += __shfl_xor_sync(0xffffffffu, sx0, 1);
    sx0 += __shfl_xor_sync(0xffffffffu, sx0, 2);
    sx1 += __shfl_xor_sync(0xffffffffu, sx1, 1);
    sx1 += __shfl_xor_sync(0xffffffffu, sx1, 2);
    __syncthreads();

    const int row = m0 + w * 16 + g;
#pragma unroll
    for (int p = 0; p < 8; ++p) {
        const int c = p * 16 + q * 4;
        const float4 y = *reinterpret_cast<const float4*>(norms + c);
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const float x = e == 0 ? sx0 : sx1;
            float4 v;
            v.x = fmaf(-2.0f, d[(2 * p) * 4 + 2 * e], x + y.x);
            v.y = fmaf(-2.0f, d[(2 * p) * 4 + 2 * e + 1], x + y.y);
            v.z = fmaf(-2.0f, d[(2 * p + 1) * 4 + 2 * e], x + y.z);
            v.w = fmaf(-2.0f, d[(2 * p + 1) * 4 + 2 * e + 1], x + y.w);
            __stcs(reinterpret_cast<float4*>(C + (size_t)(row + e * 8) * N + n0 + c), v);
        }
    }
}

torch::Tensor sqdist_forward(torch::Tensor x, torch::Tensor y) {
    x = x.contiguous();
    y = y.contiguous();
    TORCH_CHECK(x.is_cuda() && x.scalar_type() == at::kFloat && y.scalar_type() == at::kFloat, "float32 expected");
    TORCH_CHECK(x.dim() == 2 && y.dim() == 2 && x.size(1) == y.size(1), "matrices of one width expected");
    const int M = (int)x.size(0), N = (int)y.size(0), K = (int)x.size(1);
    TORCH_CHECK(M % BM == 0 && N % BN == 0 && K % BK == 0 && K > 0, "sizes must divide by the tile");
    auto out = at::empty({M, N}, x.options());
    C10_CUDA_CHECK(cudaFuncSetAttribute(sqdist_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM_BYTES));
    sqdist_kernel<<<dim3(N / BN, M / BM), 256, SMEM_BYTES, at::cuda::getCurrentCUDAStream()>>>(
        x.data_ptr<float>(), y.data_ptr<float>(), out.data_ptr<float>(), N, K);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return out;
}
""".replace("@REGS@", _REGS).replace("@OUTS@", _OUTS)

_ext = load_inline(
    name="sqdist_fp32_split_v3_wgmma",
    cpp_sources=_CPP,
    cuda_sources=_CUDA,
    functions=["sqdist_forward"],
    extra_cuda_cflags=["-O3", "-gencode=arch=compute_90a,code=sm_90a"],
)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return _ext.sqdist_forward(x, y)

"""Groups of features, each with a linear layer of its own, then ReLU (fused CUDA kernel).

The product runs on the tensor cores with error compensation: each float32 operand is split into
hi + lo, and lo*hi + hi*lo + hi*hi are accumulated in float32, which keeps float32-level accuracy.
"""

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

_CPP = r"""
at::Tensor grouped_linear_relu(at::Tensor x, at::Tensor weight, at::Tensor bias);
"""

_CUDA = r"""
#include <torch/types.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <algorithm>
#include <cstdint>

namespace {

constexpr int WIDTH = 128;            // K and N of each group's product
constexpr int BM = 64;                // rows of one warpgroup tile
constexpr int WGS = 2;                // warpgroups per block
constexpr int THREADS = WGS * 128;
constexpr int W_BYTES = WIDTH * WIDTH * 4;
constexpr int KBLOCK_BYTES = WIDTH * 128;   // 128 rows (n) of 128 bytes (32 k)
constexpr int SMEM_BYTES = 2 * W_BYTES + WIDTH * 4 + 1024;   // hi, lo, bias, alignment slack

// Lets NaN through, as torch.relu does.
__device__ __forceinline__ float relu(float v) { return v < 0.0f ? 0.0f : v; }

// hi: v rounded to 11 significant bits; v - hi is exact in float32.
__device__ __forceinline__ uint32_t split_hi(float v) {
    return (__float_as_uint(v) + 0x1000u) & 0xffffe000u;
}

__device__ __forceinline__ uint32_t round_tf32(float v) {
    uint32_t r;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(v));
    return r;
}

__device__ __forceinline__ void load_f4(float4& v, const float* p) {
    asm volatile("ld.global.nc.L1::no_allocate.v4.f32 {%0, %1, %2, %3}, [%4];\n"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(p));
}

__device__ __forceinline__ void load_f4_if(float4& v, const float* p, int pred) {
    asm volatile("{\n"
                 ".reg .pred q;\n"
                 "setp.ne.b32 q, %5, 0;\n"
                 "@q ld.global.nc.L1::no_allocate.v4.f32 {%0, %1, %2, %3}, [%4];\n"
                 "}\n"
                 : "+f"(v.x), "+f"(v.y), "+f"(v.z), "+f"(v.w) : "l"(p), "r"(pred));
}

__device__ __forceinline__ void wgmma_fence() {
    asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
}

__device__ __forceinline__ void wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
}

template <int N>
__device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;\n" :: "n"(N) : "memory");
}

// K-major operand with 128-byte swizzle; 8-row groups are 1024 bytes apart.
__device__ __forceinline__ uint64_t make_desc(uint32_t addr) {
    return (uint64_t)((addr & 0x3FFFFu) >> 4) | ((uint64_t)1 << 16) | ((uint64_t)64 << 32) |
           ((uint64_t)1 << 62);
}

// d (64 x 128, float32) += a (64 x 8, registers) * b (8 x 128, shared memory)
__device__ __forceinline__ void wgmma_64x128x8(float (&d)[64], uint32_t a0, uint32_t a1,
                                               uint32_t a2, uint32_t a3, uint64_t desc) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "setp.ne.b32 p, %69, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k8.f32.tf32.tf32 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, "
        "%8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, "
        "%24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, "
        "%40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, "
        "%56, %57, %58, %59, %60, %61, %62, %63}, "
        "{%64, %65, %66, %67}, "
        "%68, p, 1, 1;\n"
        "}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]),
          "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),
          "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]),
          "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
          "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
          "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]),
          "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
          "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]),
          "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
          "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]),
          "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
          "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]),
          "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(desc), "r"(1));
}

// Inside a 16-wide slice of K, logical k = 8 * (c >> 1) + 4 * (c & 1) + t holds physical k = 4 * t + c,
// so a thread's A fragments of two k-steps are one float4 per row.
// Inside a 16-wide slice of N, logical n = 8 * h + 2 * t + e holds physical column 4 * t + 2 * h + e,
// so a thread's results of two 8-column slices are one float4 per row.
__global__ void __launch_bounds__(THREADS, 1)
grouped_linear_relu_kernel(const float* __restrict__ x, const float* __restrict__ weight,
                           const float* __restrict__ bias, float* __restrict__ out,
                           int64_t rows, int groups, int blocks_per_group) {
    extern __shared__ uint8_t smem_raw[];
    const uint32_t raw_addr = (uint32_t)__cvta_generic_to_shared(smem_raw);
    const uint32_t smem_addr = (raw_addr + 1023u) & ~1023u;
    uint8_t* smem = smem_raw + (smem_addr - raw_addr);
    float* sbias = reinterpret_cast<float*>(smem + 2 * W_BYTES);

    const int tid = threadIdx.x;
    const int group = (int)(blockIdx.x % (unsigned)groups);
    const int block = (int)(blockIdx.x / (unsigned)groups);
    const int wg = tid >> 7;
    const int lane = tid & 31;
    const int t4 = lane & 3;
    const int row_in_tile = ((tid >> 5) & 3) * 16 + (lane >> 2);   // and + 8

    const int64_t row_stride = (int64_t)groups * WIDTH;
    const int64_t tiles = (rows + BM - 1) / BM;
    const int64_t step = (int64_t)blocks_per_group * WGS;
    int64_t tile = (int64_t)block * WGS + wg;

    const float* xg = x + (int64_t)group * WIDTH + t4 * 4;
    const float* wgt = weight + (int64_t)group * WIDTH * WIDTH;

    // x of the first tile: raw[j][0] is row r, raw[j][1] is row r + 8, k = 16 j + 4 t4 + 0..3.
    float4 raw[8][2];
    {
        const int64_t r0 = tile * BM + row_in_tile;
        const int64_t r1 = r0 + 8;
        const float* p0 = xg + (r0 < rows ? r0 : rows - 1) * row_stride;
        const float* p1 = xg + (r1 < rows ? r1 : rows - 1) * row_stride;
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            load_f4(raw[j][0], p0 + j * 16);
            load_f4(raw[j][1], p1 + j * 16);
        }
    }

    // Weight: split and written K-major with 128-byte swizzle, in 4 blocks of 32 k.
    {
        const int n = tid & 127;   // logical column
        const int o = (n & ~15) | (((n >> 1) & 3) << 2) | (((n >> 3) & 1) << 1) | (n & 1);
        const float* wcol = wgt + o;
#pragma unroll 1
        for (int it = 0; it < 2; ++it) {
            float w[8][4];
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const int u = wg * 16 + it * 8 + i;   // 16-byte unit: logical k = 4 u + 0..3
                const int kp = (u >> 2) * 16 + (u & 3);
#pragma unroll
                for (int t = 0; t < 4; ++t) w[i][t] = __ldg(wcol + (kp + 4 * t) * WIDTH);
            }
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const int u = wg * 16 + it * 8 + i;
                const int off = (u >> 3) * KBLOCK_BYTES + n * 128 + (((u & 7) ^ (n & 7)) << 4);
                uint4 h, l;
                h.x = split_hi(w[i][0]);
                h.y = split_hi(w[i][1]);
                h.z = split_hi(w[i][2]);
                h.w = split_hi(w[i][3]);
                l.x = round_tf32(w[i][0] - __uint_as_float(h.x));
                l.y = round_tf32(w[i][1] - __uint_as_float(h.y));
                l.z = round_tf32(w[i][2] - __uint_as_float(h.z));
                l.w = round_tf32(w[i][3] - __uint_as_float(h.w));
                *reinterpret_cast<uint4*>(smem + off) = h;
                *reinterpret_cast<uint4*>(smem + W_BYTES + off) = l;
            }
        }
        if (tid < WIDTH) sbias[tid] = __ldg(bias + (int64_t)group * WIDTH + tid);
    }
    asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");   // visible to wgmma
    __syncthreads();

    const uint64_t desc_hi = make_desc(smem_addr);
    const uint64_t desc_lo = make_desc(smem_addr + W_BYTES);

#pragma unroll 1
    for (; tile < tiles; tile += step) {
        const int64_t next = tile + step;
        const int has_next = next < tiles ? 1 : 0;
        const int64_t n0 = next * BM + row_in_tile;
        const int64_t n1 = n0 + 8;
        const float* p0 = xg + (n0 < rows ? n0 : rows - 1) * row_stride;
        const float* p1 = xg + (n1 < rows ? n1 : rows - 1) * row_stride;

        float acc[64];
#pragma unroll
        for (int i = 0; i < 64; ++i) acc[i] = 0.0f;

        uint32_t hi[2][8], lo[2][8];
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            const int b = j & 1;
            {
                const float4 v = raw[j][0];
                const float4 w = raw[j][1];
                // k-step 2 j: columns t4 and t4 + 4; then k-step 2 j + 1.
                const float a[8] = {v.x, w.x, v.y, w.y, v.z, w.z, v.w, w.w};
#pragma unroll
                for (int i = 0; i < 8; ++i) {
                    hi[b][i] = split_hi(a[i]);
                    lo[b][i] = __float_as_uint(a[i] - __uint_as_float(hi[b][i]));
                }
            }
            if (j & 1) {   // the registers of two slices are free: fetch them for the next tile
                load_f4_if(raw[j - 1][0], p0 + (j - 1) * 16, has_next);
                load_f4_if(raw[j][0], p0 + j * 16, has_next);
                load_f4_if(raw[j - 1][1], p1 + (j - 1) * 16, has_next);
                load_f4_if(raw[j][1], p1 + j * 16, has_next);
            }
            wgmma_fence();
#pragma unroll
            for (int s = 0; s < 2; ++s) {
                const int ks = 2 * j + s;
                const uint64_t off = (uint64_t)((ks >> 2) * (KBLOCK_BYTES / 16) + (ks & 3) * 2);
                wgmma_64x128x8(acc, lo[b][4 * s], lo[b][4 * s + 1], lo[b][4 * s + 2],
                               lo[b][4 * s + 3], desc_hi + off);
                wgmma_64x128x8(acc, hi[b][4 * s], hi[b][4 * s + 1], hi[b][4 * s + 2],
                               hi[b][4 * s + 3], desc_lo + off);
                wgmma_64x128x8(acc, hi[b][4 * s], hi[b][4 * s + 1], hi[b][4 * s + 2],
                               hi[b][4 * s + 3], desc_hi + off);
            }
            wgmma_commit();
            wgmma_wait<1>();   // slice j - 1 is done: its fragments may be overwritten
        }
        wgmma_wait<0>();
#pragma unroll
        for (int i = 0; i < 64; ++i) asm volatile("" : "+f"(acc[i]) :: "memory");

        // Bias, ReLU, store: 4 lanes write 64 contiguous bytes of a row.
        const int64_t r0 = tile * BM + row_in_tile;
        const bool ok0 = r0 < rows;
        const bool ok1 = r0 + 8 < rows;
        float* o0 = out + r0 * row_stride + (int64_t)group * WIDTH + t4 * 4;
        float* o1 = o0 + 8 * row_stride;
#pragma unroll
        for (int p = 0; p < 8; ++p) {
            const float4 bv = *reinterpret_cast<const float4*>(sbias + p * 16 + t4 * 4);
            float4 u, v;
            u.x = relu(acc[8 * p + 0] + bv.x);
            u.y = relu(acc[8 * p + 1] + bv.y);
            u.z = relu(acc[8 * p + 4] + bv.z);
            u.w = relu(acc[8 * p + 5] + bv.w);
            v.x = relu(acc[8 * p + 2] + bv.x);
            v.y = relu(acc[8 * p + 3] + bv.y);
            v.z = relu(acc[8 * p + 6] + bv.z);
            v.w = relu(acc[8 * p + 7] + bv.w);
            if (ok0) __stcs(reinterpret_cast<float4*>(o0 + p * 16), u);
            if (ok1) __stcs(reinterpret_cast<float4*>(o1 + p * 16), v);
        }
    }
}

at::Tensor aligned_contiguous(const at::Tensor& t) {
    at::Tensor c = t.contiguous();
    if (reinterpret_cast<uintptr_t>(c.data_ptr<float>()) % 16 != 0) c = c.clone();
    return c;
}

}  // namespace

at::Tensor grouped_linear_relu(at::Tensor x, at::Tensor weight, at::Tensor bias) {
    TORCH_CHECK(x.is_cuda() && weight.is_cuda() && bias.is_cuda(), "CUDA tensors expected");
    TORCH_CHECK(x.scalar_type() == at::kFloat && weight.scalar_type() == at::kFloat &&
                bias.scalar_type() == at::kFloat, "float32 tensors expected");
    TORCH_CHECK(x.dim() == 3 && weight.dim() == 3 && bias.dim() == 2, "unexpected dimensions");
    const int64_t rows = x.size(0);
    const int64_t groups = x.size(1);
    TORCH_CHECK(x.size(2) == WIDTH, "width must be 128");
    TORCH_CHECK(weight.size(0) == groups && weight.size(1) == WIDTH && weight.size(2) == WIDTH,
                "unexpected weight shape");
    TORCH_CHECK(bias.size(0) == groups && bias.size(1) == WIDTH, "unexpected bias shape");

    const c10::cuda::CUDAGuard guard(x.device());
    at::Tensor xc = aligned_contiguous(x);
    at::Tensor wc = aligned_contiguous(weight);
    at::Tensor bc = bias.contiguous();
    at::Tensor out = at::empty({rows, groups, (int64_t)WIDTH}, xc.options());
    if (rows == 0 || groups == 0) return out;

    const int64_t sms = at::cuda::getCurrentDeviceProperties()->multiProcessorCount;
    const int64_t tiles = (rows + BM - 1) / BM;
    const int64_t per_group = std::max<int64_t>(
        1, std::min<int64_t>(sms / groups, (tiles + WGS - 1) / WGS));
    const int64_t blocks = per_group * groups;
    TORCH_CHECK(blocks <= 2147483647LL, "input too large");

    C10_CUDA_CHECK(cudaFuncSetAttribute(grouped_linear_relu_kernel,
                                        cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM_BYTES));
    grouped_linear_relu_kernel<<<(unsigned)blocks, THREADS, SMEM_BYTES,
                                 at::cuda::getCurrentCUDAStream()>>>(
        xc.data_ptr<float>(), wc.data_ptr<float>(), bc.data_ptr<float>(),
        out.data_ptr<float>(), rows, (int)groups, (int)per_group);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return out;
}
"""

_ext = load_inline(
    name="grouped_linear_relu_split_ext",
    cpp_sources=_CPP,
    cuda_sources=_CUDA,
    functions=["grouped_linear_relu"],
    extra_cuda_cflags=["-O3"],
)


class ModelNew(nn.Module):
    def __init__(self, groups: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(groups, width, width) / width**0.5)
        self.bias = nn.Parameter(torch.randn(groups, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _ext.grouped_linear_relu(x, self.weight, self.bias)

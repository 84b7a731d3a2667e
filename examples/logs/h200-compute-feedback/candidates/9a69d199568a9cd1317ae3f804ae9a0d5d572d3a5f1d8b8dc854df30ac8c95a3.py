import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

CPP = r"""
torch::Tensor mlp_forward(torch::Tensor x, torch::Tensor w1, torch::Tensor b1,
                          torch::Tensor w2, torch::Tensor b2);
"""

CUDA = r"""
#include <torch/types.h>
#include <c10/cuda/CUDAException.h>
#include <ATen/cuda/CUDAContext.h>
#include <cuda_fp16.h>
#include <algorithm>
#include <cmath>
#include <cstdint>

constexpr int BM = 128, BN = 128, BK = 32, STAGES = 3;
constexpr int ROWB = 128;                      // bytes of a row in a stage: 32 hi, 32 lo parts
constexpr int TILEB = 128 * ROWB;              // bytes of one operand in one stage
constexpr int SMEM = STAGES * 2 * TILEB + 1024;    // 96 KB and room to align to 1024

__device__ __forceinline__ void cp16(unsigned d, const void* src, bool ok) {
    const int n = ok ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(d), "l"(src), "r"(n)
                 : "memory");
}

// K-major operand with 128-byte rows and 128-byte swizzle; groups of 8 rows are 1024 bytes apart
__device__ __forceinline__ uint64_t make_desc(unsigned addr) {
    return (uint64_t)((addr & 0x3FFFFu) >> 4) | ((uint64_t)1 << 16) | ((uint64_t)64 << 32) |
           ((uint64_t)1 << 62);
}

// d (64 x 128 of a warpgroup) += A (64 x 16) * B (128 x 16)^T
__device__ __forceinline__ void wgmma(float (&d)[64], uint64_t da, uint64_t db) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "setp.ne.b32 p, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, "
        "%8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, "
        "%24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, "
        "%40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, "
        "%56, %57, %58, %59, %60, %61, %62, %63}, "
        "%64, %65, p, 1, 1, 0, 0;\n"
        "}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
          "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
          "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]),
          "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]),
          "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
          "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]),
          "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]),
          "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]), "+f"(d[49]),
          "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
          "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]),
          "+f"(d[62]), "+f"(d[63])
        : "l"(da), "l"(db), "r"(1));
}

__device__ __forceinline__ float gelu(float x) {
    return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f));
}

__device__ __forceinline__ void row_load4(float (&v)[4], const float* __restrict__ p, int k,
                                          int K, bool vec) {
    if (vec && k + 3 < K) {
        const float4 f = *reinterpret_cast<const float4*>(p + k);
        v[0] = f.x; v[1] = f.y; v[2] = f.z; v[3] = f.w;
    } else {
#pragma unroll
        for (int j = 0; j < 4; ++j) v[j] = k + j < K ? p[k + j] : 0.f;
    }
}

// One warp per row of x (rows 0 .. M-1) or w (rows M .. M+N-1). The row is scaled by a power of
// two so that its largest value lies in [2^14, 2^15); v * scale = hi + lo with 22 bits.
// Output: for every 32 values of k, 32 hi parts and then 32 lo parts.
__global__ void __launch_bounds__(256)
split_rows(const float* __restrict__ x, const float* __restrict__ w,
           uint16_t* __restrict__ pack, float* __restrict__ inv,
           int M, int N, int K, int Kp, int veca, int vecb) {
    const int64_t row = (int64_t)blockIdx.x * 8 + (threadIdx.x >> 5);
    const int lane = threadIdx.x & 31;
    if (row >= (int64_t)M + N) return;
    const bool first = row < M;
    const float* p = first ? x + row * K : w + (row - M) * K;
    const bool vec = first ? veca : vecb;
    float mx = 0.f;
#pragma unroll 4
    for (int k = lane * 4; k < Kp; k += 128) {
        float v[4];
        row_load4(v, p, k, K, vec);
        mx = fmaxf(mx, fmaxf(fmaxf(fabsf(v[0]), fabsf(v[1])), fmaxf(fabsf(v[2]), fabsf(v[3]))));
    }
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) mx = fmaxf(mx, __shfl_xor_sync(0xffffffffu, mx, o));
    int e = 14;
    if (mx > 0.f && !isinf(mx)) e = max(ilogbf(mx), -100);
    const float scale = ldexpf(1.f, 14 - e);
    if (lane == 0) inv[row] = ldexpf(1.f, e - 14);
    uint16_t* q = pack + row * (2 * (int64_t)Kp);
#pragma unroll 4
    for (int k = lane * 4; k < Kp; k += 128) {
        float v[4];
        row_load4(v, p, k, K, vec);
        uint32_t h[4], l[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const float s = v[j] * scale;
            const __half hi = __float2half_rn(s);
            const __half lo = __float2half_rn(s - __half2float(hi));
            h[j] = __half_as_ushort(hi);
            l[j] = __half_as_ushort(lo);
        }
        uint16_t* d = q + (k >> 5) * 64 + (k & 31);
        *reinterpret_cast<uint2*>(d) = make_uint2(h[0] | (h[1] << 16), h[2] | (h[3] << 16));
        *reinterpret_cast<uint2*>(d + 32) = make_uint2(l[0] | (l[1] << 16), l[2] | (l[3] << 16));
    }
}

// 128 rows of one k step; 16-byte chunk c of row r lies at chunk c ^ (r & 7)
__device__ __forceinline__ void load_tile(unsigned dst, const uint16_t* __restrict__ p, int row0,
                                          int rows, int kt, int Kp) {
    const int c = threadIdx.x & 7;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int r = (threadIdx.x >> 3) + 32 * i;
        const bool ok = row0 + r < rows;
        const uint16_t* q = p + (int64_t)(row0 + r) * (2 * Kp) + kt * 64 + c * 8;
        cp16(dst + r * ROWB + ((c ^ (r & 7)) << 4), ok ? q : p, ok);
    }
}

// C[M,N] = A[M,K] * B[N,K]^T ; MODE 0: raw partial sums, 1: + bias, 2: gelu(+ bias)
template <int MODE>
__global__ void __launch_bounds__(256, 2)
gemm_nt(const uint16_t* __restrict__ A, const uint16_t* __restrict__ B,
        const float* __restrict__ inva, const float* __restrict__ invb,
        const float* __restrict__ bias, float* __restrict__ C,
        int M, int N, int Kp, int kchunk) {
    extern __shared__ __align__(128) unsigned char sm[];
    const unsigned smb = ((unsigned)__cvta_generic_to_shared(sm) + 1023u) & ~1023u;
    const int t = threadIdx.x, lane = t & 31, warp = t >> 5;
    const int g = lane >> 2, tq = lane & 3;
    const int m0 = blockIdx.y * BM, n0 = blockIdx.x * BN;
    const int kbeg = blockIdx.z * kchunk;                    // a multiple of BK
    const int kend = min(Kp, kbeg + kchunk);
    const int nk = (kend - kbeg) / BK;
    const int kt0 = kbeg / BK;
    const int wg = warp >> 2;                                // rows 64 wg .. of the tile

    float acc[64];
#pragma unroll
    for (int i = 0; i < 64; ++i) acc[i] = 0.f;

    auto fetch = [&](int slot, int kt) {
        const unsigned d = smb + slot * (2 * TILEB);
        load_tile(d, A, m0, M, kt0 + kt, Kp);
        load_tile(d + TILEB, B, n0, N, kt0 + kt, Kp);
    };

#pragma unroll
    for (int i = 0; i < STAGES - 1; ++i) {
        if (i < nk) fetch(i, i);
        asm volatile("cp.async.commit_group;\n" ::: "memory");
    }
    int slot = 0, next = STAGES - 1;
#pragma unroll 1
    for (int kt = 0; kt < nk; ++kt) {
        asm volatile("cp.async.wait_group %0;\n" ::"n"(STAGES - 2) : "memory");
        // own copies become visible to the tensor cores' reads of shared memory
        asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
        __syncthreads();                       // also: everyone is done with slot `next`
        if (kt + STAGES - 1 < nk) fetch(next, kt + STAGES - 1);
        asm volatile("cp.async.commit_group;\n" ::: "memory");
        // in units of 16 bytes: hi parts at 0 (k 0-15), 2 (k 16-31), lo parts at 4, 6
        const uint64_t da = make_desc(smb + slot * (2 * TILEB) + wg * 64 * ROWB);
        const uint64_t db = make_desc(smb + slot * (2 * TILEB) + TILEB);
        asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
#pragma unroll
        for (int kk = 0; kk < BK / 16; ++kk) {
            wgmma(acc, da + 2 * kk + 4, db + 2 * kk);
            wgmma(acc, da + 2 * kk, db + 2 * kk + 4);
            wgmma(acc, da + 2 * kk, db + 2 * kk);
        }
        asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 0;\n" ::: "memory");
        slot = slot + 1 == STAGES ? 0 : slot + 1;
        next = next + 1 == STAGES ? 0 : next + 1;
    }

    // acc[4 j + 2 h + q]: row 64 wg + 16 (warp & 3) + 8 h + g, column 8 j + 2 tq + q
    float* out = C + (int64_t)blockIdx.z * M * N;
    const int row0 = m0 + wg * 64 + (warp & 3) * 16 + g;
    float ia[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) ia[h] = row0 + 8 * h < M ? __ldg(inva + row0 + 8 * h) : 1.f;
#pragma unroll
    for (int j = 0; j < 16; ++j) {
        const int col = n0 + j * 8 + 2 * tq;
        float ib[2], bv[2];
#pragma unroll
        for (int q = 0; q < 2; ++q) {
            ib[q] = col + q < N ? __ldg(invb + col + q) : 1.f;
            bv[q] = (MODE != 0 && col + q < N) ? __ldg(bias + col + q) : 0.f;
        }
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int row = row0 + 8 * h;
            if (row < M) {
                float v[2];
#pragma unroll
                for (int q = 0; q < 2; ++q) {
                    // powers of two: the scaling back is exact
                    float r = acc[4 * j + 2 * h + q] * ia[h] * ib[q];
                    if (MODE != 0) r += bv[q];
                    if (MODE == 2) r = gelu(r);
                    v[q] = r;
                }
                float* o = out + (int64_t)row * N + col;
                if ((N & 1) == 0 && col + 1 < N) {
                    *reinterpret_cast<float2*>(o) = make_float2(v[0], v[1]);
                } else {
                    if (col < N) o[0] = v[0];
                    if (col + 1 < N) o[1] = v[1];
                }
            }
        }
    }
}

template <bool ACT>
__global__ void reduce_splits(const float* __restrict__ ws, const float* __restrict__ bias,
                              float* __restrict__ out, int64_t total, int N, int splits) {
    const int64_t stride = (int64_t)gridDim.x * blockDim.x;
    const int64_t first = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if ((N & 3) == 0) {
        for (int64_t i = first; i < total / 4; i += stride) {
            float4 a = reinterpret_cast<const float4*>(ws)[i];
            for (int z = 1; z < splits; ++z) {
                const float4 p = reinterpret_cast<const float4*>(ws + z * total)[i];
                a.x += p.x; a.y += p.y; a.z += p.z; a.w += p.w;
            }
            const int n = (int)((i * 4) % N);
            a.x += bias[n]; a.y += bias[n + 1]; a.z += bias[n + 2]; a.w += bias[n + 3];
            if (ACT) { a.x = gelu(a.x); a.y = gelu(a.y); a.z = gelu(a.z); a.w = gelu(a.w); }
            reinterpret_cast<float4*>(out)[i] = a;
        }
    } else {
        for (int64_t i = first; i < total; i += stride) {
            float a = ws[i];
            for (int z = 1; z < splits; ++z) a += ws[z * total + i];
            a += bias[i % N];
            if (ACT) a = gelu(a);
            out[i] = a;
        }
    }
}

static bool aligned16(const float* p) { return (reinterpret_cast<uintptr_t>(p) & 15) == 0; }

template <bool ACT>
static at::Tensor linear(const at::Tensor& x, const at::Tensor& w, const at::Tensor& b) {
    const int M = (int)x.size(0), K = (int)x.size(1), N = (int)w.size(0);
    auto out = at::empty({M, N}, x.options());
    if (M == 0 || N == 0) return out;
    auto stream = at::cuda::getCurrentCUDAStream();
    const float* xp = x.data_ptr<float>();
    const float* wp = w.data_ptr<float>();
    const float* bp = b.data_ptr<float>();
    float* op = out.data_ptr<float>();
    const int va = (K % 4 == 0) && aligned16(xp);
    const int vb = (K % 4 == 0) && aligned16(wp);
    const int Kp = (K + BK - 1) / BK * BK;
    const int64_t rows = (int64_t)M + N;
    auto pack = at::empty({rows * 2 * Kp}, x.options().dtype(at::kHalf));
    auto inv = at::empty({rows}, x.options());
    uint16_t* pa = reinterpret_cast<uint16_t*>(pack.data_ptr());
    uint16_t* pb = pa + (int64_t)M * 2 * Kp;
    float* ia = inv.data_ptr<float>();
    float* ib = ia + M;
    split_rows<<<(unsigned)((rows + 7) / 8), 256, 0, stream>>>(xp, wp, pa, ia, M, N, K, Kp,
                                                               va, vb);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    const int gm = (M + BM - 1) / BM, gn = (N + BN - 1) / BN;
    int splits = std::max(1, std::min(8, 264 / std::max(1, gm * gn)));
    splits = std::max(1, std::min(splits, K / 128));
    int chunk = (K + splits - 1) / splits;
    chunk = std::max(BK, (chunk + BK - 1) / BK * BK);
    splits = std::max(1, (K + chunk - 1) / chunk);
    dim3 grid(gn, gm, splits);
    if (splits == 1) {
        constexpr int MODE = ACT ? 2 : 1;
        C10_CUDA_CHECK(cudaFuncSetAttribute(
            gemm_nt<MODE>, cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM));
        gemm_nt<MODE><<<grid, 256, SMEM, stream>>>(pa, pb, ia, ib, bp, op, M, N, Kp, chunk);
        C10_CUDA_KERNEL_LAUNCH_CHECK();
    } else {
        auto ws = at::empty({splits, M, N}, x.options());
        C10_CUDA_CHECK(cudaFuncSetAttribute(
            gemm_nt<0>, cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM));
        gemm_nt<0><<<grid, 256, SMEM, stream>>>(pa, pb, ia, ib, bp, ws.data_ptr<float>(),
                                                M, N, Kp, chunk);
        C10_CUDA_KERNEL_LAUNCH_CHECK();
        const int64_t total = (int64_t)M * N;
        const int blocks = (int)std::min<int64_t>((total / 4 + 255) / 256 + 1, 2048);
        reduce_splits<ACT><<<blocks, 256, 0, stream>>>(ws.data_ptr<float>(), bp, op,
                                                       total, N, splits);
        C10_CUDA_KERNEL_LAUNCH_CHECK();
    }
    return out;
}

torch::Tensor mlp_forward(torch::Tensor x, torch::Tensor w1, torch::Tensor b1,
                          torch::Tensor w2, torch::Tensor b2) {
    TORCH_CHECK(x.is_cuda() && x.scalar_type() == at::kFloat, "float32 CUDA tensor expected");
    auto sizes = x.sizes().vec();
    auto x2 = x.detach().contiguous().view({-1, x.size(-1)});
    auto h = linear<true>(x2, w1.detach().contiguous(), b1.detach().contiguous());
    auto y = linear<false>(h, w2.detach().contiguous(), b2.detach().contiguous());
    sizes.back() = w2.size(0);
    return y.view(sizes);
}
"""

ext = load_inline(
    name="mlp_gelu_fp32_split_wgmma_v4",
    cpp_sources=CPP,
    cuda_sources=CUDA,
    functions=["mlp_forward"],
    extra_cuda_cflags=["-O3", "-gencode=arch=compute_90a,code=sm_90a"],
)


class ModelNew(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return ext.mlp_forward(x, self.up.weight, self.up.bias,
                               self.down.weight, self.down.bias)

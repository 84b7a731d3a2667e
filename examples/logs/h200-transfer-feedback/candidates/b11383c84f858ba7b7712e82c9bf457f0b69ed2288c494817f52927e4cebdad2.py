"""Linear layer with a low-rank correction: fold the correction, then one GEMM of float32
accuracy on the tensor cores (operands split in two TF32 parts, three products, float32 sums)."""

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

_CPP = r"""
torch::Tensor lowrank_linear_forward(torch::Tensor x, torch::Tensor w, torch::Tensor bias,
                                     torch::Tensor narrow, torch::Tensor wide);
"""

_CUDA = r"""
#include <torch/types.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime.h>
#include <cstdint>

namespace {

// ------------------------------------------------------------------
// Kernel 1: v[n][k] = w[n][k] + sum_r wide[n][r] * narrow[r][k], split as v = hi + lo (both TF32).
// Written as tiles of 128 n x 32 k, [n block][k block][hi | lo][128][32], each row of 128 bytes in
// the 128-byte swizzle that wgmma reads.  Inside a row, 16-byte chunk q holds
// k = 16 * (q >> 2) + 4 * t + (q & 3) for t = 0..3 (the order in which the GEMM holds x).
// One block: 64 n x 32 k, 256 threads.
// ------------------------------------------------------------------
__device__ __forceinline__ float to_tf32(float v) {
    uint32_t u;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(u) : "f"(v));
    return __uint_as_float(u);
}

__global__ void __launch_bounds__(256)
fold_kernel(const float* __restrict__ w, const float* __restrict__ narrow,
            const float* __restrict__ wide, float* __restrict__ wt,
            int N, int K, int R) {
    asm volatile("griddepcontrol.launch_dependents;");

    __shared__ float sW[64][33];
    __shared__ float sB[64][33];
    __shared__ __align__(16) float sA[32][32];
    __shared__ __align__(16) float sH[64 * 32];
    __shared__ __align__(16) float sL[64 * 32];

    const int lane = threadIdx.x & 31;
    const int wrp = threadIdx.x >> 5;
    const int n0 = blockIdx.x * 64;
    const int k0 = blockIdx.y * 32;
    // column of sA for k = lane: chunk (16-group, k & 3), element (k >> 2) & 3
    const int perm = ((lane >> 4) * 4 + (lane & 3)) * 4 + ((lane >> 2) & 3);

#pragma unroll
    for (int q = 0; q < 8; ++q) {
        const int row = wrp + 8 * q;
        sW[row][lane] = w[(size_t)(n0 + row) * K + k0 + lane];
    }

    float acc0[4] = {0.f, 0.f, 0.f, 0.f};
    float acc1[4] = {0.f, 0.f, 0.f, 0.f};

    for (int r0 = 0; r0 < R; r0 += 32) {
#pragma unroll
        for (int q = 0; q < 8; ++q) {
            const int row = wrp + 8 * q;
            sB[row][lane] = (r0 + lane < R) ? wide[(size_t)(n0 + row) * R + r0 + lane] : 0.f;
        }
#pragma unroll
        for (int q = 0; q < 4; ++q) {
            const int r = wrp + 8 * q;
            sA[r][perm] = (r0 + r < R) ? narrow[(size_t)(r0 + r) * K + k0 + lane] : 0.f;
        }
        __syncthreads();
#pragma unroll
        for (int r = 0; r < 32; ++r) {
            const float4 a = *reinterpret_cast<const float4*>(&sA[r][wrp * 4]);
            const float b0 = sB[lane][r];
            const float b1 = sB[lane + 32][r];
            acc0[0] = fmaf(b0, a.x, acc0[0]);
            acc0[1] = fmaf(b0, a.y, acc0[1]);
            acc0[2] = fmaf(b0, a.z, acc0[2]);
            acc0[3] = fmaf(b0, a.w, acc0[3]);
            acc1[0] = fmaf(b1, a.x, acc1[0]);
            acc1[1] = fmaf(b1, a.y, acc1[1]);
            acc1[2] = fmaf(b1, a.z, acc1[2]);
            acc1[3] = fmaf(b1, a.w, acc1[3]);
        }
        __syncthreads();
    }

    float h0[4], l0[4], h1[4], l1[4];
#pragma unroll
    for (int t = 0; t < 4; ++t) {
        const int kl = 16 * (wrp >> 2) + 4 * t + (wrp & 3);
        const float v0 = acc0[t] + sW[lane][kl];
        const float v1 = acc1[t] + sW[lane + 32][kl];
        h0[t] = to_tf32(v0);
        l0[t] = to_tf32(v0 - h0[t]);
        h1[t] = to_tf32(v1);
        l1[t] = to_tf32(v1 - h1[t]);
    }
    const int o0 = lane * 32 + ((wrp ^ (lane & 7)) << 2);
    const int o1 = o0 + 32 * 32;
    *reinterpret_cast<float4*>(sH + o0) = make_float4(h0[0], h0[1], h0[2], h0[3]);
    *reinterpret_cast<float4*>(sL + o0) = make_float4(l0[0], l0[1], l0[2], l0[3]);
    *reinterpret_cast<float4*>(sH + o1) = make_float4(h1[0], h1[1], h1[2], h1[3]);
    *reinterpret_cast<float4*>(sL + o1) = make_float4(l1[0], l1[1], l1[2], l1[3]);
    __syncthreads();

    float* dst = wt + ((size_t)(blockIdx.x >> 1) * (size_t)(K / 32) + blockIdx.y) * 8192 +
                 (size_t)(blockIdx.x & 1) * (64 * 32);
    float4* dh = reinterpret_cast<float4*>(dst);
    float4* dl = reinterpret_cast<float4*>(dst + 4096);
    const float4* ph = reinterpret_cast<const float4*>(sH);
    const float4* pl = reinterpret_cast<const float4*>(sL);
#pragma unroll
    for (int q = 0; q < 2; ++q) {
        const int idx = threadIdx.x + 256 * q;
        dh[idx] = ph[idx];
        dl[idx] = pl[idx];
    }
}

// ------------------------------------------------------------------
// Kernel 2: out[m][n] = sum_k x[m][k] * v[n][k] + bias[n]
// 128 x 128 tile per block, two consumer warpgroups (64 x 128 each) and one producer warp,
// clusters of two row tiles share the weight tiles by multicast; persistent over tiles.
// ------------------------------------------------------------------
constexpr int BM = 128;
constexpr int BN = 128;
constexpr int BK = 32;
constexpr int STAGES = 6;
constexpr int STAGE_BYTES = 2 * BN * BK * 4;      // hi and lo, 32 KB
constexpr int HALF_BYTES = STAGE_BYTES / 2;
constexpr int THREADS = 288;
constexpr int SMEM_BYTES = STAGES * STAGE_BYTES + 1024 + 128;

__device__ __forceinline__ void mbar_init(uint32_t bar, uint32_t count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(bar), "r"(count) : "memory");
}
__device__ __forceinline__ void mbar_expect_tx(uint32_t bar, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :: "r"(bar), "r"(bytes) : "memory");
}
__device__ __forceinline__ void mbar_wait(uint32_t bar, uint32_t parity) {
    uint32_t done;
    do {
        asm volatile(
            "{\n"
            ".reg .pred p;\n"
            "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
            "selp.u32 %0, 1, 0, p;\n"
            "}\n"
            : "=r"(done) : "r"(bar), "r"(parity) : "memory");
    } while (done == 0);
}
__device__ __forceinline__ void mbar_arrive_cluster(uint32_t bar, uint32_t cta) {
    asm volatile(
        "{\n"
        ".reg .b32 ra;\n"
        "mapa.shared::cluster.u32 ra, %0, %1;\n"
        "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [ra];\n"
        "}\n"
        :: "r"(bar), "r"(cta) : "memory");
}
__device__ __forceinline__ void bulk_multicast(uint32_t dst, const float* src, uint32_t bytes,
                                               uint32_t bar, uint16_t mask) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1], %2, [%3], %4;"
        :: "r"(dst), "l"(src), "r"(bytes), "r"(bar), "h"(mask) : "memory");
}
__device__ __forceinline__ void cluster_sync_all() {
    asm volatile("barrier.cluster.arrive.release;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}
__device__ __forceinline__ void named_sync(int id) {
    asm volatile("bar.sync %0, 256;" :: "r"(id) : "memory");
}
__device__ __forceinline__ void named_arrive(int id) {
    asm volatile("bar.arrive %0, 256;" :: "r"(id) : "memory");
}
__device__ __forceinline__ void ldg4(float* d, const float* p) {
    asm volatile("ld.global.nc.L1::no_allocate.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3]) : "l"(p));
}

__device__ __forceinline__ void wgmma_tf32(float (&d)[64], uint32_t a0, uint32_t a1, uint32_t a2,
                                           uint32_t a3, uint64_t desc, int scale_d) {
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
        "{%64, %65, %66, %67}, %68, p, 1, 1;\n"
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
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(desc), "r"(scale_d)
        : "memory");
}

__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(THREADS, 1)
gemm_kernel(const float* __restrict__ x, const float* wt, const float* __restrict__ bias,
            float* __restrict__ out, int64_t M, int N, int K, int pairs) {
    extern __shared__ unsigned char smem_raw[];
    const uint32_t raw_base = (uint32_t)__cvta_generic_to_shared(smem_raw);
    const uint32_t sB = (raw_base + 1023u) & ~1023u;
    const uint32_t full0 = sB + STAGES * STAGE_BYTES;
    const uint32_t empty0 = full0 + STAGES * 8;

    const int tid = threadIdx.x;
    const int lane = tid & 31;
    const int wrp = tid >> 5;
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    const int cluster_id = (int)(blockIdx.x >> 1);
    const int nclus = (int)(gridDim.x >> 1);
    const int tiles_n = N / BN;
    const int KB = K / BK;

    if (tid == 0) {
#pragma unroll
        for (int s = 0; s < STAGES; ++s) {
            mbar_init(full0 + s * 8, 1);
            mbar_init(empty0 + s * 8, 16);      // 8 consumer warps in each of the 2 blocks
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    cluster_sync_all();

    if (wrp == 8) {
        // ---------------- producer: this block fetches hi (rank 0) or lo (rank 1) for both ------
        if (lane == 0) {
            asm volatile("griddepcontrol.wait;" ::: "memory");
            asm volatile("fence.proxy.async;" ::: "memory");
            int stage = 0;
            uint32_t phase = 0;
            for (int p = cluster_id; p < pairs; p += nclus) {
                const int bn = p % tiles_n;
                const float* src = wt + (int64_t)bn * KB * 8192 + (int64_t)rank * 4096;
                for (int kb = 0; kb < KB; ++kb) {
                    mbar_wait(empty0 + stage * 8, phase ^ 1u);
                    mbar_expect_tx(full0 + stage * 8, STAGE_BYTES);
                    bulk_multicast(sB + stage * STAGE_BYTES + rank * HALF_BYTES, src, HALF_BYTES,
                                   full0 + stage * 8, (uint16_t)3);
                    src += 8192;
                    if (++stage == STAGES) { stage = 0; phase ^= 1u; }
                }
            }
        }
        __syncwarp();
    } else {
        // ---------------- consumers ----------------
        const int wg = wrp >> 2;
        const int g = lane >> 2;
        const int t = lane & 3;
        const int row_in_tile = wg * 64 + (wrp & 3) * 16 + g;

        float sum[64];      // float32 sums, ordinary rounding
        float acc[64];      // tensor core partial sums over 32 k
        float raw[16];      // x of the next block: [row g, row g + 8][8]
        uint32_t hi[16], lo[16];
#pragma unroll
        for (int i = 0; i < 64; ++i) { sum[i] = 0.f; acc[i] = 0.f; }

        const float* xa;
        const float* xb;
        {
            const int p0 = cluster_id < pairs ? cluster_id : 0;
            int64_t r0 = ((int64_t)(p0 / tiles_n) * 2 + rank) * BM + row_in_tile;
            int64_t r1 = r0 + 8;
            if (r0 > M - 1) r0 = M - 1;
            if (r1 > M - 1) r1 = M - 1;
            xa = x + r0 * K + t * 4;
            xb = x + r1 * K + t * 4;
        }
        ldg4(raw + 0, xa);
        ldg4(raw + 4, xa + 16);
        ldg4(raw + 8, xb);
        ldg4(raw + 12, xb + 16);

        const uint64_t desc_const = ((uint64_t)1 << 16) | ((uint64_t)64 << 32) | ((uint64_t)1 << 62);
        int stage = 0;
        uint32_t phase = 0;

        // The warpgroups take turns in issuing: one computes while the other adds up and splits.
        if (wg == 1) named_arrive(1);

        for (int p = cluster_id; p < pairs; p += nclus) {
            const bool last_tile = (p + nclus >= pairs);
#pragma unroll 1
            for (int kb = 0; kb < KB; ++kb) {
                // x = hi + lo: hi rounded to TF32, lo exact (its last bit is dropped by the MMA)
#pragma unroll
                for (int s = 0; s < 4; ++s) {
#pragma unroll
                    for (int v = 0; v < 4; ++v) {
                        const float f = raw[(v & 1) * 8 + 2 * s + (v >> 1)];
                        const uint32_t u = (__float_as_uint(f) + 0x1000u) & 0xffffe000u;
                        hi[s * 4 + v] = u;
                        lo[s * 4 + v] = __float_as_uint(f - __uint_as_float(u));
                    }
                }

                // x of the next block (after the very last one: a harmless repeated load)
                if (kb + 1 < KB) {
                    xa += BK;
                    xb += BK;
                } else {
                    const int pn = last_tile ? p : p + nclus;
                    int64_t r0 = ((int64_t)(pn / tiles_n) * 2 + rank) * BM + row_in_tile;
                    int64_t r1 = r0 + 8;
                    if (r0 > M - 1) r0 = M - 1;
                    if (r1 > M - 1) r1 = M - 1;
                    xa = x + r0 * K + t * 4;
                    xb = x + r1 * K + t * 4;
                }
                ldg4(raw + 0, xa);
                ldg4(raw + 4, xa + 16);
                ldg4(raw + 8, xb);
                ldg4(raw + 12, xb + 16);

                mbar_wait(full0 + stage * 8, phase);
                named_sync(1 + wg);

                const uint64_t dhi = desc_const |
                    (uint64_t)(((sB + stage * STAGE_BYTES) & 0x3FFFFu) >> 4);
                const uint64_t dlo = dhi + (HALF_BYTES >> 4);

#pragma unroll
                for (int i = 0; i < 64; ++i) asm volatile("" : "+f"(acc[i]) :: "memory");
                asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
                for (int s = 0; s < 4; ++s)
                    wgmma_tf32(acc, lo[s * 4 + 0], lo[s * 4 + 1], lo[s * 4 + 2], lo[s * 4 + 3],
                               dhi + 2 * s, s == 0 ? 0 : 1);
#pragma unroll
                for (int s = 0; s < 4; ++s)
                    wgmma_tf32(acc, hi[s * 4 + 0], hi[s * 4 + 1], hi[s * 4 + 2], hi[s * 4 + 3],
                               dlo + 2 * s, 1);
#pragma unroll
                for (int s = 0; s < 4; ++s)
                    wgmma_tf32(acc, hi[s * 4 + 0], hi[s * 4 + 1], hi[s * 4 + 2], hi[s * 4 + 3],
                               dhi + 2 * s, 1);
                asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");

                if (wg == 0) {
                    named_arrive(2);
                } else if (!(last_tile && kb == KB - 1)) {
                    named_arrive(1);
                }

                asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
                for (int i = 0; i < 64; ++i) asm volatile("" : "+f"(acc[i]) :: "memory");
#pragma unroll
                for (int i = 0; i < 16; ++i) asm volatile("" : "+f"(raw[i]) :: "memory");

                // this warp has read the stage: tell the producers of both blocks
                if (lane < 2) mbar_arrive_cluster(empty0 + stage * 8, (uint32_t)lane);
                __syncwarp();
                if (++stage == STAGES) { stage = 0; phase ^= 1u; }

#pragma unroll
                for (int i = 0; i < 64; ++i) sum[i] += acc[i];
            }

            // --- epilogue: bias and store ---
            const int64_t row0 = ((int64_t)(p / tiles_n) * 2 + rank) * BM + row_in_tile;
            const int64_t row1 = row0 + 8;
            const int col0 = (p % tiles_n) * BN + 2 * t;
            float* d0 = out + row0 * N + col0;
            float* d1 = out + row1 * N + col0;
#pragma unroll
            for (int j = 0; j < 16; ++j) {
                const float b0 = __ldg(bias + col0 + j * 8);
                const float b1 = __ldg(bias + col0 + j * 8 + 1);
                if (row0 < M)
                    *reinterpret_cast<float2*>(d0 + j * 8) =
                        make_float2(sum[4 * j + 0] + b0, sum[4 * j + 1] + b1);
                if (row1 < M)
                    *reinterpret_cast<float2*>(d1 + j * 8) =
                        make_float2(sum[4 * j + 2] + b0, sum[4 * j + 3] + b1);
            }
#pragma unroll
            for (int i = 0; i < 64; ++i) sum[i] = 0.f;
        }
        __syncwarp();
    }

    // nobody leaves while the other block may still signal its barriers
    cluster_sync_all();
}

}  // namespace

torch::Tensor lowrank_linear_forward(torch::Tensor x_in, torch::Tensor w_in, torch::Tensor bias_in,
                                     torch::Tensor narrow_in, torch::Tensor wide_in) {
    TORCH_CHECK(x_in.is_cuda() && w_in.is_cuda() && bias_in.is_cuda() &&
                narrow_in.is_cuda() && wide_in.is_cuda(), "all tensors must be on the GPU");
    TORCH_CHECK(x_in.scalar_type() == at::kFloat && w_in.scalar_type() == at::kFloat &&
                bias_in.scalar_type() == at::kFloat && narrow_in.scalar_type() == at::kFloat &&
                wide_in.scalar_type() == at::kFloat, "all tensors must be float32");
    const c10::cuda::CUDAGuard guard(x_in.device());

    auto x = x_in.contiguous();
    if (reinterpret_cast<uintptr_t>(x.data_ptr<float>()) % 16 != 0) x = x.clone();
    auto w = w_in.contiguous();
    auto bias = bias_in.contiguous();
    auto narrow = narrow_in.contiguous();
    auto wide = wide_in.contiguous();

    TORCH_CHECK(w.dim() == 2 && narrow.dim() == 2 && wide.dim() == 2 && x.dim() >= 1, "bad shapes");
    const int N = (int)w.size(0);
    const int K = (int)w.size(1);
    const int R = (int)narrow.size(0);
    TORCH_CHECK(x.size(-1) == K && bias.numel() == N && narrow.size(1) == K &&
                wide.size(0) == N && wide.size(1) == R, "bad shapes");
    TORCH_CHECK(N > 0 && K > 0 && N % 128 == 0 && K % 128 == 0, "width must be a multiple of 128");

    auto shape = x.sizes().vec();
    shape.back() = N;
    auto out = at::empty(shape, x.options());
    const int64_t M = x.numel() / K;
    if (M == 0) return out;
    // folded weight, split in two TF32 parts, in tiles
    auto wt = at::empty({(int64_t)2 * (int64_t)K * (int64_t)N}, x.options());

    cudaStream_t stream = at::cuda::getCurrentCUDAStream();

    C10_CUDA_CHECK(cudaFuncSetAttribute(fold_kernel, cudaFuncAttributePreferredSharedMemoryCarveout, 100));
    C10_CUDA_CHECK(cudaFuncSetAttribute(gemm_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM_BYTES));

    const dim3 fold_grid((unsigned)(N / 64), (unsigned)(K / 32));
    fold_kernel<<<fold_grid, 256, 0, stream>>>(w.data_ptr<float>(), narrow.data_ptr<float>(),
                                               wide.data_ptr<float>(), wt.data_ptr<float>(), N, K, R);
    C10_CUDA_KERNEL_LAUNCH_CHECK();

    const int64_t row_tiles = (M + BM - 1) / BM;
    const int64_t pairs64 = ((row_tiles + 1) / 2) * (int64_t)(N / BN);
    TORCH_CHECK(pairs64 <= 1000000000LL, "too many rows");
    const int pairs = (int)pairs64;
    int clusters = at::cuda::getCurrentDeviceProperties()->multiProcessorCount / 2;
    if (clusters < 1) clusters = 1;
    if (clusters > pairs) clusters = pairs;

    cudaLaunchAttribute attr[1];
    attr[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attr[0].val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t cfg = {};
    cfg.gridDim = dim3((unsigned)(2 * clusters));
    cfg.blockDim = dim3(THREADS);
    cfg.dynamicSmemBytes = SMEM_BYTES;
    cfg.stream = stream;
    cfg.attrs = attr;
    cfg.numAttrs = 1;

    const float* xp = x.data_ptr<float>();
    const float* wtp = wt.data_ptr<float>();
    const float* bp = bias.data_ptr<float>();
    float* op = out.data_ptr<float>();
    C10_CUDA_CHECK(cudaLaunchKernelEx(&cfg, gemm_kernel, xp, wtp, bp, op, M, N, K, pairs));
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return out;
}
"""

_ext = load_inline(
    name="lowrank_linear_fold_split_wgmma",
    cpp_sources=_CPP,
    cuda_sources=_CUDA,
    functions=["lowrank_linear_forward"],
    extra_cuda_cflags=["-O3"],
)


class ModelNew(nn.Module):
    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.full = nn.Linear(width, width)
        self.narrow = nn.Linear(width, rank, bias=False)
        self.wide = nn.Linear(rank, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _ext.lowrank_linear_forward(
            x, self.full.weight, self.full.bias, self.narrow.weight, self.wide.weight
        )

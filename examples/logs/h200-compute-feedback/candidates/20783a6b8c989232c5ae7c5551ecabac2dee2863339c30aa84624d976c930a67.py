import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

CPP = r"""
torch::Tensor linear_logsumexp(torch::Tensor x, torch::Tensor w, torch::Tensor b);
"""

CUDA = r"""
#include <torch/types.h>
#include <c10/cuda/CUDAException.h>
#include <ATen/cuda/CUDAContext.h>
#include <cuda_fp16.h>
#include <algorithm>
#include <cmath>
#include <cstdint>

constexpr int BK = 32, STAGES = 4;
constexpr int TILEB = 128 * 128;               // 128 rows of 128 bytes (32 hi, 32 lo parts)
constexpr int STAGEB = 3 * TILEB;              // 128 rows of A, 256 rows of B
constexpr int SMEM = STAGES * STAGEB + 1024;

__device__ __forceinline__ void wgmma(float (&d)[128], uint64_t da, uint64_t db, int acc) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 "
        "{@REGS@}, %128, %129, p, 1, 1, 0, 0;\n}\n"
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

// One warp per row of x (rows 0 .. Mp-1) or w (rows Mp .. Mp+Np-1), padding rows are zero. The row
// is scaled by a power of two so that its largest value lies in [2^14, 2^15);
// v * scale = hi + lo with 22 bits.
// Output: tiles of 128 rows x 32 values of k, 16 KB each: a row has 32 hi parts and then 32 lo
// parts; its 16-byte chunk c lies at chunk c ^ (row & 7).
__global__ void __launch_bounds__(256)
split_rows(const float* __restrict__ x, const float* __restrict__ w,
           unsigned char* __restrict__ pack, float* __restrict__ inv,
           int M, int N, int Mp, int Np, int K, int Kp, int veca, int vecb) {
    const int64_t row = (int64_t)blockIdx.x * 8 + (threadIdx.x >> 5);
    const int lane = threadIdx.x & 31;
    if (row >= (int64_t)Mp + Np) return;
    const bool first = row < Mp;
    const int64_t src = first ? row : row - Mp;
    const bool valid = src < (first ? M : N);
    const float* p = (first ? x : w) + (valid ? src * K : 0);
    const int Kv = valid ? K : 0;
    const bool vec = first ? veca : vecb;
    float mx = 0.f;
    for (int k = lane * 4; k < Kp; k += 128) {
        float v[4];
        row_load4(v, p, k, Kv, vec);
        mx = fmaxf(mx, fmaxf(fmaxf(fabsf(v[0]), fabsf(v[1])), fmaxf(fabsf(v[2]), fabsf(v[3]))));
    }
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) mx = fmaxf(mx, __shfl_xor_sync(0xffffffffu, mx, o));
    int e = 14;
    if (mx > 0.f && !isinf(mx)) e = max(ilogbf(mx), -100);
    const float scale = ldexpf(1.f, 14 - e);
    if (lane == 0) inv[row] = ldexpf(1.f, e - 14);
    const int r = (int)(row & 127), nk = Kp >> 5;
    unsigned char* q = pack + (row >> 7) * nk * (int64_t)TILEB + r * 128;
    for (int k = lane * 4; k < Kp; k += 128) {
        float v[4];
        row_load4(v, p, k, Kv, vec);
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
}

// A cluster of two CTAs computes 256 x 256, each CTA 128 rows of it; each loads half of the rows
// of B and multicasts them to both.
// part[row][column tile] = (max, sum of exp(value - max)) over 256 columns
__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(384, 1)
gemm_lse(const unsigned char* __restrict__ A, const unsigned char* __restrict__ B,
         const float* __restrict__ inva, const float* __restrict__ invb,
         const float* __restrict__ bias, float2* __restrict__ part,
         int M, int N, int nk, int gm, int gn) {
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
        const int g = lane >> 2, tq = lane & 3;
        float d[128];
#pragma unroll
        for (int i = 0; i < 128; ++i) d[i] = 0.f;
        int slot = 0, prev = 0;
        unsigned phase = 0;
#pragma unroll 1
        for (int tile = tile0; tile < tiles; tile += step) {
            const int tn = tile % gn, tm = tile / gn;
#pragma unroll 1
            for (int kt = 0; kt < nk; ++kt) {
                bar_wait(full + 8 * slot, phase);
                const unsigned base = smb + slot * STAGEB;
                const uint64_t da = make_desc(base + wg * (TILEB / 2));
                const uint64_t db = make_desc(base + TILEB);
                asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
                // in units of 16 bytes: hi parts at 0 and 2, lo parts at 4 and 6
                wgmma(d, da + 4, db, kt > 0);
                wgmma(d, da, db + 4, 1);
                wgmma(d, da, db, 1);
                wgmma(d, da + 6, db + 2, 1);
                wgmma(d, da + 2, db + 6, 1);
                wgmma(d, da + 2, db + 2, 1);
                asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
                asm volatile("wgmma.wait_group.sync.aligned 1;\n" ::: "memory");
                if (kt > 0 && lane < 2) bar_arrive_cta(empty + 8 * prev, lane);
                __syncwarp();
                prev = slot;
                if (++slot == STAGES) { slot = 0; phase ^= 1u; }
            }
            asm volatile("wgmma.wait_group.sync.aligned 0;\n" ::: "memory");
#pragma unroll
            for (int i = 0; i < 128; ++i) asm volatile("" : "+f"(d[i])::"memory");
            if (lane < 2) bar_arrive_cta(empty + 8 * prev, lane);
            __syncwarp();

            const int row0 = (2 * tm + (int)rank) * 128 + wg * 64 + warp * 16 + g;
            const int row1 = row0 + 8;
            // inva and invb are padded to whole tiles
            const float ia0 = __ldg(inva + row0), ia1 = __ldg(inva + row1);
            float m0 = -INFINITY, m1 = -INFINITY;
#pragma unroll
            for (int j = 0; j < 32; ++j) {
                const int col = tn * 256 + j * 8 + 2 * tq;
                const float2 ib = __ldg(reinterpret_cast<const float2*>(invb + col));
                // beyond the edge: exp gives 0
                const float b0 = col < N ? __ldg(bias + col) : -INFINITY;
                const float b1 = col + 1 < N ? __ldg(bias + col + 1) : -INFINITY;
                // powers of two: the scaling back is exact
                d[4 * j + 0] = d[4 * j + 0] * ia0 * ib.x + b0;
                d[4 * j + 1] = d[4 * j + 1] * ia0 * ib.y + b1;
                d[4 * j + 2] = d[4 * j + 2] * ia1 * ib.x + b0;
                d[4 * j + 3] = d[4 * j + 3] * ia1 * ib.y + b1;
                m0 = fmaxf(m0, fmaxf(d[4 * j + 0], d[4 * j + 1]));
                m1 = fmaxf(m1, fmaxf(d[4 * j + 2], d[4 * j + 3]));
            }
            m0 = fmaxf(m0, __shfl_xor_sync(0xffffffffu, m0, 1));
            m1 = fmaxf(m1, __shfl_xor_sync(0xffffffffu, m1, 1));
            m0 = fmaxf(m0, __shfl_xor_sync(0xffffffffu, m0, 2));
            m1 = fmaxf(m1, __shfl_xor_sync(0xffffffffu, m1, 2));
            const float r0 = isinf(m0) ? 0.f : m0, r1 = isinf(m1) ? 0.f : m1;
            float e0 = 0.f, e1 = 0.f;
#pragma unroll
            for (int j = 0; j < 32; ++j) {
                e0 += expf(d[4 * j + 0] - r0) + expf(d[4 * j + 1] - r0);
                e1 += expf(d[4 * j + 2] - r1) + expf(d[4 * j + 3] - r1);
            }
            e0 += __shfl_xor_sync(0xffffffffu, e0, 1);
            e1 += __shfl_xor_sync(0xffffffffu, e1, 1);
            e0 += __shfl_xor_sync(0xffffffffu, e0, 2);
            e1 += __shfl_xor_sync(0xffffffffu, e1, 2);
            if (tq == 0 && row0 < M) part[(int64_t)row0 * gn + tn] = make_float2(m0, e0);
            if (tq == 0 && row1 < M) part[(int64_t)row1 * gn + tn] = make_float2(m1, e1);
        }
        __syncwarp();
    }
    cluster_sync_all();      // the other CTA may still signal barriers of this one
}

__global__ void __launch_bounds__(256)
merge_lse(const float2* __restrict__ part, float* __restrict__ out, int M, int parts) {
    const int row = blockIdx.x * 8 + (threadIdx.x >> 5), lane = threadIdx.x & 31;
    if (row >= M) return;
    const float2* p = part + (int64_t)row * parts;
    float m = -INFINITY;
    for (int i = lane; i < parts; i += 32) m = fmaxf(m, p[i].x);
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, o));
    const bool inf = isinf(m);
    float e = 0.f;
    for (int i = lane; i < parts; i += 32) {
        const float2 v = p[i];
        // parts without a finite maximum carry sums relative to 0
        e += inf ? v.y : v.y * (isinf(v.x) ? 1.f : expf(v.x - m));
    }
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) e += __shfl_xor_sync(0xffffffffu, e, o);
    if (lane == 0) out[row] = inf ? logf(e) : m + logf(e);
}

torch::Tensor linear_logsumexp(torch::Tensor x_, torch::Tensor w_, torch::Tensor b_) {
    TORCH_CHECK(x_.is_cuda() && x_.scalar_type() == at::kFloat && x_.dim() == 2,
                "float32 CUDA matrix expected");
    auto x = x_.detach().contiguous();
    auto w = w_.detach().contiguous();
    auto b = b_.detach().contiguous();
    const int M = (int)x.size(0), K = (int)x.size(1), N = (int)w.size(0);
    TORCH_CHECK(w.size(1) == K && N > 0 && K > 0, "unexpected weights");
    auto out = at::empty({M}, x.options());
    if (M == 0) return out;
    auto stream = at::cuda::getCurrentCUDAStream();
    const float* xp = x.data_ptr<float>();
    const float* wp = w.data_ptr<float>();
    const int va = (K % 4 == 0) && (reinterpret_cast<uintptr_t>(xp) & 15) == 0;
    const int vb = (K % 4 == 0) && (reinterpret_cast<uintptr_t>(wp) & 15) == 0;
    const int nk = (K + BK - 1) / BK, Kp = nk * BK;
    const int gm = (M + 255) / 256, gn = (N + 255) / 256;
    const int Mp = gm * 256, Np = gn * 256;
    const int64_t rows = (int64_t)Mp + Np;
    auto pack = at::empty({rows * 2 * Kp}, x.options().dtype(at::kHalf));
    auto inv = at::empty({rows}, x.options());
    unsigned char* kp = reinterpret_cast<unsigned char*>(pack.data_ptr());
    float* ip = inv.data_ptr<float>();
    split_rows<<<(unsigned)((rows + 7) / 8), 256, 0, stream>>>(xp, wp, kp, ip, M, N, Mp, Np,
                                                               K, Kp, va, vb);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    auto part = at::empty({M, gn, 2}, x.options());
    float2* pp = reinterpret_cast<float2*>(part.data_ptr<float>());
    C10_CUDA_CHECK(cudaFuncSetAttribute(gemm_lse,
                                        cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM));
    const int sms = at::cuda::getCurrentDeviceProperties()->multiProcessorCount;
    const int clusters = std::max(1, std::min(gm * gn, sms / 2));
    gemm_lse<<<2 * clusters, 384, SMEM, stream>>>(kp, kp + (int64_t)Mp * 4 * Kp, ip, ip + Mp,
                                                  b.data_ptr<float>(), pp, M, N, nk, gm, gn);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    merge_lse<<<(M + 7) / 8, 256, 0, stream>>>(pp, out.data_ptr<float>(), M, gn);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return out;
}
"""

CUDA = CUDA.replace("@REGS@", ", ".join("%%%d" % i for i in range(128)))
CUDA = CUDA.replace("@OPS@", ", ".join('"+f"(d[%d])' % i for i in range(128)))

ext = load_inline(
    name="linear_logsumexp_fp32_split_wgmma_v4",
    cpp_sources=CPP,
    cuda_sources=CUDA,
    functions=["linear_logsumexp"],
    extra_cuda_cflags=["-O3", "-gencode=arch=compute_90a,code=sm_90a"],
)


class ModelNew(nn.Module):
    def __init__(self, inner: int, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inner, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return ext.linear_logsumexp(x, self.linear.weight, self.linear.bias)

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

_cpp_src = r"""
#include <torch/types.h>
torch::Tensor logcumsumexp_rows(torch::Tensor x);
"""

_cuda_src = r"""
#include <torch/types.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <cuda_runtime.h>
#include <cstdint>

namespace {

constexpr int THREADS = 256;
constexpr int WARPS = THREADS / 32;      // 8
constexpr int PER_WARP = 256;            // two tiles of 128 elements
constexpr int CHUNK = WARPS * PER_WARP;  // 2048
constexpr int STAGES = 3;                // rows kept in flight per block (FULL)
constexpr int BLOCKS_PER_SM = 4;
constexpr uint32_t ROW_BYTES = CHUNK * sizeof(float);
constexpr unsigned FULL_MASK = 0xffffffffu;
constexpr float LOG2E = 1.4426950408889634f;
constexpr float LN2 = 0.6931471805599453f;
// largest (warp max - warp min) for which the shared reference is used
constexpr float SAFE_RANGE = 40.0f;

__device__ __forceinline__ float neg_inf() { return __int_as_float(0xff800000); }
__device__ __forceinline__ float pos_inf() { return __int_as_float(0x7f800000); }

__device__ __forceinline__ float ex2f(float a) {
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(a));
    return r;
}
__device__ __forceinline__ float lg2f(float a) {
    float r;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(a));
    return r;
}

__device__ __forceinline__ uint32_t smem_addr(const void* p) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ void bar_init(uint32_t bar) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(bar) : "memory");
}

// Start the copy of one row into shared memory; completes on the barrier.
__device__ __forceinline__ void load_row(uint32_t dst, const float* src, uint32_t bar) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 ::"r"(bar), "r"(ROW_BYTES) : "memory");
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
        ::"r"(dst), "l"(src), "r"(ROW_BYTES), "r"(bar) : "memory");
}

__device__ __forceinline__ void bar_wait(uint32_t bar, uint32_t parity) {
    uint32_t done;
    do {
        asm volatile(
            "{\n"
            ".reg .pred p;\n"
            "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
            "selp.u32 %0, 1, 0, p;\n"
            "}\n"
            : "=r"(done) : "r"(bar), "r"(parity) : "memory");
    } while (!done);
}

// Stands for s * exp(m). m is never NaN; a NaN is carried in s.
struct Pair {
    float m, s;
};

__device__ __forceinline__ Pair ident() {
    Pair p;
    p.m = neg_inf();
    p.s = 0.0f;
    return p;
}

__device__ __forceinline__ Pair elem(float x) {
    Pair p;
    const bool bad = (x != x);
    p.m = bad ? neg_inf() : x;
    p.s = bad ? x : 1.0f;
    return p;
}

__device__ __forceinline__ Pair comb(Pair a, Pair b) {
    Pair r;
    if (a.m == b.m) {
        r.m = a.m;
        r.s = a.s + b.s;
    } else if (a.m > b.m) {
        r.m = a.m;
        r.s = a.s + b.s * expf(b.m - a.m);
    } else {
        r.m = b.m;
        r.s = b.s + a.s * expf(a.m - b.m);
    }
    return r;
}

// FULL: cols == CHUNK; a block takes rows blockIdx.x, blockIdx.x + gridDim.x, ...
// otherwise: one block per row, looping over its chunks.
template <bool FULL>
__global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
logcumsumexp_kernel(const float* __restrict__ x, float* __restrict__ y, int64_t rows,
                    int64_t cols) {
    __shared__ alignas(128) float ring[FULL ? STAGES * CHUNK : 32];
    __shared__ alignas(8) uint64_t bars[STAGES];
    __shared__ float sm_m[2][WARPS];
    __shared__ float sm_s[2][WARPS];

    const int lane = threadIdx.x & 31;
    const int warp = threadIdx.x >> 5;
    const int64_t width = FULL ? (int64_t)CHUNK : cols;
    const int64_t first = (int64_t)blockIdx.x * width;
    // distance in memory between the pieces of successive iterations
    const int64_t step = FULL ? (int64_t)gridDim.x * CHUNK : (int64_t)CHUNK;
    const int iters = FULL
        ? static_cast<int>((rows - (int64_t)blockIdx.x + (int64_t)gridDim.x - 1) / (int64_t)gridDim.x)
        : static_cast<int>((width + CHUNK - 1) / CHUNK);
    const float* xr = x + first;
    float* yr = y + first;
    const int base = warp * PER_WARP + lane * 4;

    const uint32_t ring_addr = smem_addr(ring);
    const uint32_t bars_addr = smem_addr(bars);

    if (FULL) {
        if (threadIdx.x == 0) {
#pragma unroll
            for (int s = 0; s < STAGES; ++s) bar_init(bars_addr + s * 8);
            asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#pragma unroll
            for (int s = 0; s < STAGES; ++s) {
                if (s < iters) load_row(ring_addr + s * ROW_BYTES, xr + s * step, bars_addr + s * 8);
            }
        }
        __syncthreads();
    }

    int stage = 0;
    uint32_t phase = 0;

    Pair run = ident();  // everything before this chunk (general width only)

#pragma unroll 1
    for (int it = 0; it < iters; ++it) {
        const int64_t c0 = FULL ? (int64_t)0 : (int64_t)it * CHUNK;
        const int buf = it & 1;
        float v[8];
        if (FULL) {
            bar_wait(bars_addr + stage * 8, phase);
            const float* src = ring + stage * CHUNK + base;
            const float4 a = *reinterpret_cast<const float4*>(src);
            const float4 b = *reinterpret_cast<const float4*>(src + 128);
            v[0] = a.x; v[1] = a.y; v[2] = a.z; v[3] = a.w;
            v[4] = b.x; v[5] = b.y; v[6] = b.z; v[7] = b.w;
        } else {
#pragma unroll
            for (int k = 0; k < 8; ++k) {
                const int64_t idx = c0 + base + (k >> 2) * 128 + (k & 3);
                v[k] = idx < width ? xr[idx] : neg_inf();
            }
        }
        const float x0 = v[0];

        // Warp maximum (NaN ignored: it shows up in the sums).
        float mx = neg_inf(), mn = pos_inf();
#pragma unroll
        for (int k = 0; k < 8; ++k) {
            mx = fmaxf(mx, v[k]);
            mn = fminf(mn, v[k]);
        }
#pragma unroll
        for (int o = 16; o > 0; o >>= 1) mx = fmaxf(mx, __shfl_xor_sync(FULL_MASK, mx, o));
        const bool lane_ok = (mx < pos_inf()) && (mx > neg_inf()) && (mn >= mx - SAFE_RANGE);
        const bool ok = __all_sync(FULL_MASK, lane_ok) != 0;  // same for the whole warp

        Pair total;
        float e0 = 0.0f, e1 = 0.0f;
        if (ok) {
            const float m = mx;
#pragma unroll
            for (int k = 0; k < 8; ++k) v[k] = ex2f((v[k] - m) * LOG2E);
            v[1] += v[0];
            v[5] += v[4];
            v[2] += v[1];
            v[6] += v[5];
            v[3] += v[2];
            v[7] += v[6];
            float i0 = v[3], i1 = v[7];
#pragma unroll
            for (int o = 1; o < 32; o <<= 1) {
                const float q0 = __shfl_up_sync(FULL_MASK, i0, o);
                const float q1 = __shfl_up_sync(FULL_MASK, i1, o);
                if (lane >= o) {
                    i0 += q0;
                    i1 += q1;
                }
            }
            e0 = __shfl_up_sync(FULL_MASK, i0, 1);
            e1 = __shfl_up_sync(FULL_MASK, i1, 1);
            const float t0 = __shfl_sync(FULL_MASK, i0, 31);
            const float t1 = __shfl_sync(FULL_MASK, i1, 31);
            if (lane == 0) {
                e0 = 0.0f;
                e1 = 0.0f;
            }
            e1 += t0;
            total.m = m;
            total.s = t0 + t1;
        } else {
            total = ident();
#pragma unroll
            for (int k = 0; k < 8; ++k) total = comb(total, elem(v[k]));
#pragma unroll 1
            for (int o = 16; o > 0; o >>= 1) {
                Pair q;
                q.m = __shfl_xor_sync(FULL_MASK, total.m, o);
                q.s = __shfl_xor_sync(FULL_MASK, total.s, o);
                total = comb(total, q);
            }
        }

        // Two sets of totals in turn: a set is rewritten only after the barrier
        // of the iteration in between, when all warps have read it.
        if (lane == 0) {
            sm_m[buf][warp] = total.m;
            sm_s[buf][warp] = total.s;
        }
        __syncthreads();

        if (FULL) {
            // All warps hold this row in registers: its slot takes a later row.
            if (threadIdx.x == 0 && it + STAGES < iters) {
                load_row(ring_addr + stage * ROW_BYTES, xr + STAGES * step, bars_addr + stage * 8);
            }
            if (++stage == STAGES) {
                stage = 0;
                phase ^= 1u;
            }
        }

        // Sum over the warps before this one, in every group of 8 lanes.
        Pair c;
        {
            const int w = lane & (WARPS - 1);
            const bool use = w < warp;
            const float pm = use ? sm_m[buf][w] : neg_inf();
            const float ps = use ? sm_s[buf][w] : 0.0f;
            float cm = pm;
#pragma unroll
            for (int o = WARPS / 2; o > 0; o >>= 1)
                cm = fmaxf(cm, __shfl_xor_sync(FULL_MASK, cm, o));
            float cs = (pm == cm) ? ps : ps * ex2f((pm - cm) * LOG2E);
#pragma unroll
            for (int o = WARPS / 2; o > 0; o >>= 1)
                cs += __shfl_xor_sync(FULL_MASK, cs, o);
            c.m = cm;
            c.s = cs;
        }
        if (!FULL) c = comb(run, c);

        if (ok) {
            const float m = total.m;
            const float M = fmaxf(c.m, m);
            const float a = (c.m >= m) ? c.s : c.s * ex2f((c.m - m) * LOG2E);
            const float b = (c.m > m) ? ex2f((m - c.m) * LOG2E) : 1.0f;
            const float f0 = fmaf(b, e0, a);
            const float f1 = fmaf(b, e1, a);
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                v[k] = fmaf(lg2f(fmaf(b, v[k], f0)), LN2, M);
                v[k + 4] = fmaf(lg2f(fmaf(b, v[k + 4], f1)), LN2, M);
            }
            // the first output of a row is its first input
            if (threadIdx.x == 0 && c0 == 0) v[0] = x0;
        } else {
#pragma unroll
            for (int t = 0; t < 2; ++t) {
                Pair p = ident();
#pragma unroll
                for (int k = 0; k < 4; ++k) p = comb(p, elem(v[t * 4 + k]));
#pragma unroll 1
                for (int o = 1; o < 32; o <<= 1) {
                    Pair q;
                    q.m = __shfl_up_sync(FULL_MASK, p.m, o);
                    q.s = __shfl_up_sync(FULL_MASK, p.s, o);
                    if (lane >= o) p = comb(q, p);
                }
                Pair ex, tile;
                ex.m = __shfl_up_sync(FULL_MASK, p.m, 1);
                ex.s = __shfl_up_sync(FULL_MASK, p.s, 1);
                tile.m = __shfl_sync(FULL_MASK, p.m, 31);
                tile.s = __shfl_sync(FULL_MASK, p.s, 31);
                if (lane == 0) ex = ident();
                Pair r = comb(c, ex);
#pragma unroll
                for (int k = 0; k < 4; ++k) {
                    r = comb(r, elem(v[t * 4 + k]));
                    v[t * 4 + k] = r.m + logf(r.s);
                }
                c = comb(c, tile);
            }
        }

        if (FULL) {
            __stcs(reinterpret_cast<float4*>(yr + base), make_float4(v[0], v[1], v[2], v[3]));
            __stcs(reinterpret_cast<float4*>(yr + base + 128), make_float4(v[4], v[5], v[6], v[7]));
            xr += step;
            yr += step;
        } else {
#pragma unroll
            for (int k = 0; k < 8; ++k) {
                const int64_t idx = c0 + base + (k >> 2) * 128 + (k & 3);
                if (idx < width) yr[idx] = v[k];
            }
#pragma unroll 1
            for (int w = 0; w < WARPS; ++w) {
                Pair q;
                q.m = sm_m[buf][w];
                q.s = sm_s[buf][w];
                run = comb(run, q);
            }
            __syncthreads();  // shared totals are rewritten by the next chunk
        }
    }
}

}  // namespace

torch::Tensor logcumsumexp_rows(torch::Tensor x) {
    TORCH_CHECK(x.is_cuda(), "x must be a CUDA tensor");
    TORCH_CHECK(x.scalar_type() == at::kFloat, "x must be float32");
    TORCH_CHECK(x.dim() == 2, "x must have two dimensions");
    at::Tensor xc = x.contiguous();
    at::Tensor y = at::empty(xc.sizes(), xc.options());
    const int64_t rows = xc.size(0);
    const int64_t cols = xc.size(1);
    if (rows == 0 || cols == 0) return y;
    TORCH_CHECK(rows <= 2147483647LL, "too many rows");

    const float* xp = xc.data_ptr<float>();
    float* yp = y.data_ptr<float>();
    cudaStream_t stream = at::cuda::getCurrentCUDAStream();
    const bool aligned = (reinterpret_cast<uintptr_t>(xp) % 16 == 0) &&
                         (reinterpret_cast<uintptr_t>(yp) % 16 == 0);
    if (cols == CHUNK && aligned) {
        // All blocks resident at once, with equally many rows each.
        const int64_t slots =
            (int64_t)at::cuda::getCurrentDeviceProperties()->multiProcessorCount * BLOCKS_PER_SM;
        const int64_t per_block = (rows + slots - 1) / slots;
        const int64_t blocks = (rows + per_block - 1) / per_block;
        const dim3 grid(static_cast<unsigned>(blocks));
        logcumsumexp_kernel<true><<<grid, THREADS, 0, stream>>>(xp, yp, rows, cols);
    } else {
        const dim3 grid(static_cast<unsigned>(rows));
        logcumsumexp_kernel<false><<<grid, THREADS, 0, stream>>>(xp, yp, rows, cols);
    }
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return y;
}
"""

_ext = load_inline(
    name="logcumsumexp_rows_v2_ring",
    cpp_sources=_cpp_src,
    cuda_sources=_cuda_src,
    functions=["logcumsumexp_rows"],
    extra_cuda_cflags=["-O3"],
    verbose=False,
)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _ext.logcumsumexp_rows(x)

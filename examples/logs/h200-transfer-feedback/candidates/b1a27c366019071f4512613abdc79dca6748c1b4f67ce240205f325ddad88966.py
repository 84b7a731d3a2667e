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
constexpr unsigned FULL_MASK = 0xffffffffu;
constexpr float LOG2E = 1.4426950408889634f;
constexpr float LN2 = 0.6931471805599453f;
// largest (warp max - warp min) for which the shared reference is used
constexpr float SAFE_RANGE = 40.0f;
// largest |x| for which exp(x) is summed as it is: exp(-40) is far from the
// smallest normal number and 2048 * exp(40) far from the largest
constexpr float SAFE_ABS = 40.0f;

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

// One row by one block, any values: reference is the maximum.
template <bool FULL>
__device__ __forceinline__ void row_general(const float* __restrict__ xr,
                                            float* __restrict__ yr, int64_t cols) {
    __shared__ float sm_m[WARPS];
    __shared__ float sm_s[WARPS];

    const int lane = threadIdx.x & 31;
    const int warp = threadIdx.x >> 5;
    const int64_t width = FULL ? (int64_t)CHUNK : cols;
    const int base = warp * PER_WARP + lane * 4;

    Pair run = ident();  // everything before this chunk (general width only)

    for (int64_t c0 = 0; c0 < width; c0 += CHUNK) {
        float v[8];
        if (FULL) {
            const float4 a = *reinterpret_cast<const float4*>(xr + base);
            const float4 b = *reinterpret_cast<const float4*>(xr + base + 128);
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

        if (lane == 0) {
            sm_m[warp] = total.m;
            sm_s[warp] = total.s;
        }
        __syncthreads();

        // Sum over the warps before this one, in every group of 8 lanes.
        Pair c;
        {
            const int w = lane & (WARPS - 1);
            const bool use = w < warp;
            const float pm = use ? sm_m[w] : neg_inf();
            const float ps = use ? sm_s[w] : 0.0f;
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
        } else {
#pragma unroll
            for (int k = 0; k < 8; ++k) {
                const int64_t idx = c0 + base + (k >> 2) * 128 + (k & 3);
                if (idx < width) yr[idx] = v[k];
            }
#pragma unroll 1
            for (int w = 0; w < WARPS; ++w) {
                Pair q;
                q.m = sm_m[w];
                q.s = sm_s[w];
                run = comb(run, q);
            }
            __syncthreads();  // shared totals are rewritten by the next chunk
        }
    }
}

// Out of line, so that its registers do not burden the additive path.
__device__ __noinline__ void row_full_width(const float* xr, float* yr) {
    row_general<true>(xr, yr, (int64_t)CHUNK);
}

// Any width.
__global__ void __launch_bounds__(THREADS, 6)
logcumsumexp_general_kernel(const float* __restrict__ x, float* __restrict__ y, int64_t cols) {
    const int64_t row = blockIdx.x;
    row_general<false>(x + row * cols, y + row * cols, cols);
}

// Width CHUNK, 16-byte aligned: additive scan of exp(x), one reference (0) for the row.
__global__ void __launch_bounds__(THREADS, 8)
logcumsumexp_full_kernel(const float* __restrict__ x, float* __restrict__ y) {
    __shared__ __align__(16) float tot[WARPS];

    const int lane = threadIdx.x & 31;
    const int warp = threadIdx.x >> 5;
    const int base = warp * PER_WARP + lane * 4;
    const int64_t row_off = (int64_t)blockIdx.x * CHUNK;
    const float* xr = x + row_off;
    float* yr = y + row_off;

    float v[8];
    {
        const float4 a = *reinterpret_cast<const float4*>(xr + base);
        const float4 b = *reinterpret_cast<const float4*>(xr + base + 128);
        v[0] = a.x; v[1] = a.y; v[2] = a.z; v[3] = a.w;
        v[4] = b.x; v[5] = b.y; v[6] = b.z; v[7] = b.w;
    }
    const float x0 = v[0];

    // false for NaN as well
    bool lane_ok = true;
#pragma unroll
    for (int k = 0; k < 8; ++k) lane_ok = lane_ok & (fabsf(v[k]) <= SAFE_ABS);

#pragma unroll
    for (int k = 0; k < 8; ++k) v[k] = ex2f(v[k] * LOG2E);
    v[1] += v[0];
    v[5] += v[4];
    v[2] += v[1];
    v[6] += v[5];
    v[3] += v[2];
    v[7] += v[6];

    // A lane out of range makes the total of its warp NaN.
    float i0 = v[3];
    float i1 = lane_ok ? v[7] : __int_as_float(0x7fffffff);
#pragma unroll
    for (int o = 1; o < 32; o <<= 1) {
        const float q0 = __shfl_up_sync(FULL_MASK, i0, o);
        const float q1 = __shfl_up_sync(FULL_MASK, i1, o);
        if (lane >= o) {
            i0 += q0;
            i1 += q1;
        }
    }
    if (lane == 31) tot[warp] = i0 + i1;

    float e0 = __shfl_up_sync(FULL_MASK, i0, 1);
    float e1 = __shfl_up_sync(FULL_MASK, i1, 1);
    const float t0 = __shfl_sync(FULL_MASK, i0, 31);
    if (lane == 0) {
        e0 = 0.0f;
        e1 = 0.0f;
    }
    e1 += t0;
    __syncthreads();

    // Sum over the warps before this one; the sum over all says whether the row is in range.
    float c = 0.0f;
    float all;
    {
        const float4 ta = *reinterpret_cast<const float4*>(tot);
        const float4 tb = *reinterpret_cast<const float4*>(tot + 4);
        all = ta.x;
        if (warp == 1) c = all;
        all += ta.y;
        if (warp == 2) c = all;
        all += ta.z;
        if (warp == 3) c = all;
        all += ta.w;
        if (warp == 4) c = all;
        all += tb.x;
        if (warp == 5) c = all;
        all += tb.y;
        if (warp == 6) c = all;
        all += tb.z;
        if (warp == 7) c = all;
        all += tb.w;
    }

    if (all != all) {  // the same for the whole block
        row_full_width(xr, yr);
        return;
    }

    const float f0 = e0 + c;
    const float f1 = e1 + c;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        v[k] = lg2f(v[k] + f0) * LN2;
        v[k + 4] = lg2f(v[k + 4] + f1) * LN2;
    }
    // the first output of a row is its first input
    if (threadIdx.x == 0) v[0] = x0;

    __stcs(reinterpret_cast<float4*>(yr + base), make_float4(v[0], v[1], v[2], v[3]));
    __stcs(reinterpret_cast<float4*>(yr + base + 128), make_float4(v[4], v[5], v[6], v[7]));
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
    const dim3 grid(static_cast<unsigned>(rows));
    if (cols == CHUNK && aligned) {
        logcumsumexp_full_kernel<<<grid, THREADS, 0, stream>>>(xp, yp);
    } else {
        logcumsumexp_general_kernel<<<grid, THREADS, 0, stream>>>(xp, yp, cols);
    }
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return y;
}
"""

_ext = load_inline(
    name="logcumsumexp_rows_v2",
    cpp_sources=_cpp_src,
    cuda_sources=_cuda_src,
    functions=["logcumsumexp_rows"],
    extra_cuda_cflags=["-O3"],
    verbose=False,
)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _ext.logcumsumexp_rows(x)

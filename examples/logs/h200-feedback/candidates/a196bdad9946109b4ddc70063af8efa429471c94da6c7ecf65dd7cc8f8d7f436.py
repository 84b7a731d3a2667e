import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

_CPP = r"""
at::Tensor softmax_rows(const at::Tensor& x);
"""

_CUDA = r"""
#include <torch/types.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <cstdint>

constexpr int THREADS = 256;
constexpr int WARPS = THREADS / 32;
constexpr int STAGES = 3;           // rows in flight per block
constexpr int BLOCKS_PER_SM = 4;

__device__ __forceinline__ float neg_inf() { return __int_as_float(0xff800000); }

__device__ __forceinline__ float warp_max(float v) {
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, o));
    return v;
}

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
    return v;
}

// Announce `bytes` on the barrier and start the bulk copy of one row into shared memory.
__device__ __forceinline__ void fetch_row(uint32_t dst, const float4* src, uint32_t bytes,
                                          uint32_t bar) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :: "r"(bar), "r"(bytes) : "memory");
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
        :: "r"(dst), "l"(__cvta_generic_to_global(src)), "r"(bytes), "r"(bar) : "memory");
}

__device__ __forceinline__ void wait_full(uint32_t bar, uint32_t parity) {
    uint32_t done = 0;
    while (!done) {
        asm volatile(
            "{\n\t"
            ".reg .pred p;\n\t"
            "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
            "selp.u32 %0, 1, 0, p;\n\t"
            "}\n"
            : "=r"(done) : "r"(bar), "r"(parity) : "memory");
    }
}

// width == 4 * THREADS * V exactly; a block takes the rows blockIdx.x, blockIdx.x + gridDim.x, ...
// They pass through a ring of STAGES rows in shared memory, then are kept in registers.
template <int V>
__global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
softmax_reg_kernel(const float4* __restrict__ x, float4* __restrict__ out, int64_t rows) {
    constexpr int W4 = V * THREADS;
    constexpr uint32_t BYTES = (uint32_t)(W4 * sizeof(float4));
    extern __shared__ __align__(128) float4 ring[];
    __shared__ alignas(8) unsigned long long full[STAGES];
    __shared__ float warp_m[2][WARPS];
    __shared__ float warp_s[2][WARPS];
    const int tid = (int)threadIdx.x;
    const int64_t step = (int64_t)gridDim.x;
    const uint32_t ring_addr = (uint32_t)__cvta_generic_to_shared(ring);
    const uint32_t full_addr = (uint32_t)__cvta_generic_to_shared(full);

    if (tid == 0) {
#pragma unroll
        for (int i = 0; i < STAGES; ++i)
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;"
                         :: "r"(full_addr + 8u * i) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#pragma unroll
        for (int i = 0; i < STAGES; ++i) {
            const int64_t r = (int64_t)blockIdx.x + i * step;
            if (r < rows) fetch_row(ring_addr + i * BYTES, x + r * W4, BYTES, full_addr + 8u * i);
        }
    }
    __syncthreads();                                   // the barriers are initialised for all

    int stage = 0;
    uint32_t parity = 0;
    int slot = 0;
    for (int64_t row = blockIdx.x; row < rows; row += step) {
        wait_full(full_addr + 8u * stage, parity);
        __syncwarp();
        float4 v[V];
#pragma unroll
        for (int i = 0; i < V; ++i) v[i] = ring[stage * W4 + tid + i * THREADS];

        float m = neg_inf();
#pragma unroll
        for (int i = 0; i < V; ++i)
            m = fmaxf(m, fmaxf(fmaxf(v[i].x, v[i].y), fmaxf(v[i].z, v[i].w)));
        m = warp_max(m);
        const float shift = (m == neg_inf()) ? 0.0f : m;   // a warp of only -inf gives zeros

        float s = 0.0f;
#pragma unroll
        for (int i = 0; i < V; ++i) {
            v[i].x = __expf(v[i].x - shift);
            v[i].y = __expf(v[i].y - shift);
            v[i].z = __expf(v[i].z - shift);
            v[i].w = __expf(v[i].w - shift);
            s += (v[i].x + v[i].y) + (v[i].z + v[i].w);
        }
        s = warp_sum(s);

        // Two slots in turn: a slot is written again only after the next row's barrier.
        if ((tid & 31) == 0) {
            warp_m[slot][tid >> 5] = m;
            warp_s[slot][tid >> 5] = s;
        }
        __syncthreads();

        // All threads have taken this stage's row into registers: refill it.
        if (tid == 0) {
            const int64_t next = row + STAGES * step;
            if (next < rows)
                fetch_row(ring_addr + stage * BYTES, x + next * W4, BYTES, full_addr + 8u * stage);
        }

        float row_m = neg_inf();
#pragma unroll
        for (int i = 0; i < WARPS; ++i) row_m = fmaxf(row_m, warp_m[slot][i]);
        float row_s = 0.0f;
#pragma unroll
        for (int i = 0; i < WARPS; ++i)
            row_s += warp_s[slot][i] * __expf(warp_m[slot][i] - row_m);
        const float f = __expf(m - row_m) / row_s;

        const int64_t base = row * W4 + tid;
#pragma unroll
        for (int i = 0; i < V; ++i) {
            float4 o;
            o.x = v[i].x * f;
            o.y = v[i].y * f;
            o.z = v[i].z * f;
            o.w = v[i].w * f;
            __stcs(out + base + i * THREADS, o);
        }

        slot ^= 1;
        if (++stage == STAGES) {
            stage = 0;
            parity ^= 1u;
        }
    }
}

template <int V>
static void launch_rows(const float4* x, float4* out, int64_t rows, cudaStream_t stream) {
    constexpr int BYTES = STAGES * V * THREADS * (int)sizeof(float4);
    C10_CUDA_CHECK(cudaFuncSetAttribute(softmax_reg_kernel<V>,
                                        cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES));
    const int64_t resident =
        (int64_t)at::cuda::getCurrentDeviceProperties()->multiProcessorCount * BLOCKS_PER_SM;
    const unsigned grid = (unsigned)(rows < resident ? rows : resident);
    softmax_reg_kernel<V><<<grid, THREADS, BYTES, stream>>>(x, out, rows);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
}

// Any width, any alignment.
__global__ void __launch_bounds__(THREADS)
softmax_any_kernel(const float* __restrict__ x, float* __restrict__ out, int64_t width) {
    __shared__ float slot_m[WARPS];
    __shared__ float slot_s[WARPS];
    const int tid = (int)threadIdx.x;
    const float* row = x + (int64_t)blockIdx.x * width;
    float* dst = out + (int64_t)blockIdx.x * width;

    float m = neg_inf();
    for (int64_t c = tid; c < width; c += THREADS) m = fmaxf(m, row[c]);
    m = warp_max(m);
    if ((tid & 31) == 0) slot_m[tid >> 5] = m;
    __syncthreads();
    m = neg_inf();
#pragma unroll
    for (int i = 0; i < WARPS; ++i) m = fmaxf(m, slot_m[i]);

    float s = 0.0f;
    for (int64_t c = tid; c < width; c += THREADS) s += __expf(row[c] - m);
    s = warp_sum(s);
    if ((tid & 31) == 0) slot_s[tid >> 5] = s;
    __syncthreads();
    s = 0.0f;
#pragma unroll
    for (int i = 0; i < WARPS; ++i) s += slot_s[i];
    const float f = 1.0f / s;

    for (int64_t c = tid; c < width; c += THREADS) dst[c] = __expf(row[c] - m) * f;
}

static inline bool aligned16(const void* p) {
    return (reinterpret_cast<uintptr_t>(p) & 15u) == 0;
}

at::Tensor softmax_rows(const at::Tensor& x_in) {
    TORCH_CHECK(x_in.is_cuda(), "x must be on CUDA");
    TORCH_CHECK(x_in.scalar_type() == at::kFloat, "x must be float32");
    TORCH_CHECK(x_in.dim() == 2, "x must be a matrix");
    const c10::cuda::CUDAGuard guard(x_in.device());

    const at::Tensor x = x_in.contiguous();
    at::Tensor out = at::empty(x.sizes(), x.options());
    if (x.numel() == 0) return out;
    const int64_t rows = x.size(0);
    const int64_t width = x.size(1);
    TORCH_CHECK(rows <= 2147483647LL, "too many rows");

    const float* xp = x.data_ptr<float>();
    float* op = out.data_ptr<float>();
    cudaStream_t stream = at::cuda::getCurrentCUDAStream();
    const unsigned grid = (unsigned)rows;

    const bool vec = aligned16(xp) && aligned16(op);
    const float4* x4 = reinterpret_cast<const float4*>(xp);
    float4* o4 = reinterpret_cast<float4*>(op);
    if (vec && width == 4 * THREADS * 4) {
        launch_rows<4>(x4, o4, rows, stream);
    } else if (vec && width == 4 * THREADS * 2) {
        launch_rows<2>(x4, o4, rows, stream);
    } else if (vec && width == 4 * THREADS) {
        launch_rows<1>(x4, o4, rows, stream);
    } else {
        softmax_any_kernel<<<grid, THREADS, 0, stream>>>(xp, op, width);
    }
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return out;
}
"""

_ext = load_inline(
    name="softmax_rows_ext",
    cpp_sources=_CPP,
    cuda_sources=_CUDA,
    functions=["softmax_rows"],
    extra_cuda_cflags=["-O3"],
)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _ext.softmax_rows(x)

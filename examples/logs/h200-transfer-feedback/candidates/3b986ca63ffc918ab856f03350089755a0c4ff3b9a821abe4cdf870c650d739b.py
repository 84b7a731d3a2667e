import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

_CPP_SRC = r"""
torch::Tensor cosine_distance_rows(torch::Tensor x, torch::Tensor y);
"""

_CUDA_SRC = r"""
#include <torch/types.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime.h>
#include <algorithm>
#include <cstdint>

namespace {

constexpr int kThreads = 128;
constexpr int kRowsPerBlock = kThreads / 32;
constexpr float kEps = 1e-8f;

// Persistent ring kernel: warps per block and row pairs in flight per warp.
constexpr int kRingWarps = 8;
constexpr int kRingThreads = kRingWarps * 32;
constexpr int kStages = 4;

template <int VEC>
struct Ring {
    static constexpr int kRowBytes = VEC * 32 * 16;
    static constexpr int kPairBytes = 2 * kRowBytes;
    static constexpr int kDataBytes = kRingWarps * kStages * kPairBytes;
    static constexpr int kSmemBytes = kDataBytes + kRingWarps * kStages * 8;
};

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
    for (int m = 16; m > 0; m >>= 1) {
        v += __shfl_xor_sync(0xffffffffu, v, m);
    }
    return v;
}

__device__ __forceinline__ float finish(float dot, float xx, float yy) {
    const float nx = fmaxf(sqrtf(xx), kEps);
    const float ny = fmaxf(sqrtf(yy), kEps);
    return 1.0f - (dot / nx) / ny;
}

__device__ __forceinline__ void mbar_init(uint32_t bar, uint32_t count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(bar), "r"(count) : "memory");
}

__device__ __forceinline__ void mbar_expect_tx(uint32_t bar, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :: "r"(bar), "r"(bytes) : "memory");
}

__device__ __forceinline__ void mbar_wait(uint32_t bar, uint32_t parity) {
    uint32_t done = 0;
    do {
        asm volatile(
            "{\n\t"
            ".reg .pred p;\n\t"
            "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
            "selp.u32 %0, 1, 0, p;\n\t"
            "}"
            : "=r"(done)
            : "r"(bar), "r"(parity)
            : "memory");
    } while (done == 0);
}

__device__ __forceinline__ void bulk_load(uint32_t dst, const void* src, uint32_t bytes,
                                          uint32_t bar) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
        :: "r"(dst), "l"(src), "r"(bytes), "r"(bar)
        : "memory");
}

// One warp per row at a time; the row has exactly VEC * 32 float4 values.
// Every warp owns kStages slots (x row, then y row) and their barriers.
template <int VEC>
__global__ void __launch_bounds__(kRingThreads, 1)
cosine_rows_ring(const float* __restrict__ x, const float* __restrict__ y,
                 float* __restrict__ out, int64_t rows) {
    using R = Ring<VEC>;
    extern __shared__ __align__(128) unsigned char smem[];

    const int lane = threadIdx.x & 31;
    const int warp = threadIdx.x >> 5;

    unsigned char* slots = smem + warp * (kStages * R::kPairBytes);
    const uint32_t slots_addr = (uint32_t)__cvta_generic_to_shared(slots);
    const uint32_t bars_addr =
        (uint32_t)__cvta_generic_to_shared(smem + R::kDataBytes + warp * (kStages * 8));

    const int64_t stride = (int64_t)gridDim.x * kRingWarps;
    const int64_t first = (int64_t)warp * gridDim.x + blockIdx.x;

    auto issue = [&](int64_t row, int stage) {
        const uint32_t bar = bars_addr + stage * 8;
        const uint32_t dst = slots_addr + stage * R::kPairBytes;
        mbar_expect_tx(bar, R::kPairBytes);
        bulk_load(dst, x + row * (int64_t)(VEC * 128), R::kRowBytes, bar);
        bulk_load(dst + R::kRowBytes, y + row * (int64_t)(VEC * 128), R::kRowBytes, bar);
    };

    if (lane == 0) {
#pragma unroll
        for (int s = 0; s < kStages; ++s) mbar_init(bars_addr + s * 8, 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#pragma unroll
        for (int s = 0; s < kStages; ++s) {
            const int64_t row = first + s * stride;
            if (row < rows) issue(row, s);
        }
    }
    __syncwarp();

    int stage = 0;
    uint32_t parity = 0;
    for (int64_t row = first; row < rows; row += stride) {
        mbar_wait(bars_addr + stage * 8, parity);
        __syncwarp();

        const float4* sx = reinterpret_cast<const float4*>(slots + stage * R::kPairBytes) + lane;
        const float4* sy = sx + VEC * 32;

        float4 a[VEC];
        float4 b[VEC];
#pragma unroll
        for (int i = 0; i < VEC; ++i) {
            a[i] = sx[i * 32];
            b[i] = sy[i * 32];
        }

        float dot = 0.0f, xx = 0.0f, yy = 0.0f;
#pragma unroll
        for (int i = 0; i < VEC; ++i) {
            dot = fmaf(a[i].x, b[i].x, dot);
            xx  = fmaf(a[i].x, a[i].x, xx);
            yy  = fmaf(b[i].x, b[i].x, yy);
            dot = fmaf(a[i].y, b[i].y, dot);
            xx  = fmaf(a[i].y, a[i].y, xx);
            yy  = fmaf(b[i].y, b[i].y, yy);
            dot = fmaf(a[i].z, b[i].z, dot);
            xx  = fmaf(a[i].z, a[i].z, xx);
            yy  = fmaf(b[i].z, b[i].z, yy);
            dot = fmaf(a[i].w, b[i].w, dot);
            xx  = fmaf(a[i].w, a[i].w, xx);
            yy  = fmaf(b[i].w, b[i].w, yy);
        }

        // All lanes have read the slot: refill it before the reduction.
        __syncwarp();
        const int64_t next = row + kStages * stride;
        if (lane == 0 && next < rows) issue(next, stage);
        __syncwarp();

        dot = warp_sum(dot);
        xx = warp_sum(xx);
        yy = warp_sum(yy);

        if (lane == 0) out[row] = finish(dot, xx, yy);

        if (++stage == kStages) {
            stage = 0;
            parity ^= 1u;
        }
    }
}

// Any width and any alignment: one warp per row, scalar coalesced loads.
__global__ void __launch_bounds__(kThreads)
cosine_rows_any(const float* __restrict__ x, const float* __restrict__ y,
                float* __restrict__ out, int64_t rows, int64_t width) {
    const int lane = threadIdx.x & 31;
    const int64_t row = (int64_t)blockIdx.x * kRowsPerBlock + (threadIdx.x >> 5);
    if (row >= rows) return;  // the whole warp leaves together

    const float* px = x + row * width;
    const float* py = y + row * width;

    float dot = 0.0f, xx = 0.0f, yy = 0.0f;
#pragma unroll 4
    for (int64_t i = lane; i < width; i += 32) {
        const float a = px[i];
        const float b = py[i];
        dot = fmaf(a, b, dot);
        xx  = fmaf(a, a, xx);
        yy  = fmaf(b, b, yy);
    }

    dot = warp_sum(dot);
    xx = warp_sum(xx);
    yy = warp_sum(yy);

    if (lane == 0) out[row] = finish(dot, xx, yy);
}

}  // namespace

torch::Tensor cosine_distance_rows(torch::Tensor x, torch::Tensor y) {
    TORCH_CHECK(x.is_cuda() && y.is_cuda(), "inputs must be CUDA tensors");
    TORCH_CHECK(x.device() == y.device(), "inputs must be on one device");
    TORCH_CHECK(x.scalar_type() == at::kFloat && y.scalar_type() == at::kFloat,
                "inputs must be float32");
    TORCH_CHECK(x.dim() == 2 && y.dim() == 2, "inputs must be matrices");
    TORCH_CHECK(x.size(0) == y.size(0) && x.size(1) == y.size(1),
                "inputs must have the same shape");

    const c10::cuda::CUDAGuard guard(x.device());
    const at::Tensor xc = x.contiguous();
    const at::Tensor yc = y.contiguous();
    const int64_t rows = xc.size(0);
    const int64_t width = xc.size(1);

    at::Tensor out = at::empty({rows}, xc.options());
    if (rows == 0) return out;

    const float* px = xc.data_ptr<float>();
    const float* py = yc.data_ptr<float>();
    float* po = out.data_ptr<float>();

    const int64_t blocks = (rows + kRowsPerBlock - 1) / kRowsPerBlock;
    TORCH_CHECK(blocks <= 2147483647LL, "too many rows");
    const bool aligned =
        ((reinterpret_cast<uintptr_t>(px) | reinterpret_cast<uintptr_t>(py)) & 15u) == 0;

    cudaStream_t stream = at::cuda::getCurrentCUDAStream();
    if (width == 768 && aligned) {
        constexpr int smem_bytes = Ring<6>::kSmemBytes;
        C10_CUDA_CHECK(cudaFuncSetAttribute(cosine_rows_ring<6>,
                                            cudaFuncAttributeMaxDynamicSharedMemorySize,
                                            smem_bytes));
        const int64_t sms = at::cuda::getCurrentDeviceProperties()->multiProcessorCount;
        const int64_t grid = std::min<int64_t>(sms, (rows + kRingWarps - 1) / kRingWarps);
        cosine_rows_ring<6><<<(unsigned int)grid, kRingThreads, smem_bytes, stream>>>(
            px, py, po, rows);
        C10_CUDA_KERNEL_LAUNCH_CHECK();
    } else {
        cosine_rows_any<<<(unsigned int)blocks, kThreads, 0, stream>>>(px, py, po, rows, width);
        C10_CUDA_KERNEL_LAUNCH_CHECK();
    }
    return out;
}
"""

_ext = load_inline(
    name="cosine_distance_rows_ring_ext",
    cpp_sources=_CPP_SRC,
    cuda_sources=_CUDA_SRC,
    functions=["cosine_distance_rows"],
    extra_cuda_cflags=["-O3"],
)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return _ext.cosine_distance_rows(x, y)

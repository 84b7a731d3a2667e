import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

_CPP = "torch::Tensor gated_scan_forward(torch::Tensor gate, torch::Tensor x);"

_CUDA = r"""
#include <torch/types.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <cuda_runtime.h>
#include <cstdint>

constexpr int WARPS = 8;
constexpr int COLS = 128;                 // channels per block, four per lane
constexpr int STEPS = 4;                  // time steps per thread and segment
constexpr int SEG = WARPS * STEPS;        // time steps per segment
constexpr int STAGES = 6;
constexpr int WARP_FLOATS = 2 * STEPS * COLS;          // gate and x of one warp and segment
constexpr int STAGE_FLOATS = WARPS * WARP_FLOATS;
constexpr int RING_BYTES = STAGES * STAGE_FLOATS * 4;
constexpr int SMEM_BYTES = RING_BYTES + 2 * WARPS * 2 * 32 * 16;

__device__ __forceinline__ void cp16(uint32_t dst, const float* src, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(dst), "l"(src), "r"(bytes) : "memory");
}

__device__ __forceinline__ float sigmoid(float v) { return __fdividef(1.0f, 1.0f + __expf(-v)); }

// a * b + c for each channel
__device__ __forceinline__ float4 fma4(const float4 a, const float4 b, const float4 c) {
    return make_float4(fmaf(a.x, b.x, c.x), fmaf(a.y, b.y, c.y), fmaf(a.z, b.z, c.z), fmaf(a.w, b.w, c.w));
}

__global__ void __launch_bounds__(WARPS * 32, 1)
gated_scan_kernel(const float* __restrict__ gate, const float* __restrict__ x, float* __restrict__ out,
                  int length, int width) {
    extern __shared__ __align__(16) float ring[];
    float4* part = reinterpret_cast<float4*>(ring + STAGES * STAGE_FLOATS);   // [2][WARPS][2][32]
    const int lane = threadIdx.x & 31;
    const int warp = threadIdx.x >> 5;
    const int groups = width / COLS;
    const int batch = blockIdx.x / groups;
    const int col0 = (blockIdx.x - batch * groups) * COLS;
    const size_t origin = (size_t)batch * length * width + col0;
    float* op = out + origin + (size_t)(warp * STEPS) * width + lane * 4;
    float4 carry = make_float4(0.0f, 0.0f, 0.0f, 0.0f);   // state before the current segment

    // copy mapping: lane takes its own 16 bytes (4 columns) of every step of its warp
    const int cc = lane * 4;
    float* mine = ring + warp * WARP_FLOATS;
    const uint32_t dst0 = (uint32_t)__cvta_generic_to_shared(mine + cc);
    const size_t src0 = origin + cc;

    auto copy = [&](int s) {
        const int t = s * SEG + warp * STEPS;
        if (s * SEG < length) {
            const uint32_t d = dst0 + (uint32_t)((s % STAGES) * STAGE_FLOATS * 4);
#pragma unroll
            for (int i = 0; i < STEPS; ++i) {
                const int step = t + i;
                const bool ok = step < length;
                const size_t o = src0 + (size_t)(ok ? step : 0) * width;
                cp16(d + i * (COLS * 4), gate + o, ok ? 16 : 0);
                cp16(d + (STEPS + i) * (COLS * 4), x + o, ok ? 16 : 0);
            }
        }
        asm volatile("cp.async.commit_group;\n" ::: "memory");
    };

#pragma unroll
    for (int s = 0; s < STAGES; ++s) copy(s);

    for (int s = 0, t0 = 0; t0 < length; ++s, t0 += SEG) {
        const int left = length - t0 - warp * STEPS;   // steps of this thread that exist
        asm volatile("cp.async.wait_group %0;\n" ::"n"(STAGES - 1) : "memory");
        __syncwarp();
        const float* sp = mine + (s % STAGES) * STAGE_FLOATS + cc;
        float4 k[STEPS], b[STEPS];
#pragma unroll
        for (int i = 0; i < STEPS; ++i) {
            k[i] = *reinterpret_cast<const float4*>(sp + i * COLS);
            b[i] = *reinterpret_cast<const float4*>(sp + (STEPS + i) * COLS);
        }
        __syncwarp();
        copy(s + STAGES);                  // into the slot just read, which only this warp uses

        float4 prod = make_float4(1.0f, 1.0f, 1.0f, 1.0f), state = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
        for (int i = 0; i < STEPS; ++i) {
            const float4 keep = make_float4(sigmoid(k[i].x), sigmoid(k[i].y), sigmoid(k[i].z), sigmoid(k[i].w));
            const float4 in = make_float4((1.0f - keep.x) * b[i].x, (1.0f - keep.y) * b[i].y,
                                          (1.0f - keep.z) * b[i].z, (1.0f - keep.w) * b[i].w);
            k[i] = keep;
            b[i] = in;
            prod = make_float4(prod.x * keep.x, prod.y * keep.y, prod.z * keep.z, prod.w * keep.w);
            state = fma4(keep, state, in);
        }
        float4* ps = part + (s & 1) * (WARPS * 64) + lane;
        ps[warp * 64] = prod;
        ps[warp * 64 + 32] = state;
        __syncthreads();
        float4 h = carry;
#pragma unroll
        for (int j = 0; j < WARPS; ++j) {
            if (j == warp) h = carry;
            carry = fma4(ps[j * 64], carry, ps[j * 64 + 32]);
        }
        if (left >= STEPS) {
#pragma unroll
            for (int i = 0; i < STEPS; ++i) {
                h = fma4(k[i], h, b[i]);
                __stcs(reinterpret_cast<float4*>(op + (size_t)i * width), h);
            }
        } else {
#pragma unroll
            for (int i = 0; i < STEPS; ++i) {
                h = fma4(k[i], h, b[i]);
                if (i < left) *reinterpret_cast<float4*>(op + (size_t)i * width) = h;
            }
        }
        op += (size_t)SEG * width;
    }
    asm volatile("cp.async.wait_group 0;\n" ::: "memory");
}

torch::Tensor gated_scan_forward(torch::Tensor gate, torch::Tensor x) {
    gate = gate.contiguous();
    x = x.contiguous();
    TORCH_CHECK(x.is_cuda() && x.scalar_type() == at::kFloat && gate.scalar_type() == at::kFloat, "float32 expected");
    TORCH_CHECK(x.dim() == 3 && gate.sizes() == x.sizes(), "two tensors of one shape expected");
    const int batch = (int)x.size(0), length = (int)x.size(1), width = (int)x.size(2);
    TORCH_CHECK(width % COLS == 0, "width must divide by 128");
    auto out = at::empty_like(x);
    C10_CUDA_CHECK(cudaFuncSetAttribute(gated_scan_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM_BYTES));
    C10_CUDA_CHECK(cudaFuncSetAttribute(gated_scan_kernel, cudaFuncAttributePreferredSharedMemoryCarveout, 100));
    gated_scan_kernel<<<batch * (width / COLS), WARPS * 32, SMEM_BYTES, at::cuda::getCurrentCUDAStream()>>>(
        gate.data_ptr<float>(), x.data_ptr<float>(), out.data_ptr<float>(), length, width);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return out;
}
"""

_ext = load_inline(
    name="gated_scan_v4",
    cpp_sources=_CPP,
    cuda_sources=_CUDA,
    functions=["gated_scan_forward"],
    extra_cuda_cflags=["-O3"],
)


class ModelNew(nn.Module):
    def forward(self, gate: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return _ext.gated_scan_forward(gate, x)

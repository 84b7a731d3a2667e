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
constexpr int COLS = 64;                  // channels per block, two per lane
constexpr int STEPS = 8;                  // time steps per thread and segment
constexpr int SEG = WARPS * STEPS;        // time steps per segment
constexpr int STAGES = 3;
constexpr int WARP_FLOATS = 2 * STEPS * COLS;          // gate and x of one warp and segment
constexpr int STAGE_FLOATS = WARPS * WARP_FLOATS;
constexpr int RING_BYTES = STAGES * STAGE_FLOATS * 4;
constexpr int SMEM_BYTES = RING_BYTES + 2 * WARPS * 32 * 16;

__device__ __forceinline__ void cp16(uint32_t dst, const float* src, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(dst), "l"(src), "r"(bytes) : "memory");
}

__global__ void __launch_bounds__(WARPS * 32, 2)
gated_scan_kernel(const float* __restrict__ gate, const float* __restrict__ x, float* __restrict__ out,
                  int length, int width) {
    extern __shared__ __align__(16) float ring[];
    float4* part = reinterpret_cast<float4*>(ring + STAGES * STAGE_FLOATS);   // [2][WARPS][32]
    const int lane = threadIdx.x & 31;
    const int warp = threadIdx.x >> 5;
    const int groups = width / COLS;
    const int batch = blockIdx.x / groups;
    const int col0 = (blockIdx.x - batch * groups) * COLS;
    const size_t origin = (size_t)batch * length * width + col0;
    float* op = out + origin + (size_t)(warp * STEPS) * width + lane * 2;
    float2 carry = make_float2(0.0f, 0.0f);   // state before the current segment

    // copy mapping: lane takes 16 bytes (4 columns) of steps cr, cr + 2, cr + 4, cr + 6 of its warp
    const int cr = lane >> 4, cc = (lane & 15) * 4;
    float* mine = ring + warp * WARP_FLOATS;
    const uint32_t dst0 = (uint32_t)__cvta_generic_to_shared(mine + cr * COLS + cc);
    const size_t src0 = origin + cc;

    auto copy = [&](int s) {
        const int t = s * SEG + warp * STEPS + cr;
        if (s * SEG < length) {
            const uint32_t d = dst0 + (uint32_t)((s % STAGES) * STAGE_FLOATS * 4);
#pragma unroll
            for (int i = 0; i < STEPS / 2; ++i) {
                const int step = t + i * 2;
                const bool ok = step < length;
                const size_t o = src0 + (size_t)(ok ? step : 0) * width;
                cp16(d + i * 2 * (COLS * 4), gate + o, ok ? 16 : 0);
                cp16(d + STEPS * (COLS * 4) + i * 2 * (COLS * 4), x + o, ok ? 16 : 0);
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
        const float* sp = mine + (s % STAGES) * STAGE_FLOATS + lane * 2;
        float2 k[STEPS], b[STEPS];
#pragma unroll
        for (int i = 0; i < STEPS; ++i) {
            k[i] = *reinterpret_cast<const float2*>(sp + i * COLS);
            b[i] = *reinterpret_cast<const float2*>(sp + (STEPS + i) * COLS);
        }
        __syncwarp();
        copy(s + STAGES);                  // into the slot just read, which only this warp uses

        float2 prod = make_float2(1.0f, 1.0f), state = make_float2(0.0f, 0.0f);
#pragma unroll
        for (int i = 0; i < STEPS; ++i) {
            const float2 keep = make_float2(__fdividef(1.0f, 1.0f + __expf(-k[i].x)),
                                            __fdividef(1.0f, 1.0f + __expf(-k[i].y)));
            const float2 in = make_float2((1.0f - keep.x) * b[i].x, (1.0f - keep.y) * b[i].y);
            k[i] = keep;
            b[i] = in;
            prod.x *= keep.x;
            prod.y *= keep.y;
            state.x = fmaf(keep.x, state.x, in.x);
            state.y = fmaf(keep.y, state.y, in.y);
        }
        float4* ps = part + (s & 1) * (WARPS * 32) + lane;
        ps[warp * 32] = make_float4(prod.x, prod.y, state.x, state.y);
        __syncthreads();
        float2 h = carry;
#pragma unroll
        for (int j = 0; j < WARPS; ++j) {
            if (j == warp) h = carry;
            const float4 p = ps[j * 32];
            carry.x = fmaf(p.x, carry.x, p.z);
            carry.y = fmaf(p.y, carry.y, p.w);
        }
        if (left >= STEPS) {
#pragma unroll
            for (int i = 0; i < STEPS; ++i) {
                h.x = fmaf(k[i].x, h.x, b[i].x);
                h.y = fmaf(k[i].y, h.y, b[i].y);
                __stcs(reinterpret_cast<float2*>(op + (size_t)i * width), h);
            }
        } else {
#pragma unroll
            for (int i = 0; i < STEPS; ++i) {
                h.x = fmaf(k[i].x, h.x, b[i].x);
                h.y = fmaf(k[i].y, h.y, b[i].y);
                if (i < left) *reinterpret_cast<float2*>(op + (size_t)i * width) = h;
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
    TORCH_CHECK(width % COLS == 0, "width must divide by 64");
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
    name="gated_scan_v3",
    cpp_sources=_CPP,
    cuda_sources=_CUDA,
    functions=["gated_scan_forward"],
    extra_cuda_cflags=["-O3"],
)


class ModelNew(nn.Module):
    def forward(self, gate: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return _ext.gated_scan_forward(gate, x)

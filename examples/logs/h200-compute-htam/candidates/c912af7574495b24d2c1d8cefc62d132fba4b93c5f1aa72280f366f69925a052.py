import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

_CPP = "torch::Tensor gated_scan_forward(torch::Tensor gate, torch::Tensor x);"

_CUDA = r"""
#include <torch/types.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <cuda_runtime.h>

constexpr int WARPS = 8;
constexpr int STEPS = 16;                 // time steps per thread and segment
constexpr int SEG = WARPS * STEPS;        // time steps per segment

__global__ void __launch_bounds__(WARPS * 32, 4)
gated_scan_kernel(const float* __restrict__ gate, const float* __restrict__ x, float* __restrict__ out,
                  int length, int width) {
    __shared__ float2 part[2][WARPS][32];
    const int lane = threadIdx.x & 31;
    const int warp = threadIdx.x >> 5;
    const int groups = width >> 5;
    const int batch = blockIdx.x / groups;
    const int col = (blockIdx.x - batch * groups) * 32 + lane;
    size_t off = ((size_t)batch * length + (size_t)warp * STEPS) * width + col;
    float carry = 0.0f;                    // state before the current segment

    for (int s = 0, t0 = 0; t0 < length; ++s, t0 += SEG) {
        const float* gp = gate + off;
        const float* xp = x + off;
        const int left = length - t0 - warp * STEPS;   // steps of this thread that exist
        float k[STEPS], b[STEPS];
        if (left >= STEPS) {
#pragma unroll
            for (int i = 0; i < STEPS; ++i) k[i] = __ldcs(gp + (size_t)i * width);
#pragma unroll
            for (int i = 0; i < STEPS; ++i) b[i] = __ldcs(xp + (size_t)i * width);
        } else {
#pragma unroll
            for (int i = 0; i < STEPS; ++i) {
                k[i] = i < left ? gp[(size_t)i * width] : 0.0f;
                b[i] = i < left ? xp[(size_t)i * width] : 0.0f;
            }
        }
        float prod = 1.0f, state = 0.0f;
#pragma unroll
        for (int i = 0; i < STEPS; ++i) {
            const float keep = __fdividef(1.0f, 1.0f + __expf(-k[i]));
            const float in = (1.0f - keep) * b[i];
            k[i] = keep;
            b[i] = in;
            prod *= keep;
            state = fmaf(keep, state, in);
        }
        part[s & 1][warp][lane] = make_float2(prod, state);
        __syncthreads();
        float h = carry;
#pragma unroll
        for (int j = 0; j < WARPS; ++j) {
            if (j == warp) h = carry;
            const float2 p = part[s & 1][j][lane];
            carry = fmaf(p.x, carry, p.y);
        }
        float* op = out + off;
        if (left >= STEPS) {
#pragma unroll
            for (int i = 0; i < STEPS; ++i) {
                h = fmaf(k[i], h, b[i]);
                __stcs(op + (size_t)i * width, h);
            }
        } else {
#pragma unroll
            for (int i = 0; i < STEPS; ++i) {
                h = fmaf(k[i], h, b[i]);
                if (i < left) op[(size_t)i * width] = h;
            }
        }
        off += (size_t)SEG * width;
    }
}

torch::Tensor gated_scan_forward(torch::Tensor gate, torch::Tensor x) {
    gate = gate.contiguous();
    x = x.contiguous();
    TORCH_CHECK(x.is_cuda() && x.scalar_type() == at::kFloat && gate.scalar_type() == at::kFloat, "float32 expected");
    TORCH_CHECK(x.dim() == 3 && gate.sizes() == x.sizes(), "two tensors of one shape expected");
    const int batch = (int)x.size(0), length = (int)x.size(1), width = (int)x.size(2);
    TORCH_CHECK(width % 32 == 0, "width must divide by 32");
    auto out = at::empty_like(x);
    gated_scan_kernel<<<batch * (width / 32), WARPS * 32, 0, at::cuda::getCurrentCUDAStream()>>>(
        gate.data_ptr<float>(), x.data_ptr<float>(), out.data_ptr<float>(), length, width);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return out;
}
"""

_ext = load_inline(
    name="gated_scan_v1",
    cpp_sources=_CPP,
    cuda_sources=_CUDA,
    functions=["gated_scan_forward"],
    extra_cuda_cflags=["-O3"],
)


class ModelNew(nn.Module):
    def forward(self, gate: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return _ext.gated_scan_forward(gate, x)

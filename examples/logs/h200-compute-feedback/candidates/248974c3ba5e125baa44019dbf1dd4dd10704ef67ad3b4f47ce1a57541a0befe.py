import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

CPP = r"""
torch::Tensor bn_relu(torch::Tensor x, torch::Tensor w, torch::Tensor b, double eps);
"""

CUDA = r"""
#include <torch/types.h>
#include <c10/cuda/CUDAException.h>
#include <ATen/cuda/CUDAContext.h>
#include <cooperative_groups.h>
#include <cstdint>

namespace cg = cooperative_groups;

constexpr int CL = 4;          // blocks in a cluster
constexpr int NT = 512;        // threads of a block

// Sum over the block; the result is valid in every thread.
__device__ __forceinline__ float block_sum(float v, float* red) {
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
    __syncthreads();                       // red may still be read from an earlier call
    if ((threadIdx.x & 31) == 0) red[threadIdx.x >> 5] = v;
    __syncthreads();
    float s = 0.f;
#pragma unroll
    for (int i = 0; i < NT / 32; ++i) s += red[i];
    return s;
}

__device__ __forceinline__ float act(float v, float a, float c) {
    v = fmaf(v, a, c);
    return v < 0.f ? 0.f : v;
}

__global__ void __cluster_dims__(CL, 1, 1) __launch_bounds__(NT)
bn_cluster(const float* __restrict__ x, const float* __restrict__ w,
           const float* __restrict__ b, float* __restrict__ y,
           int batch, int channels, int hw4, int per, float eps) {
    extern __shared__ __align__(16) float4 data[];
    __shared__ float red[NT / 32];
    __shared__ float part[2];
    cg::cluster_group cluster = cg::this_cluster();
    const int tid = threadIdx.x;
    const int rank = blockIdx.x % CL, ch = blockIdx.x / CL;
    const int img0 = rank * per;
    const int imgs = max(0, min(per, batch - img0));
    const int total = imgs * hw4;
    const int64_t istride = (int64_t)channels * hw4;
    const int64_t base = (int64_t)img0 * istride + (int64_t)ch * hw4;
    const float4* xp = reinterpret_cast<const float4*>(x) + base;
    float4* yp = reinterpret_cast<float4*>(y) + base;

    // Every thread copies, sums and writes the same elements: no block barrier for the data.
    {
        int j = tid;
        const float4* p = xp;
        for (int i = tid; i < total; i += NT, j += NT) {
            while (j >= hw4) { j -= hw4; p += istride; }
            const unsigned dst = (unsigned)__cvta_generic_to_shared(data + i);
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(dst), "l"(p + j)
                         : "memory");
        }
        asm volatile("cp.async.commit_group;\n" ::: "memory");
        asm volatile("cp.async.wait_group 0;\n" ::: "memory");
    }

    const float inv = 1.f / ((float)batch * 4.f * (float)hw4);
    float s = 0.f;
#pragma unroll 4
    for (int i = tid; i < total; i += NT) {
        const float4 v = data[i];
        s += (v.x + v.y) + (v.z + v.w);
    }
    s = block_sum(s, red);
    if (tid == 0) part[0] = s;
    cluster.sync();
    float mean = 0.f;
#pragma unroll
    for (int r = 0; r < CL; ++r) mean += cluster.map_shared_rank(part, r)[0];
    mean *= inv;

    float q = 0.f;
#pragma unroll 4
    for (int i = tid; i < total; i += NT) {
        const float4 v = data[i];
        const float a = v.x - mean, c = v.y - mean, d = v.z - mean, e = v.w - mean;
        q += (a * a + c * c) + (d * d + e * e);
    }
    q = block_sum(q, red);
    if (tid == 0) part[1] = q;
    cluster.sync();
    float var = 0.f;
#pragma unroll
    for (int r = 0; r < CL; ++r) var += cluster.map_shared_rank(part, r)[1];
    var *= inv;

    const float scale = w[ch] / sqrtf(var + eps);
    const float shift = fmaf(-mean, scale, b[ch]);
    {
        int j = tid;
        float4* p = yp;
        for (int i = tid; i < total; i += NT, j += NT) {
            while (j >= hw4) { j -= hw4; p += istride; }
            float4 v = data[i];
            v.x = act(v.x, scale, shift);
            v.y = act(v.y, scale, shift);
            v.z = act(v.z, scale, shift);
            v.w = act(v.w, scale, shift);
            __stcs(p + j, v);
        }
    }
    cluster.sync();            // nobody leaves while its partial sums may be read
}

// Any size: one block per channel, three reads.
__global__ void __launch_bounds__(NT)
bn_plain(const float* __restrict__ x, const float* __restrict__ w,
         const float* __restrict__ b, float* __restrict__ y,
         int batch, int channels, int hw, float eps) {
    __shared__ float red[NT / 32];
    const int ch = blockIdx.x, tid = threadIdx.x;
    const int64_t istride = (int64_t)channels * hw;
    const float* xp = x + (int64_t)ch * hw;
    float* yp = y + (int64_t)ch * hw;
    const float inv = 1.f / ((float)batch * (float)hw);
    float s = 0.f;
    for (int n = 0; n < batch; ++n)
        for (int j = tid; j < hw; j += NT) s += xp[n * istride + j];
    const float mean = block_sum(s, red) * inv;
    float q = 0.f;
    for (int n = 0; n < batch; ++n)
        for (int j = tid; j < hw; j += NT) {
            const float d = xp[n * istride + j] - mean;
            q += d * d;
        }
    const float var = block_sum(q, red) * inv;
    const float scale = w[ch] / sqrtf(var + eps);
    const float shift = fmaf(-mean, scale, b[ch]);
    for (int n = 0; n < batch; ++n)
        for (int j = tid; j < hw; j += NT)
            yp[n * istride + j] = act(xp[n * istride + j], scale, shift);
}

torch::Tensor bn_relu(torch::Tensor x_, torch::Tensor w_, torch::Tensor b_, double eps) {
    TORCH_CHECK(x_.is_cuda() && x_.scalar_type() == at::kFloat && x_.dim() >= 2,
                "float32 CUDA tensor expected");
    auto x = x_.detach().contiguous();
    auto w = w_.detach().contiguous();
    auto b = b_.detach().contiguous();
    auto y = at::empty_like(x);
    const int64_t batch = x.size(0), channels = x.size(1);
    if (x.numel() == 0) return y;
    const int64_t hw = x.numel() / (batch * channels);
    auto stream = at::cuda::getCurrentCUDAStream();
    const int64_t per = (batch + CL - 1) / CL;
    const int64_t bytes = per * hw * 4;
    const bool aligned = (reinterpret_cast<uintptr_t>(x.data_ptr<float>()) & 15) == 0;
    if (hw % 4 == 0 && aligned && bytes <= 224 * 1024) {
        C10_CUDA_CHECK(cudaFuncSetAttribute(
            bn_cluster, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes));
        bn_cluster<<<(unsigned)(channels * CL), NT, (size_t)bytes, stream>>>(
            x.data_ptr<float>(), w.data_ptr<float>(), b.data_ptr<float>(),
            y.data_ptr<float>(), (int)batch, (int)channels, (int)(hw / 4), (int)per,
            (float)eps);
    } else {
        bn_plain<<<(unsigned)channels, NT, 0, stream>>>(
            x.data_ptr<float>(), w.data_ptr<float>(), b.data_ptr<float>(),
            y.data_ptr<float>(), (int)batch, (int)channels, (int)hw, (float)eps);
    }
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return y;
}
"""

ext = load_inline(
    name="bn_relu_cluster_v1",
    cpp_sources=CPP,
    cuda_sources=CUDA,
    functions=["bn_relu"],
    extra_cuda_cflags=["-O3"],
)


class ModelNew(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(channels) + 0.5)
        self.bias = nn.Parameter(torch.randn(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return ext.bn_relu(x, self.weight, self.bias, 1e-5)

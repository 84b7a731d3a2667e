import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

_CPP = "torch::Tensor bn_relu_forward(torch::Tensor x, torch::Tensor weight, torch::Tensor bias);"

_CUDA = r"""
#include <torch/types.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <cuda_runtime.h>
#include <cooperative_groups.h>

namespace cg = cooperative_groups;

constexpr int CL = 8;         // blocks per channel (one cluster)
constexpr int THREADS = 448;
constexpr int WARPS = THREADS / 32;

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
    return v;
}

__device__ __forceinline__ float block_sum(float v, float* red) {
    const int lane = threadIdx.x & 31;
    v = warp_sum(v);
    if (lane == 0) red[threadIdx.x >> 5] = v;
    __syncthreads();
    float r = lane < WARPS ? red[lane] : 0.0f;
    return warp_sum(r);
}

__global__ void __cluster_dims__(CL, 1, 1) __launch_bounds__(THREADS)
bn_relu_kernel(const float* __restrict__ x, const float* __restrict__ weight,
               const float* __restrict__ bias, float* __restrict__ y,
               int channels, int hw4, int imgs) {
    extern __shared__ float4 buf[];
    __shared__ float red1[32];
    __shared__ float red2[32];
    __shared__ float2 stat;

    cg::cluster_group cluster = cg::this_cluster();
    const int c = blockIdx.x / CL;
    const int rank = blockIdx.x % CL;
    const int total = imgs * hw4;
    const int tid = threadIdx.x;
    const long long plane_stride = (long long)channels * hw4;
    const long long base = (long long)rank * imgs * plane_stride + (long long)c * hw4;
    const float4* xp = reinterpret_cast<const float4*>(x) + base;
    float4* yp = reinterpret_cast<float4*>(y) + base;

    for (int i = tid; i < total; i += THREADS) {
        const int n = i / hw4;
        const int r = i - n * hw4;
        const unsigned dst = (unsigned)__cvta_generic_to_shared(buf + i);
        const float4* src = xp + n * plane_stride + r;
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(dst), "l"(src) : "memory");
    }
    const float wgt = weight[c];
    const float bs = bias[c];
    asm volatile("cp.async.commit_group;\n" ::: "memory");
    asm volatile("cp.async.wait_group 0;\n" ::: "memory");

    // every thread reads back only what it copied itself
    float s = 0.0f;
    for (int i = tid; i < total; i += THREADS) {
        const float4 v = buf[i];
        s += (v.x + v.y) + (v.z + v.w);
    }
    const float cnt = (float)total * 4.0f;
    const float mean_b = block_sum(s, red1) / cnt;
    float q = 0.0f;
    for (int i = tid; i < total; i += THREADS) {
        const float4 v = buf[i];
        const float a = v.x - mean_b, b = v.y - mean_b, d = v.z - mean_b, e = v.w - mean_b;
        q += (a * a + b * b) + (d * d + e * e);
    }
    const float m2_b = block_sum(q, red2);
    if (tid == 0) stat = make_float2(mean_b, m2_b);
    cluster.sync();

    // every warp merges the eight partial results
    const int lane = tid & 31;
    const float2 other = *cluster.map_shared_rank(&stat, lane & (CL - 1));
    asm volatile("barrier.cluster.arrive;\n" ::: "memory");
    float mean = other.x;
#pragma unroll
    for (int o = CL / 2; o > 0; o >>= 1) mean += __shfl_xor_sync(0xffffffffu, mean, o);
    mean *= (1.0f / CL);
    const float dm = other.x - mean;
    float m2 = other.y + cnt * dm * dm;
#pragma unroll
    for (int o = CL / 2; o > 0; o >>= 1) m2 += __shfl_xor_sync(0xffffffffu, m2, o);
    const float var = m2 / (cnt * CL);
    const float scale = wgt / sqrtf(var + 1e-5f);

    for (int i = tid; i < total; i += THREADS) {
        const int n = i / hw4;
        const int r = i - n * hw4;
        float4 v = buf[i];
        v.x = fmaf(v.x - mean, scale, bs);
        v.y = fmaf(v.y - mean, scale, bs);
        v.z = fmaf(v.z - mean, scale, bs);
        v.w = fmaf(v.w - mean, scale, bs);
        v.x = v.x < 0.0f ? 0.0f : v.x;
        v.y = v.y < 0.0f ? 0.0f : v.y;
        v.z = v.z < 0.0f ? 0.0f : v.z;
        v.w = v.w < 0.0f ? 0.0f : v.w;
        __stcs(yp + n * plane_stride + r, v);
    }
    asm volatile("barrier.cluster.wait;\n" ::: "memory");
}

torch::Tensor bn_relu_forward(torch::Tensor x, torch::Tensor weight, torch::Tensor bias) {
    x = x.contiguous();
    weight = weight.contiguous();
    bias = bias.contiguous();
    TORCH_CHECK(x.dim() == 4 && x.is_cuda() && x.scalar_type() == at::kFloat, "float32 NCHW expected");
    const int n = (int)x.size(0);
    const int c = (int)x.size(1);
    const long long hw = (long long)x.size(2) * x.size(3);
    TORCH_CHECK(n % CL == 0 && hw % 4 == 0, "batch must divide by 8 and plane by 4");
    const int imgs = n / CL;
    const int hw4 = (int)(hw / 4);
    const size_t smem = (size_t)imgs * hw4 * sizeof(float4);
    TORCH_CHECK(smem <= 220 * 1024, "channel too large for a cluster");
    auto y = at::empty_like(x);
    C10_CUDA_CHECK(cudaFuncSetAttribute(bn_relu_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem));
    bn_relu_kernel<<<c * CL, THREADS, smem, at::cuda::getCurrentCUDAStream()>>>(
        x.data_ptr<float>(), weight.data_ptr<float>(), bias.data_ptr<float>(), y.data_ptr<float>(),
        c, hw4, imgs);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return y;
}
"""

_ext = load_inline(
    name="bn_relu_cluster_v1",
    cpp_sources=_CPP,
    cuda_sources=_CUDA,
    functions=["bn_relu_forward"],
    extra_cuda_cflags=["-O3"],
)


class ModelNew(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(channels) + 0.5)
        self.bias = nn.Parameter(torch.randn(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _ext.bn_relu_forward(x, self.weight, self.bias)

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

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
    return v;
}

template <int WARPS>
__device__ __forceinline__ float block_sum(float v, float* red) {
    const int lane = threadIdx.x & 31;
    v = warp_sum(v);
    if (lane == 0) red[threadIdx.x >> 5] = v;
    __syncthreads();
    float r = lane < WARPS ? red[lane] : 0.0f;
    return warp_sum(r);
}

// ---- one channel per SM, all of it resident -------------------------------------------
constexpr int RT = 512;       // threads
constexpr int RV = 21;        // vectors of a thread in registers
constexpr int SV = 28;        // vectors of a thread in shared memory
constexpr int RES_SMEM = SV * RT * 16;

template <int N>
__device__ __forceinline__ void cp_wait() {
    asm volatile("cp.async.wait_group %0;\n" ::"n"(N) : "memory");
}

__device__ __forceinline__ float4 norm_relu(float4 v, float mean, float scale, float bs) {
    v.x = fmaf(v.x - mean, scale, bs);
    v.y = fmaf(v.y - mean, scale, bs);
    v.z = fmaf(v.z - mean, scale, bs);
    v.w = fmaf(v.w - mean, scale, bs);
    v.x = v.x < 0.0f ? 0.0f : v.x;
    v.y = v.y < 0.0f ? 0.0f : v.y;
    v.z = v.z < 0.0f ? 0.0f : v.z;
    v.w = v.w < 0.0f ? 0.0f : v.w;
    return v;
}

// Needs hw4 >= RT and RV * RT <= total <= (RV + SV) * RT.
__global__ void __launch_bounds__(RT, 1)
bn_relu_resident_kernel(const float* __restrict__ x, const float* __restrict__ weight,
                        const float* __restrict__ bias, float* __restrict__ y,
                        int channels, int hw4, int total) {
    extern __shared__ float4 buf[];
    __shared__ float red1[32];
    __shared__ float red2[32];

    const int c = blockIdx.x;
    const int tid = threadIdx.x;
    const long long jump = (long long)(channels - 1) * hw4 + RT;   // step into the next image
    const long long start = (long long)c * hw4 + tid;
    const int rest = total - RV * RT - tid;
    const int ns = rest > 0 ? (rest + RT - 1) / RT : 0;            // own vectors in shared memory
    float4* mine = buf + tid;

    float4 v[RV];
    {
        const float4* p = reinterpret_cast<const float4*>(x) + start;
        int r = tid;
#pragma unroll
        for (int k = 0; k < RV; ++k) {
            asm volatile("ld.global.nc.L1::no_allocate.v4.f32 {%0,%1,%2,%3}, [%4];\n"
                         : "=f"(v[k].x), "=f"(v[k].y), "=f"(v[k].z), "=f"(v[k].w) : "l"(p));
            r += RT;
            const bool wrap = r >= hw4;
            r -= wrap ? hw4 : 0;
            p += wrap ? jump : (long long)RT;
        }
        const unsigned dst = (unsigned)__cvta_generic_to_shared(mine);
#pragma unroll
        for (int k = 0; k < SV; ++k) {
            if (k < ns)
                asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n"
                             ::"r"(dst + (unsigned)(k * RT * 16)), "l"(p) : "memory");
            if (k % 7 == 6) asm volatile("cp.async.commit_group;\n" ::: "memory");
            r += RT;
            const bool wrap = r >= hw4;
            r -= wrap ? hw4 : 0;
            p += wrap ? jump : (long long)RT;
        }
    }
    const float wgt = weight[c];
    const float bs = bias[c];

    // Sums of the thread's values around its first one, while the others still arrive.
    const float pivot = v[0].x;
    float s0 = 0.0f, s1 = 0.0f, q0 = 0.0f, q1 = 0.0f;
    auto add = [&](const float4& u) {
        const float a = u.x - pivot, b = u.y - pivot, d = u.z - pivot, e = u.w - pivot;
        s0 += a; q0 = fmaf(a, a, q0);
        s1 += b; q1 = fmaf(b, b, q1);
        s0 += d; q0 = fmaf(d, d, q0);
        s1 += e; q1 = fmaf(e, e, q1);
    };
    auto add_shared = [&](int k0) {   // every thread reads back only what it copied itself
#pragma unroll
        for (int k = 0; k < 7; ++k)
            if (k0 + k < ns) add(mine[(k0 + k) * RT]);
    };
#pragma unroll
    for (int k = 0; k < RV; ++k) add(v[k]);
    cp_wait<3>();
    add_shared(0);
    cp_wait<2>();
    add_shared(7);
    cp_wait<1>();
    add_shared(14);
    cp_wait<0>();
    add_shared(21);

    const float cnt_t = (float)((RV + ns) * 4);
    const float sum_t = s0 + s1;
    const float off_t = sum_t / cnt_t;
    const float mean_t = pivot + off_t;
    const float m2_t = fmaxf((q0 + q1) - sum_t * off_t, 0.0f);
    const float cnt = (float)total * 4.0f;
    const float mean = block_sum<RT / 32>(mean_t * cnt_t, red1) / cnt;
    const float dm = mean_t - mean;
    const float var = block_sum<RT / 32>(fmaf(cnt_t * dm, dm, m2_t), red2) / cnt;
    const float scale = wgt / sqrtf(var + 1e-5f);

    float4* o = reinterpret_cast<float4*>(y) + start;
    int r = tid;
#pragma unroll
    for (int k = 0; k < RV; ++k) {
        __stcs(o, norm_relu(v[k], mean, scale, bs));
        r += RT;
        const bool wrap = r >= hw4;
        r -= wrap ? hw4 : 0;
        o += wrap ? jump : (long long)RT;
    }
#pragma unroll 7
    for (int k = 0; k < ns; ++k) {
        __stcs(o, norm_relu(mine[k * RT], mean, scale, bs));
        r += RT;
        const bool wrap = r >= hw4;
        r -= wrap ? hw4 : 0;
        o += wrap ? jump : (long long)RT;
    }
}

// ---- other shapes: one cluster of blocks per channel ------------------------------------
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
    const float mean_b = block_sum<THREADS / 32>(s, red1) / cnt;
    float q = 0.0f;
    for (int i = tid; i < total; i += THREADS) {
        const float4 v = buf[i];
        const float a = v.x - mean_b, b = v.y - mean_b, d = v.z - mean_b, e = v.w - mean_b;
        q += (a * a + b * b) + (d * d + e * e);
    }
    const float m2_b = block_sum<THREADS / 32>(q, red2);
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
        __stcs(yp + n * plane_stride + r, norm_relu(buf[i], mean, scale, bs));
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
    TORCH_CHECK(hw % 4 == 0, "plane must divide by 4");
    const int hw4 = (int)(hw / 4);
    const long long total = (long long)n * hw4;
    auto stream = at::cuda::getCurrentCUDAStream();
    auto y = at::empty_like(x);
    if (c >= 64 && hw4 >= RT && total >= RV * RT && total <= (RV + SV) * RT) {
        C10_CUDA_CHECK(cudaFuncSetAttribute(bn_relu_resident_kernel,
                       cudaFuncAttributeMaxDynamicSharedMemorySize, RES_SMEM));
        bn_relu_resident_kernel<<<c, RT, RES_SMEM, stream>>>(
            x.data_ptr<float>(), weight.data_ptr<float>(), bias.data_ptr<float>(),
            y.data_ptr<float>(), c, hw4, (int)total);
        C10_CUDA_KERNEL_LAUNCH_CHECK();
        return y;
    }
    TORCH_CHECK(n % CL == 0, "batch must divide by 8");
    const int imgs = n / CL;
    const size_t smem = (size_t)imgs * hw4 * sizeof(float4);
    TORCH_CHECK(smem <= 220 * 1024, "channel too large for a cluster");
    C10_CUDA_CHECK(cudaFuncSetAttribute(bn_relu_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem));
    bn_relu_kernel<<<c * CL, THREADS, smem, stream>>>(
        x.data_ptr<float>(), weight.data_ptr<float>(), bias.data_ptr<float>(), y.data_ptr<float>(),
        c, hw4, imgs);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return y;
}
"""

_ext = load_inline(
    name="bn_relu_resident_v2",
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

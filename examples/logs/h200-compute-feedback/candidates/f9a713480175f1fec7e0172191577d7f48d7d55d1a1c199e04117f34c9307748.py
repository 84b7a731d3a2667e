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
constexpr int RV = 22;         // vectors of a thread in registers (bn_onchip)
constexpr int GV = 7;          // vectors of a thread in one cp.async group
constexpr int SV = 4 * GV;     // vectors of a thread in shared memory

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

__device__ __forceinline__ float4 act4(float4 v, float a, float c) {
    return make_float4(act(v.x, a, c), act(v.y, a, c), act(v.z, a, c), act(v.w, a, c));
}

__device__ __forceinline__ void gather(float4 v, float pivot, float& s, float& q) {
    const float a = v.x - pivot, b = v.y - pivot, c = v.z - pivot, d = v.w - pivot;
    s += (a + b) + (c + d);
    q += (a * a + b * b) + (c * c + d * d);
}

template <int G>
__device__ __forceinline__ void gather_group(const float4* data, int rest, float pivot,
                                             float& s, float& q, int& cnt) {
    asm volatile("cp.async.wait_group %0;\n" ::"n"(3 - G) : "memory");
#pragma unroll
    for (int k = 0; k < GV; ++k) {
        const int i = (G * GV + k) * NT + threadIdx.x;
        if (i < rest) {
            gather(data[i], pivot, s, q);
            ++cnt;
        }
    }
}

// One block holds a whole channel: RV vectors a thread in registers, the rest in shared memory.
__global__ void __launch_bounds__(NT, 1)
bn_onchip(const float* __restrict__ x, const float* __restrict__ w,
          const float* __restrict__ b, float* __restrict__ y,
          int total, int hw4, int istride, float inv, float eps) {
    extern __shared__ __align__(16) float4 data[];
    __shared__ float red[NT / 32];
    const int tid = threadIdx.x, ch = blockIdx.x;
    const float4* xp = reinterpret_cast<const float4*>(x) + (int64_t)ch * hw4;
    float4* yp = reinterpret_cast<float4*>(y) + (int64_t)ch * hw4;
    const int rest = total - RV * NT;          // vectors in shared memory, not negative

    // x is read once: its lines are the first to leave L2, so that y can stay there
    unsigned long long once;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;\n" : "=l"(once));

    // vector i of the channel lies at (i / hw4) * istride + i % hw4; a step adds NT to i
    const int dr = NT % hw4;
    const int inc0 = (NT / hw4) * istride + dr;
    const int inc1 = inc0 + istride - hw4;
    const int j0 = tid % hw4;
    const int off0 = (tid / hw4) * istride + j0;

    float4 r[RV];
    {
        int j = j0, off = off0;
#pragma unroll
        for (int k = 0; k < RV; ++k) {
            asm volatile(
                "ld.global.nc.L1::no_allocate.L2::cache_hint.v4.f32 {%0,%1,%2,%3}, [%4], %5;\n"
                         : "=f"(r[k].x), "=f"(r[k].y), "=f"(r[k].z), "=f"(r[k].w)
                         : "l"(xp + off), "l"(once));
            j += dr;
            const bool wrap = j >= hw4;
            off += wrap ? inc1 : inc0;
            if (wrap) j -= hw4;
        }
        const unsigned dst = (unsigned)__cvta_generic_to_shared(data + tid);
#pragma unroll
        for (int k = 0; k < SV; ++k) {
            if (k * NT + tid < rest)
                asm volatile(
                    "cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;\n" ::"r"(
                                 dst + (unsigned)(k * NT * 16)), "l"(xp + off), "l"(once)
                             : "memory");
            if (k % GV == GV - 1) asm volatile("cp.async.commit_group;\n" ::: "memory");
            j += dr;
            const bool wrap = j >= hw4;
            off += wrap ? inc1 : inc0;
            if (wrap) j -= hw4;
        }
    }

    // pivot: the mean of the values in registers
    float pivot = 0.f;
#pragma unroll
    for (int k = 0; k < RV; ++k) pivot += (r[k].x + r[k].y) + (r[k].z + r[k].w);
    pivot *= 1.f / (4.f * RV);
    float s = 0.f, q = 0.f;
    int cnt = RV;
#pragma unroll
    for (int k = 0; k < RV; ++k) gather(r[k], pivot, s, q);
    gather_group<0>(data, rest, pivot, s, q, cnt);
    gather_group<1>(data, rest, pivot, s, q, cnt);
    gather_group<2>(data, rest, pivot, s, q, cnt);
    gather_group<3>(data, rest, pivot, s, q, cnt);

    const float n = 4.f * (float)cnt;
    const float d = s / n;
    const float own = pivot + d;               // mean of this thread's values
    const float m2 = fmaxf(q - s * d, 0.f);    // their squared distance from it
    const float mean = block_sum(own * n, red) * inv;
    const float e = own - mean;
    const float var = block_sum(fmaf(n * e, e, m2), red) * inv;

    const float scale = w[ch] / sqrtf(var + eps);
    const float shift = fmaf(-mean, scale, b[ch]);
    {
        int j = j0, off = off0;
#pragma unroll
        for (int k = 0; k < RV; ++k) {
            yp[off] = act4(r[k], scale, shift);
            j += dr;
            const bool wrap = j >= hw4;
            off += wrap ? inc1 : inc0;
            if (wrap) j -= hw4;
        }
#pragma unroll 7
        for (int k = 0; k < SV; ++k) {
            const int i = k * NT + tid;
            if (i < rest) yp[off] = act4(data[i], scale, shift);
            j += dr;
            const bool wrap = j >= hw4;
            off += wrap ? inc1 : inc0;
            if (wrap) j -= hw4;
        }
    }
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
            __stcs(p + j, act4(data[i], scale, shift));
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
    const int64_t vecs = batch * hw / 4;       // vectors of a channel
    if (hw % 4 == 0 && aligned && channels >= 80 && x.numel() < (int64_t(1) << 31) &&
        vecs >= RV * NT && vecs <= (RV + SV) * NT) {
        const int smem = (int)((vecs - RV * NT) * 16);
        C10_CUDA_CHECK(cudaFuncSetAttribute(
            bn_onchip, cudaFuncAttributeMaxDynamicSharedMemorySize, SV * NT * 16));
        bn_onchip<<<(unsigned)channels, NT, (size_t)smem, stream>>>(
            x.data_ptr<float>(), w.data_ptr<float>(), b.data_ptr<float>(),
            y.data_ptr<float>(), (int)vecs, (int)(hw / 4), (int)(channels * (hw / 4)),
            (float)(1.0 / ((double)batch * (double)hw)), (float)eps);
    } else if (hw % 4 == 0 && aligned && bytes <= 224 * 1024) {
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
    name="bn_relu_onchip_v3",
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

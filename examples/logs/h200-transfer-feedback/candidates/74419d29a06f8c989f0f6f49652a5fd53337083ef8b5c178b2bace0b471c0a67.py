import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

CPP_SRC = r"""
#include <torch/types.h>
torch::Tensor inorm_lrelu(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, double eps);
"""

CUDA_SRC = r"""
#include <torch/types.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime.h>
#include <cstdint>

namespace {

constexpr float kSlope = 0.2f;

// ---- fast path: planes of 112 x 112 floats --------------------------------
constexpr int kHW = 112 * 112;                 // 12544 floats
constexpr int kThreads = 448;                  // 14 warps
constexpr int kWarps = kThreads / 32;
constexpr int kChunks = kHW / 4 / kThreads;    // 7 float4 per thread
constexpr int kSliceVec = kChunks * 32;        // 224 float4 per warp
constexpr int kSliceBytes = kSliceVec * 16;    // 3584
constexpr int kStages = 2;
constexpr int kBlocksPerSM = 2;
constexpr int kPlaneBytes = kHW * 4;           // 50176
constexpr int kSmemBytes = kStages * kPlaneBytes;  // 100352
static_assert(kChunks * kThreads * 4 == kHW, "plane must split evenly");
static_assert(kWarps % 2 == 0, "warp results are read in pairs");

__device__ __forceinline__ uint32_t smem_addr(const void* p) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// The input is read exactly once: its L2 lines are the first to be replaced.
__device__ __forceinline__ uint64_t evict_first_policy() {
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;"
                 : "=l"(policy));
    return policy;
}

__device__ __forceinline__ bool mbar_try_wait(uint32_t bar, uint32_t parity) {
    uint32_t ok;
    asm volatile(
        "{\n\t"
        ".reg .pred p;\n\t"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
        "selp.u32 %0, 1, 0, p;\n\t"
        "}\n"
        : "=r"(ok)
        : "r"(bar), "r"(parity)
        : "memory");
    return ok != 0;
}

// One thread: ask for one warp's slice of a plane.
__device__ __forceinline__ void load_slice(uint32_t dst, const char* src, uint32_t bar,
                                           uint64_t policy) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :: "r"(bar), "r"(kSliceBytes) : "memory");
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1], %2, [%3], %4;"
        :: "r"(dst), "l"(src), "r"(kSliceBytes), "r"(bar), "l"(policy)
        : "memory");
}

__device__ __forceinline__ float norm_act(float v, float mean, float a, float b) {
    const float y = fmaf(v - mean, a, b);
    return y > 0.0f ? y : y * kSlope;
}

__global__ void __launch_bounds__(kThreads, kBlocksPerSM)
plane_kernel(const float* __restrict__ x, const float* __restrict__ weight,
             const float* __restrict__ bias, float* __restrict__ out,
             int channels, int64_t planes, float eps) {
    extern __shared__ __align__(128) unsigned char smem_raw[];
    __shared__ __align__(8) uint64_t bars[kStages][kWarps];
    __shared__ __align__(16) float2 red[2][kWarps];

    const int tid = threadIdx.x;
    const int warp = tid >> 5;
    const int lane = tid & 31;
    const int64_t step = static_cast<int64_t>(gridDim.x);
    const int64_t first = static_cast<int64_t>(blockIdx.x);
    const uint64_t policy = evict_first_policy();

    // This warp's slice: same offset in every plane and in every stage.
    const char* src = reinterpret_cast<const char*>(x) + warp * kSliceBytes;
    unsigned char* slice = smem_raw + warp * kSliceBytes;

    if (lane == 0) {
#pragma unroll
        for (int s = 0; s < kStages; ++s) {
            asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"
                         :: "r"(smem_addr(&bars[s][warp])), "r"(1) : "memory");
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#pragma unroll
        for (int s = 0; s < kStages; ++s) {
            const int64_t p = first + s * step;
            if (p < planes) {
                load_slice(smem_addr(slice + s * kPlaneBytes), src + p * kPlaneBytes,
                           smem_addr(&bars[s][warp]), policy);
            }
        }
    }
    __syncwarp();   // the warp's barriers are initialised for all its lanes

    uint32_t stage = 0;
    uint32_t parity = 0;
    for (int64_t plane = first; plane < planes; plane += step) {
        const int c = static_cast<int>(static_cast<uint32_t>(plane) %
                                       static_cast<uint32_t>(channels));
        const float gamma = __ldg(weight + c);
        const float beta = __ldg(bias + c);

        const uint32_t bar = smem_addr(&bars[stage][warp]);
        while (!mbar_try_wait(bar, parity)) {
        }

        const float4* tile =
            reinterpret_cast<const float4*>(slice + stage * kPlaneBytes) + lane;
        float4 v[kChunks];
#pragma unroll
        for (int i = 0; i < kChunks; ++i) v[i] = tile[i * 32];

        // The slice is in registers: refill the stage two rounds ahead.
        const int64_t ahead = plane + kStages * step;
        if (ahead < planes) {
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
            __syncwarp();
            if (lane == 0) {
                load_slice(smem_addr(slice + stage * kPlaneBytes),
                           src + ahead * kPlaneBytes, bar, policy);
            }
        }

        // Sums shifted by the thread's own first value: no harmful cancellation.
        const float shift = v[0].x;
        float s = 0.0f, q = 0.0f;
#pragma unroll
        for (int i = 0; i < kChunks; ++i) {
            const float d0 = v[i].x - shift;
            const float d1 = v[i].y - shift;
            const float d2 = v[i].z - shift;
            const float d3 = v[i].w - shift;
            s += (d0 + d1) + (d2 + d3);
            q += fmaf(d0, d0, d1 * d1) + fmaf(d2, d2, d3 * d3);
        }

        constexpr float kPer = 4.0f * kChunks;     // values per thread
        const float ds = s * (1.0f / kPer);
        float mean = shift + ds;
        float m2 = fmaf(-s, ds, q);

        // Chan's merge of equally large groups, inside the warp.
        float half_n = 0.5f * kPer;
#pragma unroll
        for (int o = 1; o < 32; o <<= 1) {
            const float mb = __shfl_xor_sync(0xffffffffu, mean, o);
            const float qb = __shfl_xor_sync(0xffffffffu, m2, o);
            const float d = mb - mean;
            mean = 0.5f * (mean + mb);
            m2 = (m2 + qb) + d * d * half_n;
            half_n *= 2.0f;
        }
        // red is double buffered: one block barrier per plane is enough.
        if (lane == 0) red[stage][warp] = make_float2(mean, m2);
        __syncthreads();

        // Every thread merges the warps' results (broadcast reads), relative to
        // the first warp's mean so that nothing cancels harmfully.
        const float4* r4 = reinterpret_cast<const float4*>(&red[stage][0]);
        const float pivot = red[stage][0].x;
        float msum = 0.0f, qsum = 0.0f, dsq = 0.0f;
#pragma unroll
        for (int w = 0; w < kWarps / 2; ++w) {
            const float4 r = r4[w];
            const float e0 = r.x - pivot;
            const float e1 = r.z - pivot;
            msum += e0 + e1;
            qsum += r.y + r.w;
            dsq += fmaf(e0, e0, e1 * e1);
        }
        const float dm = msum * (1.0f / kWarps);
        const float mu = pivot + dm;
        const float between = fmaxf(fmaf(-msum, dm, dsq), 0.0f);
        const float total = fmaf(between, kPer * 32.0f, qsum);
        const float var = total * (1.0f / kHW);
        const float a = gamma * rsqrtf(var + eps);

        // Ordinary write-back stores: L2 absorbs them in place of the input
        // lines, which are marked evict-first and no longer needed.
        float4* o4 = reinterpret_cast<float4*>(out + plane * kHW) +
                     warp * kSliceVec + lane;
#pragma unroll
        for (int i = 0; i < kChunks; ++i) {
            float4 y;
            y.x = norm_act(v[i].x, mu, a, beta);
            y.y = norm_act(v[i].y, mu, a, beta);
            y.z = norm_act(v[i].z, mu, a, beta);
            y.w = norm_act(v[i].w, mu, a, beta);
            o4[i * 32] = y;
        }

        stage ^= 1u;
        if (stage == 0u) parity ^= 1u;
    }
}

// ---- any other plane size or alignment --------------------------------------
constexpr int kGenThreads = 512;

__device__ __forceinline__ float block_sum(float v, float* buf) {
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
    __syncthreads();   // earlier readers of buf are done
    if ((threadIdx.x & 31) == 0) buf[threadIdx.x >> 5] = v;
    __syncthreads();
    float t = 0.0f;
#pragma unroll
    for (int w = 0; w < kGenThreads / 32; ++w) t += buf[w];
    return t;
}

__global__ void __launch_bounds__(kGenThreads)
generic_kernel(const float* __restrict__ x, const float* __restrict__ weight,
               const float* __restrict__ bias, float* __restrict__ out,
               int channels, int64_t hw, float eps) {
    __shared__ float buf[kGenThreads / 32];
    const float* xp = x + static_cast<int64_t>(blockIdx.x) * hw;
    float* op = out + static_cast<int64_t>(blockIdx.x) * hw;
    const int c = static_cast<int>(blockIdx.x % static_cast<unsigned>(channels));
    const float gamma = weight[c];
    const float beta = bias[c];

    float s = 0.0f;
    for (int64_t i = threadIdx.x; i < hw; i += kGenThreads) s += xp[i];
    const float mu = block_sum(s, buf) / static_cast<float>(hw);

    float q = 0.0f;
    for (int64_t i = threadIdx.x; i < hw; i += kGenThreads) {
        const float d = xp[i] - mu;
        q = fmaf(d, d, q);
    }
    const float var = block_sum(q, buf) / static_cast<float>(hw);
    const float a = gamma * rsqrtf(var + eps);

    for (int64_t i = threadIdx.x; i < hw; i += kGenThreads) {
        op[i] = norm_act(xp[i], mu, a, beta);
    }
}

}  // namespace

torch::Tensor inorm_lrelu(torch::Tensor x_in, torch::Tensor weight_in,
                          torch::Tensor bias_in, double eps) {
    TORCH_CHECK(x_in.is_cuda(), "x must be a CUDA tensor");
    TORCH_CHECK(weight_in.is_cuda() && bias_in.is_cuda(), "parameters must be CUDA tensors");
    TORCH_CHECK(x_in.scalar_type() == torch::kFloat32, "x must be float32");
    TORCH_CHECK(weight_in.scalar_type() == torch::kFloat32 &&
                bias_in.scalar_type() == torch::kFloat32, "parameters must be float32");
    TORCH_CHECK(x_in.dim() == 4 || x_in.dim() == 3, "x must have 3 or 4 dimensions");

    const c10::cuda::CUDAGuard guard(x_in.device());
    const torch::Tensor x = x_in.contiguous();
    const torch::Tensor weight = weight_in.contiguous();
    const torch::Tensor bias = bias_in.contiguous();

    const int64_t channels = x.size(-3);
    const int64_t hw = x.size(-2) * x.size(-1);
    TORCH_CHECK(weight.numel() == channels && bias.numel() == channels,
                "parameters do not match the channels of x");

    torch::Tensor out = torch::empty(x.sizes(), x.options());
    if (x.numel() == 0) return out;

    const int64_t planes = x.numel() / hw;
    TORCH_CHECK(planes <= 2147483647LL, "too many planes");

    const float* xp = x.data_ptr<float>();
    const float* wp = weight.data_ptr<float>();
    const float* bp = bias.data_ptr<float>();
    float* op = out.data_ptr<float>();
    cudaStream_t stream = at::cuda::getCurrentCUDAStream();

    const bool aligned = (reinterpret_cast<uintptr_t>(xp) % 16 == 0) &&
                         (reinterpret_cast<uintptr_t>(op) % 16 == 0);
    if (hw == kHW && aligned) {
        C10_CUDA_CHECK(cudaFuncSetAttribute(
            plane_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSmemBytes));
        C10_CUDA_CHECK(cudaFuncSetAttribute(
            plane_kernel, cudaFuncAttributePreferredSharedMemoryCarveout, 100));
        const int64_t slots = static_cast<int64_t>(kBlocksPerSM) *
            at::cuda::getCurrentDeviceProperties()->multiProcessorCount;
        const int64_t grid = planes < slots ? planes : slots;
        plane_kernel<<<static_cast<unsigned>(grid), kThreads, kSmemBytes, stream>>>(
            xp, wp, bp, op, static_cast<int>(channels), planes, static_cast<float>(eps));
    } else {
        generic_kernel<<<static_cast<unsigned>(planes), kGenThreads, 0, stream>>>(
            xp, wp, bp, op, static_cast<int>(channels), hw, static_cast<float>(eps));
    }
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return out;
}
"""

_ext = load_inline(
    name="inorm_lrelu_persist_v3",
    cpp_sources=CPP_SRC,
    cuda_sources=CUDA_SRC,
    functions=["inorm_lrelu"],
    extra_cuda_cflags=["-O3"],
)


class ModelNew(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        # Holds weight, bias and eps under the same names as the reference.
        self.norm = nn.InstanceNorm2d(channels, affine=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _ext.inorm_lrelu(x, self.norm.weight, self.norm.bias, self.norm.eps)

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

_cpp_src = "torch::Tensor rms_norm(torch::Tensor x, torch::Tensor scale, double eps);"

_cuda_src = r"""
#include <torch/types.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <cstdint>

constexpr int THREADS = 512;
constexpr int WARPS = THREADS / 32;
constexpr int STAGES = 3;                    // rows in flight per block

template <int VPT>
constexpr int blocks_per_sm() { return VPT <= 2 ? 3 : 2; }

// Sum over the block; every thread receives the result. A buffer may be used again once
// another barrier has been passed.
__device__ __forceinline__ float block_sum(float s, float* part) {
    const int lane = threadIdx.x & 31;
    const int warp = threadIdx.x >> 5;
    #pragma unroll
    for (int d = 16; d > 0; d >>= 1) s += __shfl_xor_sync(0xffffffffu, s, d);
    if (lane == 0) part[warp] = s;
    __syncthreads();
    s = part[lane & (WARPS - 1)];
    #pragma unroll
    for (int d = WARPS / 2; d > 0; d >>= 1) s += __shfl_xor_sync(0xffffffffu, s, d);
    return s;
}

// Asks for this thread's float4s of one row; columns beyond the row become 0.
template <int VPT>
__device__ __forceinline__ void prefetch_row(const float4* slot, const float4* xr, int width4) {
    const uint32_t dst = (uint32_t)__cvta_generic_to_shared(slot);
    #pragma unroll
    for (int j = 0; j < VPT; ++j) {
        const int c = j * THREADS + (int)threadIdx.x;
        const bool in = c < width4;
        const float4* src = in ? xr + c : xr;
        const int bytes = in ? 16 : 0;
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n"
                     :: "r"(dst + j * THREADS * 16), "l"(src), "r"(bytes) : "memory");
    }
}

// Row held in registers: width4 <= THREADS * VPT float4 values. The block walks over the
// rows; every thread reads back only the shared memory slots that it filled itself.
template <int VPT>
__global__ void __launch_bounds__(THREADS, blocks_per_sm<VPT>())
rms_norm_vec_kernel(const float4* __restrict__ x, const float4* __restrict__ scale,
                    float4* __restrict__ y, int rows, int width4, float width_f, float eps) {
    extern __shared__ __align__(16) float4 slots[];      // [STAGES][VPT][THREADS]
    __shared__ float part[2][WARPS];

    const int tid = threadIdx.x;
    const int64_t step = (int64_t)gridDim.x * width4;
    const float4* xr = x + (int64_t)blockIdx.x * width4; // next row to prefetch
    float4* yr = y + (int64_t)blockIdx.x * width4;       // current row
    int64_t ahead = blockIdx.x;                          // index of the row at xr

    #pragma unroll
    for (int p = 0; p < STAGES; ++p) {
        if (ahead < rows) prefetch_row<VPT>(slots + p * (VPT * THREADS) + tid, xr, width4);
        asm volatile("cp.async.commit_group;\n" ::: "memory");
        xr += step;
        ahead += gridDim.x;
    }

    // The scale is the same for every row.
    float4 g[VPT];
    #pragma unroll
    for (int j = 0; j < VPT; ++j) {
        const int c = j * THREADS + tid;
        g[j] = (c < width4) ? __ldg(scale + c) : make_float4(0.f, 0.f, 0.f, 0.f);
    }

    int buf = 0;
    int side = 0;
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        float4* stage = slots + buf * (VPT * THREADS) + tid;
        asm volatile("cp.async.wait_group %0;\n" :: "n"(STAGES - 1) : "memory");
        float4 v[VPT];
        #pragma unroll
        for (int j = 0; j < VPT; ++j) v[j] = stage[j * THREADS];

        float s = 0.f;
        #pragma unroll
        for (int j = 0; j < VPT; ++j) {
            s += (v[j].x * v[j].x + v[j].y * v[j].y) + (v[j].z * v[j].z + v[j].w * v[j].w);
        }
        s = block_sum(s, part[side]);

        // The slots of this row have been read: refill them.
        if (ahead < rows) prefetch_row<VPT>(stage, xr, width4);
        asm volatile("cp.async.commit_group;\n" ::: "memory");
        xr += step;
        ahead += gridDim.x;

        const float r = rsqrtf(s / width_f + eps);
        #pragma unroll
        for (int j = 0; j < VPT; ++j) {
            const int c = j * THREADS + tid;
            if (c < width4) {
                // Never read here again: the output is the first to leave L2, not the input.
                __stcs(yr + c, make_float4(v[j].x * r * g[j].x, v[j].y * r * g[j].y,
                                           v[j].z * r * g[j].z, v[j].w * r * g[j].w));
            }
        }
        yr += step;
        buf = (buf + 1 == STAGES) ? 0 : buf + 1;
        side ^= 1;
    }
    asm volatile("cp.async.wait_group 0;\n" ::: "memory");
}

// Any width, any alignment: reads the row twice.
__global__ void __launch_bounds__(THREADS)
rms_norm_generic_kernel(const float* __restrict__ x, const float* __restrict__ scale,
                        float* __restrict__ y, int64_t width, float eps) {
    __shared__ float part[WARPS];
    const int64_t row = blockIdx.x;
    const float* xr = x + row * width;
    float* yr = y + row * width;
    float s = 0.f;
    for (int64_t c = threadIdx.x; c < width; c += THREADS) {
        const float a = xr[c];
        s += a * a;
    }
    s = block_sum(s, part);
    const float r = rsqrtf(s / (float)width + eps);
    for (int64_t c = threadIdx.x; c < width; c += THREADS) {
        yr[c] = xr[c] * r * scale[c];
    }
}

template <int VPT>
void launch_vec(const float4* x, const float4* scale, float4* y, int rows, int width4,
                float width_f, float eps, int dev, cudaStream_t stream) {
    constexpr int smem = STAGES * VPT * THREADS * 16;
    // The kernel's shared memory limit, set once per device.
    static bool configured[64] = {};
    if (dev >= 64 || !configured[dev]) {
        C10_CUDA_CHECK(cudaFuncSetAttribute(
            rms_norm_vec_kernel<VPT>, cudaFuncAttributeMaxDynamicSharedMemorySize, smem));
        C10_CUDA_CHECK(cudaFuncSetAttribute(
            rms_norm_vec_kernel<VPT>, cudaFuncAttributePreferredSharedMemoryCarveout,
            cudaSharedmemCarveoutMaxShared));
        if (dev < 64) configured[dev] = true;
    }
    const int slots = at::cuda::getCurrentDeviceProperties()->multiProcessorCount *
                      blocks_per_sm<VPT>();
    const unsigned grid = (unsigned)(rows < slots ? rows : slots);
    rms_norm_vec_kernel<VPT><<<grid, THREADS, smem, stream>>>(x, scale, y, rows, width4,
                                                              width_f, eps);
}

torch::Tensor rms_norm(torch::Tensor x, torch::Tensor scale, double eps) {
    TORCH_CHECK(x.is_cuda() && scale.is_cuda(), "x and scale must be CUDA tensors");
    TORCH_CHECK(x.device() == scale.device(), "x and scale must be on one device");
    TORCH_CHECK(x.scalar_type() == at::kFloat && scale.scalar_type() == at::kFloat,
                "x and scale must be float32");
    TORCH_CHECK(x.dim() >= 1 && scale.dim() == 1 && x.size(-1) == scale.size(0),
                "the last dimension of x must match scale");
    const c10::cuda::CUDAGuard guard(x.device());
    auto xc = x.contiguous();
    auto sc = scale.contiguous();
    auto y = at::empty(xc.sizes(), xc.options());
    if (xc.numel() == 0) return y;
    const int64_t width = xc.size(-1);
    const int64_t rows = xc.numel() / width;
    TORCH_CHECK(rows <= 2147483647LL, "too many rows");

    const float* xp = xc.data_ptr<float>();
    const float* sp = sc.data_ptr<float>();
    float* yp = y.data_ptr<float>();
    const bool vec = (width % 4 == 0) && (width <= 4LL * THREADS * 4) &&
                     (reinterpret_cast<uintptr_t>(xp) % 16 == 0) &&
                     (reinterpret_cast<uintptr_t>(sp) % 16 == 0) &&
                     (reinterpret_cast<uintptr_t>(yp) % 16 == 0);
    cudaStream_t stream = at::cuda::getCurrentCUDAStream();
    if (vec) {
        const int width4 = (int)(width / 4);
        const int dev = (int)xc.get_device();
        const float4* x4 = reinterpret_cast<const float4*>(xp);
        const float4* s4 = reinterpret_cast<const float4*>(sp);
        float4* y4 = reinterpret_cast<float4*>(yp);
        if (width4 <= THREADS) {
            launch_vec<1>(x4, s4, y4, (int)rows, width4, (float)width, (float)eps, dev, stream);
        } else if (width4 <= 2 * THREADS) {
            launch_vec<2>(x4, s4, y4, (int)rows, width4, (float)width, (float)eps, dev, stream);
        } else {
            launch_vec<4>(x4, s4, y4, (int)rows, width4, (float)width, (float)eps, dev, stream);
        }
    } else {
        rms_norm_generic_kernel<<<(unsigned)rows, THREADS, 0, stream>>>(xp, sp, yp, width, (float)eps);
    }
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return y;
}
"""

_ext = load_inline(
    name="rms_norm_f32_v3_stcs",
    cpp_sources=_cpp_src,
    cuda_sources=_cuda_src,
    functions=["rms_norm"],
    extra_cuda_cflags=["-O3"],
)


class ModelNew(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _ext.rms_norm(x, self.scale, self.eps)

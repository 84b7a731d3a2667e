import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

_cpp_src = "torch::Tensor sum_middle(torch::Tensor x);"

_cuda_src = r"""
#include <torch/types.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime.h>
#include <cstdint>

constexpr int THREADS = 512;
constexpr int WARPS = THREADS / 32;          // 16
constexpr int LANES = 16;                    // float4 columns per block
constexpr int ROW_GROUPS = THREADS / LANES;  // 32
constexpr int UNROLL = 8;

__device__ __forceinline__ void add4(float4& a, const float4& b) {
    a.x += b.x;
    a.y += b.y;
    a.z += b.z;
    a.w += b.w;
}

__global__ void __launch_bounds__(THREADS, 2)
sum_middle_vec_kernel(const float4* __restrict__ x, float* __restrict__ y,
                      int64_t middle, int64_t inner4, int64_t tiles) {
    __shared__ __align__(16) float part[WARPS][LANES * 4];

#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ >= 900)
    // A following kernel may be set up early; one that is launched this way
    // waits for the end of this grid before it touches memory.
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif

    const int tid = threadIdx.x;
    const int col = tid % LANES;
    const int rg = tid / LANES;
    const int64_t b = blockIdx.x / tiles;
    const int64_t tile = blockIdx.x - b * tiles;
    const int64_t c4 = tile * LANES + col;

    float4 acc0 = make_float4(0.f, 0.f, 0.f, 0.f);
    float4 acc1 = make_float4(0.f, 0.f, 0.f, 0.f);
    const float4* p = x + (b * middle + rg) * inner4 + c4;
    const int64_t step = (int64_t)ROW_GROUPS * inner4;

#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ >= 900)
    // Everything queued before is complete and visible after this point.
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif

    if (c4 < inner4) {
        int64_t m = rg;
        for (; m + (UNROLL - 1) * ROW_GROUPS < middle; m += UNROLL * ROW_GROUPS) {
            float4 v[UNROLL];
            #pragma unroll
            for (int u = 0; u < UNROLL; ++u) v[u] = __ldcs(p + u * step);
            p += UNROLL * step;
            #pragma unroll
            for (int u = 0; u < UNROLL; u += 2) {
                add4(acc0, v[u]);
                add4(acc1, v[u + 1]);
            }
        }
        for (; m < middle; m += ROW_GROUPS) {
            add4(acc0, __ldcs(p));
            p += step;
        }
    }
    add4(acc0, acc1);

    // The two row groups of a warp.
    acc0.x += __shfl_xor_sync(0xffffffffu, acc0.x, LANES);
    acc0.y += __shfl_xor_sync(0xffffffffu, acc0.y, LANES);
    acc0.z += __shfl_xor_sync(0xffffffffu, acc0.z, LANES);
    acc0.w += __shfl_xor_sync(0xffffffffu, acc0.w, LANES);
    if ((tid & 31) < LANES) {
        *reinterpret_cast<float4*>(&part[tid >> 5][col * 4]) = acc0;
    }
    __syncthreads();

    if (tid < LANES * 4) {
        const int64_t c = tile * (LANES * 4) + tid;
        if (c < inner4 * 4) {
            float s = 0.f;
            #pragma unroll
            for (int w = 0; w < WARPS; ++w) s += part[w][tid];
            y[b * (inner4 * 4) + c] = s;
        }
    }
}

// Any inner size and alignment: 32 columns per block, one row group per warp.
__global__ void __launch_bounds__(THREADS)
sum_middle_scalar_kernel(const float* __restrict__ x, float* __restrict__ y,
                         int64_t middle, int64_t inner, int64_t tiles) {
    __shared__ float part[WARPS][32];
    const int lane = threadIdx.x & 31;
    const int warp = threadIdx.x >> 5;
    const int64_t b = blockIdx.x / tiles;
    const int64_t tile = blockIdx.x - b * tiles;
    const int64_t c = tile * 32 + lane;
    float s = 0.f;
    if (c < inner) {
        const float* p = x + b * middle * inner + c;
        #pragma unroll 8
        for (int64_t m = warp; m < middle; m += WARPS) s += __ldg(p + m * inner);
    }
    part[warp][lane] = s;
    __syncthreads();
    if (warp == 0 && c < inner) {
        float t = 0.f;
        #pragma unroll
        for (int w = 0; w < WARPS; ++w) t += part[w][lane];
        y[b * inner + c] = t;
    }
}

torch::Tensor sum_middle(torch::Tensor x) {
    TORCH_CHECK(x.is_cuda(), "x must be a CUDA tensor");
    TORCH_CHECK(x.scalar_type() == at::kFloat, "x must be float32");
    TORCH_CHECK(x.dim() == 3, "x must have three dimensions");
    const c10::cuda::CUDAGuard guard(x.device());
    auto xc = x.contiguous();
    const int64_t batch = xc.size(0);
    const int64_t middle = xc.size(1);
    const int64_t inner = xc.size(2);
    auto y = at::empty({batch, inner}, xc.options());
    if (batch == 0 || inner == 0) return y;

    const float* xp = xc.data_ptr<float>();
    float* yp = y.data_ptr<float>();
    const bool vec = (inner % 4 == 0) && (reinterpret_cast<uintptr_t>(xp) % 16 == 0);
    const int64_t width = vec ? LANES * 4 : 32;
    const int64_t tiles = (inner + width - 1) / width;
    TORCH_CHECK(batch * tiles <= 2147483647LL, "x is too large for one grid");
    const unsigned grid = (unsigned)(batch * tiles);
    cudaStream_t stream = at::cuda::getCurrentCUDAStream().stream();
    if (vec) {
        cudaLaunchAttribute attr[1];
        attr[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attr[0].val.programmaticStreamSerializationAllowed = 1;
        cudaLaunchConfig_t cfg = {};
        cfg.gridDim = dim3(grid);
        cfg.blockDim = dim3(THREADS);
        cfg.dynamicSmemBytes = 0;
        cfg.stream = stream;
        cfg.attrs = attr;
        cfg.numAttrs = 1;
        const float4* xv = reinterpret_cast<const float4*>(xp);
        const int64_t inner4 = inner / 4;
        C10_CUDA_CHECK(cudaLaunchKernelEx(&cfg, sum_middle_vec_kernel,
                                          xv, yp, middle, inner4, tiles));
    } else {
        sum_middle_scalar_kernel<<<grid, THREADS, 0, stream>>>(xp, yp, middle, inner, tiles);
    }
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return y;
}
"""

_ext = load_inline(
    name="sum_middle_f32_v2_pdl",
    cpp_sources=_cpp_src,
    cuda_sources=_cuda_src,
    functions=["sum_middle"],
    extra_cuda_cflags=["-O3"],
)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _ext.sum_middle(x)

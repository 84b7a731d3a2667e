import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

_cpp_src = "torch::Tensor linear_relu_sum(torch::Tensor x, torch::Tensor weight, torch::Tensor bias);"

_cuda_src = r"""
#include <torch/types.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <cstdint>

constexpr int K = 64;                        // inner features of the fast kernel
constexpr int N = 64;                        // output features of the fast kernel
constexpr int LD = K + 4;                    // padded row in shared memory, in floats
constexpr int WARPS = 8;
constexpr int THREADS = WARPS * 32;
constexpr int TILE = 32;                     // rows per warp tile
constexpr int SMEM_FLOATS = N * LD + WARPS * 2 * TILE * LD;
constexpr int SMEM_BYTES = SMEM_FLOATS * 4;

__device__ __forceinline__ void cp_async16(float* dst, const float* src) {
    const unsigned d = (unsigned)__cvta_generic_to_shared(dst);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" :: "r"(d), "l"(src) : "memory");
}
__device__ __forceinline__ void cp_async_commit() {
    asm volatile("cp.async.commit_group;\n" ::: "memory");
}
template <int LEFT>
__device__ __forceinline__ void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;\n" :: "n"(LEFT) : "memory");
}

// NaN passes through, as in torch.relu.
__device__ __forceinline__ float relu(float v) { return (v < 0.f) ? 0.f : v; }

__device__ __forceinline__ void load_tile(float* dst, const float* __restrict__ x,
                                          int64_t tile, int64_t rows, int lane) {
    const int64_t row0 = tile * TILE;
    #pragma unroll
    for (int i = 0; i < TILE * (K / 4) / 32; ++i) {
        const int c = i * 32 + lane;
        const int r = c / (K / 4);
        const int k = (c % (K / 4)) * 4;
        int64_t row = row0 + r;
        if (row >= rows) row = rows - 1;     // a valid address; its result is not stored
        cp_async16(dst + r * LD + k, x + row * K + k);
    }
}

struct Fragment {
    float4 a[8];
    float4 b[8];
};

__device__ __forceinline__ void load_fragment(Fragment& f, const float* xs, const float* ws, int k) {
    #pragma unroll
    for (int i = 0; i < 8; ++i) f.a[i] = *reinterpret_cast<const float4*>(xs + i * 4 * LD + k);
    #pragma unroll
    for (int j = 0; j < 8; ++j) f.b[j] = *reinterpret_cast<const float4*>(ws + j * 8 * LD + k);
}

__device__ __forceinline__ void multiply(float (&acc)[8][8], const Fragment& f) {
    #pragma unroll
    for (int j = 0; j < 8; ++j) {
        #pragma unroll
        for (int i = 0; i < 8; ++i) acc[i][j] = fmaf(f.a[i].x, f.b[j].x, acc[i][j]);
        #pragma unroll
        for (int i = 0; i < 8; ++i) acc[i][j] = fmaf(f.a[i].y, f.b[j].y, acc[i][j]);
        #pragma unroll
        for (int i = 0; i < 8; ++i) acc[i][j] = fmaf(f.a[i].z, f.b[j].z, acc[i][j]);
        #pragma unroll
        for (int i = 0; i < 8; ++i) acc[i][j] = fmaf(f.a[i].w, f.b[j].w, acc[i][j]);
    }
}

// Thread (ty, tx) of a warp holds rows ty + 4 i and features tx + 8 j.
__global__ void __launch_bounds__(THREADS, 1)
linear_relu_sum_kernel(const float* __restrict__ x, const float* __restrict__ weight,
                       const float* __restrict__ bias, float* __restrict__ y,
                       int64_t rows, int64_t tiles) {
    extern __shared__ __align__(16) float smem[];
    const int tid = threadIdx.x;
    const int lane = tid & 31;
    const int warp = tid >> 5;
    const int tx = lane & 7;
    const int ty = lane >> 3;

    float* w_s = smem;
    float* x_s = smem + N * LD + warp * (2 * TILE * LD);

    const int64_t stride = (int64_t)gridDim.x * WARPS;
    int64_t tile = (int64_t)warp * gridDim.x + blockIdx.x;

    #pragma unroll
    for (int i = 0; i < N * (K / 4) / THREADS; ++i) {
        const int c = i * THREADS + tid;
        const int r = c / (K / 4);
        const int k = (c % (K / 4)) * 4;
        cp_async16(w_s + r * LD + k, weight + r * K + k);
    }
    if (tile < tiles) load_tile(x_s, x, tile, rows, lane);
    cp_async_commit();
    if (tile + stride < tiles) load_tile(x_s + TILE * LD, x, tile + stride, rows, lane);
    cp_async_commit();

    float bj[8];
    #pragma unroll
    for (int j = 0; j < 8; ++j) bj[j] = __ldg(bias + tx + 8 * j);

    cp_async_wait<1>();
    __syncthreads();

    const float* ws = w_s + tx * LD;
    int buf = 0;
    while (tile < tiles) {
        float* stage = x_s + buf * (TILE * LD);
        const float* xs = stage + ty * LD;

        float acc[8][8];
        #pragma unroll
        for (int i = 0; i < 8; ++i) {
            #pragma unroll
            for (int j = 0; j < 8; ++j) acc[i][j] = bj[j];
        }

        Fragment f0, f1;
        load_fragment(f0, xs, ws, 0);
        #pragma unroll 1
        for (int k = 0; k < K; k += 8) {
            load_fragment(f1, xs, ws, k + 4);
            multiply(acc, f0);
            load_fragment(f0, xs, ws, (k + 8) & (K - 1));   // the last one is not used
            multiply(acc, f1);
        }

        // Every lane has read this stage: refill it, then make the next one visible.
        __syncwarp();
        const int64_t ahead = tile + 2 * stride;
        if (ahead < tiles) load_tile(stage, x, ahead, rows, lane);
        cp_async_commit();

        float result = 0.f;
        #pragma unroll
        for (int i = 0; i < 8; ++i) {
            float s = ((relu(acc[i][0]) + relu(acc[i][1])) + (relu(acc[i][2]) + relu(acc[i][3]))) +
                      ((relu(acc[i][4]) + relu(acc[i][5])) + (relu(acc[i][6]) + relu(acc[i][7])));
            s += __shfl_xor_sync(0xffffffffu, s, 1);
            s += __shfl_xor_sync(0xffffffffu, s, 2);
            s += __shfl_xor_sync(0xffffffffu, s, 4);
            if (tx == i) result = s;
        }
        const int64_t row = tile * TILE + ty + 4 * tx;
        if (row < rows) y[row] = result;

        cp_async_wait<1>();
        __syncwarp();
        tile += stride;
        buf ^= 1;
    }
    cp_async_wait<0>();
}

// Any sizes and alignment: one warp per row, lanes over the output features.
__global__ void __launch_bounds__(THREADS)
linear_relu_sum_generic_kernel(const float* __restrict__ x, const float* __restrict__ weight,
                               const float* __restrict__ bias, float* __restrict__ y,
                               int64_t rows, int64_t inner, int64_t width) {
    const int lane = threadIdx.x & 31;
    const int64_t row = (int64_t)blockIdx.x * WARPS + (threadIdx.x >> 5);
    if (row >= rows) return;
    const float* xr = x + row * inner;
    float s = 0.f;
    for (int64_t j = lane; j < width; j += 32) {
        const float* wj = weight + j * inner;
        float a = bias[j];
        for (int64_t k = 0; k < inner; ++k) a = fmaf(xr[k], wj[k], a);
        s += relu(a);
    }
    #pragma unroll
    for (int d = 16; d > 0; d >>= 1) s += __shfl_xor_sync(0xffffffffu, s, d);
    if (lane == 0) y[row] = s;
}

torch::Tensor linear_relu_sum(torch::Tensor x, torch::Tensor weight, torch::Tensor bias) {
    TORCH_CHECK(x.is_cuda() && weight.is_cuda() && bias.is_cuda(), "tensors must be on CUDA");
    TORCH_CHECK(x.device() == weight.device() && x.device() == bias.device(),
                "tensors must be on one device");
    TORCH_CHECK(x.scalar_type() == at::kFloat && weight.scalar_type() == at::kFloat &&
                bias.scalar_type() == at::kFloat, "tensors must be float32");
    TORCH_CHECK(x.dim() == 2 && weight.dim() == 2 && bias.dim() == 1, "expected x (R, I), weight (W, I), bias (W)");
    const int64_t rows = x.size(0);
    const int64_t inner = x.size(1);
    const int64_t width = weight.size(0);
    TORCH_CHECK(weight.size(1) == inner && bias.size(0) == width, "sizes do not match");
    const c10::cuda::CUDAGuard guard(x.device());
    auto xc = x.contiguous();
    auto wc = weight.contiguous();
    auto bc = bias.contiguous();
    auto y = at::empty({rows}, xc.options());
    if (rows == 0) return y;

    const float* xp = xc.data_ptr<float>();
    const float* wp = wc.data_ptr<float>();
    const float* bp = bc.data_ptr<float>();
    float* yp = y.data_ptr<float>();
    auto stream = at::cuda::getCurrentCUDAStream();
    const bool fast = (inner == K) && (width == N) &&
                      (reinterpret_cast<uintptr_t>(xp) % 16 == 0) &&
                      (reinterpret_cast<uintptr_t>(wp) % 16 == 0);
    if (fast) {
        const int64_t tiles = (rows + TILE - 1) / TILE;
        const int64_t sms = at::cuda::getCurrentDeviceProperties()->multiProcessorCount;
        const int64_t wanted = (tiles + WARPS - 1) / WARPS;
        const unsigned grid = (unsigned)(wanted < sms ? wanted : sms);
        C10_CUDA_CHECK(cudaFuncSetAttribute(linear_relu_sum_kernel,
                                            cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM_BYTES));
        linear_relu_sum_kernel<<<grid, THREADS, SMEM_BYTES, stream>>>(xp, wp, bp, yp, rows, tiles);
    } else {
        const int64_t blocks = (rows + WARPS - 1) / WARPS;
        TORCH_CHECK(blocks <= 2147483647LL, "too many rows");
        linear_relu_sum_generic_kernel<<<(unsigned)blocks, THREADS, 0, stream>>>(
            xp, wp, bp, yp, rows, inner, width);
    }
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return y;
}
"""

_ext = load_inline(
    name="linear_relu_sum_f32_v1",
    cpp_sources=_cpp_src,
    cuda_sources=_cuda_src,
    functions=["linear_relu_sum"],
    extra_cuda_cflags=["-O3", "-gencode=arch=compute_90,code=sm_90"],
)


class ModelNew(nn.Module):
    def __init__(self, inner: int, width: int) -> None:
        super().__init__()
        # Holds the parameters (linear.weight, linear.bias); its forward is not used.
        self.linear = nn.Linear(inner, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _ext.linear_relu_sum(x, self.linear.weight, self.linear.bias)

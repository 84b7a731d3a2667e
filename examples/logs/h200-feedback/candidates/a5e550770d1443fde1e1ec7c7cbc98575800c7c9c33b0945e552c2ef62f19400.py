import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

_CPP = r"""
at::Tensor max_pool2d_direct(const at::Tensor& x, int64_t kernel, int64_t stride, int64_t pad);
"""

_CUDA = r"""
#include <torch/types.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <cstdint>

constexpr int THREADS = 256;
constexpr int FAST_THREADS = 128;
constexpr int WARPS = FAST_THREADS / 32;
constexpr int R = 4;              // output rows per warp
constexpr int TILE = R * WARPS;   // output rows per block
constexpr int IN_ROWS = 2 * TILE + 1;   // input rows per block
constexpr int W4 = 32;            // float4 per input row (width 128)

__device__ __forceinline__ float neg_inf() { return __int_as_float(0xff800000); }

// Maximum that keeps NaN, as PyTorch's pooling does.
__device__ __forceinline__ float max_nan(float a, float b) {
    float r;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
    return r;
}

// Horizontal part of the window: two outputs per lane. All lanes of the warp must take part.
__device__ __forceinline__ float2 row_max(const float4 v, int lane) {
    float left = __shfl_up_sync(0xffffffffu, v.w, 1);
    if (lane == 0) left = neg_inf();
    float2 h;
    h.x = max_nan(left, max_nan(v.x, v.y));
    h.y = max_nan(v.y, max_nan(v.z, v.w));
    return h;
}

// Kernel 3, stride 2, padding 1, width exactly 128, any height. A block makes TILE output rows of
// one plane; their input rows are contiguous in memory and come by one bulk copy.
__global__ void __launch_bounds__(FAST_THREADS, 12)
max_pool_k3s2p1_w128_kernel(const float4* __restrict__ x, float2* __restrict__ out,
                            unsigned tiles, int height, int out_height) {
    __shared__ alignas(128) float4 tile[IN_ROWS * W4];
    __shared__ alignas(8) unsigned long long bar;

    const unsigned plane = blockIdx.x / tiles;
    const int out_row0 = (int)(blockIdx.x - plane * tiles) * TILE;
    const int rows = min(TILE, out_height - out_row0);       // output rows of this block
    const int in0 = out_row0 > 0 ? 2 * out_row0 - 1 : 0;     // first input row
    const int in1 = min(2 * (out_row0 + rows), height);      // one past the last input row

    const uint32_t bar_addr = (uint32_t)__cvta_generic_to_shared(&bar);
    if (threadIdx.x == 0) {
        const uint32_t tile_addr = (uint32_t)__cvta_generic_to_shared(tile);
        const uint32_t bytes = (uint32_t)(in1 - in0) * (uint32_t)(W4 * sizeof(float4));
        const float4* src = x + ((int64_t)plane * height + in0) * W4;
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(bar_addr) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                     :: "r"(bar_addr), "r"(bytes) : "memory");
        asm volatile(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
            :: "r"(tile_addr), "l"(__cvta_generic_to_global(src)), "r"(bytes), "r"(bar_addr)
            : "memory");
    }
    __syncthreads();                                 // the barrier is initialised for all

    uint32_t done = 0;
    while (!done) {
        asm volatile(
            "{\n\t"
            ".reg .pred p;\n\t"
            "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0;\n\t"
            "selp.u32 %0, 1, 0, p;\n\t"
            "}\n"
            : "=r"(done) : "r"(bar_addr) : "memory");
    }
    __syncwarp();

    const int lane = (int)(threadIdx.x & 31);
    const int first = (int)(threadIdx.x >> 5) * R;   // first output row of this warp in the tile
    const float4 none = make_float4(neg_inf(), neg_inf(), neg_inf(), neg_inf());
    const float4* in = tile + lane;
    float2* dst = out + ((int64_t)plane * out_height + out_row0 + first) * W4 + lane;

    if (first >= rows) return;                       // whole warps leave together
    const int g0 = 2 * (out_row0 + first);           // input row in the middle of the first window
    float4 top = none;
    if (g0 > 0) top = in[(g0 - 1 - in0) * W4];
    float2 carry = row_max(top, lane);
#pragma unroll
    for (int i = 0; i < R; ++i) {
        if (first + i < rows) {                      // the same for the whole warp
            const int g = g0 + 2 * i;
            float4 a = none, b = none;
            if (g < in1) a = in[(g - in0) * W4];
            if (g + 1 < in1) b = in[(g + 1 - in0) * W4];
            const float2 ha = row_max(a, lane);
            const float2 hb = row_max(b, lane);
            float2 o;
            o.x = max_nan(carry.x, max_nan(ha.x, hb.x));
            o.y = max_nan(carry.y, max_nan(ha.y, hb.y));
            carry = hb;
            __stcs(dst + (int64_t)i * W4, o);
        }
    }
}

// Any square window, stride, padding, size and alignment.
__global__ void __launch_bounds__(THREADS)
max_pool_any_kernel(const float* __restrict__ x, float* __restrict__ out, int64_t total,
                    int height, int width, int out_h, int out_w, int k, int stride, int pad) {
    const int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < total; i += step) {
        const int64_t t = i / out_w;
        const int ox = (int)(i - t * out_w);
        const int64_t plane = t / out_h;
        const int oy = (int)(t - plane * out_h);
        const float* src = x + plane * height * (int64_t)width;
        const int y0 = oy * stride - pad;
        const int x0 = ox * stride - pad;
        const int ya = y0 < 0 ? 0 : y0;
        const int xa = x0 < 0 ? 0 : x0;
        const int yb = y0 + k < height ? y0 + k : height;
        const int xb = x0 + k < width ? x0 + k : width;
        float m = neg_inf();
        for (int iy = ya; iy < yb; ++iy)
            for (int ix = xa; ix < xb; ++ix)
                m = max_nan(m, src[(int64_t)iy * width + ix]);
        out[i] = m;
    }
}

static inline bool aligned16(const void* p) {
    return (reinterpret_cast<uintptr_t>(p) & 15u) == 0;
}

at::Tensor max_pool2d_direct(const at::Tensor& x_in, int64_t k, int64_t stride, int64_t pad) {
    TORCH_CHECK(x_in.is_cuda(), "x must be on CUDA");
    TORCH_CHECK(x_in.scalar_type() == at::kFloat, "x must be float32");
    TORCH_CHECK(x_in.dim() == 4, "x must have four dimensions");
    TORCH_CHECK(k > 0 && stride > 0 && pad >= 0 && pad <= k / 2, "bad pooling parameters");
    const c10::cuda::CUDAGuard guard(x_in.device());

    const at::Tensor x = x_in.contiguous();
    const int64_t n = x.size(0), c = x.size(1), h = x.size(2), w = x.size(3);
    TORCH_CHECK(h + 2 * pad >= k && w + 2 * pad >= k, "window larger than the padded input");
    TORCH_CHECK(h <= 1000000000LL && w <= 1000000000LL, "sizes too large");
    const int64_t out_h = (h + 2 * pad - k) / stride + 1;
    const int64_t out_w = (w + 2 * pad - k) / stride + 1;

    at::Tensor out = at::empty({n, c, out_h, out_w}, x.options());
    const int64_t total = out.numel();
    if (total == 0) return out;

    const float* xp = x.data_ptr<float>();
    float* op = out.data_ptr<float>();
    cudaStream_t stream = at::cuda::getCurrentCUDAStream();

    const int64_t tiles = (out_h + TILE - 1) / TILE;
    const int64_t blocks = n * c * tiles;
    const bool fast = k == 3 && stride == 2 && pad == 1 && w == 4 * W4 &&
                      blocks <= 2147483647LL && aligned16(xp) && aligned16(op);
    if (fast) {
        // leave the unified memory of the SM to shared memory, so that many blocks fit
        C10_CUDA_CHECK(cudaFuncSetAttribute(max_pool_k3s2p1_w128_kernel,
                                            cudaFuncAttributePreferredSharedMemoryCarveout, 100));
        max_pool_k3s2p1_w128_kernel<<<(unsigned)blocks, FAST_THREADS, 0, stream>>>(
            reinterpret_cast<const float4*>(xp), reinterpret_cast<float2*>(op),
            (unsigned)tiles, (int)h, (int)out_h);
    } else {
        int64_t grid = (total + THREADS - 1) / THREADS;
        if (grid > 16384) grid = 16384;
        max_pool_any_kernel<<<(unsigned)grid, THREADS, 0, stream>>>(
            xp, op, total, (int)h, (int)w, (int)out_h, (int)out_w, (int)k, (int)stride, (int)pad);
    }
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return out;
}
"""

_ext = load_inline(
    name="max_pool2d_direct_ext",
    cpp_sources=_CPP,
    cuda_sources=_CUDA,
    functions=["max_pool2d_direct"],
    extra_cuda_cflags=["-O3"],
)


class ModelNew(nn.Module):
    def __init__(self, kernel: int, stride: int, padding: int) -> None:
        super().__init__()
        self.kernel = kernel
        self.stride = stride
        self.padding = padding

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _ext.max_pool2d_direct(x, self.kernel, self.stride, self.padding)

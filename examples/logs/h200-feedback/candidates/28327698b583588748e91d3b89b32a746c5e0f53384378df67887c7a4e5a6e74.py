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
constexpr int LD = K + 16;                   // padded row of an x stage, in floats
constexpr int GROUPS = 4;                    // warpgroups per block
constexpr int WARPS = GROUPS * 4;
constexpr int THREADS = WARPS * 32;
constexpr int TILE = 64;                     // rows per warpgroup tile
constexpr int WROWS = 16;                    // rows of it per warp
constexpr int W_BYTES = N * K * 4;           // main part of W, two slabs of 32 inner features
constexpr int SLAB_BYTES = W_BYTES / 2;
constexpr int C_BYTES = N * K * 2;           // a 16 bit operand of the correction, one slab
constexpr int STAGE = WROWS * LD;            // floats
constexpr int SMEM_BYTES = 1024 + W_BYTES + 2 * C_BYTES + N * 4 + WARPS * 2 * STAGE * 4;

constexpr int GEN_WARPS = 8;                 // generic kernel
constexpr int GEN_THREADS = GEN_WARPS * 32;

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

// v = hi + lo, exactly: hi has 11 significant bits, rounded to nearest, |lo| <= 2^-12 |v|.
__device__ __forceinline__ void split(float v, uint32_t& hi, float& lo) {
    hi = (__float_as_uint(v) + 0x1000u) & 0xffffe000u;
    lo = __fsub_rn(v, __uint_as_float(hi));
}

// Two values with 8 significant bits each and the full exponent range, rounded to nearest;
// the first one lies in the lower half.
__device__ __forceinline__ uint32_t pack16(float first, float second) {
    uint32_t r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;\n" : "=r"(r) : "f"(second), "f"(first));
    return r;
}

// The 16 rows of a warp, starting at row0.
__device__ __forceinline__ void load_tile(float* dst, const float* __restrict__ x,
                                          int64_t row0, int64_t rows, int lane) {
    const int r0 = lane / (K / 4);
    const int k = (lane % (K / 4)) * 4;
    float* d = dst + r0 * LD + k;
    if (row0 + WROWS <= rows) {
        const float* src = x + (row0 + r0) * K + k;
        #pragma unroll
        for (int i = 0; i < WROWS / 2; ++i) cp_async16(d + i * 2 * LD, src + i * 2 * K);
    } else {
        #pragma unroll
        for (int i = 0; i < WROWS / 2; ++i) {
            int64_t row = row0 + i * 2 + r0;
            if (row >= rows) row = rows - 1; // a valid address; its result is not stored
            cp_async16(d + i * 2 * LD, x + row * K + k);
        }
    }
}

// Descriptor of a K-major operand in shared memory with 128 byte swizzle.
__device__ __forceinline__ uint64_t make_desc(uint32_t addr) {
    return (uint64_t)((addr & 0x3FFFFu) >> 4) | ((uint64_t)1 << 16) | ((uint64_t)64 << 32) |
           ((uint64_t)1 << 62);
}

// d (64 x 64) += a (64 x 8, registers) * b (8 x 64, shared memory)
__device__ __forceinline__ void wgmma(float (&d)[32], const uint32_t (&a)[4], uint64_t desc) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "setp.ne.b32 p, %37, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k8.f32.tf32.tf32 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, "
        "%8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, "
        "%24, %25, %26, %27, %28, %29, %30, %31}, "
        "{%32, %33, %34, %35}, %36, p, 1, 1;\n"
        "}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(desc), "r"(1));
}

// d (64 x 64) += a (64 x 16, registers) * b (16 x 64, shared memory), correction terms only
__device__ __forceinline__ void wgmma_corr(float (&d)[32], const uint32_t (&a)[4], uint64_t desc) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "setp.ne.b32 p, %37, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, "
        "%8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, "
        "%24, %25, %26, %27, %28, %29, %30, %31}, "
        "{%32, %33, %34, %35}, %36, p, 1, 1, 0;\n"
        "}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
          "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
          "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(desc), "r"(1));
}

// Thread (g, t) of a warp holds rows g and g + 8 and features 8 j + 2 t, 8 j + 2 t + 1.
// Inner feature k = 16 c + 4 t + i sits in slot 16 c + 4 i + t of both operands, so that a
// thread's part of x is one float4 per row and c. In the 16 bit operands it sits in slot
// 16 c + 8 (i / 2) + 2 t + i % 2, for the same reason.
//
// x w = xh wh + xl w + x wl - xl wl. The first term is a product of 11 bit parts; the next two
// are at most 2^-12 of the product each, so that 8 bits of their factors leave errors of about
// 2^-21 at most (rms below 2^-22) of a product, the size of the rounding errors of a float32
// sum of 64 terms; the last one is below 2^-24 and left out.
__global__ void __launch_bounds__(THREADS, 1)
linear_relu_sum_kernel(const float* __restrict__ x, const float* __restrict__ weight,
                       const float* __restrict__ bias, float* __restrict__ y,
                       int64_t rows, int64_t tiles) {
    extern __shared__ __align__(1024) unsigned char smem_raw[];
    const uint32_t raw = (uint32_t)__cvta_generic_to_shared(smem_raw);
    unsigned char* smem = smem_raw + (((raw + 1023u) & ~1023u) - raw);

    const int tid = threadIdx.x;
    const int lane = tid & 31;
    const int warp = tid >> 5;
    const int group = warp >> 2;
    const int wrow = (warp & 3) * WROWS;
    const int g = lane >> 2;
    const int t = lane & 3;

    unsigned char* w_hi = smem;
    unsigned char* w_c = smem + W_BYTES;                 // W, 16 bits
    unsigned char* w_lc = w_c + C_BYTES;                 // W - hi, 16 bits
    float* b_s = reinterpret_cast<float*>(smem + W_BYTES + 2 * C_BYTES);
    float* x_s = b_s + N + warp * (2 * STAGE);

    const int64_t stride = (int64_t)gridDim.x * GROUPS;
    int64_t tile = (int64_t)group * gridDim.x + blockIdx.x;

    if (tile < tiles) load_tile(x_s, x, tile * TILE + wrow, rows, lane);
    cp_async_commit();
    if (tile + stride < tiles) load_tile(x_s + STAGE, x, (tile + stride) * TILE + wrow, rows, lane);
    cp_async_commit();

    #pragma unroll
    for (int i = 0; i < N * (K / 4) / THREADS; ++i) {
        const int c = i * THREADS + tid;
        const int n = c / (K / 4);
        const int q = c % (K / 4);
        const float4 w = __ldg(reinterpret_cast<const float4*>(weight + n * K + q * 4));
        const float e[4] = {w.x, w.y, w.z, w.w};
        float lo[4];
        #pragma unroll
        for (int j = 0; j < 4; ++j) {
            const int s = (q >> 2) * 16 + 4 * j + (q & 3);
            const int off = (s >> 5) * SLAB_BYTES + n * 128 + (((s & 31) * 4) ^ ((n & 7) << 4));
            uint32_t hi;
            split(e[j], hi, lo[j]);
            *reinterpret_cast<uint32_t*>(w_hi + off) = hi;
        }
        #pragma unroll
        for (int j = 0; j < 4; j += 2) {
            const int s = (q >> 2) * 16 + 4 * j + 2 * (q & 3);
            const int off = n * 128 + ((s * 2) ^ ((n & 7) << 4));
            *reinterpret_cast<uint32_t*>(w_c + off) = pack16(e[j], e[j + 1]);
            *reinterpret_cast<uint32_t*>(w_lc + off) = pack16(lo[j], lo[j + 1]);
        }
    }
    if (tid < N) b_s[tid] = __ldg(bias + tid);
    asm volatile("fence.proxy.async;\n" ::: "memory");   // W is read by the tensor cores

    cp_async_wait<1>();
    __syncthreads();

    const uint32_t hi_addr = (uint32_t)__cvta_generic_to_shared(w_hi);
    const uint64_t hi_desc = make_desc(hi_addr);
    const uint64_t c_desc = make_desc(hi_addr + W_BYTES);
    const uint64_t lc_desc = make_desc(hi_addr + W_BYTES + C_BYTES);

    int buf = 0;
    while (tile < tiles) {
        float* stage = x_s + buf * STAGE;
        const float* xs = stage + g * LD + t * 4;

        uint32_t ah[8][4];                  // xh
        uint32_t ac[4][4], al[4][4];        // x and xl, 16 bits
        #pragma unroll
        for (int c = 0; c < 4; ++c) {
            const float4 u = *reinterpret_cast<const float4*>(xs + c * 16);
            const float4 v = *reinterpret_cast<const float4*>(xs + 8 * LD + c * 16);
            float lu[4], lv[4];
            split(u.x, ah[2 * c][0], lu[0]);
            split(v.x, ah[2 * c][1], lv[0]);
            split(u.y, ah[2 * c][2], lu[1]);
            split(v.y, ah[2 * c][3], lv[1]);
            split(u.z, ah[2 * c + 1][0], lu[2]);
            split(v.z, ah[2 * c + 1][1], lv[2]);
            split(u.w, ah[2 * c + 1][2], lu[3]);
            split(v.w, ah[2 * c + 1][3], lv[3]);
            ac[c][0] = pack16(u.x, u.y);
            ac[c][1] = pack16(v.x, v.y);
            ac[c][2] = pack16(u.z, u.w);
            ac[c][3] = pack16(v.z, v.w);
            al[c][0] = pack16(lu[0], lu[1]);
            al[c][1] = pack16(lv[0], lv[1]);
            al[c][2] = pack16(lu[2], lu[3]);
            al[c][3] = pack16(lv[2], lv[3]);
        }

        // Every lane has read this stage: refill it.
        __syncwarp();
        const int64_t ahead = tile + 2 * stride;
        if (ahead < tiles) load_tile(stage, x, ahead * TILE + wrow, rows, lane);
        cp_async_commit();
        __syncwarp();

        float acc[32];
        #pragma unroll
        for (int j = 0; j < 8; ++j) {
            const float2 b = *reinterpret_cast<const float2*>(b_s + 8 * j + 2 * t);
            acc[4 * j + 0] = b.x;
            acc[4 * j + 1] = b.y;
            acc[4 * j + 2] = b.x;
            acc[4 * j + 3] = b.y;
        }
        #pragma unroll
        for (int i = 0; i < 32; ++i) asm volatile("" : "+f"(acc[i]) :: "memory");

        asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
        // The slots of a step lie 32 bytes further for each step (2 in the descriptor):
        // 16 slots of 16 bits, or 8 slots of 32 bits.
        #pragma unroll
        for (int s = 0; s < 4; ++s) wgmma_corr(acc, al[s], c_desc + s * 2);
        #pragma unroll
        for (int s = 0; s < 4; ++s) wgmma_corr(acc, ac[s], lc_desc + s * 2);
        #pragma unroll
        for (int s = 0; s < 8; ++s) {
            wgmma(acc, ah[s], hi_desc + (s >> 2) * (SLAB_BYTES >> 4) + (s & 3) * 2);
        }
        asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 0;\n" ::: "memory");
        #pragma unroll
        for (int i = 0; i < 32; ++i) asm volatile("" : "+f"(acc[i]) :: "memory");

        float s0 = 0.f, s1 = 0.f;
        #pragma unroll
        for (int j = 0; j < 8; ++j) {
            s0 += relu(acc[4 * j + 0]) + relu(acc[4 * j + 1]);
            s1 += relu(acc[4 * j + 2]) + relu(acc[4 * j + 3]);
        }
        s0 += __shfl_xor_sync(0xffffffffu, s0, 1);
        s1 += __shfl_xor_sync(0xffffffffu, s1, 1);
        s0 += __shfl_xor_sync(0xffffffffu, s0, 2);
        s1 += __shfl_xor_sync(0xffffffffu, s1, 2);
        const int64_t row = tile * TILE + wrow + g + 8 * t;
        if (t < 2 && row < rows) y[row] = (t == 0) ? s0 : s1;

        // Make the next stage visible.
        cp_async_wait<1>();
        __syncwarp();
        tile += stride;
        buf ^= 1;
    }
    cp_async_wait<0>();
}

// Any sizes and alignment: one warp per row, lanes over the output features.
__global__ void __launch_bounds__(GEN_THREADS)
linear_relu_sum_generic_kernel(const float* __restrict__ x, const float* __restrict__ weight,
                               const float* __restrict__ bias, float* __restrict__ y,
                               int64_t rows, int64_t inner, int64_t width) {
    const int lane = threadIdx.x & 31;
    const int64_t row = (int64_t)blockIdx.x * GEN_WARPS + (threadIdx.x >> 5);
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
        const int64_t wanted = (tiles + GROUPS - 1) / GROUPS;
        const unsigned grid = (unsigned)(wanted < sms ? wanted : sms);
        C10_CUDA_CHECK(cudaFuncSetAttribute(linear_relu_sum_kernel,
                                            cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM_BYTES));
        linear_relu_sum_kernel<<<grid, THREADS, SMEM_BYTES, stream>>>(xp, wp, bp, yp, rows, tiles);
    } else {
        const int64_t blocks = (rows + GEN_WARPS - 1) / GEN_WARPS;
        TORCH_CHECK(blocks <= 2147483647LL, "too many rows");
        linear_relu_sum_generic_kernel<<<(unsigned)blocks, GEN_THREADS, 0, stream>>>(
            xp, wp, bp, yp, rows, inner, width);
    }
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return y;
}
"""

_ext = load_inline(
    name="linear_relu_sum_f32_v3_corr16",
    cpp_sources=_cpp_src,
    cuda_sources=_cuda_src,
    functions=["linear_relu_sum"],
    extra_cuda_cflags=["-O3", "-gencode=arch=compute_90a,code=sm_90a"],
)


class ModelNew(nn.Module):
    def __init__(self, inner: int, width: int) -> None:
        super().__init__()
        # Holds the parameters (linear.weight, linear.bias); its forward is not used.
        self.linear = nn.Linear(inner, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _ext.linear_relu_sum(x, self.linear.weight, self.linear.bias)

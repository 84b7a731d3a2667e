import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

_cpp_src = r"""
#include <torch/types.h>
torch::Tensor conv3d_wino(torch::Tensor x, torch::Tensor weight, torch::Tensor bias);
"""

_cuda_src = r"""
#include <torch/types.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime.h>
#include <cstdint>

namespace {

constexpr int WIDTH = 32;                 // width of the volume (one row = one 128-byte line)
constexpr int KC = 8;                     // channels per chunk (= K of one wgmma)
constexpr int NF = 64;                    // filters per block (= M of one wgmma)
constexpr int ROWS = 16;                  // output rows per block; 8 tiles of 4 outputs per row
constexpr int VROWS = ROWS + 2;           // transformed input rows
constexpr int NPOS = 6;                   // positions of F(4,3)
constexpr int CONSUMERS = 384;            // three warpgroups, two positions each
constexpr int THREADS = 512;              // and one producer warpgroup

constexpr int V_POS = VROWS * 64;         // 1152 floats: [row][k group 2][tile 8][4 channels]
constexpr int V_PART = NPOS * V_POS;      // 6912 floats (hi part, then lo part)
constexpr int V_STAGE = 2 * V_PART;       // 13824 floats
constexpr int U_POS = NF * KC;            // 512 floats: [16 filters 4][lane 32][reg 4]
constexpr int U_STAGE = 3 * NPOS * U_POS; // 9216 floats: [kh][pos][512]
constexpr int M_FS = ROWS * 8 + 8;        // 136: filter stride of the product tile
constexpr int M_PS = NF * M_FS;
constexpr int M_FLOATS = NPOS * M_PS;     // 52224
constexpr int PIPE_FLOATS = 2 * V_STAGE + 2 * U_STAGE;   // 46080
constexpr int SMEM_FLOATS = (PIPE_FLOATS > M_FLOATS) ? PIPE_FLOATS : M_FLOATS;
constexpr int BAR_OFFSET = SMEM_FLOATS * 4;              // bytes
constexpr int SMEM_BYTES = BAR_OFFSET + 64;

// weight [F][C][3][3][3] -> u [F/64][kd 3][C/8][kh 3][pos 6][4 (16 filters)][32 (lane)][4 (reg)]
// in the order of the A fragments of wgmma m64k8 (row = filter, column = channel)
__global__ void __launch_bounds__(128)
weight_transform_kernel(const float* __restrict__ w, float* __restrict__ u, int C, int F) {
    const int idx = blockIdx.x * blockDim.x + threadIdx.x;
    if (idx >= 9 * C * F) return;
    const int q = idx & 511;            // [4][32][4]
    const int blk = idx >> 9;           // ((fb * 3 + kd) * (C / 8) + cblk) * 3 + kh
    const int reg = q & 3;
    const int ln = (q >> 2) & 31;
    const int mt = q >> 7;
    const int cch = C / KC;
    const int kh = blk % 3;
    const int chunk = blk / 3;
    const int cblk = chunk % cch;
    const int rest = chunk / cch;
    const int kd = rest % 3;
    const int fb = rest / 3;
    const int f = fb * NF + mt * 16 + (reg & 1) * 8 + (ln >> 2);
    const int c = cblk * KC + (reg >> 1) * 4 + (ln & 3);
    const float* src = w + (((size_t)f * C + c) * 9 + kd * 3 + kh) * 3;
    const float g0 = __ldg(src);
    const float g1 = __ldg(src + 1);
    const float g2 = __ldg(src + 2);
    float* dst = u + (size_t)blk * (NPOS * U_POS) + q;
    const float e = g0 + g2;
    const float p = g0 * (1.0f / 24.0f) + g2 * (1.0f / 6.0f);
    const float r = g1 * (1.0f / 12.0f);
    dst[0 * U_POS] = 0.25f * g0;
    dst[1 * U_POS] = (e + g1) * (-1.0f / 6.0f);
    dst[2 * U_POS] = (e - g1) * (-1.0f / 6.0f);
    dst[3 * U_POS] = p + r;
    dst[4 * U_POS] = p - r;
    dst[5 * U_POS] = g2;
}

// ---- barriers and copies ----

__device__ __forceinline__ void mbar_init(uint32_t bar, uint32_t count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(bar), "r"(count) : "memory");
}
__device__ __forceinline__ void mbar_arrive(uint32_t bar) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(bar) : "memory");
}
__device__ __forceinline__ void mbar_expect_tx(uint32_t bar, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(bar), "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ bool mbar_try_wait(uint32_t bar, uint32_t parity) {
    uint32_t ok;
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n"
        "}\n"
        : "=r"(ok)
        : "r"(bar), "r"(parity)
        : "memory");
    return ok != 0;
}
__device__ __forceinline__ void mbar_wait(uint32_t bar, uint32_t parity) {
    while (!mbar_try_wait(bar, parity)) {
    }
}
__device__ __forceinline__ void bulk_copy(uint32_t dst, const float* src, uint32_t bytes,
                                          uint32_t bar) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n"
        ::"r"(dst), "l"(src), "r"(bytes), "r"(bar)
        : "memory");
}
__device__ __forceinline__ void fence_proxy_async() {
    asm volatile("fence.proxy.async;\n" ::: "memory");
}

// ---- products ----

__device__ __forceinline__ void wgmma_fence() {
    asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
}
__device__ __forceinline__ void wgmma_wait_all() {
    asm volatile("wgmma.wait_group.sync.aligned 0;\n" ::: "memory");
}

#define ACC8(d, i)                                                                         \
    "+f"(d[(i) + 0]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3]),                \
        "+f"(d[(i) + 4]), "+f"(d[(i) + 5]), "+f"(d[(i) + 6]), "+f"(d[(i) + 7])

// d (64 filters x 128 tiles) += a (64 filters x 8 channels, registers) * b (8 x 128, shared)
__device__ __forceinline__ void wgmma_64x128x8(float (&d)[64], const uint32_t (&a)[4],
                                               uint64_t bdesc) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "setp.ne.b32 p, %69, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k8.f32.tf32.tf32 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, "
        "%8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, "
        "%24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, "
        "%40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, "
        "%56, %57, %58, %59, %60, %61, %62, %63}, "
        "{%64, %65, %66, %67}, "
        "%68, p, 1, 1;\n"
        "}\n"
        : ACC8(d, 0), ACC8(d, 8), ACC8(d, 16), ACC8(d, 24), ACC8(d, 32), ACC8(d, 40),
          ACC8(d, 48), ACC8(d, 56)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(bdesc), "r"(1));
}

// x = hi + lo: hi has 11 significant bits (rounded to nearest), lo is the exact remainder
__device__ __forceinline__ void split_f32(float x, uint32_t& hi, uint32_t& lo) {
    hi = (__float_as_uint(x) + 0x1000u) & 0xffffe000u;
    lo = __float_as_uint(x - __uint_as_float(hi));
}

__device__ __forceinline__ void split_store(float* dst, float x) {
    uint32_t hi, lo;
    split_f32(x, hi, lo);
    dst[0] = __uint_as_float(hi);
    dst[V_PART] = __uint_as_float(lo);
}

__global__ void __launch_bounds__(THREADS, 1)
conv3d_wino_kernel(const float* __restrict__ x, const float* __restrict__ u,
                   const float* __restrict__ bias, float* __restrict__ out,
                   int C, int D, int H, int F) {
    extern __shared__ __align__(128) float smem[];
    const uint32_t smem_addr = (uint32_t)__cvta_generic_to_shared(smem);
    const uint32_t bar_full = smem_addr + BAR_OFFSET;         // two barriers, 8 bytes each
    const uint32_t bar_empty = smem_addr + BAR_OFFSET + 16;   // two barriers
    const int tid = threadIdx.x;
    const int lane = tid & 31;
    const int warp = __shfl_sync(0xffffffffu, tid >> 5, 0);

    const int h0 = blockIdx.x * ROWS;
    const int d = blockIdx.y;
    const int fblocks = F / NF;
    const int n = blockIdx.z / fblocks;
    const int fb = blockIdx.z % fblocks;

    const int kd_lo = (d == 0) ? 1 : 0;
    const int kd_hi = (d == D - 1) ? 2 : 3;
    const int cch = C / KC;
    const int nchunks = (kd_hi - kd_lo) * cch;

    if (tid == 0) {
        mbar_init(bar_full, 97);        // 96 transforming threads and the weight copy
        mbar_init(bar_full + 8, 97);
        mbar_init(bar_empty, 12);       // twelve product warps
        mbar_init(bar_empty + 8, 12);
        fence_proxy_async();
    }
    __syncthreads();

    if (warp >= CONSUMERS / 32) {
        // ================= producer warpgroup =================
        asm volatile("setmaxnreg.dec.sync.aligned.u32 56;\n");
        const int pw = warp - CONSUMERS / 32;
        if (pw == 3) {
            // weights: one contiguous block per chunk
            if (lane == 0) {
                const float* src = u + ((size_t)fb * 3 + kd_lo) * cch * U_STAGE;
#pragma unroll 1
                for (int it = 0; it < nchunks; ++it) {
                    const uint32_t st = it & 1;
                    mbar_wait(bar_empty + st * 8, ((it >> 1) & 1) ^ 1);
                    mbar_expect_tx(bar_full + st * 8, U_STAGE * 4);
                    bulk_copy(smem_addr + (2 * V_STAGE + st * U_STAGE) * 4, src, U_STAGE * 4,
                              bar_full + st * 8);
                    src += U_STAGE;
                }
            }
        } else {
            // inputs: lane = (channel of 4, tile of 8); six rows per warp, two steps per chunk
            const int ch = lane >> 3;
            const int tile = lane & 7;
            const int r0 = pw * 6;
            const int hin = h0 - 1 + r0;
            const long long plane = (long long)H * WIDTH;
            const long long cstride = (long long)D * plane;
            const float* xp = x + ((long long)n * C + ch) * cstride +
                              (long long)(d + kd_lo - 1) * plane + (long long)hin * WIDTH +
                              tile * 4;
            const int nsteps = 2 * nchunks;
            int hc = 0;
            float4 v[6];
#pragma unroll
            for (int j = 0; j < 6; ++j) {
                v[j] = make_float4(0.f, 0.f, 0.f, 0.f);
                if ((unsigned)(hin + j) < (unsigned)H)
                    v[j] = __ldg(reinterpret_cast<const float4*>(xp + j * WIDTH));
            }
#pragma unroll 1
            for (int s = 0; s < nsteps; ++s) {
                const bool more = s + 1 < nsteps;
                xp += 4 * cstride;
                if (++hc == 2 * cch) {
                    hc = 0;
                    xp += plane - (long long)C * cstride;
                }
                const uint32_t st = (s >> 1) & 1;
                if ((s & 1) == 0) mbar_wait(bar_empty + st * 8, ((s >> 2) & 1) ^ 1);
                __syncwarp();
                float* dst = smem + st * V_STAGE + r0 * 64 + (s & 1) * 32 + tile * 4 + ch;
#pragma unroll
                for (int j = 0; j < 6; ++j) {
                    const float4 c = v[j];
                    if (more && (unsigned)(hin + j) < (unsigned)H)
                        v[j] = __ldg(reinterpret_cast<const float4*>(xp + j * WIDTH));
                    float d0 = __shfl_up_sync(0xffffffffu, c.w, 1, 8);
                    float d5 = __shfl_down_sync(0xffffffffu, c.x, 1, 8);
                    if (tile == 0) d0 = 0.f;
                    if (tile == 7) d5 = 0.f;
                    const float d1 = c.x, d2 = c.y, d3 = c.z, d4 = c.w;
                    float* o = dst + j * 64;
                    split_store(o + 0 * V_POS, fmaf(4.f, d0, fmaf(-5.f, d2, d4)));
                    const float e1 = fmaf(-4.f, d2, d4);
                    const float o1 = fmaf(-4.f, d1, d3);
                    split_store(o + 1 * V_POS, e1 + o1);
                    split_store(o + 2 * V_POS, e1 - o1);
                    const float e2 = d4 - d2;
                    const float o2 = d3 - d1;
                    split_store(o + 3 * V_POS, fmaf(2.f, o2, e2));
                    split_store(o + 4 * V_POS, fmaf(-2.f, o2, e2));
                    split_store(o + 5 * V_POS, fmaf(4.f, d1, fmaf(-5.f, d3, d5)));
                }
                if (s & 1) {
                    fence_proxy_async();
                    mbar_arrive(bar_full + st * 8);
                }
            }
        }
    } else {
        // ================= product warpgroups =================
        asm volatile("setmaxnreg.inc.sync.aligned.u32 152;\n");
        const int wg = warp >> 2;       // positions 2*wg and 2*wg+1
        const int wq = warp & 3;        // 16 filters of the 64

        float acc[2][64];
#pragma unroll
        for (int p = 0; p < 2; ++p)
#pragma unroll
            for (int i = 0; i < 64; ++i) acc[p][i] = 0.f;

        // K-major, no swizzle: 128 bytes between the two k groups, 256 bytes between tile rows
        const uint64_t desc0 = ((uint64_t)(256 >> 4) << 32) | ((uint64_t)(128 >> 4) << 16) |
                               (uint64_t)(((smem_addr + wg * 2 * V_POS * 4) >> 4) & 0x3fffu);
        const float* up0 = smem + 2 * V_STAGE + (wg * 2) * U_POS + wq * 128 + lane * 4;

#pragma unroll 1
        for (int it = 0; it < nchunks; ++it) {
            const uint32_t st = it & 1;
            mbar_wait(bar_full + st * 8, (it >> 1) & 1);
            __syncwarp();
            const uint64_t desc = desc0 + (uint64_t)(st * (V_STAGE * 4 / 16));
            const float* up = up0 + st * U_STAGE;
            float4 a = *reinterpret_cast<const float4*>(up);
#pragma unroll
            for (int s = 0; s < 6; ++s) {
                const int kh = s >> 1;
                const int p = s & 1;
                uint32_t ah[4], al[4];
                split_f32(a.x, ah[0], al[0]);
                split_f32(a.y, ah[1], al[1]);
                split_f32(a.z, ah[2], al[2]);
                split_f32(a.w, ah[3], al[3]);
                if (s < 5)
                    a = *reinterpret_cast<const float4*>(
                        up + (((s + 1) >> 1) * NPOS + ((s + 1) & 1)) * U_POS);
                // transformed rows are shared by the three height taps: shift by kh rows
                const uint64_t bh = desc + (uint64_t)((p * V_POS * 4 + kh * 256) / 16);
                const uint64_t bl = bh + (uint64_t)(V_PART * 4 / 16);
                wgmma_fence();
                // small terms first
                wgmma_64x128x8(acc[p], al, bh);
                wgmma_64x128x8(acc[p], ah, bl);
                wgmma_64x128x8(acc[p], ah, bh);
                wgmma_commit();
                wgmma_wait_all();
            }
            __syncwarp();
            if (lane == 0) mbar_arrive(bar_empty + st * 8);
        }

#pragma unroll
        for (int p = 0; p < 2; ++p)
#pragma unroll
            for (int i = 0; i < 64; ++i) asm volatile("" : "+f"(acc[p][i])::"memory");

        // every warp is done with the pipeline buffers before they are reused
        asm volatile("bar.sync 1, 384;\n" ::: "memory");

        // products to shared memory: M[pos][filter][tile]
        {
            const int g = lane >> 2;
            const int t4 = lane & 3;
#pragma unroll
            for (int p = 0; p < 2; ++p) {
                float* m = smem + (wg * 2 + p) * M_PS + (wq * 16 + g) * M_FS + t4 * 2;
#pragma unroll
                for (int j = 0; j < 16; ++j) {
                    *reinterpret_cast<float2*>(m + j * 8) =
                        make_float2(acc[p][j * 4 + 0], acc[p][j * 4 + 1]);
                    *reinterpret_cast<float2*>(m + 8 * M_FS + j * 8) =
                        make_float2(acc[p][j * 4 + 2], acc[p][j * 4 + 3]);
                }
            }
        }
        asm volatile("bar.sync 1, 384;\n" ::: "memory");

        // inverse transform, bias, store: a warp takes four rows of one filter at a time
#pragma unroll 2
        for (int q = warp; q < NF * 4; q += CONSUMERS / 32) {
            const int f = q >> 2;
            const int tl = (q & 3) * 32 + lane;
            const float* m = smem + f * M_FS + tl;
            const float m0 = m[0 * M_PS];
            const float m1 = m[1 * M_PS];
            const float m2 = m[2 * M_PS];
            const float m3 = m[3 * M_PS];
            const float m4 = m[4 * M_PS];
            const float m5 = m[5 * M_PS];
            const int fo = fb * NF + f;
            const float bv = __ldg(bias + fo);
            const float s12 = m1 + m2;
            const float d12 = m1 - m2;
            const float s34 = m3 + m4;
            const float d34 = m3 - m4;
            float4 y;
            y.x = (m0 + s12) + s34 + bv;
            y.y = fmaf(2.f, d34, d12) + bv;
            y.z = fmaf(4.f, s34, s12) + bv;
            y.w = fmaf(8.f, d34, d12) + m5 + bv;
            float* o = out + ((((size_t)n * F + fo) * D + d) * H + h0) * WIDTH + tl * 4;
            *reinterpret_cast<float4*>(o) = y;
        }
    }
}

}  // namespace

torch::Tensor conv3d_wino(torch::Tensor x, torch::Tensor weight, torch::Tensor bias) {
    TORCH_CHECK(x.is_cuda() && weight.is_cuda() && bias.is_cuda(), "CUDA tensors expected");
    TORCH_CHECK(x.scalar_type() == torch::kFloat32 && weight.scalar_type() == torch::kFloat32 &&
                bias.scalar_type() == torch::kFloat32, "float32 expected");
    TORCH_CHECK(x.dim() == 5 && weight.dim() == 5, "5-d tensors expected");
    const c10::cuda::CUDAGuard guard(x.device());
    x = x.contiguous();
    weight = weight.contiguous();
    bias = bias.contiguous();
    const int N = (int)x.size(0), C = (int)x.size(1), D = (int)x.size(2), H = (int)x.size(3);
    const int F = (int)weight.size(0);
    TORCH_CHECK(x.size(4) == WIDTH, "width must be 32");
    TORCH_CHECK(H % ROWS == 0 && C % KC == 0 && F % NF == 0 && C > 0, "unsupported shape");
    TORCH_CHECK(weight.size(1) == C && weight.size(2) == 3 && weight.size(3) == 3 &&
                weight.size(4) == 3 && bias.numel() == F, "unexpected weight shape");
    TORCH_CHECK(reinterpret_cast<uintptr_t>(x.data_ptr<float>()) % 16 == 0,
                "16-byte aligned input expected");

    auto out = torch::empty({N, F, D, H, WIDTH}, x.options());
    if (out.numel() == 0) return out;
    auto u = torch::empty({(int64_t)9 * NPOS * C * F}, x.options());
    auto stream = at::cuda::getCurrentCUDAStream();

    const int total = 9 * C * F;
    weight_transform_kernel<<<(total + 127) / 128, 128, 0, stream>>>(
        weight.data_ptr<float>(), u.data_ptr<float>(), C, F);
    C10_CUDA_KERNEL_LAUNCH_CHECK();

    C10_CUDA_CHECK(cudaFuncSetAttribute(conv3d_wino_kernel,
                                        cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM_BYTES));
    dim3 grid(H / ROWS, D, N * (F / NF));
    conv3d_wino_kernel<<<grid, THREADS, SMEM_BYTES, stream>>>(
        x.data_ptr<float>(), u.data_ptr<float>(), bias.data_ptr<float>(), out.data_ptr<float>(),
        C, D, H, F);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return out;
}
"""

_ext = load_inline(
    name="conv3d_wino_f43_wgmma_v1",
    cpp_sources=_cpp_src,
    cuda_sources=_cuda_src,
    functions=["conv3d_wino"],
    extra_cuda_cflags=["-O3", "-gencode=arch=compute_90a,code=sm_90a"],
)


class ModelNew(nn.Module):
    def __init__(self, channels: int, filters: int) -> None:
        super().__init__()
        # holds the parameters (same names, order and initialisation); its forward is not used
        self.conv = nn.Conv3d(channels, filters, kernel_size=3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _ext.conv3d_wino(x, self.conv.weight, self.conv.bias)

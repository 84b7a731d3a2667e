import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

CPP = r"""
torch::Tensor conv_transpose_4x4_s2_p1(torch::Tensor x, torch::Tensor w, torch::Tensor b);
"""

CUDA = r"""
#include <torch/types.h>
#include <c10/cuda/CUDAException.h>
#include <ATen/cuda/CUDAContext.h>
#include <cstdint>

constexpr int CI = 8;                  // input channels per stage (k of one mma)
constexpr int FB = 32;                 // filters of a block: 2 m-tiles of 16
constexpr int TW = 64;                 // input columns of a block: 8 warps x 8
constexpr int TH = 4;                  // input rows of a block
constexpr int RH = TH + 2;             // staged rows
constexpr int PITCH = 72;              // column x0 + i lies at index i + 4
constexpr int CSTR = RH * PITCH + 8;   // 440 = 24 mod 32: fragment loads free of conflicts
constexpr int XS = CI * CSTR;          // 3520 floats
constexpr int WS = 16 * 2 * 2 * 128;   // taps x m-tiles x (hi, lo) x fragment: 8192 floats
constexpr int STAGE = XS + WS;
constexpr int SMEM = 2 * STAGE * 4;

__device__ __forceinline__ void cp4(void* dst, const void* src, bool ok) {
    const unsigned d = (unsigned)__cvta_generic_to_shared(dst);
    const int n = ok ? 4 : 0;
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"(d), "l"(src), "r"(n)
                 : "memory");
}
__device__ __forceinline__ void cp16(void* dst, const void* src, bool ok) {
    const unsigned d = (unsigned)__cvta_generic_to_shared(dst);
    const int n = ok ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(d), "l"(src), "r"(n)
                 : "memory");
}

// v = hi + lo, hi rounded to 11 significant bits, the difference is exact
__device__ __forceinline__ void split(float v, uint32_t& hi, uint32_t& lo) {
    hi = (__float_as_uint(v) + 0x1000u) & 0xffffe000u;
    lo = __float_as_uint(v - __uint_as_float(hi));
}

__device__ __forceinline__ void mma(float (&c)[4], const uint4& a, uint32_t b0, uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

// packed weights: [filter block][chunk][tap][m-tile][hi, lo][lane][4]
__global__ void pack_kernel(const float* __restrict__ w, float* __restrict__ wp,
                            int Cin, int Cout, int chunks, int total) {
    const int e = blockIdx.x * blockDim.x + threadIdx.x;
    if (e >= total) return;
    const int lane = e & 31, mt = (e >> 5) & 1, tap = (e >> 6) & 15, blk = e >> 10;
    const int chunk = blk % chunks, fb = blk / chunks;
    const int g = lane >> 2, t = lane & 3;
    uint32_t hi[4], lo[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        const int f = fb * FB + mt * 16 + g + (j & 1) * 8;
        const int c = chunk * CI + t + (j >> 1) * 4;
        const float v = (f < Cout && c < Cin) ? __ldg(w + ((int64_t)c * Cout + f) * 16 + tap) : 0.f;
        split(v, hi[j], lo[j]);
    }
    uint4* o = reinterpret_cast<uint4*>(wp + (int64_t)blk * WS + (tap * 2 + mt) * 256);
    o[lane] = make_uint4(hi[0], hi[1], hi[2], hi[3]);
    o[32 + lane] = make_uint4(lo[0], lo[1], lo[2], lo[3]);
}

__global__ void __launch_bounds__(256, 1)
convt_kernel(const float* __restrict__ x, const float* __restrict__ wp,
             const float* __restrict__ bias, float* __restrict__ y,
             int Cin, int Cout, int H, int W, int xtiles, int chunks, bool vec) {
    extern __shared__ __align__(16) float sm[];
    const int t = threadIdx.x, lane = t & 31, warp = t >> 5;
    const int g = lane >> 2, tq = lane & 3;
    const int x0 = (blockIdx.x % xtiles) * TW;
    const int r0 = (blockIdx.x / xtiles) * TH;
    const int f0 = blockIdx.y * FB;
    const int n = blockIdx.z;
    const float* xn = x + (int64_t)n * Cin * H * W;
    const float* wb = wp + (int64_t)blockIdx.y * chunks * WS;

    auto stage = [&](int s, int chunk) {
        float* xs = sm + s * STAGE;
        float* ws = xs + XS;
        const int c0 = chunk * CI;
        if (vec) {                             // W % 4 == 0 and aligned: 48 rows of 16 vectors
#pragma unroll
            for (int i = 0; i < 3; ++i) {
                const int e = t + 256 * i;
                const int rr = e >> 4, q = e & 15;
                const int ci = rr / RH, r = rr % RH;
                const int iy = r0 - 1 + r, ix = x0 + 4 * q, c = c0 + ci;
                const bool ok = c < Cin && iy >= 0 && iy < H && ix < W;
                const float* src = ok ? xn + ((int64_t)c * H + iy) * W + ix : x;
                cp16(xs + ci * CSTR + r * PITCH + 4 + 4 * q, src, ok);
            }
        } else {
            for (int e = t; e < CI * RH * TW; e += 256) {
                const int rr = e >> 6, col = e & 63;
                const int ci = rr / RH, r = rr % RH;
                const int iy = r0 - 1 + r, ix = x0 + col, c = c0 + ci;
                const bool ok = c < Cin && iy >= 0 && iy < H && ix < W;
                const float* src = ok ? xn + ((int64_t)c * H + iy) * W + ix : x;
                cp4(xs + ci * CSTR + r * PITCH + 4 + col, src, ok);
            }
        }
        if (t < CI * RH * 2) {                 // left and right border columns
            const int rr = t >> 1, ci = rr / RH, r = rr % RH;
            const int ix = (t & 1) ? x0 + TW : x0 - 1;
            const int iy = r0 - 1 + r, c = c0 + ci;
            const bool ok = c < Cin && iy >= 0 && iy < H && ix >= 0 && ix < W;
            const float* src = ok ? xn + ((int64_t)c * H + iy) * W + ix : x;
            cp4(xs + ci * CSTR + r * PITCH + ((t & 1) ? TW + 4 : 3), src, ok);
        }
        const float* wsrc = wb + (int64_t)chunk * WS;
#pragma unroll
        for (int i = 0; i < WS / 1024; ++i) {
            const int e = (t + 256 * i) * 4;
            cp16(ws + e, wsrc + e, true);
        }
        asm volatile("cp.async.commit_group;\n" ::: "memory");
    };

    float acc[2][2][2][TH][4];   // m-tile, row phase, column phase, row, fragment
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
        for (int p = 0; p < 2; ++p)
#pragma unroll
            for (int u = 0; u < 2; ++u)
#pragma unroll
                for (int q = 0; q < TH; ++q)
#pragma unroll
                    for (int j = 0; j < 4; ++j) acc[m][p][u][q][j] = 0.f;

    stage(0, 0);
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; ++chunk) {
        const int s = chunk & 1;
        asm volatile("cp.async.wait_group 0;\n" ::: "memory");
        __syncthreads();
        if (chunk + 1 < chunks) stage(s ^ 1, chunk + 1);
        const float* xs = sm + s * STAGE + tq * CSTR + warp * 8 + g + 3;
        const float* ws = sm + s * STAGE + XS + lane * 4;
#pragma unroll
        for (int d = 0; d < 3; ++d) {          // column offset d - 1
            uint32_t xh[RH][2], xl[RH][2];
#pragma unroll
            for (int r = 0; r < RH; ++r) {
                split(xs[r * PITCH + d], xh[r][0], xl[r][0]);
                split(xs[4 * CSTR + r * PITCH + d], xh[r][1], xl[r][1]);
            }
#pragma unroll
            for (int u = 0; u < 2; ++u) {
                const int b = u + 1 - d;       // d - 1 = u - b
                if (b < 0 || b > 1) continue;
#pragma unroll
                for (int p = 0; p < 2; ++p)
#pragma unroll
                    for (int a = 0; a < 2; ++a) {
                        const int tap = (1 - p + 2 * a) * 4 + (1 - u + 2 * b);
                        uint4 wh[2], wl[2];
#pragma unroll
                        for (int m = 0; m < 2; ++m) {
                            wh[m] = *reinterpret_cast<const uint4*>(ws + (tap * 2 + m) * 256);
                            wl[m] = *reinterpret_cast<const uint4*>(ws + (tap * 2 + m) * 256 + 128);
                        }
#pragma unroll
                        for (int m = 0; m < 2; ++m)
#pragma unroll
                            for (int q = 0; q < TH; ++q)
                                mma(acc[m][p][u][q], wl[m], xh[q + 1 + p - a][0], xh[q + 1 + p - a][1]);
#pragma unroll
                        for (int m = 0; m < 2; ++m)
#pragma unroll
                            for (int q = 0; q < TH; ++q)
                                mma(acc[m][p][u][q], wh[m], xl[q + 1 + p - a][0], xl[q + 1 + p - a][1]);
#pragma unroll
                        for (int m = 0; m < 2; ++m)
#pragma unroll
                            for (int q = 0; q < TH; ++q)
                                mma(acc[m][p][u][q], wh[m], xh[q + 1 + p - a][0], xh[q + 1 + p - a][1]);
                    }
            }
        }
    }

    const int OH = 2 * H, OW = 2 * W;
    const int ox = 2 * (x0 + warp * 8) + 4 * tq;
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int co = f0 + m * 16 + h * 8 + g;
            if (co < Cout) {
                const float bv = __ldg(bias + co);
                float* yp = y + ((int64_t)n * Cout + co) * OH * OW;
#pragma unroll
                for (int q = 0; q < TH; ++q)
#pragma unroll
                    for (int p = 0; p < 2; ++p) {
                        const int oy = 2 * (r0 + q) + p;
                        if (oy < OH) {
                            float* o = yp + (int64_t)oy * OW + ox;
                            const float v0 = acc[m][p][0][q][2 * h] + bv;
                            const float v1 = acc[m][p][1][q][2 * h] + bv;
                            const float v2 = acc[m][p][0][q][2 * h + 1] + bv;
                            const float v3 = acc[m][p][1][q][2 * h + 1] + bv;
                            if ((OW & 3) == 0 && ox + 3 < OW) {
                                *reinterpret_cast<float4*>(o) = make_float4(v0, v1, v2, v3);
                            } else {
                                if (ox < OW) o[0] = v0;
                                if (ox + 1 < OW) o[1] = v1;
                                if (ox + 2 < OW) o[2] = v2;
                                if (ox + 3 < OW) o[3] = v3;
                            }
                        }
                    }
            }
        }
}

torch::Tensor conv_transpose_4x4_s2_p1(torch::Tensor x_, torch::Tensor w_, torch::Tensor b_) {
    TORCH_CHECK(x_.is_cuda() && x_.scalar_type() == at::kFloat && x_.dim() == 4,
                "float32 CUDA images expected");
    auto x = x_.detach().contiguous();
    auto w = w_.detach().contiguous();
    auto b = b_.detach().contiguous();
    const int64_t N = x.size(0), Cin = x.size(1), H = x.size(2), W = x.size(3);
    const int64_t Cout = w.size(1);
    TORCH_CHECK(w.size(0) == Cin && w.size(2) == 4 && w.size(3) == 4, "unexpected weights");
    auto y = at::empty({N, Cout, 2 * H, 2 * W}, x.options());
    if (y.numel() == 0) return y;
    const int xtiles = (int)((W + TW - 1) / TW);
    const int ytiles = (int)((H + TH - 1) / TH);
    const int fblocks = (int)((Cout + FB - 1) / FB);
    const int chunks = (int)((Cin + CI - 1) / CI);
    auto wp = at::empty({(int64_t)fblocks * chunks * WS}, x.options());
    auto stream = at::cuda::getCurrentCUDAStream();
    const int total = fblocks * chunks * 1024;
    pack_kernel<<<(total + 127) / 128, 128, 0, stream>>>(
        w.data_ptr<float>(), wp.data_ptr<float>(), (int)Cin, (int)Cout, chunks, total);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    const bool vec = (W % 4 == 0) && (reinterpret_cast<uintptr_t>(x.data_ptr<float>()) & 15) == 0;
    C10_CUDA_CHECK(cudaFuncSetAttribute(convt_kernel,
                                        cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM));
    dim3 grid(xtiles * ytiles, (unsigned)fblocks, (unsigned)N);
    convt_kernel<<<grid, 256, SMEM, stream>>>(
        x.data_ptr<float>(), wp.data_ptr<float>(), b.data_ptr<float>(), y.data_ptr<float>(),
        (int)Cin, (int)Cout, (int)H, (int)W, xtiles, chunks, vec);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return y;
}
"""

ext = load_inline(
    name="conv_transpose_fp32_split_mma_v2",
    cpp_sources=CPP,
    cuda_sources=CUDA,
    functions=["conv_transpose_4x4_s2_p1"],
    extra_cuda_cflags=["-O3"],
)


class ModelNew(nn.Module):
    def __init__(self, channels: int, filters: int) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose2d(channels, filters, kernel_size=4, stride=2, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return ext.conv_transpose_4x4_s2_p1(x, self.conv.weight, self.conv.bias)

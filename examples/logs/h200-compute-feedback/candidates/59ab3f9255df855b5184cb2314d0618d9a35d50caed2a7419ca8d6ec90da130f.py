import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

CPP = r"""
torch::Tensor conv3x3_p1(torch::Tensor x, torch::Tensor w, torch::Tensor b);
"""

CUDA = r"""
#include <torch/types.h>
#include <c10/cuda/CUDAException.h>
#include <ATen/cuda/CUDAContext.h>
#include <cuda_fp16.h>
#include <algorithm>
#include <cmath>
#include <cstdint>

constexpr int CI = 16;                 // input channels per stage (k of one mma)
constexpr int FB = 64;                 // filters of a block: 4 warps x 16
constexpr int TW = 56;                 // columns of a tile: 7 n-tiles of 8
constexpr int TH = 2;                  // rows of a tile
constexpr int RI = TH + 2;             // input rows of a tile
constexpr int PW = TW + 2;             // input columns of a tile, column x0 - 1 + i at i
constexpr int PB = CI * 4;             // bytes of a pixel: hi 0-7, lo 0-7, hi 8-15, lo 8-15
constexpr int NT = 128;
constexpr int XB = RI * PW * PB;       // 14848 bytes
constexpr int WH = 9 * 4 * 2 * 256;    // taps x m-tiles x (hi, lo) x fragment: 18432 parts
constexpr int WB = WH * 2;             // 36864 bytes
constexpr int SMEM = XB + WB;          // one stage; four blocks of an SM overlap each other
constexpr int GROUPS = 4;              // resident kernel: groups of NT threads
constexpr int SMEM_MAX = 227 * 1024;

__device__ __forceinline__ void cp16(unsigned d, const void* src, bool ok) {
    const int n = ok ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(d), "l"(src), "r"(n)
                 : "memory");
}

__device__ __forceinline__ void ldsm4(uint32_t (&r)[4], unsigned addr) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(addr) : "memory");
}

__device__ __forceinline__ void mma(float (&c)[4], const uint4& a, uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

// power of two that brings the largest value mx into [2^14, 2^15)
__device__ __forceinline__ float pow2_scale(float mx, float& inv) {
    int e = 14;
    if (mx > 0.f && !isinf(mx)) e = max(ilogbf(mx), -100);
    inv = ldexpf(1.f, e - 14);
    return ldexpf(1.f, 14 - e);
}

// scaled value = hi + lo, 22 bits
__device__ __forceinline__ void split(float s, uint32_t& hi, uint32_t& lo) {
    const __half h = __float2half_rn(s);
    hi = __half_as_ushort(h);
    lo = __half_as_ushort(__float2half_rn(s - __half2float(h)));
}

template <int THREADS>
__device__ __forceinline__ float block_max(float v, float* red) {
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, o));
    if ((threadIdx.x & 31) == 0) red[threadIdx.x >> 5] = v;
    __syncthreads();
    float m = red[0];
#pragma unroll
    for (int i = 1; i < THREADS / 32; ++i) m = fmaxf(m, red[i]);
    return m;
}

// One block per (padded) filter: w[f][ci][tap] ->
// wt[filter block][chunk][tap][m-tile][hi, lo][lane][4 registers of 2 parts], padded with zeros.
__global__ void __launch_bounds__(128)
prep_weights(const float* __restrict__ w, uint16_t* __restrict__ wt, float* __restrict__ invw,
             float* __restrict__ xmax, int images, int Cin, int Cout, int chunks) {
    __shared__ float red[4];
    const int f = blockIdx.x, t = threadIdx.x;
    if (f == 0)
        for (int i = t; i < images; i += 128) xmax[i] = 0.f;
    const float* wf = w + (int64_t)f * Cin * 9;
    float mx = 0.f;
    if (f < Cout)
        for (int i = t; i < Cin * 9; i += 128) mx = fmaxf(mx, fabsf(wf[i]));
    mx = block_max<128>(mx, red);
    float inv;
    const float scale = pow2_scale(mx, inv);
    if (t == 0) invw[f] = inv;
    const int fb = f / FB, m = (f % FB) / 16, row = f % 16;
    for (int i = t; i < chunks * CI * 9; i += 128) {
        const int c = i / 9, tap = i % 9;
        const float v = (f < Cout && c < Cin) ? wf[i] : 0.f;
        uint32_t hi, lo;
        split(v * scale, hi, lo);
        const int chunk = c / CI, k = c % CI;
        const int lane = (row & 7) * 4 + ((k & 7) >> 1);
        const int j = (row >> 3) + 2 * (k >> 3);
        const int64_t at =
            ((((int64_t)fb * chunks + chunk) * 9 + tap) * 4 + m) * 512 + lane * 8 + j * 2 + (k & 1);
        wt[at] = (uint16_t)hi;
        wt[at + 256] = (uint16_t)lo;
    }
}

// largest magnitude of every image
__global__ void __launch_bounds__(256)
absmax(const float* __restrict__ x, float* __restrict__ xmax, int64_t size, int vec) {
    __shared__ float red[8];
    const float* p = x + (int64_t)blockIdx.y * size;
    const int64_t first = (int64_t)blockIdx.x * 256 + threadIdx.x;
    const int64_t step = (int64_t)gridDim.x * 256;
    float mx = 0.f;
    if (vec) {
        const float4* q = reinterpret_cast<const float4*>(p);
#pragma unroll 4
        for (int64_t i = first; i < size / 4; i += step) {
            const float4 v = q[i];
            mx = fmaxf(mx, fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w))));
        }
    } else {
#pragma unroll 4
        for (int64_t i = first; i < size; i += step) mx = fmaxf(mx, fabsf(p[i]));
    }
    mx = block_max<256>(mx, red);
    if (threadIdx.x == 0)
        atomicMax(reinterpret_cast<int*>(xmax) + blockIdx.y, __float_as_int(mx));
}

// x[n][c][pixel] -> xp[n][chunk][pixel][hi 0-7, lo 0-7, hi 8-15, lo 8-15]
__global__ void __launch_bounds__(128)
pack_x(const float* __restrict__ x, const float* __restrict__ xmax, uint16_t* __restrict__ xp,
       int Cin, int chunks, int HW) {
    const int p = blockIdx.x * 128 + threadIdx.x;
    if (p >= HW) return;
    const int h = blockIdx.y, n = blockIdx.z;
    float inv;
    const float scale = pow2_scale(xmax[n], inv);
    const float* src = x + ((int64_t)n * Cin + h * 8) * HW + p;
    float v[8];
#pragma unroll
    for (int k = 0; k < 8; ++k) v[k] = h * 8 + k < Cin ? src[(int64_t)k * HW] : 0.f;
    uint32_t hi[8], lo[8];
#pragma unroll
    for (int k = 0; k < 8; ++k) split(v[k] * scale, hi[k], lo[k]);
    uint16_t* d = xp + (((int64_t)n * chunks + (h >> 1)) * HW + p) * 32 + (h & 1) * 16;
    *reinterpret_cast<uint4*>(d) = make_uint4(hi[0] | (hi[1] << 16), hi[2] | (hi[3] << 16),
                                              hi[4] | (hi[5] << 16), hi[6] | (hi[7] << 16));
    *reinterpret_cast<uint4*>(d + 8) = make_uint4(lo[0] | (lo[1] << 16), lo[2] | (lo[3] << 16),
                                                  lo[4] | (lo[5] << 16), lo[6] | (lo[7] << 16));
}

// one chunk of input of a tile, by NT threads (t = 0 .. NT - 1) into shared memory at xs;
// 16-byte piece c of pixel i lies at piece c ^ ((i >> 1) & 3)
__device__ __forceinline__ void stage_x(unsigned xs, const uint16_t* xc, const uint16_t* safe,
                                        int t, int y0, int x0, int H, int W) {
    constexpr int NV = RI * PW * 4;                        // 928 pieces
#pragma unroll
    for (int i = 0; i < (NV + NT - 1) / NT; ++i) {
        const int e = t + i * NT;
        if (e < NV) {
            const int pix = e >> 2, c = e & 3;
            const int r = pix / PW, q = pix % PW;
            const int iy = y0 - 1 + r, ix = x0 - 1 + q;
            const bool ok = iy >= 0 && iy < H && ix >= 0 && ix < W;
            cp16(xs + pix * PB + ((c ^ ((pix >> 1) & 3)) << 4),
                 ok ? xc + ((int64_t)iy * W + ix) * 32 + c * 8 : safe, ok);
        }
    }
}

// one chunk of one tile: input at shared address xs, this warp's and lane's weights at ws
__device__ __forceinline__ void compute_chunk(float (&acc)[TH][7][4], unsigned xs,
                                              const unsigned char* ws, int lane) {
    const int l7 = lane & 7, piece = lane >> 3;
#pragma unroll
    for (int kc = 0; kc < 3; ++kc) {
        uint4 ah[3], al[3];
#pragma unroll
        for (int kr = 0; kr < 3; ++kr) {
            ah[kr] = *reinterpret_cast<const uint4*>(ws + (kr * 3 + kc) * 4096);
            al[kr] = *reinterpret_cast<const uint4*>(ws + (kr * 3 + kc) * 4096 + 512);
        }
#pragma unroll
        for (int ri = 0; ri < RI; ++ri) {
            const int pix = ri * PW + kc + l7;
            const unsigned addr = xs + pix * PB + ((piece ^ ((pix >> 1) & 3)) << 4);
#pragma unroll
            for (int p0 = 0; p0 < 7; p0 += 4) {
                uint32_t b[4][4];              // hi 0-7, lo 0-7, hi 8-15, lo 8-15
#pragma unroll
                for (int q = 0; q < 4; ++q)
                    if (p0 + q < 7) ldsm4(b[q], addr + (p0 + q) * 8 * PB);
#pragma unroll
                for (int kr = 0; kr < 3; ++kr) {
                    const int row = ri - kr;
                    if (row >= 0 && row < TH) {
#pragma unroll
                        for (int q = 0; q < 4; ++q)
                            if (p0 + q < 7) mma(acc[row][p0 + q], al[kr], b[q][0], b[q][2]);
#pragma unroll
                        for (int q = 0; q < 4; ++q)
                            if (p0 + q < 7) mma(acc[row][p0 + q], ah[kr], b[q][1], b[q][3]);
#pragma unroll
                        for (int q = 0; q < 4; ++q)
                            if (p0 + q < 7) mma(acc[row][p0 + q], ah[kr], b[q][0], b[q][2]);
                    }
                }
            }
        }
    }
}

__device__ __forceinline__ void clear(float (&acc)[TH][7][4]) {
#pragma unroll
    for (int r = 0; r < TH; ++r)
#pragma unroll
        for (int p = 0; p < 7; ++p)
#pragma unroll
            for (int j = 0; j < 4; ++j) acc[r][p][j] = 0.f;
}

// lane (g, tq): filters f and f + 8 (f = first + g), columns 8 p + 2 tq and the next one
__device__ __forceinline__ void store_tile(const float (&acc)[TH][7][4], float xm,
                                           const float* __restrict__ invw,
                                           const float* __restrict__ bias,
                                           float* __restrict__ y, int n, int first, int y0,
                                           int x0, int lane, int Cout, int H, int W) {
    const int g = lane >> 2, tq = lane & 3;
    float invx;
    pow2_scale(xm, invx);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int co = first + h * 8 + g;
        if (co < Cout) {
            const float bv = __ldg(bias + co);
            const float iw = __ldg(invw + co);
            float* yp = y + ((int64_t)n * Cout + co) * H * W;
#pragma unroll
            for (int r = 0; r < TH; ++r) {
                if (y0 + r < H) {
                    float* o = yp + (int64_t)(y0 + r) * W;
#pragma unroll
                    for (int p = 0; p < 7; ++p) {
                        const int c = x0 + 8 * p + 2 * tq;
                        // powers of two: the scaling back is exact
                        const float v0 = acc[r][p][2 * h] * invx * iw + bv;
                        const float v1 = acc[r][p][2 * h + 1] * invx * iw + bv;
                        if ((W & 1) == 0 && c + 1 < W) {
                            *reinterpret_cast<float2*>(o + c) = make_float2(v0, v1);
                        } else {
                            if (c < W) o[c] = v0;
                            if (c + 1 < W) o[c + 1] = v1;
                        }
                    }
                }
            }
        }
    }
}

// Persistent: all weights of 64 filters stay in shared memory; each group of 4 warps walks over
// its own tiles.  tiles: of one image; units: tiles of all images.
__global__ void __launch_bounds__(NT * GROUPS, 1)
conv_resident(const uint16_t* __restrict__ xp, const uint16_t* __restrict__ wt,
              const float* __restrict__ xmax, const float* __restrict__ invw,
              const float* __restrict__ bias, float* __restrict__ y,
              int Cout, int chunks, int H, int W, int xtiles, int tiles, int units) {
    extern __shared__ __align__(128) unsigned char sm[];
    const unsigned smb = (unsigned)__cvta_generic_to_shared(sm);
    const int lane = threadIdx.x & 31;
    const int group = threadIdx.x / NT, t = threadIdx.x % NT, warp = t >> 5;
    const unsigned xs = smb + chunks * WB + group * XB;
    const unsigned char* ws = sm + warp * 1024 + lane * 16;
    const uint16_t* wb = wt + (int64_t)blockIdx.y * chunks * WH;

    auto load_w = [&](int chunk) {
        for (int e = threadIdx.x; e < WB / 16; e += NT * GROUPS)
            cp16(smb + chunk * WB + e * 16, wb + (int64_t)chunk * WH + e * 8, true);
    };
    auto group_sync = [&]() {
        asm volatile("bar.sync %0, %1;\n" ::"r"(group + 1), "n"(NT) : "memory");
    };

    if (chunks > 0) load_w(0);
    const int step = gridDim.x * GROUPS;
    bool first = true;             // during the first tile the weights arrive chunk by chunk
#pragma unroll 1
    for (int u = blockIdx.x + gridDim.x * group; first || u < units; u += step) {
        const bool valid = u < units;
        const int n = u / tiles, tile = u - n * tiles;
        const int x0 = (tile % xtiles) * TW;
        const int y0 = (tile / xtiles) * TH;
        const uint16_t* xn = xp + (int64_t)n * chunks * H * W * 32;
        float acc[TH][7][4];
        clear(acc);
#pragma unroll 1
        for (int chunk = 0; chunk < chunks; ++chunk) {
            group_sync();                      // the group is done with the last chunk
            if (valid) stage_x(xs, xn + (int64_t)chunk * H * W * 32, xp, t, y0, x0, H, W);
            asm volatile("cp.async.commit_group;\n" ::: "memory");
            asm volatile("cp.async.wait_group 0;\n" ::: "memory");
            if (first) {
                __syncthreads();               // every group takes part in its first turn
                if (chunk + 1 < chunks) load_w(chunk + 1);
            } else {
                group_sync();
            }
            if (valid) compute_chunk(acc, xs, ws + chunk * WB, lane);
        }
        if (valid)
            store_tile(acc, xmax[n], invw, bias, y, n, blockIdx.y * FB + warp * 16, y0, x0, lane,
                       Cout, H, W);
        first = false;
    }
}

// for channel counts whose weights do not fit into shared memory
__global__ void __launch_bounds__(NT, 4)
conv_kernel(const uint16_t* __restrict__ xp, const uint16_t* __restrict__ wt,
            const float* __restrict__ xmax, const float* __restrict__ invw,
            const float* __restrict__ bias, float* __restrict__ y,
            int Cout, int chunks, int H, int W, int xtiles) {
    extern __shared__ __align__(128) unsigned char sm[];
    const unsigned smb = (unsigned)__cvta_generic_to_shared(sm);
    const int t = threadIdx.x, lane = t & 31, warp = t >> 5;
    const int x0 = (blockIdx.x % xtiles) * TW;
    const int y0 = (blockIdx.x / xtiles) * TH;
    const int n = blockIdx.z;
    const uint16_t* xn = xp + (int64_t)n * chunks * H * W * 32;
    const uint16_t* wb = wt + (int64_t)blockIdx.y * chunks * WH;

    float acc[TH][7][4];
    clear(acc);
    const unsigned char* ws = sm + XB + warp * 1024 + lane * 16;
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; ++chunk) {
        __syncthreads();                       // everyone is done with the last chunk
        stage_x(smb, xn + (int64_t)chunk * H * W * 32, xp, t, y0, x0, H, W);
        const uint16_t* wsrc = wb + (int64_t)chunk * WH;
#pragma unroll
        for (int i = 0; i < WB / (16 * NT); ++i) {         // 18 vectors a thread
            const int e = t + i * NT;
            cp16(smb + XB + e * 16, wsrc + e * 8, true);
        }
        asm volatile("cp.async.commit_group;\n" ::: "memory");
        asm volatile("cp.async.wait_group 0;\n" ::: "memory");
        __syncthreads();
        compute_chunk(acc, smb, ws, lane);
    }
    store_tile(acc, xmax[n], invw, bias, y, n, blockIdx.y * FB + warp * 16, y0, x0, lane, Cout, H,
               W);
}

torch::Tensor conv3x3_p1(torch::Tensor x_, torch::Tensor w_, torch::Tensor b_) {
    TORCH_CHECK(x_.is_cuda() && x_.scalar_type() == at::kFloat && x_.dim() == 4,
                "float32 CUDA images expected");
    auto x = x_.detach().contiguous();
    auto w = w_.detach().contiguous();
    auto b = b_.detach().contiguous();
    const int64_t N = x.size(0), Cin = x.size(1), H = x.size(2), W = x.size(3);
    const int64_t Cout = w.size(0);
    TORCH_CHECK(w.size(1) == Cin && w.size(2) == 3 && w.size(3) == 3, "unexpected weights");
    auto y = at::empty({N, Cout, H, W}, x.options());
    if (y.numel() == 0) return y;
    auto stream = at::cuda::getCurrentCUDAStream();
    const int64_t fblocks = (Cout + FB - 1) / FB;
    const int64_t chunks = (Cin + CI - 1) / CI;
    const int64_t HW = H * W;
    const int vec =
        (W % 4 == 0) && (reinterpret_cast<uintptr_t>(x.data_ptr<float>()) & 15) == 0;
    auto wt = at::empty({fblocks * chunks * WH}, x.options().dtype(at::kHalf));
    auto xp = at::empty({N * chunks * HW * 32}, x.options().dtype(at::kHalf));
    auto invw = at::empty({fblocks * FB}, x.options());
    auto xmax = at::empty({N}, x.options());
    uint16_t* wtp = reinterpret_cast<uint16_t*>(wt.data_ptr());
    uint16_t* xpp = reinterpret_cast<uint16_t*>(xp.data_ptr());
    prep_weights<<<(unsigned)(fblocks * FB), 128, 0, stream>>>(
        w.data_ptr<float>(), wtp, invw.data_ptr<float>(), xmax.data_ptr<float>(), (int)N,
        (int)Cin, (int)Cout, (int)chunks);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    const int64_t size = Cin * HW;
    const unsigned mblocks =
        (unsigned)std::max<int64_t>(1, std::min<int64_t>((size + 4095) / 4096, 256));
    absmax<<<dim3(mblocks, (unsigned)N), 256, 0, stream>>>(x.data_ptr<float>(),
                                                           xmax.data_ptr<float>(), size, vec);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    if (chunks > 0) {
        pack_x<<<dim3((unsigned)((HW + 127) / 128), (unsigned)(chunks * 2), (unsigned)N), 128, 0,
                 stream>>>(x.data_ptr<float>(), xmax.data_ptr<float>(), xpp, (int)Cin,
                           (int)chunks, (int)HW);
        C10_CUDA_KERNEL_LAUNCH_CHECK();
    }
    const int xtiles = (int)((W + TW - 1) / TW);
    const int ytiles = (int)((H + TH - 1) / TH);
    const int64_t units = N * xtiles * ytiles;
    const int64_t resident = chunks * WB + GROUPS * XB;
    if (resident <= SMEM_MAX && units < (1 << 30)) {
        const int64_t sms = at::cuda::getCurrentDeviceProperties()->multiProcessorCount;
        const int64_t per = std::max<int64_t>(1, std::min<int64_t>(sms / fblocks, units));
        C10_CUDA_CHECK(cudaFuncSetAttribute(
            conv_resident, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)resident));
        conv_resident<<<dim3((unsigned)per, (unsigned)fblocks), NT * GROUPS, (size_t)resident,
                        stream>>>(
            xpp, wtp, xmax.data_ptr<float>(), invw.data_ptr<float>(), b.data_ptr<float>(),
            y.data_ptr<float>(), (int)Cout, (int)chunks, (int)H, (int)W, xtiles,
            xtiles * ytiles, (int)units);
        C10_CUDA_KERNEL_LAUNCH_CHECK();
        return y;
    }
    C10_CUDA_CHECK(cudaFuncSetAttribute(conv_kernel,
                                        cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM));
    dim3 grid(xtiles * ytiles, (unsigned)fblocks, (unsigned)N);
    conv_kernel<<<grid, NT, SMEM, stream>>>(
        xpp, wtp, xmax.data_ptr<float>(), invw.data_ptr<float>(), b.data_ptr<float>(),
        y.data_ptr<float>(), (int)Cout, (int)chunks, (int)H, (int)W, xtiles);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return y;
}
"""

ext = load_inline(
    name="conv3x3_fp32_split_mma_v4",
    cpp_sources=CPP,
    cuda_sources=CUDA,
    functions=["conv3x3_p1"],
    extra_cuda_cflags=["-O3"],
)


class ModelNew(nn.Module):
    def __init__(self, channels: int, filters: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, filters, kernel_size=3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return ext.conv3x3_p1(x, self.conv.weight, self.conv.bias)

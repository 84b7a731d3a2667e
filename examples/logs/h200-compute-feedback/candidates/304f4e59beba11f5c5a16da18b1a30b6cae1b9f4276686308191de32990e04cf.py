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

constexpr int CI = 8;                  // input channels per stage (k of one wgmma)
constexpr int FB = 32;                 // filters of a block
constexpr int TW = 64;                 // input columns of a block: m of one wgmma
constexpr int TH = 4;                  // input rows of a block, one per warpgroup
constexpr int RH = TH + 2;             // staged rows
constexpr int PW = TW + 2;             // staged columns
constexpr int PIX = RH * PW;           // 396 staged pixels, 16 bytes for 4 channels of each
constexpr int XQ = PIX * 16;           // bytes of a channel quad: 6336
constexpr int XB = 4 * XQ;             // (hi, lo) x 2 quads
constexpr int WS = 2 * 2 * 16 * FB * 4;   // (hi, lo) x quads x slots x filters x 4: 8192 floats
constexpr int STAGE = XB + WS * 4;     // bytes
constexpr int SMEM = 2 * STAGE;        // 113.5 KB
constexpr int THREADS = 512;
constexpr int ITEMS = 2 * PIX;         // pixel quads of a stage
constexpr int PER = (ITEMS + THREADS - 1) / THREADS;

__device__ __forceinline__ void cp16(unsigned d, const void* src) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(d), "l"(src) : "memory");
}

// v = hi + lo, hi rounded to 11 significant bits, the difference is exact
__device__ __forceinline__ void split(float v, uint32_t& hi, uint32_t& lo) {
    hi = (__float_as_uint(v) + 0x1000u) & 0xffffe000u;
    lo = __float_as_uint(v - __uint_as_float(hi));
}

// K-major, no swizzle: core matrices of 8 rows x 16 bytes, rows 16 bytes apart
__device__ __forceinline__ uint64_t make_desc(unsigned addr, unsigned kstride) {
    return (uint64_t)((addr & 0x3FFFFu) >> 4) | ((uint64_t)(kstride >> 4) << 16) |
           ((uint64_t)(128 >> 4) << 32);
}

__device__ __forceinline__ void wgmma64(float (&d)[32], uint64_t da, uint64_t db) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k8.f32.tf32.tf32 "
                 "{@REGS64@}, %32, %33, p, 1, 1;\n}\n"
                 : @OPS64@
                 : "l"(da), "l"(db), "r"(1));
}

template <int O>
__device__ __forceinline__ void wgmma32(float (&d)[32], uint64_t da, uint64_t db) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %18, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n32k8.f32.tf32.tf32 "
                 "{@REGS32@}, %16, %17, p, 1, 1;\n}\n"
                 : @OPS32@
                 : "l"(da), "l"(db), "r"(1));
}

__device__ __forceinline__ void hold(float (&d)[2][32]) {
#pragma unroll
    for (int p = 0; p < 2; ++p)
#pragma unroll
        for (int i = 0; i < 32; ++i) asm volatile("" : "+f"(d[p][i])::"memory");
}

// Packed weights: [filter block][chunk][hi, lo][channel quad][slot][filter][4].
// Slot: bit 3 = (column offset is not 0), bit 2 = row phase p, bit 1 = a, bit 0 = column phase u.
__global__ void pack_kernel(const float* __restrict__ w, float* __restrict__ wp,
                            int Cin, int Cout, int chunks, int total) {
    const int e = blockIdx.x * blockDim.x + threadIdx.x;
    if (e >= total) return;
    const int fl = e & 31, slot = (e >> 5) & 15, kq = (e >> 9) & 1, blk = e >> 10;
    const int chunk = blk % chunks, fb = blk / chunks;
    const int p = (slot >> 2) & 1, a = (slot >> 1) & 1, u = slot & 1;
    const int b = (slot >> 3) ? 1 - u : u;           // column offset u - b
    const int tap = (1 - p + 2 * a) * 4 + (1 - u + 2 * b);
    const int f = fb * FB + fl;
    uint32_t hi[4], lo[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        const int c = chunk * CI + kq * 4 + j;
        const float v = (f < Cout && c < Cin) ? __ldg(w + ((int64_t)c * Cout + f) * 16 + tap) : 0.f;
        split(v, hi[j], lo[j]);
    }
    uint4* o = reinterpret_cast<uint4*>(wp + (int64_t)blk * WS) + (e & 1023);
    o[0] = make_uint4(hi[0], hi[1], hi[2], hi[3]);
    o[1024] = make_uint4(lo[0], lo[1], lo[2], lo[3]);
}

__global__ void __launch_bounds__(THREADS, 1)
convt_kernel(const float* x, const float* wp, const float* __restrict__ bias, float* y,
             int Cin, int Cout, int H, int W, int xtiles, int chunks) {
    extern __shared__ __align__(128) unsigned char sm[];
    const unsigned smb = (unsigned)__cvta_generic_to_shared(sm);
    const int t = threadIdx.x, lane = t & 31, warp = (t >> 5) & 3;
    const int q = __shfl_sync(0xffffffffu, t >> 7, 0);      // warpgroup: input row r0 + q
    const int g = lane >> 2, tq = lane & 3;
    const int x0 = (blockIdx.x % xtiles) * TW;
    const int r0 = (blockIdx.x / xtiles) * TH;
    const int f0 = blockIdx.y * FB;
    const int n = blockIdx.z;
    const int64_t plane = (int64_t)H * W;
    const float* xn = x + (int64_t)n * Cin * plane;
    const float* wb = wp + (int64_t)blockIdx.y * chunks * WS;

    // the pixel quads that this thread stages
    int64_t off[PER];
    int chan[PER];                         // first channel in the stage, or far outside
    unsigned dst[PER];
#pragma unroll
    for (int i = 0; i < PER; ++i) {
        const int e = t + THREADS * i;
        const int kq = e / PIX, px = e % PIX;
        const int iy = r0 - 1 + px / PW, ix = x0 - 1 + px % PW;
        const bool ok = e < ITEMS && iy >= 0 && iy < H && ix >= 0 && ix < W;
        off[i] = ok ? (int64_t)kq * 4 * plane + (int64_t)iy * W + ix : 0;
        chan[i] = ok ? kq * 4 : (1 << 30);
        dst[i] = kq * XQ + px * 16;
    }
    float v[PER][4];
    auto load_x = [&](int chunk) {
        const float* src = xn + (int64_t)chunk * CI * plane;
        const int left = Cin - chunk * CI;
#pragma unroll
        for (int i = 0; i < PER; ++i)
#pragma unroll
            for (int j = 0; j < 4; ++j)
                v[i][j] = chan[i] + j < left ? src[off[i] + j * plane] : 0.f;
    };
    auto store_x = [&](int s) {
        unsigned char* xs = sm + s * STAGE;
#pragma unroll
        for (int i = 0; i < PER; ++i)
            if (t + THREADS * i < ITEMS) {
                uint32_t hi[4], lo[4];
#pragma unroll
                for (int j = 0; j < 4; ++j) split(v[i][j], hi[j], lo[j]);
                *reinterpret_cast<uint4*>(xs + dst[i]) = make_uint4(hi[0], hi[1], hi[2], hi[3]);
                *reinterpret_cast<uint4*>(xs + 2 * XQ + dst[i]) =
                    make_uint4(lo[0], lo[1], lo[2], lo[3]);
            }
    };
    auto load_w = [&](int s, int chunk) {
        const float* src = wb + (int64_t)chunk * WS;
        const unsigned ws = smb + s * STAGE + XB;
#pragma unroll
        for (int i = 0; i < WS / (4 * THREADS); ++i) {
            const int e = t + THREADS * i;
            cp16(ws + e * 16, src + e * 4);
        }
        asm volatile("cp.async.commit_group;\n" ::: "memory");
    };

    float acc[2][32];                      // row phase; column phase * 16 + fragment
#pragma unroll
    for (int p = 0; p < 2; ++p)
#pragma unroll
        for (int i = 0; i < 32; ++i) acc[p][i] = 0.f;

    load_w(0, 0);
    load_x(0);
    store_x(0);
    asm volatile("cp.async.wait_group 0;\n" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
    __syncthreads();

#pragma unroll 1
    for (int chunk = 0; chunk < chunks; ++chunk) {
        const int s = chunk & 1;
        const bool more = chunk + 1 < chunks;
        if (more) {
            load_w(s ^ 1, chunk + 1);
            load_x(chunk + 1);
        }
        const unsigned sb = smb + s * STAGE;
        // staged pixel of the first column of row q at offset (0, 0)
        const uint64_t da = make_desc(sb + ((q + 1) * PW + 1) * 16, XQ);
        const uint64_t db = make_desc(sb + XB, 16 * FB * 16);
        constexpr int ALO = 2 * XQ / 16, BLO = 2 * 16 * FB, SLOT = FB;   // in 16 bytes

        hold(acc);
        asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
#pragma unroll
        for (int a = 0; a < 2; ++a)
#pragma unroll
            for (int p = 0; p < 2; ++p) {  // column offset 0: both column phases
                const uint64_t ah = da + (int64_t)((p - a) * PW);
                const uint64_t bh = db + (p * 2 + a) * 2 * SLOT;
                wgmma64(acc[p], ah + ALO, bh);
                wgmma64(acc[p], ah, bh + BLO);
                wgmma64(acc[p], ah, bh);
            }
        asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 0;\n" ::: "memory");
        hold(acc);
        asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
#pragma unroll
        for (int a = 0; a < 2; ++a)
#pragma unroll
            for (int p = 0; p < 2; ++p) {  // column offsets -1 (u = 0) and 1 (u = 1)
                const uint64_t ah = da + (int64_t)((p - a) * PW);
                const uint64_t bh = db + (8 + (p * 2 + a) * 2) * SLOT;
                wgmma32<0>(acc[p], ah - 1 + ALO, bh);
                wgmma32<16>(acc[p], ah + 1 + ALO, bh + SLOT);
                wgmma32<0>(acc[p], ah - 1, bh + BLO);
                wgmma32<16>(acc[p], ah + 1, bh + SLOT + BLO);
                wgmma32<0>(acc[p], ah - 1, bh);
                wgmma32<16>(acc[p], ah + 1, bh + SLOT);
            }
        asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
        if (more) {
            store_x(s ^ 1);
            asm volatile("cp.async.wait_group 0;\n" ::: "memory");
            asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
        }
        asm volatile("wgmma.wait_group.sync.aligned 0;\n" ::: "memory");
        hold(acc);
        __syncthreads();
    }

    const int OH = 2 * H, OW = 2 * W;
    const int iy = r0 + q;
    if (iy >= H) return;
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const int co = f0 + j * 8 + 2 * tq + e;
            if (co < Cout) {
                const float bv = __ldg(bias + co);
                float* yp = y + (((int64_t)n * Cout + co) * OH + 2 * iy) * OW;
#pragma unroll
                for (int p = 0; p < 2; ++p)
#pragma unroll
                    for (int h = 0; h < 2; ++h) {
                        const int ix = x0 + warp * 16 + h * 8 + g;
                        if (ix < W)
                            *reinterpret_cast<float2*>(yp + (int64_t)p * OW + 2 * ix) =
                                make_float2(acc[p][j * 4 + 2 * h + e] + bv,
                                            acc[p][16 + j * 4 + 2 * h + e] + bv);
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
    C10_CUDA_CHECK(cudaFuncSetAttribute(convt_kernel,
                                        cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM));
    dim3 grid(xtiles * ytiles, (unsigned)fblocks, (unsigned)N);
    convt_kernel<<<grid, THREADS, SMEM, stream>>>(
        x.data_ptr<float>(), wp.data_ptr<float>(), b.data_ptr<float>(), y.data_ptr<float>(),
        (int)Cin, (int)Cout, (int)H, (int)W, xtiles, chunks);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return y;
}
"""

CUDA = CUDA.replace("@REGS64@", ", ".join("%%%d" % i for i in range(32)))
CUDA = CUDA.replace("@OPS64@", ", ".join('"+f"(d[%d])' % i for i in range(32)))
CUDA = CUDA.replace("@REGS32@", ", ".join("%%%d" % i for i in range(16)))
CUDA = CUDA.replace("@OPS32@", ", ".join('"+f"(d[O + %d])' % i for i in range(16)))

ext = load_inline(
    name="conv_transpose_fp32_split_wgmma_v3",
    cpp_sources=CPP,
    cuda_sources=CUDA,
    functions=["conv_transpose_4x4_s2_p1"],
    extra_cuda_cflags=["-O3", "-gencode=arch=compute_90a,code=sm_90a"],
)


class ModelNew(nn.Module):
    def __init__(self, channels: int, filters: int) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose2d(channels, filters, kernel_size=4, stride=2, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return ext.conv_transpose_4x4_s2_p1(x, self.conv.weight, self.conv.bias)

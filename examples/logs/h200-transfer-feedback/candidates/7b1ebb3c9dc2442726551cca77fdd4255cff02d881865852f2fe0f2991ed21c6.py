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

namespace {

constexpr int WIDTH = 32;               // width of the volume (one row = one 128-byte line)
constexpr int KC = 8;                   // channels per chunk (= K of one mma)
constexpr int CONSUMER_WARPS = 8;
constexpr int PRODUCER_WARPS = 4;
constexpr int THREADS = (CONSUMER_WARPS + PRODUCER_WARPS) * 32;   // 384
constexpr int STAGES = 3;
constexpr int NF = 64;                  // filters per tile block
constexpr int NT = 32;                  // 2x2 output tiles per tile block (16 across, 2 down)
constexpr int V_KSTRIDE = 16 * NT + 8;  // 520: channel stride, = 8 mod 32 against bank conflicts
constexpr int V_FLOATS = KC * V_KSTRIDE;  // 4160
constexpr int U_FLOATS = KC * 16 * NF;    // 8192
constexpr int STAGE_FLOATS = V_FLOATS + U_FLOATS;
constexpr int M_FS = NT + 4;            // 36: filter stride of the product tile
constexpr int M_PS = (NF / 2) * M_FS;   // position stride of the (half) product tile
constexpr int M_FLOATS = 16 * M_PS;     // 18432
constexpr int M_OFFSET = STAGES * STAGE_FLOATS;
constexpr int BAR_OFFSET = M_OFFSET + M_FLOATS;           // in floats, 8-byte aligned
constexpr int SMEM_BYTES = BAR_OFFSET * 4 + 2 * STAGES * 8;
static_assert(SMEM_BYTES <= 232448, "shared memory");
static_assert((BAR_OFFSET * 4) % 8 == 0, "barrier alignment");

// weight [F][C][3][3][3]  ->  u [F/64][3 (kd)][C/8][16 (pos)][4 (16 filters)][32 (lane)][4 (reg)]
// in the order of the A fragments of mma.m16n8k8 (row = filter, column = channel)
__global__ void __launch_bounds__(64)
weight_transform_kernel(const float* __restrict__ w, float* __restrict__ u, int C, int F) {
    const int idx = blockIdx.x * blockDim.x + threadIdx.x;
    if (idx >= 3 * C * F) return;
    const int q = idx & 511;            // [4][32][4] of one chunk
    const int chunk = idx >> 9;         // (fb * 3 + kd) * (C / 8) + cblk
    const int reg = q & 3;
    const int ln = (q >> 2) & 31;
    const int mt = q >> 7;
    const int cch = C / KC;
    const int cblk = chunk % cch;
    const int rest = chunk / cch;
    const int kd = rest % 3;
    const int fb = rest / 3;
    const int f = fb * NF + mt * 16 + (reg & 1) * 8 + (ln >> 2);
    const int c = cblk * KC + (reg >> 1) * 4 + (ln & 3);
    const float* src = w + (((size_t)f * C + c) * 3 + kd) * 9;
    float g[3][3];
#pragma unroll
    for (int i = 0; i < 9; ++i) g[i / 3][i % 3] = __ldg(src + i);
    float a[4][3];
#pragma unroll
    for (int s = 0; s < 3; ++s) {
        const float e = g[0][s] + g[2][s];
        a[0][s] = g[0][s];
        a[1][s] = 0.5f * (e + g[1][s]);
        a[2][s] = 0.5f * (e - g[1][s]);
        a[3][s] = g[2][s];
    }
    float* dst = u + (size_t)chunk * U_FLOATS + q;
#pragma unroll
    for (int r = 0; r < 4; ++r) {
        const float e = a[r][0] + a[r][2];
        dst[(r * 4 + 0) * 512] = a[r][0];
        dst[(r * 4 + 1) * 512] = 0.5f * (e + a[r][1]);
        dst[(r * 4 + 2) * 512] = 0.5f * (e - a[r][1]);
        dst[(r * 4 + 3) * 512] = a[r][2];
    }
}

// ---- mbarrier and bulk copy helpers -------------------------------------------------------
__device__ __forceinline__ void mbar_init(unsigned bar, unsigned count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(bar), "r"(count) : "memory");
}
__device__ __forceinline__ void mbar_arrive(unsigned bar) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(bar) : "memory");
}
__device__ __forceinline__ void mbar_arrive_expect(unsigned bar, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(bar), "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void mbar_wait(unsigned bar, unsigned parity) {
    unsigned done;
    do {
        asm volatile(
            "{\n"
            ".reg .pred p;\n"
            "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
            "selp.u32 %0, 1, 0, p;\n"
            "}\n"
            : "=r"(done)
            : "r"(bar), "r"(parity)
            : "memory");
    } while (!done);
    __syncwarp();
}
__device__ __forceinline__ void bulk_load(unsigned dst, const float* src, unsigned bytes,
                                          unsigned bar) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n"
        ::"r"(dst), "l"(src), "r"(bytes), "r"(bar)
        : "memory");
}
__device__ __forceinline__ void consumer_sync() {
    asm volatile("bar.sync 1, 256;\n" ::: "memory");
}

// x = hi + lo: hi has 11 significant bits (rounded to nearest), lo is the exact remainder
__device__ __forceinline__ void split_f32(float x, unsigned& hi, unsigned& lo) {
    hi = (__float_as_uint(x) + 0x1000u) & 0xffffe000u;
    lo = __float_as_uint(x - __uint_as_float(hi));
}

__device__ __forceinline__ void mma_16x8x8(float (&d)[4], const unsigned (&a)[4], unsigned b0,
                                           unsigned b1) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void load_raw(float2 (&raw)[4], const float* __restrict__ p,
                                         bool top_ok, bool bot_ok) {
    raw[0] = make_float2(0.f, 0.f);
    raw[3] = make_float2(0.f, 0.f);
    if (top_ok) raw[0] = __ldg(reinterpret_cast<const float2*>(p - WIDTH));
    raw[1] = __ldg(reinterpret_cast<const float2*>(p));
    raw[2] = __ldg(reinterpret_cast<const float2*>(p + WIDTH));
    if (bot_ok) raw[3] = __ldg(reinterpret_cast<const float2*>(p + 2 * WIDTH));
}

// B^T d B of one 4x4 input tile, stored at vdst[pos * NT]
__device__ __forceinline__ void transform_store(const float2 (&raw)[4], float* vdst, int tx) {
    float t[4][4];
#pragma unroll
    for (int r = 0; r < 4; ++r) {
        float d0 = __shfl_up_sync(0xffffffffu, raw[r].y, 1, 16);
        float d3 = __shfl_down_sync(0xffffffffu, raw[r].x, 1, 16);
        if (tx == 0) d0 = 0.f;
        if (tx == 15) d3 = 0.f;
        const float d1 = raw[r].x;
        const float d2 = raw[r].y;
        t[r][0] = d0 - d2;
        t[r][1] = d1 + d2;
        t[r][2] = d2 - d1;
        t[r][3] = d1 - d3;
    }
#pragma unroll
    for (int s = 0; s < 4; ++s) {
        vdst[(0 + s) * NT] = t[0][s] - t[2][s];
        vdst[(4 + s) * NT] = t[1][s] + t[2][s];
        vdst[(8 + s) * NT] = t[2][s] - t[1][s];
        vdst[(12 + s) * NT] = t[1][s] - t[3][s];
    }
}

__global__ void __launch_bounds__(THREADS, 1)
conv3d_wino_kernel(const float* __restrict__ x, const float* __restrict__ u,
                   const float* __restrict__ bias, float* __restrict__ out,
                   int C, int D, int H, int F, int total_tiles) {
    extern __shared__ __align__(128) float smem[];
    const int tid = threadIdx.x;
    const int lane = tid & 31;
    const int warp = __shfl_sync(0xffffffffu, tid >> 5, 0);

    const unsigned smem_base = (unsigned)__cvta_generic_to_shared(smem);
    const unsigned full_bar = smem_base + BAR_OFFSET * 4;       // + 8 * stage
    const unsigned empty_bar = full_bar + STAGES * 8;           // + 8 * stage

    if (tid == 0) {
#pragma unroll
        for (int i = 0; i < STAGES; ++i) {
            mbar_init(full_bar + 8 * i, PRODUCER_WARPS + 1);
            mbar_init(empty_bar + 8 * i, CONSUMER_WARPS);
        }
        asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
    }
    __syncthreads();

    const int hblocks = H / 4;
    const int fblocks = F / NF;
    const int cch = C / KC;

    // lane = tile while loading inputs and writing outputs
    const int tx = lane & 15;
    const int ty = lane >> 4;

    if (warp >= CONSUMER_WARPS) {
        // ------------------------------ producers ------------------------------
        asm volatile("setmaxnreg.dec.sync.aligned.u32 56;\n");
        const int pw = warp - CONSUMER_WARPS;   // channels pw and pw + 4 of every chunk
        const size_t cstride = (size_t)D * H * WIDTH;

        int tile = blockIdx.x;
        int c = 0, kd = 0, nkd = 0;
        bool top_ok = false, bot_ok = false;
        const float* xplane = x;
        const float* up = u;
        bool fresh = true;
        int s = 0;
        unsigned ph = 0;
        float2 raw0[4], raw1[4];

        while (true) {
            if (fresh) {
                if (tile >= total_tiles) break;
                const int h0 = (tile % hblocks) * 4;
                const int rest = tile / hblocks;
                const int d = rest % D;
                const int z = rest / D;
                const int n = z / fblocks;
                const int fb = z % fblocks;
                const int hrow = h0 + 2 * ty;
                top_ok = hrow >= 1;
                bot_ok = hrow + 2 < H;
                const int kd_lo = (d == 0) ? 1 : 0;
                const int kd_hi = (d == D - 1) ? 2 : 3;
                nkd = kd_hi - kd_lo;
                up = u + ((size_t)fb * 3 + kd_lo) * C * (16 * NF);
                xplane = x + ((size_t)n * C + pw) * cstride +
                         ((size_t)(d + kd_lo - 1) * H + hrow) * WIDTH + 2 * tx;
                c = 0;
                kd = 0;
                fresh = false;
            }
            // loads are in flight while this warp waits for a free stage
            {
                const float* p = xplane + (size_t)c * KC * cstride + (size_t)kd * H * WIDTH;
                load_raw(raw0, p, top_ok, bot_ok);
                load_raw(raw1, p + 4 * cstride, top_ok, bot_ok);
            }

            mbar_wait(empty_bar + 8 * s, ph ^ 1u);
            float* vs = smem + s * STAGE_FLOATS;
            if (pw == 0 && lane == 0) {
                mbar_arrive_expect(full_bar + 8 * s, U_FLOATS * 4);
                bulk_load(smem_base + (unsigned)(s * STAGE_FLOATS + V_FLOATS) * 4u, up,
                          U_FLOATS * 4, full_bar + 8 * s);
            }
            __syncwarp();
            transform_store(raw0, vs + pw * V_KSTRIDE + lane, tx);
            transform_store(raw1, vs + (pw + 4) * V_KSTRIDE + lane, tx);
            __syncwarp();
            if (lane == 0) mbar_arrive(full_bar + 8 * s);
            if (++s == STAGES) { s = 0; ph ^= 1u; }

            up += U_FLOATS;
            if (++c == cch) {
                c = 0;
                if (++kd == nkd) {
                    tile += gridDim.x;
                    fresh = true;
                }
            }
        }
    } else {
        // ------------------------------ consumers ------------------------------
        asm volatile("setmaxnreg.inc.sync.aligned.u32 224;\n");
        // 64 filters x 32 tiles of positions 2*warp and 2*warp+1 per warp;
        // column j of the nt-th mma is tile 4*j + nt
        const int g = lane >> 2;
        const int t4 = lane & 3;
        float* mbuf = smem + M_OFFSET;
        int s = 0;
        unsigned ph = 0;

        for (int tile = blockIdx.x; tile < total_tiles; tile += gridDim.x) {
            const int h0 = (tile % hblocks) * 4;
            const int rest = tile / hblocks;
            const int d = rest % D;
            const int z = rest / D;
            const int n = z / fblocks;
            const int fb = z % fblocks;
            const int kd_lo = (d == 0) ? 1 : 0;
            const int kd_hi = (d == D - 1) ? 2 : 3;
            const int nchunks = (kd_hi - kd_lo) * cch;

            float acc[2][4][4][4];   // [position][16 filters][8 tiles][register]
#pragma unroll
            for (int p = 0; p < 2; ++p)
#pragma unroll
                for (int mt = 0; mt < 4; ++mt)
#pragma unroll
                    for (int nt = 0; nt < 4; ++nt)
#pragma unroll
                        for (int i = 0; i < 4; ++i) acc[p][mt][nt][i] = 0.f;

#pragma unroll 1
            for (int it = 0; it < nchunks; ++it) {
                mbar_wait(full_bar + 8 * s, ph);
                const float* vs = smem + s * STAGE_FLOATS;
                const float* us = vs + V_FLOATS;
                const float* up = us + (warp * 2) * 512 + lane * 4;
                const float* vp = vs + t4 * V_KSTRIDE + (warp * 2) * NT + g * 4;
#pragma unroll
                for (int p = 0; p < 2; ++p) {
                    unsigned bh[4][2], bl[4][2];
                    {
                        const float4 v0 = *reinterpret_cast<const float4*>(vp + p * NT);
                        const float4 v1 =
                            *reinterpret_cast<const float4*>(vp + p * NT + 4 * V_KSTRIDE);
                        split_f32(v0.x, bh[0][0], bl[0][0]);
                        split_f32(v0.y, bh[1][0], bl[1][0]);
                        split_f32(v0.z, bh[2][0], bl[2][0]);
                        split_f32(v0.w, bh[3][0], bl[3][0]);
                        split_f32(v1.x, bh[0][1], bl[0][1]);
                        split_f32(v1.y, bh[1][1], bl[1][1]);
                        split_f32(v1.z, bh[2][1], bl[2][1]);
                        split_f32(v1.w, bh[3][1], bl[3][1]);
                    }
#pragma unroll
                    for (int mp = 0; mp < 2; ++mp) {
                        unsigned ah[2][4], al[2][4];
#pragma unroll
                        for (int i = 0; i < 2; ++i) {
                            const float4 a = *reinterpret_cast<const float4*>(
                                up + p * 512 + (mp * 2 + i) * 128);
                            split_f32(a.x, ah[i][0], al[i][0]);
                            split_f32(a.y, ah[i][1], al[i][1]);
                            split_f32(a.z, ah[i][2], al[i][2]);
                            split_f32(a.w, ah[i][3], al[i][3]);
                        }
                        // small terms first
#pragma unroll
                        for (int i = 0; i < 2; ++i)
#pragma unroll
                            for (int nt = 0; nt < 4; ++nt)
                                mma_16x8x8(acc[p][mp * 2 + i][nt], al[i], bh[nt][0], bh[nt][1]);
#pragma unroll
                        for (int i = 0; i < 2; ++i)
#pragma unroll
                            for (int nt = 0; nt < 4; ++nt)
                                mma_16x8x8(acc[p][mp * 2 + i][nt], ah[i], bl[nt][0], bl[nt][1]);
#pragma unroll
                        for (int i = 0; i < 2; ++i)
#pragma unroll
                            for (int nt = 0; nt < 4; ++nt)
                                mma_16x8x8(acc[p][mp * 2 + i][nt], ah[i], bh[nt][0], bh[nt][1]);
                    }
                }
                __syncwarp();
                if (lane == 0) mbar_arrive(empty_bar + 8 * s);
                __syncwarp();
                if (++s == STAGES) { s = 0; ph ^= 1u; }
            }

            // epilogue, 32 filters at a time: products to shared memory M[pos][filter][tile],
            // then inverse transform A^T M A, bias, store
            const int hrow = h0 + 2 * ty;
#pragma unroll
            for (int hf = 0; hf < 2; ++hf) {
                consumer_sync();     // the previous readers of the buffer are done
#pragma unroll
                for (int p = 0; p < 2; ++p) {
#pragma unroll
                    for (int mi = 0; mi < 2; ++mi) {
                        const int mt = hf * 2 + mi;
                        float* m = mbuf + (warp * 2 + p) * M_PS + (mi * 16 + g) * M_FS + t4 * 8;
                        *reinterpret_cast<float4*>(m) =
                            make_float4(acc[p][mt][0][0], acc[p][mt][1][0], acc[p][mt][2][0],
                                        acc[p][mt][3][0]);
                        *reinterpret_cast<float4*>(m + 4) =
                            make_float4(acc[p][mt][0][1], acc[p][mt][1][1], acc[p][mt][2][1],
                                        acc[p][mt][3][1]);
                        *reinterpret_cast<float4*>(m + 8 * M_FS) =
                            make_float4(acc[p][mt][0][2], acc[p][mt][1][2], acc[p][mt][2][2],
                                        acc[p][mt][3][2]);
                        *reinterpret_cast<float4*>(m + 8 * M_FS + 4) =
                            make_float4(acc[p][mt][0][3], acc[p][mt][1][3], acc[p][mt][2][3],
                                        acc[p][mt][3][3]);
                    }
                }
                consumer_sync();

                // lane = tile, four filters per warp
#pragma unroll
                for (int q = 0; q < 4; ++q) {
                    const int fl = warp * 4 + q;
                    const float* m = mbuf + fl * M_FS + lane;
                    float z0[4], z1[4];   // [column of the tile]
#pragma unroll
                    for (int k = 0; k < 4; ++k) {
                        const float m0 = m[(0 + k) * M_PS];
                        const float m1 = m[(4 + k) * M_PS];
                        const float m2 = m[(8 + k) * M_PS];
                        const float m3 = m[(12 + k) * M_PS];
                        z0[k] = m0 + m1 + m2;
                        z1[k] = m1 - m2 - m3;
                    }
                    const int fo = fb * NF + hf * (NF / 2) + fl;
                    const float bv = __ldg(bias + fo);
                    float* o = out + (((size_t)n * F + fo) * D + d) * ((size_t)H * WIDTH) +
                               (size_t)hrow * WIDTH + 2 * tx;
                    float2 y0, y1;
                    y0.x = z0[0] + z0[1] + z0[2] + bv;
                    y0.y = z0[1] - z0[2] - z0[3] + bv;
                    y1.x = z1[0] + z1[1] + z1[2] + bv;
                    y1.y = z1[1] - z1[2] - z1[3] + bv;
                    *reinterpret_cast<float2*>(o) = y0;
                    *reinterpret_cast<float2*>(o + WIDTH) = y1;
                }
            }
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
    TORCH_CHECK(H % 4 == 0 && C % KC == 0 && F % NF == 0 && C > 0, "unsupported shape");
    TORCH_CHECK(weight.size(1) == C && weight.size(2) == 3 && weight.size(3) == 3 &&
                weight.size(4) == 3 && bias.numel() == F, "unexpected weight shape");

    auto out = torch::empty({N, F, D, H, WIDTH}, x.options());
    if (out.numel() == 0) return out;
    auto u = torch::empty({(int64_t)3 * C * 16 * F}, x.options());
    auto stream = at::cuda::getCurrentCUDAStream();

    const int total = 3 * C * F;
    weight_transform_kernel<<<(total + 63) / 64, 64, 0, stream>>>(
        weight.data_ptr<float>(), u.data_ptr<float>(), C, F);
    C10_CUDA_KERNEL_LAUNCH_CHECK();

    C10_CUDA_CHECK(cudaFuncSetAttribute(conv3d_wino_kernel,
                                        cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM_BYTES));
    const int64_t tiles64 = (int64_t)(H / 4) * D * N * (F / NF);
    TORCH_CHECK(tiles64 < (int64_t)1 << 30, "too many tiles");
    const int tiles = (int)tiles64;
    const int sms = at::cuda::getCurrentDeviceProperties()->multiProcessorCount;
    const int blocks = tiles < sms ? tiles : sms;
    conv3d_wino_kernel<<<blocks, THREADS, SMEM_BYTES, stream>>>(
        x.data_ptr<float>(), u.data_ptr<float>(), bias.data_ptr<float>(), out.data_ptr<float>(),
        C, D, H, F, tiles);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return out;
}
"""

_ext = load_inline(
    name="conv3d_wino_f32_mma3_ws_v1",
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

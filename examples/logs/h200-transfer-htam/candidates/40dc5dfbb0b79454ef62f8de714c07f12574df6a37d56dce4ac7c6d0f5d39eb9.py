import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

_cpp_src = r"""
torch::Tensor upsample2x_bilinear(torch::Tensor x);
"""

_cuda_src = r"""
#include <torch/types.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <cstdint>
#include <climits>

constexpr int R = 4;          // general path: input rows per thread (2 * R output rows)
constexpr int THREADS = 192;

// horizontal pass: four output columns from two input columns and their neighbours
__device__ __forceinline__ float4 hblend(float l, float2 m, float r) {
    float4 o;
    const float a = 0.75f * m.x;
    const float b = 0.75f * m.y;
    o.x = fmaf(0.25f, l, a);
    o.y = fmaf(0.25f, m.y, a);
    o.z = fmaf(0.25f, m.x, b);
    o.w = fmaf(0.25f, r, b);
    return o;
}

// vertical pass: 0.75 * near + 0.25 * far
__device__ __forceinline__ float4 vblend(float4 nearv, float4 farv) {
    float4 o;
    o.x = fmaf(0.25f, farv.x, 0.75f * nearv.x);
    o.y = fmaf(0.25f, farv.y, 0.75f * nearv.y);
    o.z = fmaf(0.25f, farv.z, 0.75f * nearv.z);
    o.w = fmaf(0.25f, farv.w, 0.75f * nearv.w);
    return o;
}

// ---------------------------------------------------------------------------
// Sizes known at compile time: persistent blocks, bulk loads ahead, bulk stores behind.
// ---------------------------------------------------------------------------
template <int HC, int WC>
struct Pipe {
    static constexpr int RT = 2;                       // input rows per thread
    static constexpr int TILE = 8;                     // input rows per tile
    static constexpr int IN_STAGES = 4;
    static constexpr int OUT_STAGES = 3;
    static constexpr int BLOCKS_PER_SM = 4;
    static constexpr int TPP = HC / TILE;              // tiles per plane
    static constexpr int W2 = WC / 2;
    static constexpr int IN_FLOATS = (TILE + 2) * WC;  // with one neighbour row on each side
    static constexpr int OUT_FLOATS = TILE * WC * 4;
    static constexpr int BAR_OFFSET = (OUT_STAGES * OUT_FLOATS + IN_STAGES * IN_FLOATS) * 4;
    static constexpr int SMEM = BAR_OFFSET + IN_STAGES * 8;
    static_assert(HC % TILE == 0, "whole tiles per plane");
    static_assert(WC % 4 == 0, "rows of whole 16-byte pieces");
    static_assert((TILE / RT) * W2 == THREADS, "one item per thread");
    static_assert((IN_FLOATS * 4) % 128 == 0 && (OUT_FLOATS * 4) % 128 == 0, "aligned buffers");
};

__device__ __forceinline__ void mbar_wait(uint32_t bar, uint32_t parity) {
    uint32_t done = 0;
    do {
        asm volatile(
            "{\n\t"
            ".reg .pred p;\n\t"
            "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
            "selp.u32 %0, 1, 0, p;\n\t"
            "}\n"
            : "=r"(done) : "r"(bar), "r"(parity) : "memory");
    } while (done == 0);
}

// One thread: start the bulk load of a tile's input rows. Slot row 0 is input row h0 - 1.
template <int HC, int WC>
__device__ __forceinline__ void load_tile(const float* __restrict__ x, int tile,
                                          uint32_t slot_addr, uint32_t bar) {
    using P = Pipe<HC, WC>;
    const int k = tile % P::TPP;
    const int lo = (k == 0) ? 1 : 0;
    const int hi = (k == P::TPP - 1) ? P::TILE : P::TILE + 1;
    const uint32_t bytes = (uint32_t)((hi - lo + 1) * WC * 4);
    const long long row = (long long)tile * P::TILE - 1 + lo;    // row over all planes
    const float* src = x + row * WC;
    const uint64_t gaddr = (uint64_t)__cvta_generic_to_global(src);
    const uint32_t dst = slot_addr + (uint32_t)(lo * WC * 4);
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :: "r"(bar), "r"(bytes) : "memory");
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
        :: "r"(dst), "l"(gaddr), "r"(bytes), "r"(bar) : "memory");
}

template <int HC, int WC>
__global__ void __launch_bounds__(THREADS, 4)
up2_pipe_kernel(const float* __restrict__ x, float* __restrict__ y, int tiles) {
    using P = Pipe<HC, WC>;
    extern __shared__ __align__(128) float smem[];
    float* out_s = smem;
    float* in_s = smem + P::OUT_STAGES * P::OUT_FLOATS;
    const uint32_t smem_addr = (uint32_t)__cvta_generic_to_shared(smem);
    const uint32_t in_addr = smem_addr + (uint32_t)(P::OUT_STAGES * P::OUT_FLOATS * 4);
    const uint32_t bar_addr = smem_addr + (uint32_t)P::BAR_OFFSET;

    const int tid = (int)threadIdx.x;
    const int grid = (int)gridDim.x;
    const int first = (int)blockIdx.x;

    uint64_t policy = 0;
    if (tid == 0) {
        asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
#pragma unroll
        for (int s = 0; s < P::IN_STAGES; ++s) {
            asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"
                         :: "r"(bar_addr + 8u * s), "r"(1u) : "memory");
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#pragma unroll
        for (int s = 0; s < P::IN_STAGES; ++s) {
            const int tile = first + s * grid;
            if (tile < tiles) {
                load_tile<HC, WC>(x, tile, in_addr + (uint32_t)(s * P::IN_FLOATS * 4),
                                  bar_addr + 8u * s);
            }
        }
    }
    __syncthreads();

    const int g = tid / P::W2;
    const int t = tid - g * P::W2;
    const int c = 2 * t;
    const int cl = c > 0 ? c - 1 : 0;
    const int cr = c + 2 < WC ? c + 2 : WC - 1;
    constexpr int sow = 2 * WC;

    int slot = 0;
    uint32_t parity = 0;
    int ob = 0;
    for (int tile = first; tile < tiles; tile += grid) {
        const int k = tile % P::TPP;
        const int lo = (k == 0) ? 1 : 0;                          // first valid slot row
        const int hi = (k == P::TPP - 1) ? P::TILE : P::TILE + 1; // last valid slot row
        const float* ip = in_s + slot * P::IN_FLOATS;

        mbar_wait(bar_addr + 8u * (uint32_t)slot, parity);

        float2 m[P::RT + 2];
        float l[P::RT + 2];
        float r[P::RT + 2];
#pragma unroll
        for (int i = 0; i < P::RT + 2; ++i) {
            int q = g * P::RT + i;
            q = q < lo ? lo : q;
            q = q > hi ? hi : q;
            const float* row = ip + q * WC;
            m[i] = *reinterpret_cast<const float2*>(row + c);
            l[i] = row[cl];
            r[i] = row[cr];
        }

        float4 prev = hblend(l[0], m[0], r[0]);
        float4 cur = hblend(l[1], m[1], r[1]);
        float* sp = out_s + ob * P::OUT_FLOATS + g * (2 * P::RT) * sow + 4 * t;
#pragma unroll
        for (int i = 0; i < P::RT; ++i) {
            const float4 next = hblend(l[i + 2], m[i + 2], r[i + 2]);
            *reinterpret_cast<float4*>(sp + (2 * i) * sow) = vblend(cur, prev);
            *reinterpret_cast<float4*>(sp + (2 * i + 1) * sow) = vblend(cur, next);
            prev = cur;
            cur = next;
        }

        // make the shared-memory writes visible to the copy engine
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        if (tid == 0) {
            // the buffer that the next tile writes has been read out; the barrier tells all
            asm volatile("cp.async.bulk.wait_group.read %0;" :: "n"(P::OUT_STAGES - 2) : "memory");
        }
        __syncthreads();
        if (tid == 0) {
            float* dst = y + (size_t)tile * (size_t)P::OUT_FLOATS;
            const uint64_t gaddr = (uint64_t)__cvta_generic_to_global(dst);
            const uint32_t saddr = smem_addr + (uint32_t)(ob * P::OUT_FLOATS * 4);
            const uint32_t bytes = (uint32_t)(P::OUT_FLOATS * 4);
            asm volatile(
                "cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint [%0], [%1], %2, %3;"
                :: "l"(gaddr), "r"(saddr), "r"(bytes), "l"(policy) : "memory");
            asm volatile("cp.async.bulk.commit_group;" ::: "memory");
            // every thread has read this input slot: refill it
            const int ahead = tile + P::IN_STAGES * grid;
            if (ahead < tiles) {
                load_tile<HC, WC>(x, ahead, in_addr + (uint32_t)(slot * P::IN_FLOATS * 4),
                                  bar_addr + 8u * (uint32_t)slot);
            }
        }

        if (++slot == P::IN_STAGES) { slot = 0; parity ^= 1u; }
        if (++ob == P::OUT_STAGES) ob = 0;
    }
    if (tid == 0) {
        // shared memory must stay until it has been read
        asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
    }
}

// ---------------------------------------------------------------------------
// Even widths, sizes known at run time.
// ---------------------------------------------------------------------------
__global__ void __launch_bounds__(THREADS)
up2_vec_kernel(const float* __restrict__ x, float* __restrict__ y, int H, int W) {
    const int w2 = W / 2;
    const int groups = (H + R - 1) / R;
    const int items = groups * w2;
    const int bpp = (items + THREADS - 1) / THREADS;   // blocks per plane

    const int bid = (int)blockIdx.x;
    const int plane = bid / bpp;
    const int item = (bid - plane * bpp) * THREADS + (int)threadIdx.x;
    if (item >= items) return;
    const int g = item / w2;
    const int t = item - g * w2;

    const int h0 = g * R;
    const int c = 2 * t;
    const int cl = c > 0 ? c - 1 : 0;
    const int cr = c + 2 < W ? c + 2 : W - 1;

    const size_t plane_in = (size_t)H * (size_t)W;
    const float* xp = x + (size_t)plane * plane_in;

    float2 m[R + 2];
    float l[R + 2];
    float r[R + 2];
#pragma unroll
    for (int i = 0; i < R + 2; ++i) {
        int h = h0 - 1 + i;
        h = h < 0 ? 0 : h;
        h = h > H - 1 ? H - 1 : h;
        const float* row = xp + (size_t)h * (size_t)W;
        m[i] = __ldg(reinterpret_cast<const float2*>(row + c));
        l[i] = __ldg(row + cl);
        r[i] = __ldg(row + cr);
    }

    const size_t ow = 2 * (size_t)W;
    float4 prev = hblend(l[0], m[0], r[0]);
    float4 cur = hblend(l[1], m[1], r[1]);

    float* yp = y + (size_t)plane * plane_in * 4 + (size_t)(2 * (size_t)h0) * ow + (size_t)4 * t;
#pragma unroll
    for (int i = 0; i < R; ++i) {
        const float4 next = hblend(l[i + 2], m[i + 2], r[i + 2]);
        if (h0 + i < H) {
            __stcs(reinterpret_cast<float4*>(yp + (size_t)(2 * i) * ow), vblend(cur, prev));
            __stcs(reinterpret_cast<float4*>(yp + (size_t)(2 * i + 1) * ow), vblend(cur, next));
        }
        prev = cur;
        cur = next;
    }
}

// Any shape: one output element per step.
__global__ void __launch_bounds__(256)
up2_scalar_kernel(const float* __restrict__ x, float* __restrict__ y,
                  int64_t H, int64_t W, int64_t total) {
    const int64_t OW = 2 * W;
    const int64_t OH = 2 * H;
    const int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < total; i += step) {
        const int64_t ox = i % OW;
        const int64_t q = i / OW;
        const int64_t oy = q % OH;
        const int64_t plane = q / OH;
        const int64_t cn = ox >> 1;
        int64_t cf = (ox & 1) ? cn + 1 : cn - 1;
        cf = cf < 0 ? 0 : (cf > W - 1 ? W - 1 : cf);
        const int64_t rn = oy >> 1;
        int64_t rf = (oy & 1) ? rn + 1 : rn - 1;
        rf = rf < 0 ? 0 : (rf > H - 1 ? H - 1 : rf);
        const float* xp = x + plane * H * W;
        const float a = fmaf(0.25f, __ldg(xp + rn * W + cf), 0.75f * __ldg(xp + rn * W + cn));
        const float b = fmaf(0.25f, __ldg(xp + rf * W + cf), 0.75f * __ldg(xp + rf * W + cn));
        y[i] = fmaf(0.25f, b, 0.75f * a);
    }
}

torch::Tensor upsample2x_bilinear(torch::Tensor x_in) {
    TORCH_CHECK(x_in.is_cuda(), "input must be a CUDA tensor");
    TORCH_CHECK(x_in.scalar_type() == at::kFloat, "input must be float32");
    TORCH_CHECK(x_in.dim() == 4, "input must have four dimensions");
    const c10::cuda::CUDAGuard guard(x_in.device());

    at::Tensor x = x_in.contiguous();
    const int64_t N = x.size(0);
    const int64_t C = x.size(1);
    const int64_t H = x.size(2);
    const int64_t W = x.size(3);
    at::Tensor y = at::empty({N, C, 2 * H, 2 * W}, x.options());
    const int64_t total = y.numel();
    if (total == 0) return y;

    const float* xp = x.data_ptr<float>();
    float* yp = y.data_ptr<float>();
    auto stream = at::cuda::getCurrentCUDAStream();

    const int64_t planes = N * C;

    using P = Pipe<96, 96>;
    const int64_t tiles = planes * P::TPP;
    const bool pipe_ok = (H == 96) && (W == 96)
        && (reinterpret_cast<uintptr_t>(xp) % 16 == 0)
        && (reinterpret_cast<uintptr_t>(yp) % 16 == 0)
        && tiles < (int64_t)(1 << 30);

    const int64_t items = ((H + R - 1) / R) * (W / 2);
    const int64_t bpp = (items + THREADS - 1) / THREADS;
    const bool vec_ok = (W % 2 == 0)
        && (reinterpret_cast<uintptr_t>(xp) % 8 == 0)
        && (reinterpret_cast<uintptr_t>(yp) % 16 == 0)
        && H < (int64_t)(1 << 28) && W < (int64_t)(1 << 28)
        && items < (int64_t)(1 << 30)
        && planes * bpp <= (int64_t)INT_MAX;

    if (pipe_ok) {
        auto kern = up2_pipe_kernel<96, 96>;
        C10_CUDA_CHECK(cudaFuncSetAttribute(reinterpret_cast<const void*>(kern),
                                            cudaFuncAttributeMaxDynamicSharedMemorySize,
                                            (int)P::SMEM));
        const int64_t sms = at::cuda::getCurrentDeviceProperties()->multiProcessorCount;
        int64_t grid = sms * P::BLOCKS_PER_SM;
        if (grid > tiles) grid = tiles;
        kern<<<(unsigned int)grid, THREADS, (size_t)P::SMEM, stream>>>(xp, yp, (int)tiles);
        C10_CUDA_KERNEL_LAUNCH_CHECK();
    } else if (vec_ok) {
        const unsigned int grid = (unsigned int)(planes * bpp);
        up2_vec_kernel<<<grid, THREADS, 0, stream>>>(xp, yp, (int)H, (int)W);
        C10_CUDA_KERNEL_LAUNCH_CHECK();
    } else {
        int64_t blocks = (total + 255) / 256;
        if (blocks > 132 * 64) blocks = 132 * 64;
        up2_scalar_kernel<<<(unsigned int)blocks, 256, 0, stream>>>(xp, yp, H, W, total);
        C10_CUDA_KERNEL_LAUNCH_CHECK();
    }
    return y;
}
"""

_ext = load_inline(
    name="upsample2x_bilinear_pipe_ext",
    cpp_sources=_cpp_src,
    cuda_sources=_cuda_src,
    functions=["upsample2x_bilinear"],
    extra_cuda_cflags=["-O3"],
    verbose=False,
)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _ext.upsample2x_bilinear(x)

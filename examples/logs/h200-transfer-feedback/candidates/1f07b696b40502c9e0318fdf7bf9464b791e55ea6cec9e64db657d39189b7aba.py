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

namespace {

constexpr int ROWS = 4;        // input rows per thread (up2_vec_kernel)
constexpr int THREADS = 128;

constexpr int B_THREADS = 96;  // up2_bulk_kernel
constexpr int B_BLOCKS = 12;   // resident blocks per SM: the whole grid in one wave
constexpr int B_STRIP = 16;    // input rows per thread
constexpr int B_STRIPS = 2;
constexpr int B_ROWS = B_STRIP * B_STRIPS;  // input rows per block

// Division of n < 2^31 by a fixed divisor through a multiplication.
struct FastDiv {
    unsigned int d, m, s;
};

FastDiv make_fastdiv(unsigned int d) {
    FastDiv f;
    f.d = d;
    unsigned int s = 0;
    while (s < 32 && (1ull << s) < (unsigned long long)d) ++s;
    f.s = s;
    const unsigned long long one = 1ull;
    f.m = (unsigned int)(((one << 32) * ((one << s) - d)) / d + 1);
    return f;
}

__device__ __forceinline__ unsigned int fdiv_u(unsigned int n, const FastDiv& f) {
    return (__umulhi(n, f.m) + n) >> f.s;
}

__device__ __forceinline__ float4 mix(const float4& a, float wa, const float4& b, float wb) {
    float4 r;
    r.x = fmaf(wa, a.x, wb * b.x);
    r.y = fmaf(wa, a.y, wb * b.y);
    r.z = fmaf(wa, a.z, wb * b.z);
    r.w = fmaf(wa, a.w, wb * b.w);
    return r;
}

// Horizontal filter of one shared-memory row: columns c, c+1 -> 4 outputs.
__device__ __forceinline__ float4 hrow(const float* row, int c, int cl, int cr) {
    const float2 m = *reinterpret_cast<const float2*>(row + c);
    const float l = row[cl];
    const float r = row[cr];
    float4 h;
    h.x = fmaf(0.75f, m.x, 0.25f * l);
    h.y = fmaf(0.75f, m.x, 0.25f * m.y);
    h.z = fmaf(0.75f, m.y, 0.25f * m.x);
    h.w = fmaf(0.75f, m.y, 0.25f * r);
    return h;
}

// W % 4 == 0, 16-byte aligned input and output.  Each block: B_ROWS input rows
// of one plane, brought to shared memory (with halo) by one bulk copy.
__global__ void __launch_bounds__(B_THREADS, B_BLOCKS)
up2_bulk_kernel(const float* __restrict__ in, float* __restrict__ out,
                int H, int W, FastDiv div_w2, FastDiv div_g) {
    extern __shared__ __align__(128) float tile[];
    __shared__ __align__(8) unsigned long long bar_storage;

    const unsigned int plane = fdiv_u(blockIdx.x, div_g);
    const int r0 = (int)(blockIdx.x - plane * div_g.d) * B_ROWS;
    const int s = max(r0 - 1, 0);              // first row in the tile
    const int e = min(r0 + B_ROWS + 1, H);     // one past the last row
    const unsigned int bar = (unsigned int)__cvta_generic_to_shared(&bar_storage);

    if (threadIdx.x == 0) {
        const float* src = in + ((int64_t)plane * H + s) * W;
        const unsigned int bytes = (unsigned int)((e - s) * W) * 4u;
        const unsigned int dst = (unsigned int)__cvta_generic_to_shared(tile);
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(bar) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                     :: "r"(bar), "r"(bytes) : "memory");
        asm volatile(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
            "[%0], [%1], %2, [%3];"
            :: "r"(dst), "l"(__cvta_generic_to_global(src)), "r"(bytes), "r"(bar)
            : "memory");
    }
    __syncthreads();   // the barrier is initialised for everybody

    {
        unsigned int done = 0;
        while (!done) {
            asm volatile(
                "{\n\t"
                ".reg .pred p;\n\t"
                "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
                "selp.u32 %0, 1, 0, p;\n\t"
                "}"
                : "=r"(done) : "r"(bar), "r"(0u) : "memory");
        }
    }

    const int64_t OW = 2 * (int64_t)W;
    const int items = B_STRIPS * (int)div_w2.d;

    for (int item = (int)threadIdx.x; item < items; item += B_THREADS) {
        const int strip = (int)fdiv_u((unsigned int)item, div_w2);
        const int k = item - strip * (int)div_w2.d;
        const int rb = r0 + strip * B_STRIP;
        if (rb >= H) break;

        const int c = 2 * k;
        const int cl = max(c - 1, 0);
        const int cr = min(c + 2, W - 1);

        float* __restrict__ op = out + (int64_t)plane * H * W * 4
                                     + (int64_t)(2 * rb) * OW + 4 * k;

        float4 prev = hrow(tile + (max(rb - 1, 0) - s) * W, c, cl, cr);
        float4 cur = hrow(tile + (rb - s) * W, c, cl, cr);

#pragma unroll 4
        for (int i = 0; i < B_STRIP; i += 2) {
            const float4 n1 = hrow(tile + (min(rb + i + 1, H - 1) - s) * W, c, cl, cr);
            const float4 n2 = hrow(tile + (min(rb + i + 2, H - 1) - s) * W, c, cl, cr);
            if (rb + i < H) {
                __stcs(reinterpret_cast<float4*>(op), mix(cur, 0.75f, prev, 0.25f));
                __stcs(reinterpret_cast<float4*>(op + OW), mix(cur, 0.75f, n1, 0.25f));
            }
            op += 2 * OW;
            if (rb + i + 1 < H) {
                __stcs(reinterpret_cast<float4*>(op), mix(n1, 0.75f, cur, 0.25f));
                __stcs(reinterpret_cast<float4*>(op + OW), mix(n1, 0.75f, n2, 0.25f));
            }
            op += 2 * OW;
            prev = n1;
            cur = n2;
        }
    }
}

// Even W, 8-byte aligned input.  Each thread: input columns 2k, 2k+1 and ROWS
// input rows -> 2*ROWS output float4.
__global__ void __launch_bounds__(THREADS)
up2_vec_kernel(const float* __restrict__ in, float* __restrict__ out,
               int H, int W, FastDiv div_w2, FastDiv div_g, unsigned int total) {
    const unsigned int idx = blockIdx.x * (unsigned int)THREADS + threadIdx.x;
    if (idx >= total) return;

    const unsigned int gr = fdiv_u(idx, div_w2);
    const int k = (int)(idx - gr * div_w2.d);
    const unsigned int plane = fdiv_u(gr, div_g);
    const int r0 = (int)(gr - plane * div_g.d) * ROWS;

    const int c = 2 * k;
    const int cl = max(c - 1, 0);
    const int cr = min(c + 2, W - 1);

    const float* __restrict__ ip = in + (int64_t)plane * H * W;

    float2 mid[ROWS + 2];
    float lft[ROWS + 2];
    float rgt[ROWS + 2];

#pragma unroll
    for (int i = 0; i < ROWS + 2; ++i) {
        const int r = min(max(r0 + i - 1, 0), H - 1);
        const float* __restrict__ row = ip + (int64_t)r * W;
        mid[i] = __ldg(reinterpret_cast<const float2*>(row + c));
        lft[i] = __ldg(row + cl);
        rgt[i] = __ldg(row + cr);
    }

    float4 h[ROWS + 2];
#pragma unroll
    for (int i = 0; i < ROWS + 2; ++i) {
        h[i].x = fmaf(0.75f, mid[i].x, 0.25f * lft[i]);
        h[i].y = fmaf(0.75f, mid[i].x, 0.25f * mid[i].y);
        h[i].z = fmaf(0.75f, mid[i].y, 0.25f * mid[i].x);
        h[i].w = fmaf(0.75f, mid[i].y, 0.25f * rgt[i]);
    }

    const int OW = 2 * W;
    float* __restrict__ op = out + (int64_t)plane * H * W * 4
                                 + (int64_t)(2 * r0) * OW + 4 * k;

#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        if (r0 + i < H) {
            const float4 a = mix(h[i + 1], 0.75f, h[i], 0.25f);
            const float4 b = mix(h[i + 1], 0.75f, h[i + 2], 0.25f);
            __stcs(reinterpret_cast<float4*>(op + (int64_t)(2 * i) * OW), a);
            __stcs(reinterpret_cast<float4*>(op + (int64_t)(2 * i + 1) * OW), b);
        }
    }
}

// Any size and alignment: one thread per input element -> 2x2 outputs.
__global__ void __launch_bounds__(256)
up2_any_kernel(const float* __restrict__ in, float* __restrict__ out,
               int H, int W, int64_t total) {
    const int64_t idx = (int64_t)blockIdx.x * 256 + threadIdx.x;
    if (idx >= total) return;

    const int64_t gr = idx / W;
    const int c = (int)(idx - gr * W);
    const int64_t plane = gr / H;
    const int r = (int)(gr - plane * H);

    const int cl = max(c - 1, 0);
    const int cr = min(c + 1, W - 1);
    const int ru = max(r - 1, 0);
    const int rd = min(r + 1, H - 1);

    const float* __restrict__ ip = in + plane * H * W;
    const float* __restrict__ pu = ip + (int64_t)ru * W;
    const float* __restrict__ pm = ip + (int64_t)r * W;
    const float* __restrict__ pd = ip + (int64_t)rd * W;

    const float ul = fmaf(0.75f, __ldg(pu + c), 0.25f * __ldg(pu + cl));
    const float ur = fmaf(0.75f, __ldg(pu + c), 0.25f * __ldg(pu + cr));
    const float ml = fmaf(0.75f, __ldg(pm + c), 0.25f * __ldg(pm + cl));
    const float mr = fmaf(0.75f, __ldg(pm + c), 0.25f * __ldg(pm + cr));
    const float dl = fmaf(0.75f, __ldg(pd + c), 0.25f * __ldg(pd + cl));
    const float dr = fmaf(0.75f, __ldg(pd + c), 0.25f * __ldg(pd + cr));

    const int64_t OW = 2 * (int64_t)W;
    float* __restrict__ op = out + plane * H * W * 4 + 2 * (int64_t)r * OW + 2 * (int64_t)c;
    // output rows have even length and the output is freshly allocated: 8-byte aligned
    *reinterpret_cast<float2*>(op) =
        make_float2(fmaf(0.75f, ml, 0.25f * ul), fmaf(0.75f, mr, 0.25f * ur));
    *reinterpret_cast<float2*>(op + OW) =
        make_float2(fmaf(0.75f, ml, 0.25f * dl), fmaf(0.75f, mr, 0.25f * dr));
}

}  // namespace

torch::Tensor upsample2x_bilinear(torch::Tensor x_in) {
    TORCH_CHECK(x_in.is_cuda(), "expected a CUDA tensor");
    TORCH_CHECK(x_in.scalar_type() == at::kFloat, "expected float32");
    TORCH_CHECK(x_in.dim() == 4, "expected a 4-d tensor");

    const c10::cuda::CUDAGuard guard(x_in.device());
    const at::Tensor x = x_in.contiguous();

    const int64_t N = x.size(0), C = x.size(1), H = x.size(2), W = x.size(3);
    TORCH_CHECK(H < (1ll << 29) && W < (1ll << 29), "image side too large");
    at::Tensor y = at::empty({N, C, 2 * H, 2 * W}, x.options());
    if (x.numel() == 0) return y;

    const float* in = x.data_ptr<float>();
    float* out = y.data_ptr<float>();
    auto stream = at::cuda::getCurrentCUDAStream();

    const int64_t w2 = W / 2;
    const int64_t groups = (H + ROWS - 1) / ROWS;
    const int64_t total_vec = N * C * groups * w2;
    const bool aligned = (reinterpret_cast<uintptr_t>(in) % 8 == 0) &&
                         (reinterpret_cast<uintptr_t>(out) % 16 == 0);
    const bool aligned16 = aligned && (reinterpret_cast<uintptr_t>(in) % 16 == 0);

    const int64_t bgroups = (H + B_ROWS - 1) / B_ROWS;
    const int64_t bblocks = N * C * bgroups;

    if (W % 4 == 0 && W <= 352 && H >= 16 && aligned16 && bblocks < (1ll << 31) - 1024) {
        // at most 34 * 352 * 4 = 47872 bytes: no opt-in needed
        const int64_t tile_rows = H < B_ROWS + 2 ? H : (int64_t)(B_ROWS + 2);
        const size_t smem = (size_t)(tile_rows * W * 4);
        // the kernel reads nothing through L1: give shared memory all of it, so
        // that B_BLOCKS tiles fit on an SM
        C10_CUDA_CHECK(cudaFuncSetAttribute(
            reinterpret_cast<const void*>(&up2_bulk_kernel),
            cudaFuncAttributePreferredSharedMemoryCarveout,
            (int)cudaSharedmemCarveoutMaxShared));
        up2_bulk_kernel<<<(unsigned int)bblocks, B_THREADS, smem, stream>>>(
            in, out, (int)H, (int)W,
            make_fastdiv((unsigned int)w2), make_fastdiv((unsigned int)bgroups));
        C10_CUDA_KERNEL_LAUNCH_CHECK();
    } else if (W % 2 == 0 && aligned && total_vec < (1ll << 31) - 1024) {
        const unsigned int blocks = (unsigned int)((total_vec + THREADS - 1) / THREADS);
        up2_vec_kernel<<<blocks, THREADS, 0, stream>>>(
            in, out, (int)H, (int)W,
            make_fastdiv((unsigned int)w2), make_fastdiv((unsigned int)groups),
            (unsigned int)total_vec);
        C10_CUDA_KERNEL_LAUNCH_CHECK();
    } else {
        const int64_t total = N * C * H * W;
        const unsigned int blocks = (unsigned int)((total + 255) / 256);
        up2_any_kernel<<<blocks, 256, 0, stream>>>(in, out, (int)H, (int)W, total);
        C10_CUDA_KERNEL_LAUNCH_CHECK();
    }
    return y;
}
"""

_ext = load_inline(
    name="upsample2x_bilinear_ext_v3",
    cpp_sources=_cpp_src,
    cuda_sources=_cuda_src,
    functions=["upsample2x_bilinear"],
    extra_cuda_cflags=["-O3"],
    verbose=False,
)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _ext.upsample2x_bilinear(x)

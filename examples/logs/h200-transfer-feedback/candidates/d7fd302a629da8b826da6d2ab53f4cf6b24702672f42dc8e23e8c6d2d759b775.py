import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

_CPP = r'''
#include <torch/types.h>
torch::Tensor gram_columns(torch::Tensor x);
'''

_CUDA = r'''
#include <torch/types.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime.h>
#include <cstdint>
#include <algorithm>

namespace {

constexpr int COLS = 256;
constexpr int KT = 8;                          // rows per pipeline stage
constexpr int STAGES = 24;
constexpr int LAG = 4;                         // a slot is refilled LAG chunks after its use
constexpr int THREADS = 512;
constexpr int TILE_FLOATS = KT * COLS;
constexpr int TILE_BYTES = TILE_FLOATS * 4;
constexpr int SMEM_BYTES = STAGES * TILE_BYTES + 2 * STAGES * 8;

__device__ __forceinline__ uint32_t smem_addr(const void* p) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ void mbar_init(uint64_t* bar, uint32_t count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"
                 :: "r"(smem_addr(bar)), "r"(count) : "memory");
}

__device__ __forceinline__ void mbar_expect(uint64_t* bar, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :: "r"(smem_addr(bar)), "r"(bytes) : "memory");
}

__device__ __forceinline__ void mbar_arrive(uint64_t* bar) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];"
                 :: "r"(smem_addr(bar)) : "memory");
}

__device__ __forceinline__ void mbar_wait(uint64_t* bar, uint32_t parity) {
    const uint32_t addr = smem_addr(bar);
    uint32_t done = 0;
    while (!done) {
        asm volatile(
            "{\n\t"
            ".reg .pred p;\n\t"
            "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
            "selp.u32 %0, 1, 0, p;\n\t"
            "}"
            : "=r"(done) : "r"(addr), "r"(parity) : "memory");
    }
}

__device__ __forceinline__ void bulk_load(void* dst, const void* src, uint32_t bytes, uint64_t* bar) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
        :: "r"(smem_addr(dst)), "l"(src), "r"(bytes), "r"(smem_addr(bar)) : "memory");
}

// Thread t owns an 8x8 tile: rows {row0..+3, row0+32..+35}, columns {col0..+3, col0+32..+35}.
// Warps 0..11: the six off-diagonal 64x64 blocks, two warps each.
// Warps 12..15: the diagonal 64x64 blocks, chunk pairs (i, i+d mod 8) with d = 0..3.
__device__ __forceinline__ void tile_of(int t, int& row0, int& col0) {
    const int w = t >> 5, l = t & 31;
    int br, bc, ca, cb;
    if (w < 12) {
        const int p = w >> 1;
        br = p < 3 ? 0 : (p < 5 ? 1 : 2);
        bc = p < 3 ? p + 1 : (p < 5 ? p - 1 : 3);
        ca = (w & 1) * 4 + (l >> 3);
        cb = l & 7;
    } else {
        br = w - 12;
        bc = br;
        ca = l & 7;
        cb = (ca + (l >> 3)) & 7;
    }
    row0 = br * 64 + ca * 4;
    col0 = bc * 64 + cb * 4;
}

// The remaining chunk pairs (i, i+4) of the diagonal blocks: one per warp, two elements per lane.
__device__ __forceinline__ void extra_of(int t, int& row, int& col) {
    const int w = t >> 5, l = t & 31;
    const int blk = w >> 2, i = w & 3;
    const int r = l >> 2, c = (l & 3) * 2;
    row = blk * 64 + i * 4 + (r & 3) + (r >> 2) * 32;
    col = blk * 64 + (i + 4) * 4 + (c & 3) + (c >> 2) * 32;
}

struct Frag {
    float a[8];
    float b[8];
    float ea;
    float eb0, eb1;
};

__device__ __forceinline__ void load_frag(Frag& f, const float* p, int ao, int bo, int eao, int ebo) {
    const float4 a0 = *reinterpret_cast<const float4*>(p + ao);
    const float4 a1 = *reinterpret_cast<const float4*>(p + ao + 32);
    const float4 b0 = *reinterpret_cast<const float4*>(p + bo);
    const float4 b1 = *reinterpret_cast<const float4*>(p + bo + 32);
    const float2 e = *reinterpret_cast<const float2*>(p + ebo);
    f.ea = p[eao];
    f.eb0 = e.x; f.eb1 = e.y;
    f.a[0] = a0.x; f.a[1] = a0.y; f.a[2] = a0.z; f.a[3] = a0.w;
    f.a[4] = a1.x; f.a[5] = a1.y; f.a[6] = a1.z; f.a[7] = a1.w;
    f.b[0] = b0.x; f.b[1] = b0.y; f.b[2] = b0.z; f.b[3] = b0.w;
    f.b[4] = b1.x; f.b[5] = b1.y; f.b[6] = b1.z; f.b[7] = b1.w;
}

__device__ __forceinline__ void fma_frag(const Frag& f, float (&acc)[8][8], float& e0, float& e1) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            acc[i][j] = fmaf(f.a[i], f.b[j], acc[i][j]);
        }
    }
    e0 = fmaf(f.ea, f.eb0, e0);
    e1 = fmaf(f.ea, f.eb1, e1);
}

__global__ void __launch_bounds__(THREADS, 1)
gram_partial(const float* __restrict__ x, float* __restrict__ ws,
             int splits, long long rows, int rows_per, long long items) {
    extern __shared__ __align__(128) unsigned char smem[];
    float* tiles = reinterpret_cast<float*>(smem);
    uint64_t* full = reinterpret_cast<uint64_t*>(smem + STAGES * TILE_BYTES);
    uint64_t* empty = full + STAGES;

    const int t = threadIdx.x;
    const int lane = t & 31;
    const long long item = blockIdx.x;
    const long long batch = item / splits;
    const int split = static_cast<int>(item % splits);
    const long long k0 = static_cast<long long>(split) * rows_per;
    const long long left = rows - k0;
    const int n = left < rows_per ? static_cast<int>(left) : rows_per;
    const int chunks = (n + KT - 1) / KT;
    const float* src = x + (batch * rows + k0) * COLS;

    auto issue = [&](int c) {
        const int s = c % STAGES;
        const int r = min(KT, n - c * KT);
        const uint32_t bytes = static_cast<uint32_t>(r) * COLS * 4;
        mbar_expect(&full[s], bytes);
        bulk_load(tiles + s * TILE_FLOATS, src + static_cast<long long>(c) * TILE_FLOATS, bytes, &full[s]);
    };

    if (t == 0) {
        for (int s = 0; s < STAGES; ++s) {
            mbar_init(&full[s], 1);
            mbar_init(&empty[s], THREADS / 32);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        const int first = min(STAGES, chunks);
        for (int c = 0; c < first; ++c) issue(c);
    }
    __syncthreads();

    int ao, bo, eao, ebo;
    tile_of(t, ao, bo);
    extra_of(t, eao, ebo);

    float acc[8][8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
#pragma unroll
        for (int j = 0; j < 8; ++j) acc[i][j] = 0.0f;
    }
    float e0 = 0.0f, e1 = 0.0f;

    int slot = 0;
    uint32_t parity = 0;
#pragma unroll 1
    for (int c = 0; c < chunks; ++c) {
        if (t == 0) {
            const int p = c - LAG;
            if (p >= 0 && p + STAGES < chunks) {
                mbar_wait(&empty[p % STAGES], static_cast<uint32_t>((p / STAGES) & 1));
                issue(p + STAGES);
            }
        }
        __syncwarp();
        mbar_wait(&full[slot], parity);

        const float* base = tiles + slot * TILE_FLOATS;
        const int valid = n - c * KT;
        if (valid >= KT) {
            Frag f[2];
            load_frag(f[0], base, ao, bo, eao, ebo);
#pragma unroll
            for (int k = 0; k < KT; ++k) {
                if (k + 1 < KT) load_frag(f[(k + 1) & 1], base + (k + 1) * COLS, ao, bo, eao, ebo);
                fma_frag(f[k & 1], acc, e0, e1);
            }
        } else {
#pragma unroll 1
            for (int k = 0; k < valid; ++k) {
                Frag g;
                load_frag(g, base + k * COLS, ao, bo, eao, ebo);
                fma_frag(g, acc, e0, e1);
            }
        }
        __syncwarp();
        if (lane == 0) mbar_arrive(&empty[slot]);
        if (++slot == STAGES) {
            slot = 0;
            parity ^= 1u;
        }
    }

    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");

    float4* out4 = reinterpret_cast<float4*>(ws) + item * 16 * THREADS + t;
#pragma unroll
    for (int s = 0; s < 4; ++s) {
        const int rh = s >> 1, ch = s & 1;
#pragma unroll
        for (int r = 0; r < 4; ++r) {
            const int i = rh * 4 + r, j = ch * 4;
            out4[(s * 4 + r) * THREADS] =
                make_float4(acc[i][j], acc[i][j + 1], acc[i][j + 2], acc[i][j + 3]);
        }
    }
    float2* out2 = reinterpret_cast<float2*>(ws + items * 16 * THREADS * 4);
    out2[item * THREADS + t] = make_float2(e0, e1);
}

// Sums the partials over the splits, scales, and writes both triangles.
__global__ void __launch_bounds__(256)
gram_reduce(float* ws, float* out, int splits, float denom, long long items) {
    __shared__ float4 sm[4][64];
    asm volatile("griddepcontrol.wait;" ::: "memory");

    const int tid = threadIdx.x;
    const long long batch = blockIdx.x / 40;
    const int rest = static_cast<int>(blockIdx.x % 40);
    const int sub = rest >> 3;          // 0..3: quarter of the 8x8 tiles, 4: the extra elements
    const int group = rest & 7;         // 64 owners of gram_partial
    const int tt = tid & 63, r = tid >> 6;
    const int t = group * 64 + tt;
    float* o = out + batch * COLS * COLS;

    if (sub < 4) {
        const int q = sub * 4 + r;
        const float4* p = reinterpret_cast<const float4*>(ws) + (batch * splits * 16 + q) * THREADS + t;
        float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 8
        for (int s = 0; s < splits; ++s) {
            const float4 u = p[static_cast<long long>(s) * 16 * THREADS];
            v.x += u.x; v.y += u.y; v.z += u.z; v.w += u.w;
        }
        v.x /= denom; v.y /= denom; v.z /= denom; v.w /= denom;
        sm[r][tt] = v;

        int row0, col0;
        tile_of(t, row0, col0);
        const bool on_diagonal = row0 == col0;
        const int row = row0 + (sub >> 1) * 32;
        const int col = col0 + (sub & 1) * 32;
        *reinterpret_cast<float4*>(o + (row + r) * COLS + col) = v;
        __syncthreads();
        if (!on_diagonal) {
            float4 m;
            m.x = reinterpret_cast<const float*>(&sm[0][tt])[r];
            m.y = reinterpret_cast<const float*>(&sm[1][tt])[r];
            m.z = reinterpret_cast<const float*>(&sm[2][tt])[r];
            m.w = reinterpret_cast<const float*>(&sm[3][tt])[r];
            *reinterpret_cast<float4*>(o + (col + r) * COLS + row) = m;
        }
    } else if (tid < 64) {
        const float2* p = reinterpret_cast<const float2*>(ws + items * 16 * THREADS * 4)
                          + batch * splits * THREADS + t;
        float v0 = 0.0f, v1 = 0.0f;
#pragma unroll 8
        for (int s = 0; s < splits; ++s) {
            const float2 u = p[static_cast<long long>(s) * THREADS];
            v0 += u.x; v1 += u.y;
        }
        v0 /= denom; v1 /= denom;
        int row, col;
        extra_of(t, row, col);
        *reinterpret_cast<float2*>(o + row * COLS + col) = make_float2(v0, v1);
        o[col * COLS + row] = v0;
        o[(col + 1) * COLS + row] = v1;
    }
}

// Any other number of columns: plain tiled kernel, one output per thread.
__global__ void __launch_bounds__(256)
gram_generic(const float* __restrict__ x, float* __restrict__ out,
             long long rows, long long cols, long long tiles) {
    __shared__ float sa[16][17];
    __shared__ float sb[16][17];
    const long long id = blockIdx.x;
    const long long batch = id / (tiles * tiles);
    const long long rem = id % (tiles * tiles);
    const long long ti = rem / tiles, tj = rem % tiles;
    const int tx = threadIdx.x & 15, ty = threadIdx.x >> 4;
    const float* xb = x + batch * rows * cols;
    const long long ci = ti * 16 + tx, cj = tj * 16 + tx;
    float acc = 0.0f;
    for (long long k = 0; k < rows; k += 16) {
        const bool in = k + ty < rows;
        sa[ty][tx] = (in && ci < cols) ? xb[(k + ty) * cols + ci] : 0.0f;
        sb[ty][tx] = (in && cj < cols) ? xb[(k + ty) * cols + cj] : 0.0f;
        __syncthreads();
#pragma unroll
        for (int kk = 0; kk < 16; ++kk) acc = fmaf(sa[kk][ty], sb[kk][tx], acc);
        __syncthreads();
    }
    const long long i = ti * 16 + ty;
    if (i < cols && cj < cols) {
        out[(batch * cols + i) * cols + cj] = acc / static_cast<float>(rows);
    }
}

}  // namespace

torch::Tensor gram_columns(torch::Tensor x_in) {
    TORCH_CHECK(x_in.is_cuda(), "x must be a CUDA tensor");
    TORCH_CHECK(x_in.dim() == 3, "x must have three dimensions");
    TORCH_CHECK(x_in.scalar_type() == at::kFloat, "x must be float32");
    const c10::cuda::CUDAGuard guard(x_in.device());
    at::Tensor x = x_in.contiguous();
    if (reinterpret_cast<uintptr_t>(x.data_ptr<float>()) % 16 != 0) x = x.clone();

    const int64_t batch = x.size(0), rows = x.size(1), cols = x.size(2);
    at::Tensor out = at::empty({batch, cols, cols}, x.options());
    if (out.numel() == 0) return out;
    TORCH_CHECK(rows < (int64_t(1) << 30), "too many rows");
    auto stream = at::cuda::getCurrentCUDAStream();

    if (cols != COLS || rows == 0) {
        const int64_t tiles = (cols + 15) / 16;
        const int64_t blocks = batch * tiles * tiles;
        TORCH_CHECK(blocks < (int64_t(1) << 31), "too many tiles");
        gram_generic<<<static_cast<unsigned>(blocks), 256, 0, stream>>>(
            x.data_ptr<float>(), out.data_ptr<float>(),
            static_cast<long long>(rows), static_cast<long long>(cols), static_cast<long long>(tiles));
        C10_CUDA_KERNEL_LAUNCH_CHECK();
        return out;
    }

    const int64_t sms = at::cuda::getCurrentDeviceProperties()->multiProcessorCount;
    const int64_t chunks = (rows + KT - 1) / KT;
    int64_t splits = std::max<int64_t>(1, sms / batch);
    splits = std::min<int64_t>(splits, chunks);
    const int64_t rows_per = (chunks + splits - 1) / splits * KT;
    splits = (rows + rows_per - 1) / rows_per;
    const int64_t items = batch * splits;
    TORCH_CHECK(items < (int64_t(1) << 31) && batch * 40 < (int64_t(1) << 31), "batch too large");

    at::Tensor ws = at::empty({items * 66 * THREADS}, x.options());

    C10_CUDA_CHECK(cudaFuncSetAttribute(gram_partial, cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM_BYTES));
    gram_partial<<<static_cast<unsigned>(items), THREADS, SMEM_BYTES, stream>>>(
        x.data_ptr<float>(), ws.data_ptr<float>(), static_cast<int>(splits),
        static_cast<long long>(rows), static_cast<int>(rows_per), static_cast<long long>(items));
    C10_CUDA_KERNEL_LAUNCH_CHECK();

    cudaLaunchConfig_t cfg = {};
    cfg.gridDim = dim3(static_cast<unsigned>(batch * 40));
    cfg.blockDim = dim3(256);
    cfg.dynamicSmemBytes = 0;
    cfg.stream = stream.stream();
    cudaLaunchAttribute attr[1];
    attr[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attr[0].val.programmaticStreamSerializationAllowed = 1;
    cfg.attrs = attr;
    cfg.numAttrs = 1;
    float* ws_ptr = ws.data_ptr<float>();
    float* out_ptr = out.data_ptr<float>();
    const int splits_i = static_cast<int>(splits);
    const float denom = static_cast<float>(rows);
    const long long items_ll = static_cast<long long>(items);
    C10_CUDA_CHECK(cudaLaunchKernelEx(&cfg, gram_reduce, ws_ptr, out_ptr, splits_i, denom, items_ll));
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return out;
}
'''

_ext = load_inline(
    name="gram_columns_f32_v1",
    cpp_sources=_CPP,
    cuda_sources=_CUDA,
    functions=["gram_columns"],
    extra_cuda_cflags=["-O3"],
)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _ext.gram_columns(x)

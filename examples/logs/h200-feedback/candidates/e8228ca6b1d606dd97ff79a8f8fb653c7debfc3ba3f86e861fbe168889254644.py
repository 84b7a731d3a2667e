import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

_cpp_src = "torch::Tensor mean_cross_entropy(torch::Tensor logits, torch::Tensor target);"

_cuda_src = r"""
#include <torch/types.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <cstdint>
#include <math_constants.h>

constexpr int THREADS = 512;
constexpr int WARPS = THREADS / 32;
constexpr int PER_THREAD = 16;                      // values per thread and step
constexpr int STEP = THREADS * PER_THREAD;          // 8192
constexpr int64_t IGNORE_INDEX = -100;              // default of cross_entropy

// Streaming kernel: rows of at most STEP classes.
constexpr int TILES = PER_THREAD / 4;               // float4 per thread and row
constexpr int STAGES = 3;                           // rows in flight per block
constexpr int BLOCKS_PER_SM = 2;
constexpr int GROUP = WARPS;                        // rows per combination, one per warp
constexpr int STREAM_SMEM = STAGES * TILES * THREADS * 16;

// Joins (m2, s2) into (m, s), where s = sum exp(x - m). Empty is (-inf, 0).
__device__ __forceinline__ void join(float& m, float& s, float m2, float s2) {
    const float mn = fmaxf(m, m2);
    const float ref = (mn == -CUDART_INF_F) ? 0.f : mn;
    s = s * expf(m - ref) + s2 * expf(m2 - ref);
    m = mn;
}

// Lets the next kernel of the stream become resident; it still waits for this grid's end.
__device__ __forceinline__ void launch_dependents() {
    asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
}
// Returns when the kernels before this one are complete and their writes are visible.
__device__ __forceinline__ void wait_prerequisites() {
    asm volatile("griddepcontrol.wait;\n" ::: "memory");
}
__device__ __forceinline__ float load_after_wait(const float* p) {
    float v;
    asm volatile("ld.global.cg.f32 %0, [%1];\n" : "=f"(v) : "l"(p) : "memory");
    return v;
}

// Asks for this thread's float4s of one row.
__device__ __forceinline__ void prefetch_row(const float4* slot, const float* xr, int classes,
                                             int tid) {
    const uint32_t dst = (uint32_t)__cvta_generic_to_shared(slot);
    #pragma unroll
    for (int j = 0; j < TILES; ++j) {
        const int c = (j * THREADS + tid) * 4;
        if (c < classes) {
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n"
                         :: "r"(dst + j * THREADS * 16), "l"(xr + c) : "memory");
        }
    }
}

// classes <= STEP, a multiple of 4, rows 16 byte aligned. The block walks over its rows;
// every thread reads back only the shared memory slots that it filled itself, so that the
// warps run free of each other and meet once per GROUP rows.
__global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
row_loss_stream_kernel(const float* __restrict__ logits, const int64_t* __restrict__ target,
                       float* __restrict__ row_loss, int64_t rows, int classes) {
    extern __shared__ __align__(16) float4 slots[];  // [STAGES][TILES][THREADS]
    __shared__ float sh_m[GROUP][WARPS];
    __shared__ float sh_s[GROUP][WARPS];

    const int tid = threadIdx.x;
    const int lane = tid & 31;
    const int warp = tid >> 5;
    const int64_t grid = gridDim.x;

    int64_t ahead = blockIdx.x;                      // next row to prefetch
    #pragma unroll
    for (int p = 0; p < STAGES; ++p) {
        if (ahead < rows) {
            prefetch_row(slots + p * (TILES * THREADS) + tid, logits + ahead * classes, classes, tid);
        }
        asm volatile("cp.async.commit_group;\n" ::: "memory");
        ahead += grid;
    }

    launch_dependents();

    int buf = 0;
    for (int64_t first = blockIdx.x; first < rows; first += GROUP * grid) {
        // The row that this warp finishes at the end of the group: target and its logit.
        const int64_t own = first + warp * grid;
        int64_t t = 0;
        float xt = CUDART_NAN_F;                     // stays for an invalid class
        if (own < rows) {
            t = target[own];
            if (t >= 0 && t < classes) xt = logits[own * classes + t];
        }

        int k = 0;
        for (int64_t row = first; k < GROUP && row < rows; ++k, row += grid) {
            asm volatile("cp.async.wait_group %0;\n" :: "n"(STAGES - 1) : "memory");
            const float4* stage = slots + buf * (TILES * THREADS) + tid;
            float v[PER_THREAD];
            #pragma unroll
            for (int j = 0; j < TILES; ++j) {
                const int c = (j * THREADS + tid) * 4;
                float4 q = make_float4(-CUDART_INF_F, -CUDART_INF_F, -CUDART_INF_F, -CUDART_INF_F);
                if (c < classes) q = stage[j * THREADS];
                v[4 * j + 0] = q.x;
                v[4 * j + 1] = q.y;
                v[4 * j + 2] = q.z;
                v[4 * j + 3] = q.w;
            }

            // Warp: first the maximum, then the sum.
            float m = v[0];
            #pragma unroll
            for (int j = 1; j < PER_THREAD; ++j) m = fmaxf(m, v[j]);
            #pragma unroll
            for (int d = 16; d > 0; d >>= 1) m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, d));

            // The slots of this row have been read: refill them.
            if (ahead < rows) prefetch_row(stage, logits + ahead * classes, classes, tid);
            asm volatile("cp.async.commit_group;\n" ::: "memory");
            ahead += grid;
            buf = (buf + 1 == STAGES) ? 0 : buf + 1;

            const float ref = (m == -CUDART_INF_F) ? 0.f : m;
            float s0 = 0.f, s1 = 0.f;
            #pragma unroll
            for (int j = 0; j < PER_THREAD; j += 2) {
                s0 += expf(v[j] - ref);
                s1 += expf(v[j + 1] - ref);
            }
            float s = s0 + s1;
            #pragma unroll
            for (int d = 16; d > 0; d >>= 1) s += __shfl_xor_sync(0xffffffffu, s, d);
            if (lane == 0) {
                sh_m[k][warp] = m;
                sh_s[k][warp] = s;
            }
        }
        __syncthreads();

        if (warp < k) {
            float bm = (lane < WARPS) ? sh_m[warp][lane] : -CUDART_INF_F;
            float bs = (lane < WARPS) ? sh_s[warp][lane] : 0.f;
            #pragma unroll
            for (int d = 16; d > 0; d >>= 1) {
                const float m2 = __shfl_xor_sync(0xffffffffu, bm, d);
                const float s2 = __shfl_xor_sync(0xffffffffu, bs, d);
                join(bm, bs, m2, s2);
            }
            if (lane == 0) {
                row_loss[own] = (t == IGNORE_INDEX) ? 0.f : (logf(bs) + (bm - xt));
            }
        }
        __syncthreads();                             // the next group writes sh_m, sh_s again
    }
    asm volatile("cp.async.wait_group 0;\n" ::: "memory");
}

template <bool VEC>
__global__ void __launch_bounds__(THREADS)
row_loss_kernel(const float* __restrict__ logits, const int64_t* __restrict__ target,
                float* __restrict__ row_loss, int64_t classes) {
    __shared__ float sh_m[WARPS];
    __shared__ float sh_s[WARPS];

    const int64_t row = blockIdx.x;
    const float* xr = logits + row * classes;
    const int tid = threadIdx.x;
    const int lane = tid & 31;
    const int warp = tid >> 5;

    // Thread 0 fetches the target and its logit early, beside the main loads.
    int64_t t = 0;
    float xt = 0.f;
    if (tid == 0) {
        t = target[row];
        if (t >= 0 && t < classes) {
            xt = xr[t];
        } else {
            xt = CUDART_NAN_F;      // an invalid class; ignored rows are set to 0 below
        }
    }

    launch_dependents();

    float m = -CUDART_INF_F;
    float s = 0.f;
    for (int64_t base = 0; base < classes; base += STEP) {
        float v[PER_THREAD];
        if (VEC) {
            #pragma unroll
            for (int j = 0; j < PER_THREAD / 4; ++j) {
                const int64_t c = base + (int64_t)(j * THREADS + tid) * 4;
                float4 q = make_float4(-CUDART_INF_F, -CUDART_INF_F, -CUDART_INF_F, -CUDART_INF_F);
                if (c < classes) q = __ldg(reinterpret_cast<const float4*>(xr + c));
                v[4 * j + 0] = q.x;
                v[4 * j + 1] = q.y;
                v[4 * j + 2] = q.z;
                v[4 * j + 3] = q.w;
            }
        } else {
            #pragma unroll
            for (int j = 0; j < PER_THREAD; ++j) {
                const int64_t c = base + j * THREADS + tid;
                v[j] = (c < classes) ? __ldg(xr + c) : -CUDART_INF_F;
            }
        }

        float lm = v[0];
        #pragma unroll
        for (int j = 1; j < PER_THREAD; ++j) lm = fmaxf(lm, v[j]);
        const float mn = fmaxf(m, lm);
        const float ref = (mn == -CUDART_INF_F) ? 0.f : mn;
        float s0 = 0.f, s1 = 0.f;
        #pragma unroll
        for (int j = 0; j < PER_THREAD; j += 2) {
            s0 += expf(v[j] - ref);
            s1 += expf(v[j + 1] - ref);
        }
        s = s * expf(m - ref) + (s0 + s1);
        m = mn;
    }

    // Warp: first the maximum, then one rescale per lane, then the sum.
    float wm = m;
    #pragma unroll
    for (int d = 16; d > 0; d >>= 1) wm = fmaxf(wm, __shfl_xor_sync(0xffffffffu, wm, d));
    const float wref = (wm == -CUDART_INF_F) ? 0.f : wm;
    s *= expf(m - wref);
    #pragma unroll
    for (int d = 16; d > 0; d >>= 1) s += __shfl_xor_sync(0xffffffffu, s, d);
    if (lane == 0) {
        sh_m[warp] = wm;
        sh_s[warp] = s;
    }
    __syncthreads();

    if (warp == 0) {
        float bm = (lane < WARPS) ? sh_m[lane] : -CUDART_INF_F;
        float bs = (lane < WARPS) ? sh_s[lane] : 0.f;
        #pragma unroll
        for (int d = 16; d > 0; d >>= 1) {
            const float m2 = __shfl_xor_sync(0xffffffffu, bm, d);
            const float s2 = __shfl_xor_sync(0xffffffffu, bs, d);
            join(bm, bs, m2, s2);
        }
        if (lane == 0) {
            row_loss[row] = (t == IGNORE_INDEX) ? 0.f : (logf(bs) + (bm - xt));
        }
    }
}

// Small, so that it fits on an SM beside the blocks of the row kernel.
constexpr int MEAN_THREADS = 256;
constexpr int MEAN_WARPS = MEAN_THREADS / 32;
constexpr int MEAN_UNROLL = 4;

// Launched while the row kernel still runs: only the targets are read before the wait.
__global__ void __launch_bounds__(MEAN_THREADS)
mean_loss_kernel(const float* row_loss, const int64_t* __restrict__ target,
                 float* out, int64_t rows) {
    __shared__ double sh_sum[MEAN_WARPS];
    __shared__ int64_t sh_cnt[MEAN_WARPS];
    const int lane = threadIdx.x & 31;
    const int warp = threadIdx.x >> 5;

    int cnt = 0;
    #pragma unroll 4
    for (int64_t i = threadIdx.x; i < rows; i += MEAN_THREADS) {
        cnt += (target[i] != IGNORE_INDEX) ? 1 : 0;
    }
    #pragma unroll
    for (int d = 16; d > 0; d >>= 1) cnt += __shfl_xor_sync(0xffffffffu, cnt, d);
    if (lane == 0) sh_cnt[warp] = cnt;

    wait_prerequisites();

    double sum = 0.0;
    for (int64_t base = threadIdx.x; base < rows; base += MEAN_UNROLL * MEAN_THREADS) {
        float l[MEAN_UNROLL];
        #pragma unroll
        for (int u = 0; u < MEAN_UNROLL; ++u) {
            const int64_t i = base + u * MEAN_THREADS;
            l[u] = 0.f;
            if (i < rows) l[u] = load_after_wait(row_loss + i);
        }
        #pragma unroll
        for (int u = 0; u < MEAN_UNROLL; ++u) sum += (double)l[u];
    }
    #pragma unroll
    for (int d = 16; d > 0; d >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, d);
    if (lane == 0) sh_sum[warp] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        double total = 0.0;
        int64_t count = 0;
        #pragma unroll
        for (int w = 0; w < MEAN_WARPS; ++w) {
            total += sh_sum[w];
            count += sh_cnt[w];
        }
        out[0] = (float)(total / (double)count);
    }
}

torch::Tensor mean_cross_entropy(torch::Tensor logits, torch::Tensor target) {
    TORCH_CHECK(logits.is_cuda() && target.is_cuda(), "inputs must be CUDA tensors");
    TORCH_CHECK(logits.device() == target.device(), "inputs must be on one device");
    TORCH_CHECK(logits.scalar_type() == at::kFloat, "logits must be float32");
    TORCH_CHECK(target.scalar_type() == at::kLong, "target must be int64");
    TORCH_CHECK(logits.dim() == 2 && target.dim() == 1 && logits.size(0) == target.size(0),
                "expected logits (N, C) and target (N)");
    const c10::cuda::CUDAGuard guard(logits.device());
    auto x = logits.contiguous();
    auto t = target.contiguous();
    const int64_t rows = x.size(0);
    const int64_t classes = x.size(1);
    TORCH_CHECK(classes > 0, "logits must have at least one class");
    TORCH_CHECK(rows <= 2147483647LL, "too many rows");
    auto row_loss = at::empty({rows}, x.options());
    auto out = at::empty({}, x.options());

    const float* xp = x.data_ptr<float>();
    const int64_t* tp = t.data_ptr<int64_t>();
    float* lp = row_loss.data_ptr<float>();
    auto stream = at::cuda::getCurrentCUDAStream();
    if (rows > 0) {
        const bool vec = (classes % 4 == 0) && (reinterpret_cast<uintptr_t>(xp) % 16 == 0);
        if (vec && classes <= STEP) {
            C10_CUDA_CHECK(cudaFuncSetAttribute(
                row_loss_stream_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, STREAM_SMEM));
            C10_CUDA_CHECK(cudaFuncSetAttribute(
                row_loss_stream_kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                cudaSharedmemCarveoutMaxShared));
            const int64_t sms = at::cuda::getCurrentDeviceProperties()->multiProcessorCount;
            const int64_t slots = sms * BLOCKS_PER_SM;
            const unsigned grid = (unsigned)(rows < slots ? rows : slots);
            row_loss_stream_kernel<<<grid, THREADS, STREAM_SMEM, stream>>>(xp, tp, lp, rows,
                                                                          (int)classes);
        } else if (vec) {
            row_loss_kernel<true><<<(unsigned)rows, THREADS, 0, stream>>>(xp, tp, lp, classes);
        } else {
            row_loss_kernel<false><<<(unsigned)rows, THREADS, 0, stream>>>(xp, tp, lp, classes);
        }
        C10_CUDA_KERNEL_LAUNCH_CHECK();
    }
    cudaLaunchAttribute attr[1];
    attr[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attr[0].val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(1);
    config.blockDim = dim3(MEAN_THREADS);
    config.dynamicSmemBytes = 0;
    config.stream = stream;
    config.attrs = attr;
    config.numAttrs = 1;
    const float* lossp = lp;
    float* outp = out.data_ptr<float>();
    C10_CUDA_CHECK(cudaLaunchKernelEx(&config, mean_loss_kernel, lossp, tp, outp, rows));
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return out;
}
"""

_ext = load_inline(
    name="mean_cross_entropy_f32_v3_pdl",
    cpp_sources=_cpp_src,
    cuda_sources=_cuda_src,
    functions=["mean_cross_entropy"],
    extra_cuda_cflags=["-O3", "-gencode=arch=compute_90,code=sm_90"],
)


class ModelNew(nn.Module):
    def forward(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return _ext.mean_cross_entropy(logits, target)

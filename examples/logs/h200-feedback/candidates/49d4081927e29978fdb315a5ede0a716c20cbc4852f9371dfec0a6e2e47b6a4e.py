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

// Joins (m2, s2) into (m, s), where s = sum exp(x - m). Empty is (-inf, 0).
__device__ __forceinline__ void join(float& m, float& s, float m2, float s2) {
    const float mn = fmaxf(m, m2);
    const float ref = (mn == -CUDART_INF_F) ? 0.f : mn;
    s = s * expf(m - ref) + s2 * expf(m2 - ref);
    m = mn;
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

constexpr int MEAN_THREADS = 1024;

__global__ void __launch_bounds__(MEAN_THREADS)
mean_loss_kernel(const float* __restrict__ row_loss, const int64_t* __restrict__ target,
                 float* __restrict__ out, int64_t rows) {
    __shared__ double sh_sum[MEAN_THREADS / 32];
    __shared__ int sh_cnt[MEAN_THREADS / 32];
    const int lane = threadIdx.x & 31;
    const int warp = threadIdx.x >> 5;
    double sum = 0.0;
    int cnt = 0;
    for (int64_t i = threadIdx.x; i < rows; i += MEAN_THREADS) {
        const float l = row_loss[i];
        const int64_t t = target[i];
        sum += (double)l;
        cnt += (t != IGNORE_INDEX) ? 1 : 0;
    }
    #pragma unroll
    for (int d = 16; d > 0; d >>= 1) {
        sum += __shfl_xor_sync(0xffffffffu, sum, d);
        cnt += __shfl_xor_sync(0xffffffffu, cnt, d);
    }
    if (lane == 0) {
        sh_sum[warp] = sum;
        sh_cnt[warp] = cnt;
    }
    __syncthreads();
    if (warp == 0) {
        sum = sh_sum[lane];
        cnt = sh_cnt[lane];
        #pragma unroll
        for (int d = 16; d > 0; d >>= 1) {
            sum += __shfl_xor_sync(0xffffffffu, sum, d);
            cnt += __shfl_xor_sync(0xffffffffu, cnt, d);
        }
        if (lane == 0) out[0] = (float)(sum / (double)cnt);
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
        if (vec) {
            row_loss_kernel<true><<<(unsigned)rows, THREADS, 0, stream>>>(xp, tp, lp, classes);
        } else {
            row_loss_kernel<false><<<(unsigned)rows, THREADS, 0, stream>>>(xp, tp, lp, classes);
        }
        C10_CUDA_KERNEL_LAUNCH_CHECK();
    }
    mean_loss_kernel<<<1, MEAN_THREADS, 0, stream>>>(lp, tp, out.data_ptr<float>(), rows);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return out;
}
"""

_ext = load_inline(
    name="mean_cross_entropy_f32_v1",
    cpp_sources=_cpp_src,
    cuda_sources=_cuda_src,
    functions=["mean_cross_entropy"],
    extra_cuda_cflags=["-O3"],
)


class ModelNew(nn.Module):
    def forward(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return _ext.mean_cross_entropy(logits, target)

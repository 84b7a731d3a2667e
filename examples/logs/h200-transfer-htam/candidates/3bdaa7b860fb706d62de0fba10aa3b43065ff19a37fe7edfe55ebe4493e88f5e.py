"""Running logarithm of the sum of exponentials along rows (custom CUDA kernel)."""

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

_CPP = r"""
torch::Tensor lcse_rows(torch::Tensor x);
"""

_CUDA = r"""
#include <torch/types.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <cstdint>

namespace {

constexpr int kCols = 2048;
constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;
constexpr int kChunks = kCols / (kThreads * 4);   // float4 per thread

constexpr float kLog2E = 1.4426950408889634f;
constexpr float kLn2 = 0.6931471805599453f;
constexpr float kMagic = 12582912.0f;             // 1.5 * 2^23

__device__ __forceinline__ float ex2(float y) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(y));
  return r;
}

__device__ __forceinline__ float lg2(float y) {
  float r;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(y));
  return r;
}

// ln(s) + c * ln 2 for a positive normal s; shift = c - kMagic (exact).
// s = 2^k * f with f in [0.75, 1.5), so lg2(f) has a small absolute error.
__device__ __forceinline__ float finish(float s, float shift) {
  const int bits = __float_as_int(s);
  const int i = bits - 0x3f400000;
  const int k = i >> 23;
  const float f = __int_as_float(bits - (i & static_cast<int>(0xff800000u)));
  const float e = __int_as_float(0x4b400000 + k) + shift;   // k + c, exact
  return fmaf(e, kLn2, lg2(f) * kLn2);
}

// (m, s) <- (m, s) + (pm, ps), each standing for s * exp(m).
__device__ __forceinline__ void combine(float& m, float& s, float pm, float ps) {
  const float mm = fmaxf(m, pm);
  const float a = (m == mm) ? 1.0f : expf(m - mm);
  const float b = (pm == mm) ? 1.0f : expf(pm - mm);
  s = s * a + ps * b;
  m = mm;
}

// Any row, any values: one warp walks the row with a running (max, sum) scan.
__device__ __forceinline__ void scan_row_any(const float* __restrict__ xr,
                                             float* __restrict__ orow,
                                             int64_t n, int lane) {
  const float ninf = __int_as_float(static_cast<int>(0xff800000u));
  float cm = ninf, cs = 0.0f;
  for (int64_t b = 0; b < n; b += 32) {
    const int64_t i = b + lane;
    float m = ninf, s = 0.0f;
    if (i < n) {
      const float xv = xr[i];
      if (xv != xv) {
        s = xv;              // NaN travels in the sum
      } else {
        m = xv;
        s = 1.0f;
      }
    }
#pragma unroll
    for (int d = 1; d < 32; d <<= 1) {
      const float pm = __shfl_up_sync(0xffffffffu, m, d);
      const float ps = __shfl_up_sync(0xffffffffu, s, d);
      if (lane >= d) combine(m, s, pm, ps);
    }
    combine(m, s, cm, cs);
    if (i < n) orow[i] = m + logf(s);
    cm = __shfl_sync(0xffffffffu, m, 31);
    cs = __shfl_sync(0xffffffffu, s, 31);
  }
}

__global__ void __launch_bounds__(kThreads, 12)
lcse_2048_kernel(const float* __restrict__ x, float* __restrict__ out) {
  __shared__ float warp_sum[kWarps];

  const int lane = threadIdx.x & 31;
  const int warp = threadIdx.x >> 5;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kCols;
  const float* xr = x + row;
  float* orow = out + row;

  const int first = warp * (kChunks * 32) + lane;     // in float4
  const float4* src = reinterpret_cast<const float4*>(xr) + first;

  float4 v[kChunks];
#pragma unroll
  for (int c = 0; c < kChunks; ++c) v[c] = __ldg(src + c * 32);
  const float x0 = __ldg(xr);

  const float ref = rintf(x0 * kLog2E);
  bool ok = fabsf(ref) <= 16384.0f;                   // false for NaN and inf

  // Exponentials relative to 2^ref and their running sums inside the thread.
  float inc[kChunks];
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    const float y0 = fmaf(v[c].x, kLog2E, -ref);
    const float y1 = fmaf(v[c].y, kLog2E, -ref);
    const float y2 = fmaf(v[c].z, kLog2E, -ref);
    const float y3 = fmaf(v[c].w, kLog2E, -ref);
    ok = ok && (y0 <= 64.0f);
    ok = ok && (y1 <= 64.0f);
    ok = ok && (y2 <= 64.0f);
    ok = ok && (y3 <= 64.0f);
    v[c].x = ex2(y0);
    v[c].y = v[c].x + ex2(y1);
    v[c].z = v[c].y + ex2(y2);
    v[c].w = v[c].z + ex2(y3);
    inc[c] = v[c].w;
  }

  // Inclusive scans over the warp, independent for the chunks.
#pragma unroll
  for (int d = 1; d < 32; d <<= 1) {
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const float t = __shfl_up_sync(0xffffffffu, inc[c], d);
      if (lane >= d) inc[c] += t;
    }
  }

  // What lies before this thread's four elements, inside this warp's part.
  float run = 0.0f;
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    const float total = __shfl_sync(0xffffffffu, inc[c], 31);
    float before = __shfl_up_sync(0xffffffffu, inc[c], 1);
    if (lane == 0) before = 0.0f;
    inc[c] = run + before;
    run += total;
  }
  if (lane == 0) warp_sum[warp] = run;

  const int all_ok = __syncthreads_and(ok ? 1 : 0);

  if (all_ok) {
    float base = 0.0f;
#pragma unroll
    for (int w = 0; w < kWarps - 1; ++w) {
      const float t = warp_sum[w];
      if (w < warp) base += t;
    }
    const float shift = ref - kMagic;                 // exact: both integers
    float4* dst = reinterpret_cast<float4*>(orow) + first;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const float p = base + inc[c];
      float4 o;
      o.x = finish(p + v[c].x, shift);
      o.y = finish(p + v[c].y, shift);
      o.z = finish(p + v[c].z, shift);
      o.w = finish(p + v[c].w, shift);
      if (c == 0 && threadIdx.x == 0) o.x = x0;       // a sum of one term
      __stcs(dst + c * 32, o);
    }
  } else if (warp == 0) {
    scan_row_any(xr, orow, kCols, lane);
  }
}

// Other row lengths or alignments: one warp per row.
__global__ void __launch_bounds__(kThreads)
lcse_any_kernel(const float* __restrict__ x, float* __restrict__ out,
                int64_t rows, int64_t cols) {
  const int lane = threadIdx.x & 31;
  const int64_t r = static_cast<int64_t>(blockIdx.x) * kWarps + (threadIdx.x >> 5);
  if (r >= rows) return;
  scan_row_any(x + r * cols, out + r * cols, cols, lane);
}

}  // namespace

torch::Tensor lcse_rows(torch::Tensor x) {
  TORCH_CHECK(x.is_cuda(), "x must be a CUDA tensor");
  TORCH_CHECK(x.dim() == 2, "x must have two dimensions");
  TORCH_CHECK(x.scalar_type() == torch::kFloat32, "x must be float32");
  TORCH_CHECK(x.is_contiguous(), "x must be contiguous");

  const c10::cuda::CUDAGuard guard(x.device());
  auto out = torch::empty_like(x);
  const int64_t rows = x.size(0);
  const int64_t cols = x.size(1);
  if (rows == 0 || cols == 0) return out;

  const float* src = x.data_ptr<float>();
  float* dst = out.data_ptr<float>();
  auto stream = at::cuda::getCurrentCUDAStream();

  const bool aligned = (reinterpret_cast<uintptr_t>(src) % 16 == 0) &&
                       (reinterpret_cast<uintptr_t>(dst) % 16 == 0);
  if (cols == kCols && aligned) {
    TORCH_CHECK(rows <= 2147483647LL, "too many rows");
    lcse_2048_kernel<<<static_cast<unsigned int>(rows), kThreads, 0, stream>>>(src, dst);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  } else {
    const int64_t blocks = (rows + kWarps - 1) / kWarps;
    TORCH_CHECK(blocks <= 2147483647LL, "too many rows");
    lcse_any_kernel<<<static_cast<unsigned int>(blocks), kThreads, 0, stream>>>(
        src, dst, rows, cols);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  }
  return out;
}
"""

_ext = load_inline(
    name="logcumsumexp_rows_v1",
    cpp_sources=[_CPP],
    cuda_sources=[_CUDA],
    functions=["lcse_rows"],
    extra_cuda_cflags=["-O3"],
    verbose=False,
)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _ext.lcse_rows(x.contiguous())

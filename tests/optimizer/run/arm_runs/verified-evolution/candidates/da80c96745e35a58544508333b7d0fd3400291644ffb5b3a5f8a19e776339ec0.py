import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <torch/types.h>
#include <cmath>
#include <cstdint>

// exp(v) for v <= 0: 2^n * p(f), with v / ln 2 = n + f and a polynomial of degree 6 on |f| <= 1/2.
static inline float fast_exp(float v) {
  v = v < -87.0f ? -87.0f : v;
  const float t = v * 1.44269504088896341f;
  const float n = std::nearbyint(t);
  const float f = (v - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * f + 1.3981999507e-3f;
  p = p * f + 8.3334519073e-3f;
  p = p * f + 4.1665795894e-2f;
  p = p * f + 1.6666665459e-1f;
  p = p * f + 5.0000001201e-1f;
  p = p * f * f + f + 1.0f;
  union { int32_t i; float f; } two;
  two.i = (static_cast<int32_t>(n) + 127) << 23;
  return p * two.f;
}

torch::Tensor softmax_rows(torch::Tensor x) {
  auto in = x.contiguous();
  auto out = torch::empty_like(in);
  const int64_t rows = in.size(0), cols = in.size(1);
  const float* src = in.data_ptr<float>();
  float* dst = out.data_ptr<float>();
#pragma omp parallel for
  for (int64_t r = 0; r < rows; ++r) {
    const float* a = src + r * cols;
    float* b = dst + r * cols;
    float high = a[0];
#pragma omp simd reduction(max : high)
    for (int64_t c = 0; c < cols; ++c) high = a[c] > high ? a[c] : high;
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t c = 0; c < cols; ++c) { b[c] = fast_exp(a[c] - high); sum += b[c]; }
    const float scale = 1.0f / sum;
#pragma omp simd
    for (int64_t c = 0; c < cols; ++c) b[c] *= scale;
  }
  return out;
}
"""

softmax_rows = load_inline(
    name="softmax_rows_second",
    cpp_sources=SOURCE,
    functions=["softmax_rows"],
    extra_cflags=["-O3", "-march=native", "-ffast-math", "-fopenmp"],
    extra_ldflags=["-fopenmp"],
)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return softmax_rows.softmax_rows(x)

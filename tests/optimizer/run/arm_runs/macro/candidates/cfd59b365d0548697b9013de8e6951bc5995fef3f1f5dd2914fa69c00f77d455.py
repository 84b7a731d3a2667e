import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <torch/types.h>
#include <cmath>
#include <cstdint>

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
    for (int64_t c = 0; c < cols; ++c) { b[c] = std::exp(a[c] - high); sum += b[c]; }
    const float scale = 1.0f / sum;
#pragma omp simd
    for (int64_t c = 0; c < cols; ++c) b[c] *= scale;
  }
  return out;
}
"""

softmax_rows = load_inline(
    name="softmax_rows_first",
    cpp_sources=SOURCE,
    functions=["softmax_rows"],
    extra_cflags=["-O3", "-march=native", "-ffast-math", "-fopenmp"],
    extra_ldflags=["-fopenmp"],
)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return softmax_rows.softmax_rows(x)

"""Layer normalization with vector reductions."""

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <torch/types.h>
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

torch::Tensor run(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, double eps) {
    const int64_t width = x.size(-1), rows = x.numel() / width;
    torch::Tensor y = torch::empty_like(x);
    const float* input = x.data_ptr<float>();
    const float* gain = weight.data_ptr<float>();
    const float* shift = bias.data_ptr<float>();
    float* output = y.data_ptr<float>();
    #pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < rows; ++row) {
        const float* in = input + row * width;
        float* out = output + row * width;
        float sum = 0.0f;
        #pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < width; ++i) sum += in[i];
        const float mean = sum / width;
        float squares = 0.0f;
        #pragma omp simd reduction(+ : squares)
        for (int64_t i = 0; i < width; ++i) squares += (in[i] - mean) * (in[i] - mean);
        const float inverse = 1.0f / std::sqrt(squares / width + static_cast<float>(eps));
        #pragma omp simd
        for (int64_t i = 0; i < width; ++i) out[i] = (in[i] - mean) * inverse * gain[i] + shift[i];
    }
    return y;
}
"""

module = load_inline(
    name="layer_norm_b",
    cpp_sources=[SOURCE],
    functions=["run"],
    extra_cflags=["-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-mprefer-vector-width=512", "-fopenmp"],
    extra_ldflags=["-fopenmp"],
)


class ModelNew(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return module.run(x.contiguous(), self.norm.weight, self.norm.bias, self.norm.eps)

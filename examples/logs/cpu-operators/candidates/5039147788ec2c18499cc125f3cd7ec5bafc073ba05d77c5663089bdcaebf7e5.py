"""Cross-entropy with a vectorised polynomial exp."""

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

// exp(v) as 2^n * p(f), |f| <= ln(2) / 2, a polynomial without branches, so that loops around it become vector code
static inline float poly_exp(float v) {
    v = v < -87.0f ? -87.0f : v;
    v = v > 87.0f ? 87.0f : v;
    const float n = (v * 1.44269504f + 12582912.0f) - 12582912.0f;
    float f = v - n * 0.693359375f;
    f = f + n * 2.12194440e-4f;
    float p = 1.0f / 720.0f;
    p = p * f + 1.0f / 120.0f;
    p = p * f + 1.0f / 24.0f;
    p = p * f + 1.0f / 6.0f;
    p = p * f + 0.5f;
    p = p * f + 1.0f;
    p = p * f + 1.0f;
    const int32_t bits = (static_cast<int32_t>(n) + 127) << 23;
    float power;
    std::memcpy(&power, &bits, sizeof power);
    return p * power;
}

torch::Tensor run(torch::Tensor x, torch::Tensor target) {
    const int64_t rows = x.size(0), columns = x.size(1);
    const float* input = x.data_ptr<float>();
    const int64_t* label = target.data_ptr<int64_t>();
    double total = 0.0;
    #pragma omp parallel for schedule(static) reduction(+ : total)
    for (int64_t row = 0; row < rows; ++row) {
        const float* in = input + row * columns;
        float highest = in[0];
        #pragma omp simd reduction(max : highest)
        for (int64_t i = 1; i < columns; ++i) highest = std::max(highest, in[i]);
        float sum = 0.0f;
        #pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < columns; ++i) sum += poly_exp(in[i] - highest);
        total += highest + std::log(sum) - in[label[row]];
    }
    torch::Tensor y = torch::empty({}, x.options());
    *y.data_ptr<float>() = static_cast<float>(total / rows);
    return y;
}
"""

module = load_inline(
    name="cross_entropy_b",
    cpp_sources=[SOURCE],
    functions=["run"],
    extra_cflags=["-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-mprefer-vector-width=512", "-fopenmp"],
    extra_ldflags=["-fopenmp"],
)


class ModelNew(nn.Module):
    def forward(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return module.run(logits.contiguous(), target.contiguous())

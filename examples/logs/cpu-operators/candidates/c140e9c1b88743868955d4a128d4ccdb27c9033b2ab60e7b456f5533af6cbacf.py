"""Group normalization with SiLU, one pass for the statistics."""

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

torch::Tensor run(torch::Tensor x, torch::Tensor weight, torch::Tensor bias, int64_t groups, double eps) {
    const int64_t batch = x.size(0), channels = x.size(1), plane = x.numel() / (batch * channels);
    const int64_t per = channels / groups, count = per * plane;
    torch::Tensor y = torch::empty_like(x);
    const float* input = x.data_ptr<float>();
    const float* gain = weight.data_ptr<float>();
    const float* shift = bias.data_ptr<float>();
    float* output = y.data_ptr<float>();
    #pragma omp parallel for schedule(static)
    for (int64_t group = 0; group < batch * groups; ++group) {
        const float* in = input + group * count;
        float* out = output + group * count;
        const float base = in[0];  // one pass, exact for groups with a large mean
        float sum = 0.0f, squares = 0.0f;
        #pragma omp simd reduction(+ : sum, squares)
        for (int64_t i = 0; i < count; ++i) {
            const float v = in[i] - base;
            sum += v;
            squares += v * v;
        }
        const float offset = sum / count, mean = base + offset;
        const float inverse = 1.0f / std::sqrt(std::max(squares / count - offset * offset, 0.0f) + static_cast<float>(eps));
        for (int64_t c = 0; c < per; ++c) {
            const int64_t channel = (group % groups) * per + c;
            const float a = inverse * gain[channel], b = shift[channel] - mean * a;
            #pragma omp simd
            for (int64_t i = c * plane; i < (c + 1) * plane; ++i) {
                const float v = in[i] * a + b;
                out[i] = v / (1.0f + poly_exp(-v));
            }
        }
    }
    return y;
}
"""

module = load_inline(
    name="group_norm_silu_c",
    cpp_sources=[SOURCE],
    functions=["run"],
    extra_cflags=["-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-mprefer-vector-width=512", "-fopenmp"],
    extra_ldflags=["-fopenmp"],
)


class ModelNew(nn.Module):
    def __init__(self, groups: int, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return module.run(x.contiguous(), self.norm.weight, self.norm.bias, self.norm.num_groups, self.norm.eps)

"""Layer normalization, one shifted pass, streamed output."""

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
#include <immintrin.h>

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
        const float base = in[0];  // sums are taken relative to it, so that a large mean cancels nothing
        float sum = 0.0f, squares = 0.0f;
        #pragma omp simd reduction(+ : sum, squares)
        for (int64_t i = 0; i < width; ++i) {
            const float v = in[i] - base;
            sum += v;
            squares += v * v;
        }
        const float offset = sum / width, mean = base + offset;
        const float inverse = 1.0f / std::sqrt(std::max(squares / width - offset * offset, 0.0f) + static_cast<float>(eps));
        const __m512 middle = _mm512_set1_ps(mean), factor = _mm512_set1_ps(inverse);
        int64_t i = 0;
        if (reinterpret_cast<uintptr_t>(out) % 64 == 0) {
            for (; i + 16 <= width; i += 16) {
                const __m512 v = _mm512_mul_ps(_mm512_sub_ps(_mm512_loadu_ps(in + i), middle), factor);
                _mm512_stream_ps(out + i, _mm512_fmadd_ps(v, _mm512_loadu_ps(gain + i), _mm512_loadu_ps(shift + i)));
            }
        }
        for (; i < width; ++i) out[i] = (in[i] - mean) * inverse * gain[i] + shift[i];
    }
    #pragma omp parallel
    _mm_sfence();
    return y;
}
"""

module = load_inline(
    name="layer_norm_d",
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

"""Rotary embedding with AVX-512 and streamed output."""

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

torch::Tensor run(torch::Tensor x, torch::Tensor cosine, torch::Tensor sine) {
    const int64_t width = x.size(-1), half = width / 2, tokens = x.size(-2), rows = x.numel() / width;
    torch::Tensor y = torch::empty_like(x);
    const float* input = x.data_ptr<float>();
    const float* cosines = cosine.data_ptr<float>();
    const float* sines = sine.data_ptr<float>();
    float* output = y.data_ptr<float>();
    #pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < rows; ++row) {
        const float* in = input + row * width;
        const float* c = cosines + (row % tokens) * width;
        const float* s = sines + (row % tokens) * width;
        float* out = output + row * width;
        if (half % 16 == 0 && reinterpret_cast<uintptr_t>(out) % 64 == 0) {
            for (int64_t i = 0; i < half; i += 16) {
                const __m512 low = _mm512_loadu_ps(in + i), high = _mm512_loadu_ps(in + i + half);
                const __m512 first = _mm512_mul_ps(high, _mm512_loadu_ps(s + i));
                const __m512 second = _mm512_mul_ps(low, _mm512_loadu_ps(s + i + half));
                _mm512_stream_ps(out + i, _mm512_fmsub_ps(low, _mm512_loadu_ps(c + i), first));
                _mm512_stream_ps(out + i + half, _mm512_fmadd_ps(high, _mm512_loadu_ps(c + i + half), second));
            }
            continue;
        }
        #pragma omp simd
        for (int64_t i = 0; i < half; ++i) {
            const float low = in[i], high = in[i + half];
            out[i] = low * c[i] - high * s[i];
            out[i + half] = high * c[i + half] + low * s[i + half];
        }
    }
    #pragma omp parallel
    _mm_sfence();
    return y;
}
"""

module = load_inline(
    name="rotary_c",
    cpp_sources=[SOURCE],
    functions=["run"],
    extra_cflags=["-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-mprefer-vector-width=512", "-fopenmp"],
    extra_ldflags=["-fopenmp"],
)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        return module.run(x.contiguous(), cosine.contiguous(), sine.contiguous())

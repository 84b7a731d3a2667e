"""Rows scaled to length one: one pass over memory, wide vectors, ordinary stores."""

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <torch/types.h>
#include <algorithm>
#include <cmath>
#include <cstdint>
#if defined(__AVX__)
#include <immintrin.h>
#endif

static inline float sum_of_squares(const float* in, int64_t count) {
    int64_t i = 0;
    float total = 0.0f;
#if defined(__AVX512F__)
    __m512 a = _mm512_setzero_ps(), b = a, c = a, d = a;
    for (; i + 64 <= count; i += 64) {
        const __m512 p = _mm512_loadu_ps(in + i), q = _mm512_loadu_ps(in + i + 16);
        const __m512 r = _mm512_loadu_ps(in + i + 32), s = _mm512_loadu_ps(in + i + 48);
        a = _mm512_fmadd_ps(p, p, a);
        b = _mm512_fmadd_ps(q, q, b);
        c = _mm512_fmadd_ps(r, r, c);
        d = _mm512_fmadd_ps(s, s, d);
    }
    total = _mm512_reduce_add_ps(_mm512_add_ps(_mm512_add_ps(a, b), _mm512_add_ps(c, d)));
#endif
    #pragma omp simd reduction(+ : total)
    for (int64_t k = i; k < count; ++k) total += in[k] * in[k];
    return total;
}

static inline void scale_and_store(float* out, const float* in, const float* next, float inverse, int64_t count) {
    int64_t i = 0;
#if defined(__AVX512F__)
    {
        const __m512 factor = _mm512_set1_ps(inverse);
        for (; i + 64 <= count; i += 64) {
            for (int64_t k = 0; k < 64; k += 16) {
                __builtin_prefetch(next + i + k);
                _mm512_storeu_ps(out + i + k, _mm512_mul_ps(_mm512_loadu_ps(in + i + k), factor));
            }
        }
    }
#endif
#if defined(__AVX__)
    {
        const __m256 factor = _mm256_set1_ps(inverse);
        for (; i + 16 <= count; i += 16) {
            __builtin_prefetch(next + i);
            _mm256_storeu_ps(out + i, _mm256_mul_ps(_mm256_loadu_ps(in + i), factor));
            _mm256_storeu_ps(out + i + 8, _mm256_mul_ps(_mm256_loadu_ps(in + i + 8), factor));
        }
    }
#endif
    #pragma omp simd
    for (int64_t k = i; k < count; ++k) out[k] = in[k] * inverse;
}

torch::Tensor normalize_rows(torch::Tensor x) {
    torch::Tensor y = torch::empty_like(x);
    const int64_t width = x.size(-1);
    if (x.numel() == 0) return y;
    const int64_t rows = x.numel() / width;
    const float* input = x.data_ptr<float>();
    float* output = y.data_ptr<float>();
    #pragma omp parallel
    {
        #pragma omp for schedule(static) nowait
        for (int64_t row = 0; row < rows; ++row) {
            const float* in = input + row * width;
            const float* next = row + 1 < rows ? in + width : in;
            const float norm = std::sqrt(sum_of_squares(in, width));
            scale_and_store(output + row * width, in, next, 1.0f / std::max(norm, 1e-12f), width);
        }
    }
    return y;
}
"""

module = load_inline(
    name="l2_normalize_rows_stored",
    cpp_sources=[SOURCE],
    functions=["normalize_rows"],
    extra_cflags=["-O3", "-march=native", "-fopenmp"],
    extra_ldflags=["-fopenmp"],
)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return module.normalize_rows(x.contiguous())

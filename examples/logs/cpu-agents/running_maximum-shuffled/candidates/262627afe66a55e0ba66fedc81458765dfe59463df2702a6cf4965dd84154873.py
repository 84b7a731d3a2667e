"""Running maximum: in-register scan of one vector, chain of one maximum per vector, streamed stores."""

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <torch/types.h>
#include <cmath>
#include <cstdint>
#include <limits>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

// the rest of a row, from `i`; a NaN stays once met, as in torch
static void finish_row(float* out, const float* in, int64_t i, int64_t width, float best) {
    for (; i < width; ++i) {
        const float value = in[i];
        if (std::isnan(value) || value >= best) best = value;
        out[i] = best;
    }
}

#if defined(__AVX512F__)
constexpr int64_t LANES = 16;
#elif defined(__AVX2__)
constexpr int64_t LANES = 8;
#endif

template <bool STREAM>
static void scan_row(float* out, const float* in, int64_t width) {
    int64_t i = 0;
    float best = -std::numeric_limits<float>::infinity();
#if defined(__AVX512F__)
    // lanes without a left neighbour take themselves: the maximum is idempotent, no mask is needed
    const __m512i by1 = _mm512_setr_epi32(0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14);
    const __m512i by2 = _mm512_setr_epi32(0, 1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13);
    const __m512i by4 = _mm512_setr_epi32(0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11);
    const __m512i by8 = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7);
    const __m512i last = _mm512_set1_epi32(15);
    __m512 carry = _mm512_set1_ps(best);
    for (; i + LANES <= width; i += LANES) {
        __m512 v = _mm512_loadu_ps(in + i);
        if (__builtin_expect(_mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q) != 0, 0)) break;
        v = _mm512_max_ps(v, _mm512_permutexvar_ps(by1, v));
        v = _mm512_max_ps(v, _mm512_permutexvar_ps(by2, v));
        v = _mm512_max_ps(v, _mm512_permutexvar_ps(by4, v));
        v = _mm512_max_ps(v, _mm512_permutexvar_ps(by8, v));
        const __m512 top = _mm512_permutexvar_ps(last, v);
        const __m512 result = _mm512_max_ps(v, carry);
        if (STREAM) _mm512_stream_ps(out + i, result); else _mm512_storeu_ps(out + i, result);
        carry = _mm512_max_ps(carry, top);
    }
    best = _mm512_cvtss_f32(carry);
#elif defined(__AVX2__)
    const __m256i by1 = _mm256_setr_epi32(0, 0, 1, 2, 3, 4, 5, 6);
    const __m256i by2 = _mm256_setr_epi32(0, 1, 0, 1, 2, 3, 4, 5);
    const __m256i by4 = _mm256_setr_epi32(0, 1, 2, 3, 0, 1, 2, 3);
    const __m256i last = _mm256_set1_epi32(7);
    __m256 carry = _mm256_set1_ps(best);
    for (; i + LANES <= width; i += LANES) {
        __m256 v = _mm256_loadu_ps(in + i);
        if (__builtin_expect(_mm256_movemask_ps(_mm256_cmp_ps(v, v, _CMP_UNORD_Q)) != 0, 0)) break;
        v = _mm256_max_ps(v, _mm256_permutevar8x32_ps(v, by1));
        v = _mm256_max_ps(v, _mm256_permutevar8x32_ps(v, by2));
        v = _mm256_max_ps(v, _mm256_permutevar8x32_ps(v, by4));
        const __m256 top = _mm256_permutevar8x32_ps(v, last);
        const __m256 result = _mm256_max_ps(v, carry);
        if (STREAM) _mm256_stream_ps(out + i, result); else _mm256_storeu_ps(out + i, result);
        carry = _mm256_max_ps(carry, top);
    }
    best = _mm256_cvtss_f32(carry);
#endif
    finish_row(out, in, i, width, best);
}

torch::Tensor running_maximum(torch::Tensor x) {
    torch::Tensor y = torch::empty_like(x);
    if (x.numel() == 0) return y;
    const int64_t width = x.size(-1), rows = x.numel() / width;
    const float* input = x.data_ptr<float>();
    float* output = y.data_ptr<float>();
    #pragma omp parallel
    {
        #pragma omp for schedule(static) nowait
        for (int64_t row = 0; row < rows; ++row) {
            const float* in = input + row * width;
            float* out = output + row * width;
            if (reinterpret_cast<uintptr_t>(out) % 64 == 0) scan_row<true>(out, in, width);
            else scan_row<false>(out, in, width);
        }
#if defined(__AVX2__)
        _mm_sfence();
#endif
    }
    return y;
}
"""

module = load_inline(
    name="running_maximum_streamed",
    cpp_sources=[SOURCE],
    functions=["running_maximum"],
    extra_cflags=["-O3", "-march=native", "-fopenmp"],
    extra_ldflags=["-fopenmp"],
)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return module.running_maximum(x.contiguous())

"""Running maximum of each row by vector scans, streamed output."""

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <torch/types.h>
#include <cmath>
#include <cstdint>
#include <limits>
#include <immintrin.h>

static inline void put(float* p, __m512 v, bool aligned) {
    if (aligned) _mm512_stream_ps(p, v); else _mm512_storeu_ps(p, v);
}

torch::Tensor run(torch::Tensor x) {
    torch::Tensor y = torch::empty_like(x);
    const int64_t columns = x.size(-1);
    const int64_t rows = columns ? x.numel() / columns : 0;
    const float* input = x.data_ptr<float>();
    float* output = y.data_ptr<float>();
    // max is idempotent, so lanes shifted in repeat lane 0 and need no mask
    const __m512i one = _mm512_setr_epi32(0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14);
    const __m512i two = _mm512_setr_epi32(0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13);
    const __m512i four = _mm512_setr_epi32(0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11);
    const __m512i eight = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7);
    const __m512i last = _mm512_set1_epi32(15);
    #pragma omp parallel
    {
        #pragma omp for schedule(static) nowait
        for (int64_t row = 0; row < rows; ++row) {
            const float* in = input + row * columns;
            float* out = output + row * columns;
            const bool aligned = reinterpret_cast<uintptr_t>(out) % 64 == 0;
            __m512 carried = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
            int64_t i = 0;
            for (; i + 64 <= columns; i += 64) {
                __m512 v[4];
                for (int k = 0; k < 4; ++k) _mm_prefetch(reinterpret_cast<const char*>(in + i + 16 * k) + 8192, _MM_HINT_T0);
                for (int k = 0; k < 4; ++k) v[k] = _mm512_loadu_ps(in + i + 16 * k);
                const __mmask16 bad = _mm512_cmp_ps_mask(v[0], v[1], _CMP_UNORD_Q) |
                                      _mm512_cmp_ps_mask(v[2], v[3], _CMP_UNORD_Q);
                if (__builtin_expect(bad, 0)) break;  // NaN: the scalar loop carries it on
                for (int k = 0; k < 4; ++k) v[k] = _mm512_max_ps(v[k], _mm512_permutexvar_ps(one, v[k]));
                for (int k = 0; k < 4; ++k) v[k] = _mm512_max_ps(v[k], _mm512_permutexvar_ps(two, v[k]));
                for (int k = 0; k < 4; ++k) v[k] = _mm512_max_ps(v[k], _mm512_permutexvar_ps(four, v[k]));
                for (int k = 0; k < 4; ++k) v[k] = _mm512_max_ps(v[k], _mm512_permutexvar_ps(eight, v[k]));
                for (int k = 0; k < 4; ++k) {
                    const __m512 top = _mm512_permutexvar_ps(last, v[k]);
                    put(out + i + 16 * k, _mm512_max_ps(v[k], carried), aligned);
                    carried = _mm512_max_ps(carried, top);
                }
            }
            float best = _mm512_cvtss_f32(carried);
            for (; i < columns; ++i) {
                const float value = in[i];
                if (!(value < best) && best == best) best = value;
                out[i] = best;
            }
        }
        _mm_sfence();
    }
    return y;
}
"""

module = load_inline(
    name="running_maximum_c",
    cpp_sources=[SOURCE],
    functions=["run"],
    extra_cflags=["-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-mprefer-vector-width=512", "-fopenmp"],
    extra_ldflags=["-fopenmp"],
)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return module.run(x.contiguous())

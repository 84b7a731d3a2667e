"""Mean over a moving window; sums of 31 are built in registers from sums of 2, 3, 5 and 15."""

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <torch/types.h>
#include <algorithm>
#include <cstdint>
#include <vector>
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

// n outputs of a window of 31: 5 = 1+1+1+1+1, 15 = 5+5+5, 31 = 15+15+1; x holds n + 30 values.
static void tile31(const float* __restrict x, float* __restrict y, int64_t n, float scale) {
    constexpr int64_t TILE = 1024;
    alignas(64) float five[TILE + 64];
    alignas(64) float fifteen[TILE + 64];
    for (int64_t start = 0; start < n; start += TILE) {
        const int64_t m = std::min(TILE, n - start);
        const float* __restrict in = x + start;
        float* __restrict out = y + start;
        #pragma omp simd
        for (int64_t i = 0; i < m + 25; ++i) five[i] = ((in[i] + in[i + 1]) + in[i + 2]) + (in[i + 3] + in[i + 4]);
        #pragma omp simd
        for (int64_t i = 0; i < m + 15; ++i) fifteen[i] = (five[i] + five[i + 5]) + five[i + 10];
        #pragma omp simd
        for (int64_t i = 0; i < m; ++i) out[i] = ((fifteen[i] + fifteen[i + 15]) + in[i + 30]) * scale;
    }
}

#if defined(__AVX512F__)
template <int N>
static inline __m512 shifted(__m512 low, __m512 high) {
    return _mm512_castsi512_ps(_mm512_alignr_epi32(_mm512_castps_si512(high), _mm512_castps_si512(low), N));
}
#endif

static void row31(const float* __restrict x, float* __restrict y, int64_t n, float scale) {
    int64_t done = 0;
#if defined(__AVX512F__)
    // Block b needs x up to 16 b + 64; n + 30 values are there.
    const int64_t blocks = n + 30 >= 65 + 16 ? (n + 30 - 65) / 16 : 0;
    if (blocks > 0) {
        const __m512 factor = _mm512_set1_ps(scale);
        auto two = [&](int64_t i) { return _mm512_add_ps(_mm512_loadu_ps(x + i), _mm512_loadu_ps(x + i + 1)); };
        __m512 two0 = two(0), two1 = two(16);
        __m512 five0 = _mm512_add_ps(_mm512_add_ps(two0, _mm512_loadu_ps(x + 2)), shifted<3>(two0, two1));
        __m512 two2 = two(32);
        __m512 five1 = _mm512_add_ps(_mm512_add_ps(two1, _mm512_loadu_ps(x + 18)), shifted<3>(two1, two2));
        __m512 fifteen0 = _mm512_add_ps(_mm512_add_ps(five0, shifted<5>(five0, five1)), shifted<10>(five0, five1));
        #pragma GCC unroll 4
        for (int64_t b = 0; b < blocks; ++b) {
            const float* in = x + 16 * b;
            const __m512 two3 = two(16 * b + 48);
            const __m512 five2 = _mm512_add_ps(_mm512_add_ps(two2, _mm512_loadu_ps(in + 34)), shifted<3>(two2, two3));
            const __m512 fifteen1 = _mm512_add_ps(_mm512_add_ps(five1, shifted<5>(five1, five2)), shifted<10>(five1, five2));
            const __m512 sum = _mm512_add_ps(_mm512_add_ps(fifteen0, _mm512_loadu_ps(in + 30)), shifted<15>(fifteen0, fifteen1));
            _mm512_storeu_ps(y + 16 * b, _mm512_mul_ps(sum, factor));
            two2 = two3;
            five1 = five2;
            fifteen0 = fifteen1;
        }
        done = 16 * blocks;
    }
#endif
    if (done < n) tile31(x + done, y + done, n - done, scale);
}

// Any window: sums of 1, 2, 4, ... in place, those in the binary form of the window are added up.
static void row_any(const float* __restrict x, float* __restrict y, int64_t n, int64_t window, float scale) {
    constexpr int64_t TILE = 4096;
    std::vector<float> space(std::min(TILE, n) + window);
    float* power = space.data();
    for (int64_t start = 0; start < n; start += TILE) {
        const int64_t m = std::min(TILE, n - start);
        float* __restrict out = y + start;
        int64_t valid = m + window - 1;
        std::copy(x + start, x + start + valid, power);
        int64_t offset = 0;
        for (int64_t k = 1; k <= window; k *= 2) {
            if (window & k) {
                if (offset == 0) for (int64_t i = 0; i < m; ++i) out[i] = power[i];
                else for (int64_t i = 0; i < m; ++i) out[i] += power[i + offset];
                offset += k;
            }
            valid -= k;
            for (int64_t i = 0; i < valid; ++i) power[i] += power[i + k];
        }
        for (int64_t i = 0; i < m; ++i) out[i] *= scale;
    }
}

torch::Tensor run(torch::Tensor x, int64_t window) {
    TORCH_CHECK(x.scalar_type() == torch::kFloat32 && x.dim() >= 1, "float32 expected");
    const int64_t length = x.size(-1), n = length - window + 1;
    TORCH_CHECK(window >= 1 && n >= 1, "the window is longer than the signal");
    std::vector<int64_t> sizes = x.sizes().vec();
    sizes.back() = n;
    torch::Tensor y = torch::empty(sizes, x.options());
    const int64_t rows = x.numel() / length;
    const float* input = x.data_ptr<float>();
    float* output = y.data_ptr<float>();
    const float scale = 1.0f / static_cast<float>(window);
    #pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; ++r) {
        if (window == 31) row31(input + r * length, output + r * n, n, scale);
        else row_any(input + r * length, output + r * n, n, window, scale);
    }
    return y;
}
"""

module = load_inline(
    name="sliding_mean_a",
    cpp_sources=[SOURCE],
    functions=["run"],
    extra_cflags=["-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-mprefer-vector-width=512", "-fopenmp"],
    extra_ldflags=["-fopenmp"],
)


class ModelNew(nn.Module):
    def __init__(self, window: int) -> None:
        super().__init__()
        self.window = window

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return module.run(x.contiguous(), self.window)

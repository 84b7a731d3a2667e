"""Sliding mean: window sums by an addition chain held in AVX-512 registers, aligned output."""

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <torch/types.h>
#include <algorithm>
#include <cstdint>
#include <vector>
#include <immintrin.h>

namespace {

// Any window: double and add on a small buffer. Sum of `width` values that start at each position.
void general_row(const float* in, float* out, int64_t count, int64_t window, float scale, float* buffer) {
    const int64_t chunk = 2048;
    for (int64_t start = 0; start < count; start += chunk) {
        const int64_t n = std::min(chunk, count - start), held = n + window - 1;
        const float* x = in + start;
        float* s = buffer;
        std::copy(x, x + held, s);
        int bit = 62;
        while (!((window >> bit) & 1)) --bit;
        int64_t width = 1;
        for (--bit; bit >= 0; --bit) {
            const int64_t doubled = held - 2 * width + 1;
            for (int64_t i = 0; i < doubled; ++i) s[i] = s[i] + s[i + width];  // reads ahead of what it writes
            width *= 2;
            if ((window >> bit) & 1) {
                const int64_t longer = held - width;
                for (int64_t i = 0; i < longer; ++i) s[i] += x[i + width];
                ++width;
            }
        }
        float* y = out + start;
        for (int64_t i = 0; i < n; ++i) y[i] = s[i] * scale;
    }
}

#ifdef __AVX512F__
// The last 16 values of (before, now) when it ends k values early.
template <int k> inline __m512 back(__m512 now, __m512 before) {
    return _mm512_castsi512_ps(_mm512_alignr_epi32(_mm512_castps_si512(now), _mm512_castps_si512(before), 16 - k));
}

inline __mmask16 inside(int64_t i, int64_t length) {
    const int64_t low = std::min<int64_t>(std::max<int64_t>(-i, 0), 16);
    const int64_t high = std::min<int64_t>(std::max<int64_t>(length - i, 0), 16);
    const uint32_t below = (1u << low) - 1, above = (1u << high) - 1;
    return static_cast<__mmask16>(above & ~below);
}

inline __m512 edge(const float* in, int64_t i, int64_t length) {
    const __mmask16 mask = inside(i, length);
    return _mm512_maskz_loadu_ps(mask, reinterpret_cast<const float*>(reinterpret_cast<intptr_t>(in) + i * 4));
}

// Sums of 3, 6, 12, 15, 30, 31 values: seven additions for each vector.
struct Chain {
    __m512 s3 = _mm512_setzero_ps(), s6 = _mm512_setzero_ps(), s15 = _mm512_setzero_ps();
    inline __m512 step(__m512 x, __m512 x1, __m512 x2, __m512 x30) {
        const __m512 n3 = _mm512_add_ps(_mm512_add_ps(x, x1), x2);
        const __m512 n6 = _mm512_add_ps(n3, back<3>(n3, s3));
        const __m512 n12 = _mm512_add_ps(n6, back<6>(n6, s6));
        const __m512 n15 = _mm512_add_ps(n12, back<12>(n3, s3));
        const __m512 n31 = _mm512_add_ps(_mm512_add_ps(n15, back<15>(n15, s15)), x30);
        s3 = n3; s6 = n6; s15 = n15;
        return n31;
    }
};

inline void row31(const float* in, float* out, int64_t length, int64_t count, float scale_) {
    const __m512 scale = _mm512_set1_ps(scale_);
    Chain chain;
    int64_t o = -static_cast<int64_t>((reinterpret_cast<uintptr_t>(out) / 4) % 16);
    auto masked = [&](int64_t at) {
        const int64_t j = at + 30;
        return chain.step(edge(in, j, length), edge(in, j - 1, length), edge(in, j - 2, length), edge(in, at, length));
    };
    masked(o - 32);
    masked(o - 16);
    if (o < 0) {
        const __m512 y = _mm512_mul_ps(masked(o), scale);
        _mm512_mask_storeu_ps(reinterpret_cast<float*>(reinterpret_cast<intptr_t>(out) + o * 4), inside(o, count), y);
        o += 16;
    }
    #pragma GCC unroll 4
    for (; o + 16 <= count; o += 16) {
        const float* p = in + o;
        _mm_prefetch(reinterpret_cast<const char*>(reinterpret_cast<uintptr_t>(p) + 2048), _MM_HINT_T0);
        const __m512 y = chain.step(_mm512_loadu_ps(p + 30), _mm512_loadu_ps(p + 29), _mm512_loadu_ps(p + 28), _mm512_loadu_ps(p));
        _mm512_store_ps(out + o, _mm512_mul_ps(y, scale));
    }
    if (o < count) {
        const __m512 y = _mm512_mul_ps(masked(o), scale);
        _mm512_mask_storeu_ps(out + o, inside(o, count), y);
    }
}
#endif

}  // namespace

torch::Tensor run(torch::Tensor x, int64_t window) {
    TORCH_CHECK(x.scalar_type() == torch::kFloat32 && x.dim() >= 2, "float32 signals are expected");
    const int64_t length = x.size(-1), count = length - window + 1;
    TORCH_CHECK(window > 0 && count > 0, "the window is longer than the signal");
    std::vector<int64_t> sizes = x.sizes().vec();
    sizes.back() = count;
    torch::Tensor y = torch::empty(sizes, x.options());
    const int64_t rows = x.numel() / length;
    const float* input = x.data_ptr<float>();
    float* output = y.data_ptr<float>();
    const float scale = static_cast<float>(1.0 / static_cast<double>(window));
#ifdef __AVX512F__
    if (window == 31) {
        #pragma omp parallel
        {
            #pragma omp for schedule(static)
            for (int64_t row = 0; row < rows; ++row)
                row31(input + row * length, output + row * count, length, count, scale);
        }
        return y;
    }
#endif
    #pragma omp parallel
    {
        std::vector<float> buffer(2048 + window);
        #pragma omp for schedule(static)
        for (int64_t row = 0; row < rows; ++row)
            general_row(input + row * length, output + row * count, count, window, scale, buffer.data());
    }
    return y;
}
"""

module = load_inline(
    name="sliding_mean_chain_b",
    cpp_sources=[SOURCE],
    functions=["run"],
    extra_cflags=["-O3", "-march=native", "-mprefer-vector-width=512", "-fopenmp"],
    extra_ldflags=["-fopenmp"],
)


class ModelNew(nn.Module):
    def __init__(self, window: int) -> None:
        super().__init__()
        self.window = window

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return module.run(x.contiguous(), self.window)

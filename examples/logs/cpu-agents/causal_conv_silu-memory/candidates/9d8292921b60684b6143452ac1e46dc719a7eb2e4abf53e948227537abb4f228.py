"""Causal depthwise convolution and SiLU in one pass: AVX-512 registers, results stored through the caches."""

import math

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <torch/types.h>
#include <cstdint>
#include <cstring>
#if defined(__AVX__)
#include <immintrin.h>
#endif

#define STREAM 0

// u / (1 + exp(-u)), portable; 2^f by a polynomial on |f| <= 1/2.
static inline float silu_one(float u) {
    float v = u < -80.0f ? -80.0f : u;
    v = v > 80.0f ? 80.0f : v;
    v = v * -1.44269504f;
    const float n = (v + 12582912.0f) - 12582912.0f;
    const float f = v - n;
    float p = 1.535336188e-4f;
    p = p * f + 1.339887440e-3f;
    p = p * f + 9.618437357e-3f;
    p = p * f + 5.550332471e-2f;
    p = p * f + 2.402264791e-1f;
    p = p * f + 6.931472029e-1f;
    p = p * f + 1.0f;
    const int32_t bits = (static_cast<int32_t>(n) + 127) << 23;
    float power;
    std::memcpy(&power, &bits, sizeof power);
    return u / (1.0f + p * power);
}

#if defined(__AVX512F__)
static inline __m512 silu_16(__m512 u) {
    const __m512 c = _mm512_set1_ps(-1.44269504f), magic = _mm512_set1_ps(12582912.0f);
    const __m512 one = _mm512_set1_ps(1.0f);
    // The second operand of max and min survives where it is not a number.
    __m512 v = _mm512_min_ps(_mm512_set1_ps(80.0f), _mm512_max_ps(_mm512_set1_ps(-80.0f), u));
    const __m512 n = _mm512_sub_ps(_mm512_fmadd_ps(v, c, magic), magic);
    const __m512 f = _mm512_fmsub_ps(v, c, n);
    __m512 p = _mm512_set1_ps(1.535336188e-4f);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.339887440e-3f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(9.618437357e-3f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.550332471e-2f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.402264791e-1f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.931472029e-1f));
    p = _mm512_fmadd_ps(p, f, one);
    const __m512 d = _mm512_add_ps(one, _mm512_scalef_ps(p, n));
    // 1 / d: 14 bits and one Newton step.
    __m512 r = _mm512_rcp14_ps(d);
    r = _mm512_fmadd_ps(r, _mm512_fnmadd_ps(d, r, one), r);
    return _mm512_mul_ps(u, r);
}

static inline void row_of_four(const float* in, float* out, int64_t length, const float* w, float b) {
    const __m512 w0 = _mm512_set1_ps(w[0]), w1 = _mm512_set1_ps(w[1]);
    const __m512 w2 = _mm512_set1_ps(w[2]), w3 = _mm512_set1_ps(w[3]), bias = _mm512_set1_ps(b);
    // The first vector: what lies before the row counts as zero, and is not read.
    {
        const uint32_t all = length >= 16 ? 0xFFFFu : (1u << length) - 1u;
        __m512 u = _mm512_fmadd_ps(w3, _mm512_maskz_loadu_ps((__mmask16)all, in), bias);
        u = _mm512_fmadd_ps(w2, _mm512_maskz_loadu_ps((__mmask16)(all & 0xFFFEu), in - 1), u);
        u = _mm512_fmadd_ps(w1, _mm512_maskz_loadu_ps((__mmask16)(all & 0xFFFCu), in - 2), u);
        u = _mm512_fmadd_ps(w0, _mm512_maskz_loadu_ps((__mmask16)(all & 0xFFF8u), in - 3), u);
        _mm512_mask_storeu_ps(out, (__mmask16)all, silu_16(u));
    }
    int64_t i = 16;
#define CONV16(i) \
    _mm512_fmadd_ps(w3, _mm512_loadu_ps(in + (i)), \
        _mm512_fmadd_ps(w2, _mm512_loadu_ps(in + (i) - 1), \
            _mm512_fmadd_ps(w1, _mm512_loadu_ps(in + (i) - 2), \
                _mm512_fmadd_ps(w0, _mm512_loadu_ps(in + (i) - 3), bias))))
#if STREAM
    if (reinterpret_cast<uintptr_t>(out) % 64 == 0) {
        for (; i + 32 <= length; i += 32) {
            const __m512 a = silu_16(CONV16(i));
            const __m512 z = silu_16(CONV16(i + 16));
            _mm512_stream_ps(out + i, a);
            _mm512_stream_ps(out + i + 16, z);
        }
    }
#endif
    for (; i + 32 <= length; i += 32) {
        const __m512 a = silu_16(CONV16(i));
        const __m512 z = silu_16(CONV16(i + 16));
        _mm512_storeu_ps(out + i, a);
        _mm512_storeu_ps(out + i + 16, z);
    }
    for (; i + 16 <= length; i += 16) _mm512_storeu_ps(out + i, silu_16(CONV16(i)));
    if (i < length) {
        const __mmask16 m = (__mmask16)((1u << (length - i)) - 1u);
        __m512 u = _mm512_fmadd_ps(w0, _mm512_maskz_loadu_ps(m, in + i - 3), bias);
        u = _mm512_fmadd_ps(w1, _mm512_maskz_loadu_ps(m, in + i - 2), u);
        u = _mm512_fmadd_ps(w2, _mm512_maskz_loadu_ps(m, in + i - 1), u);
        u = _mm512_fmadd_ps(w3, _mm512_maskz_loadu_ps(m, in + i), u);
        _mm512_mask_storeu_ps(out + i, m, silu_16(u));
    }
}
#endif

static inline void row_of_any(const float* in, float* out, int64_t length, const float* w, int64_t width, float b) {
    alignas(64) float block[256];
    for (int64_t begin = 0; begin < length; begin += 256) {
        const int64_t count = begin + 256 < length ? 256 : length - begin;
        if (width == 4 && begin >= 3) {
            const float w0 = w[0], w1 = w[1], w2 = w[2], w3 = w[3];
            const float* s = in + begin;
            #pragma omp simd
            for (int64_t k = 0; k < count; ++k)
                block[k] = b + w0 * s[k - 3] + w1 * s[k - 2] + w2 * s[k - 1] + w3 * s[k];
        } else {
            for (int64_t k = 0; k < count; ++k) block[k] = b;
            for (int64_t j = 0; j < width; ++j) {
                const int64_t back = begin - (width - 1 - j);
                const float wj = w[j];
                const int64_t first = back < 0 ? -back : 0;
                #pragma omp simd
                for (int64_t k = first; k < count; ++k) block[k] += wj * in[back + k];
            }
        }
        #pragma omp simd
        for (int64_t k = 0; k < count; ++k) block[k] = silu_one(block[k]);
        int64_t k = 0;
#if defined(__AVX__) && STREAM
        if (reinterpret_cast<uintptr_t>(out + begin) % 32 == 0)
            for (; k + 8 <= count; k += 8) _mm256_stream_ps(out + begin + k, _mm256_load_ps(block + k));
#endif
        for (; k < count; ++k) out[begin + k] = block[k];
    }
}

torch::Tensor causal_conv_silu(torch::Tensor x, torch::Tensor weight, torch::Tensor bias) {
    const int64_t length = x.size(-1), channels = x.size(-2), width = weight.size(-1);
    torch::Tensor y = torch::empty_like(x);
    if (x.numel() == 0) return y;
    const int64_t rows = x.numel() / length;
    const float* input = x.data_ptr<float>();
    const float* taps = weight.data_ptr<float>();
    const float* offset = bias.data_ptr<float>();
    float* output = y.data_ptr<float>();
    #pragma omp parallel
    {
        #pragma omp for schedule(static)
        for (int64_t row = 0; row < rows; ++row) {
            const int64_t channel = row % channels;
            const float* in = input + row * length;
            float* out = output + row * length;
            const float* w = taps + channel * width;
#if defined(__AVX512F__)
            if (width == 4) {
                row_of_four(in, out, length, w, offset[channel]);
                continue;
            }
#endif
            row_of_any(in, out, length, w, width, offset[channel]);
        }
#if defined(__AVX__) && STREAM
        _mm_sfence();
#endif
    }
    return y;
}
"""

module = load_inline(
    name="causal_conv_silu_cached",
    cpp_sources=[SOURCE],
    functions=["causal_conv_silu"],
    extra_cflags=[
        "-O3",
        "-march=native",
        "-fno-math-errno",
        "-fno-trapping-math",
        "-mprefer-vector-width=512",
        "-fopenmp",
    ],
    extra_ldflags=["-fopenmp"],
)


class Taps(nn.Module):
    """The parameters of a depthwise convolution, without its operator."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        bound = 1.0 / math.sqrt(width)
        self.weight = nn.Parameter(torch.empty(channels, 1, width).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(channels).uniform_(-bound, bound))


class ModelNew(nn.Module):
    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.conv = Taps(channels, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return module.causal_conv_silu(x.contiguous(), self.conv.weight.contiguous(), self.conv.bias.contiguous())

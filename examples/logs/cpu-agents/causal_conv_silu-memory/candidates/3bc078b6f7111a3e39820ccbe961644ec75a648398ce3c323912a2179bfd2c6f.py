"""Causal depthwise convolution and SiLU in one pass: AVX-512 registers, results streamed past the caches."""

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

#define STREAM 1

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

#if defined(__AVX512F__) && defined(__AVX512DQ__)
// Weights and bias come in times -1 / ln(2), so that the sum is t = -u / ln(2) and exp(-u) = 2^t at once;
// the factor leaves again through the divisor: u / (1 + 2^t) = t / (log + log * 2^t) with log = -1 / ln(2).
// 2^t = 2^floor(t) * poly(t - floor(t)); scalef takes the floor itself.
static inline void row_of_four(const float* in, float* out, int64_t length, const float* w, float b) {
    const __m512 log = _mm512_set1_ps(-1.44269504f), one = _mm512_set1_ps(1.0f), top = _mm512_set1_ps(120.0f);
    const __m512 c0 = _mm512_set1_ps(-1.442694902420044f);
    const __m512 c1 = _mm512_set1_ps(-1.000008463859558f);
    const __m512 c2 = _mm512_set1_ps(-0.34646841883659363f);
    const __m512 c3 = _mm512_set1_ps(-0.08054035156965256f);
    const __m512 c4 = _mm512_set1_ps(-0.012968876399099827f);
    const __m512 c5 = _mm512_set1_ps(-0.0027087705675512552f);
    const __m512 w0 = _mm512_mul_ps(log, _mm512_set1_ps(w[0])), w1 = _mm512_mul_ps(log, _mm512_set1_ps(w[1]));
    const __m512 w2 = _mm512_mul_ps(log, _mm512_set1_ps(w[2])), w3 = _mm512_mul_ps(log, _mm512_set1_ps(w[3]));
    const __m512 bias = _mm512_mul_ps(log, _mm512_set1_ps(b));
    const bool aligned = reinterpret_cast<uintptr_t>(out) % 64 == 0;
    // The first vector: what lies before the row counts as zero, and is not read.
    {
        const uint32_t all = length >= 16 ? 0xFFFFu : (1u << length) - 1u;
        __m512 t0 = _mm512_fmadd_ps(w0, _mm512_maskz_loadu_ps((__mmask16)(all & 0xFFF8u), in - 3), bias);
        t0 = _mm512_fmadd_ps(w1, _mm512_maskz_loadu_ps((__mmask16)(all & 0xFFFCu), in - 2), t0);
        t0 = _mm512_fmadd_ps(w2, _mm512_maskz_loadu_ps((__mmask16)(all & 0xFFFEu), in - 1), t0);
        t0 = _mm512_fmadd_ps(w3, _mm512_maskz_loadu_ps((__mmask16)all, in), t0);
        __m512 p0 = c5;
        __m512 m0 = _mm512_min_ps(top, t0);
        const __m512 f0 = _mm512_reduce_ps(m0, 1);
        p0 = _mm512_fmadd_ps(p0, f0, c4);
        p0 = _mm512_fmadd_ps(p0, f0, c3);
        p0 = _mm512_fmadd_ps(p0, f0, c2);
        p0 = _mm512_fmadd_ps(p0, f0, c1);
        p0 = _mm512_fmadd_ps(p0, f0, c0);
        const __m512 d0 = _mm512_add_ps(log, _mm512_scalef_ps(p0, m0));
        const __m512 r0 = _mm512_rcp14_ps(d0);
        const __m512 q0 = _mm512_mul_ps(t0, r0);
        const __m512 e0 = _mm512_fnmadd_ps(d0, r0, one);
        const __m512 y0 = _mm512_fmadd_ps(q0, e0, q0);
        if (aligned && length >= 16) _mm512_stream_ps(out, y0);
        else _mm512_mask_storeu_ps(out, (__mmask16)all, y0);
    }
    int64_t i = 16;
    if (aligned) {
        for (; i + 64 <= length; i += 64) {
            // Half a page ahead: the hardware's own prefetch stops at each page.
            const char* ahead = reinterpret_cast<const char*>(in + i) + 2048;
            _mm_prefetch(ahead, _MM_HINT_T0);
            _mm_prefetch(ahead + 64, _MM_HINT_T0);
            _mm_prefetch(ahead + 128, _MM_HINT_T0);
            _mm_prefetch(ahead + 192, _MM_HINT_T0);
            __m512 t0 = _mm512_fmadd_ps(w0, _mm512_loadu_ps(in + i + 0 - 3), bias); __m512 t1 = _mm512_fmadd_ps(w0, _mm512_loadu_ps(in + i + 16 - 3), bias); __m512 t2 = _mm512_fmadd_ps(w0, _mm512_loadu_ps(in + i + 32 - 3), bias); __m512 t3 = _mm512_fmadd_ps(w0, _mm512_loadu_ps(in + i + 48 - 3), bias);
            t0 = _mm512_fmadd_ps(w1, _mm512_loadu_ps(in + i + 0 - 2), t0); t1 = _mm512_fmadd_ps(w1, _mm512_loadu_ps(in + i + 16 - 2), t1); t2 = _mm512_fmadd_ps(w1, _mm512_loadu_ps(in + i + 32 - 2), t2); t3 = _mm512_fmadd_ps(w1, _mm512_loadu_ps(in + i + 48 - 2), t3);
            t0 = _mm512_fmadd_ps(w2, _mm512_loadu_ps(in + i + 0 - 1), t0); t1 = _mm512_fmadd_ps(w2, _mm512_loadu_ps(in + i + 16 - 1), t1); t2 = _mm512_fmadd_ps(w2, _mm512_loadu_ps(in + i + 32 - 1), t2); t3 = _mm512_fmadd_ps(w2, _mm512_loadu_ps(in + i + 48 - 1), t3);
            t0 = _mm512_fmadd_ps(w3, _mm512_loadu_ps(in + i + 0), t0); t1 = _mm512_fmadd_ps(w3, _mm512_loadu_ps(in + i + 16), t1); t2 = _mm512_fmadd_ps(w3, _mm512_loadu_ps(in + i + 32), t2); t3 = _mm512_fmadd_ps(w3, _mm512_loadu_ps(in + i + 48), t3);
            __m512 p0 = c5; __m512 p1 = c5; __m512 p2 = c5; __m512 p3 = c5;
            __m512 m0 = _mm512_min_ps(top, t0); __m512 m1 = _mm512_min_ps(top, t1); __m512 m2 = _mm512_min_ps(top, t2); __m512 m3 = _mm512_min_ps(top, t3);
            const __m512 f0 = _mm512_reduce_ps(m0, 1); const __m512 f1 = _mm512_reduce_ps(m1, 1); const __m512 f2 = _mm512_reduce_ps(m2, 1); const __m512 f3 = _mm512_reduce_ps(m3, 1);
            p0 = _mm512_fmadd_ps(p0, f0, c4); p1 = _mm512_fmadd_ps(p1, f1, c4); p2 = _mm512_fmadd_ps(p2, f2, c4); p3 = _mm512_fmadd_ps(p3, f3, c4);
            p0 = _mm512_fmadd_ps(p0, f0, c3); p1 = _mm512_fmadd_ps(p1, f1, c3); p2 = _mm512_fmadd_ps(p2, f2, c3); p3 = _mm512_fmadd_ps(p3, f3, c3);
            p0 = _mm512_fmadd_ps(p0, f0, c2); p1 = _mm512_fmadd_ps(p1, f1, c2); p2 = _mm512_fmadd_ps(p2, f2, c2); p3 = _mm512_fmadd_ps(p3, f3, c2);
            p0 = _mm512_fmadd_ps(p0, f0, c1); p1 = _mm512_fmadd_ps(p1, f1, c1); p2 = _mm512_fmadd_ps(p2, f2, c1); p3 = _mm512_fmadd_ps(p3, f3, c1);
            p0 = _mm512_fmadd_ps(p0, f0, c0); p1 = _mm512_fmadd_ps(p1, f1, c0); p2 = _mm512_fmadd_ps(p2, f2, c0); p3 = _mm512_fmadd_ps(p3, f3, c0);
            const __m512 d0 = _mm512_add_ps(log, _mm512_scalef_ps(p0, m0)); const __m512 d1 = _mm512_add_ps(log, _mm512_scalef_ps(p1, m1)); const __m512 d2 = _mm512_add_ps(log, _mm512_scalef_ps(p2, m2)); const __m512 d3 = _mm512_add_ps(log, _mm512_scalef_ps(p3, m3));
            const __m512 r0 = _mm512_rcp14_ps(d0); const __m512 r1 = _mm512_rcp14_ps(d1); const __m512 r2 = _mm512_rcp14_ps(d2); const __m512 r3 = _mm512_rcp14_ps(d3);
            const __m512 q0 = _mm512_mul_ps(t0, r0); const __m512 q1 = _mm512_mul_ps(t1, r1); const __m512 q2 = _mm512_mul_ps(t2, r2); const __m512 q3 = _mm512_mul_ps(t3, r3);
            const __m512 e0 = _mm512_fnmadd_ps(d0, r0, one); const __m512 e1 = _mm512_fnmadd_ps(d1, r1, one); const __m512 e2 = _mm512_fnmadd_ps(d2, r2, one); const __m512 e3 = _mm512_fnmadd_ps(d3, r3, one);
            const __m512 y0 = _mm512_fmadd_ps(q0, e0, q0); const __m512 y1 = _mm512_fmadd_ps(q1, e1, q1); const __m512 y2 = _mm512_fmadd_ps(q2, e2, q2); const __m512 y3 = _mm512_fmadd_ps(q3, e3, q3);
            _mm512_stream_ps(out + i, y0);
            _mm512_stream_ps(out + i + 16, y1);
            _mm512_stream_ps(out + i + 32, y2);
            _mm512_stream_ps(out + i + 48, y3);
        }
    }
    for (; i + 16 <= length; i += 16) {
        _mm_prefetch(reinterpret_cast<const char*>(in + i) + 2048, _MM_HINT_T0);
        __m512 t0 = _mm512_fmadd_ps(w0, _mm512_loadu_ps(in + i + 0 - 3), bias);
        t0 = _mm512_fmadd_ps(w1, _mm512_loadu_ps(in + i + 0 - 2), t0);
        t0 = _mm512_fmadd_ps(w2, _mm512_loadu_ps(in + i + 0 - 1), t0);
        t0 = _mm512_fmadd_ps(w3, _mm512_loadu_ps(in + i + 0), t0);
        __m512 p0 = c5;
        __m512 m0 = _mm512_min_ps(top, t0);
        const __m512 f0 = _mm512_reduce_ps(m0, 1);
        p0 = _mm512_fmadd_ps(p0, f0, c4);
        p0 = _mm512_fmadd_ps(p0, f0, c3);
        p0 = _mm512_fmadd_ps(p0, f0, c2);
        p0 = _mm512_fmadd_ps(p0, f0, c1);
        p0 = _mm512_fmadd_ps(p0, f0, c0);
        const __m512 d0 = _mm512_add_ps(log, _mm512_scalef_ps(p0, m0));
        const __m512 r0 = _mm512_rcp14_ps(d0);
        const __m512 q0 = _mm512_mul_ps(t0, r0);
        const __m512 e0 = _mm512_fnmadd_ps(d0, r0, one);
        const __m512 y0 = _mm512_fmadd_ps(q0, e0, q0);
        if (aligned) _mm512_stream_ps(out + i, y0);
        else _mm512_storeu_ps(out + i, y0);
    }
    if (i < length) {
        const __mmask16 k = (__mmask16)((1u << (length - i)) - 1u);
        __m512 t0 = _mm512_fmadd_ps(w0, _mm512_maskz_loadu_ps(k, in + i - 3), bias);
        t0 = _mm512_fmadd_ps(w1, _mm512_maskz_loadu_ps(k, in + i - 2), t0);
        t0 = _mm512_fmadd_ps(w2, _mm512_maskz_loadu_ps(k, in + i - 1), t0);
        t0 = _mm512_fmadd_ps(w3, _mm512_maskz_loadu_ps(k, in + i), t0);
        __m512 p0 = c5;
        __m512 m0 = _mm512_min_ps(top, t0);
        const __m512 f0 = _mm512_reduce_ps(m0, 1);
        p0 = _mm512_fmadd_ps(p0, f0, c4);
        p0 = _mm512_fmadd_ps(p0, f0, c3);
        p0 = _mm512_fmadd_ps(p0, f0, c2);
        p0 = _mm512_fmadd_ps(p0, f0, c1);
        p0 = _mm512_fmadd_ps(p0, f0, c0);
        const __m512 d0 = _mm512_add_ps(log, _mm512_scalef_ps(p0, m0));
        const __m512 r0 = _mm512_rcp14_ps(d0);
        const __m512 q0 = _mm512_mul_ps(t0, r0);
        const __m512 e0 = _mm512_fnmadd_ps(d0, r0, one);
        const __m512 y0 = _mm512_fmadd_ps(q0, e0, q0);
        _mm512_mask_storeu_ps(out + i, k, y0);
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
#if defined(__AVX512F__) && defined(__AVX512DQ__)
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
    name="causal_conv_silu_folded",
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

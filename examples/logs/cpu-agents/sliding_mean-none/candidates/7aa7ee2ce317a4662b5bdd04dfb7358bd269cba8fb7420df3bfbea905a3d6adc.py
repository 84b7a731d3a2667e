import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

_SRC = r"""
#include <torch/types.h>
#include <omp.h>
#include <cstdint>
#include <algorithm>
#include <vector>
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

// Any window: binary decomposition over a tile that stays in L1.
static void seg_any(const float* __restrict x, float* __restrict y, int64_t a, int64_t b, int64_t w) {
    const float scale = 1.0f / (float)w;
    const int64_t tile = std::max<int64_t>(1024, 2 * w);
    std::vector<float> cur(tile + w), acc(tile);
    for (int64_t o = a; o < b; o += tile) {
        const int64_t m = std::min(tile, b - o);
        float* c = cur.data();
        float* __restrict s = acc.data();
        int64_t len = m + w - 1;
        for (int64_t i = 0; i < len; ++i) c[i] = x[o + i];
        for (int64_t i = 0; i < m; ++i) s[i] = 0.0f;
        int64_t off = 0;
        for (int64_t p = 1; p <= w; p <<= 1) {
            if (w & p) {
                const float* cc = c + off;
                #pragma omp simd
                for (int64_t i = 0; i < m; ++i) s[i] += cc[i];
                off += p;
            }
            if ((p << 1) > w) break;
            // c[i] becomes the sum of 2p values from i on; reads run ahead of writes
            const int64_t nl = len - p;
            for (int64_t i = 0; i < nl; ++i) c[i] = c[i] + c[i + p];
            len = nl;
        }
        for (int64_t i = 0; i < m; ++i) y[o + i] = s[i] * scale;
    }
}

#if defined(__AVX512F__)
static inline __m512 direct(const float* x, int n) {
    __m512 s0 = _mm512_loadu_ps(x), s1 = _mm512_setzero_ps();
    int k = 1;
    for (; k + 1 < n; k += 2) {
        s0 = _mm512_add_ps(s0, _mm512_loadu_ps(x + k));
        s1 = _mm512_add_ps(s1, _mm512_loadu_ps(x + k + 1));
    }
    if (k < n) s0 = _mm512_add_ps(s0, _mm512_loadu_ps(x + k));
    return _mm512_add_ps(s0, s1);
}
template <int N>
static inline __m512 from(__m512 cur, __m512 prev) {
    return _mm512_castsi512_ps(_mm512_alignr_epi32(_mm512_castps_si512(cur), _mm512_castps_si512(prev), N));
}

static void seg31(const float* __restrict x, float* __restrict y, int64_t a, int64_t b) {
    const float sc = 1.0f / 31.0f;
    if (b - a < 16) {
        for (int64_t o = a; o < b; ++o) {
            float s = 0.0f;
            for (int k = 0; k < 31; ++k) s += x[o + k];
            y[o] = s * sc;
        }
        return;
    }
    const __m512 vs = _mm512_set1_ps(sc);
    int64_t o = a;
    const int64_t mis = (int64_t)(((uintptr_t)(y + a) >> 2) & 15);
    if (mis) {
        _mm512_storeu_ps(y + a, _mm512_mul_ps(direct(x + a, 31), vs));
        o = a + (16 - mis);
    }
    if (o + 16 <= b) {
        // tN[i] = x[i-N+1] + ... + x[i]; "previous" block ends before i = o + 30
        const float* q = x + o + 14;
        __m512 t3p = direct(q - 2, 3), t6p = direct(q - 5, 6), t15p = direct(q - 14, 15);
        #pragma GCC unroll 4
        for (; o + 16 <= b; o += 16) {
            const float* p = x + o + 30;
            __m512 t3 = _mm512_add_ps(_mm512_add_ps(_mm512_loadu_ps(p), _mm512_loadu_ps(p - 1)), _mm512_loadu_ps(p - 2));
            __m512 t6 = _mm512_add_ps(t3, from<13>(t3, t3p));
            __m512 t12 = _mm512_add_ps(t6, from<10>(t6, t6p));
            __m512 t15 = _mm512_add_ps(t12, from<4>(t3, t3p));
            __m512 t16 = _mm512_add_ps(t15, _mm512_loadu_ps(p - 15));
            _mm512_storeu_ps(y + o, _mm512_mul_ps(_mm512_add_ps(t16, t15p), vs));
            t3p = t3; t6p = t6; t15p = t15;
        }
    }
    if (o < b) _mm512_storeu_ps(y + b - 16, _mm512_mul_ps(direct(x + b - 16, 31), vs));
}
#endif

torch::Tensor sliding_mean(torch::Tensor xin, int64_t w) {
    auto xc = xin.contiguous();
    TORCH_CHECK(xc.scalar_type() == torch::kFloat32, "float32 expected");
    auto shape = xc.sizes().vec();
    const int64_t L = shape.back();
    TORCH_CHECK(w >= 1 && w <= L, "bad window");
    const int64_t n = L - w + 1;
    shape.back() = n;
    auto out = torch::empty(shape, xc.options());
    const int64_t rows = xc.numel() / L, total = rows * n;
    const float* x = xc.data_ptr<float>();
    float* y = out.data_ptr<float>();
    #pragma omp parallel
    {
        const int64_t T = omp_get_num_threads(), t = omp_get_thread_num();
        const int64_t pages = (total + 1023) / 1024;
        int64_t f = std::min(total, pages * t / T * 1024);
        const int64_t e = std::min(total, pages * (t + 1) / T * 1024);
        while (f < e) {
            const int64_t r = f / n, a = f - r * n, b = std::min(n, a + (e - f));
#if defined(__AVX512F__)
            if (w == 31) seg31(x + r * L, y + r * n, a, b);
            else
#endif
            seg_any(x + r * L, y + r * n, a, b, w);
            f += b - a;
        }
    }
    return out;
}
"""

_ext = load_inline(
    name="sliding_mean_s690_a",
    cpp_sources=_SRC,
    functions=["sliding_mean"],
    extra_cflags=["-O3", "-march=native", "-fopenmp"],
    extra_ldflags=["-fopenmp"],
)


class ModelNew(nn.Module):
    def __init__(self, window: int) -> None:
        super().__init__()
        self.window = window

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _ext.sliding_mean(x, self.window)

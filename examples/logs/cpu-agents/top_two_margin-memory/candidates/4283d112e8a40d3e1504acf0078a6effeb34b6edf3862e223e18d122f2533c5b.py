import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SRC = r"""
#include <torch/types.h>
#include <omp.h>
#include <limits>
#include <cmath>
#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
struct V {
  static constexpr int N = 16;
  __m512 v;
  static inline V load(const float* p) { return {_mm512_loadu_ps(p)}; }
  static inline V set(float x) { return {_mm512_set1_ps(x)}; }
  inline void store(float* p) const { _mm512_storeu_ps(p, v); }
};
static inline V vmax(V a, V b) { return {_mm512_max_ps(a.v, b.v)}; }
static inline V vmin(V a, V b) { return {_mm512_min_ps(a.v, b.v)}; }
struct Bad {
  __mmask16 m = 0;
  inline void add(V a, V b) { m |= _mm512_cmp_ps_mask(a.v, b.v, _CMP_UNORD_Q); }
  inline bool any() const { return m != 0; }
};
#elif defined(__AVX2__)
struct V {
  static constexpr int N = 8;
  __m256 v;
  static inline V load(const float* p) { return {_mm256_loadu_ps(p)}; }
  static inline V set(float x) { return {_mm256_set1_ps(x)}; }
  inline void store(float* p) const { _mm256_storeu_ps(p, v); }
};
static inline V vmax(V a, V b) { return {_mm256_max_ps(a.v, b.v)}; }
static inline V vmin(V a, V b) { return {_mm256_min_ps(a.v, b.v)}; }
struct Bad {
  __m256 m = _mm256_setzero_ps();
  inline void add(V a, V b) { m = _mm256_or_ps(m, _mm256_cmp_ps(a.v, b.v, _CMP_UNORD_Q)); }
  inline bool any() const { return _mm256_movemask_ps(m) != 0; }
};
#else
struct V {
  static constexpr int N = 4;
  float v[4];
  static inline V load(const float* p) { V r; for (int i = 0; i < 4; i++) r.v[i] = p[i]; return r; }
  static inline V set(float x) { V r; for (int i = 0; i < 4; i++) r.v[i] = x; return r; }
  inline void store(float* p) const { for (int i = 0; i < 4; i++) p[i] = v[i]; }
};
static inline V vmax(V a, V b) { V r; for (int i = 0; i < 4; i++) r.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i]; return r; }
static inline V vmin(V a, V b) { V r; for (int i = 0; i < 4; i++) r.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i]; return r; }
struct Bad {
  bool m = false;
  inline void add(V a, V b) { for (int i = 0; i < 4; i++) m |= (a.v[i] != a.v[i]) | (b.v[i] != b.v[i]); }
  inline bool any() const { return m; }
};
#endif

static inline float margin(const float* __restrict__ p, int64_t width) {
  constexpr int U = 4, N = V::N;
  const float ninf = -std::numeric_limits<float>::infinity();
  V a[U], b[U];
  Bad bad[U / 2];
  for (int u = 0; u < U; u++) a[u] = b[u] = V::set(ninf);
  int64_t i = 0;
  for (; i + U * N <= width; i += U * N) {
    V x[U];
    #pragma GCC unroll 4
    for (int u = 0; u < U; u++) x[u] = V::load(p + i + u * N);
    #pragma GCC unroll 4
    for (int u = 0; u < U; u++) {
      b[u] = vmax(b[u], vmin(a[u], x[u]));
      a[u] = vmax(a[u], x[u]);
    }
    #pragma GCC unroll 2
    for (int u = 0; u < U; u += 2) bad[u / 2].add(x[u], x[u + 1]);
  }
  // merge the chains: the top two of two top twos
  for (int s = U / 2; s; s /= 2)
    for (int u = 0; u < s; u++) {
      V lo = vmin(a[u], a[u + s]);
      a[u] = vmax(a[u], a[u + s]);
      b[u] = vmax(lo, vmax(b[u], b[u + s]));
    }
  float A[N], B[N];
  a[0].store(A);
  b[0].store(B);
  bool nan = false;
  for (int u = 0; u < U / 2; u++) nan |= bad[u].any();
  for (int s = N / 2; s; s /= 2)
    for (int l = 0; l < s; l++) {
      float lo = A[l] < A[l + s] ? A[l] : A[l + s];
      A[l] = A[l] > A[l + s] ? A[l] : A[l + s];
      float m = B[l] > B[l + s] ? B[l] : B[l + s];
      B[l] = lo > m ? lo : m;
    }
  float m1 = A[0], m2 = B[0];
  for (; i < width; i++) {
    float x = p[i];
    nan |= x != x;
    float lo = x < m1 ? x : m1;
    m1 = x > m1 ? x : m1;
    m2 = lo > m2 ? lo : m2;
  }
  return nan ? std::numeric_limits<float>::quiet_NaN() : m1 - m2;
}

// four rows at once: four independent sequential streams and four independent chains
static inline void margin4(const float* const* rows, float* const* outs, int64_t width) {
  constexpr int R = 4, N = V::N;
  const float ninf = -std::numeric_limits<float>::infinity();
  const float *p0 = rows[0], *p1 = rows[1], *p2 = rows[2], *p3 = rows[3];
  V a0 = V::set(ninf), a1 = a0, a2 = a0, a3 = a0, b0 = a0, b1 = a0, b2 = a0, b3 = a0;
  Bad bad[R];
  int64_t i = 0;
  for (; i + 2 * N <= width; i += 2 * N) {
#define STEP(k) { \
    V x = V::load(p##k + i), y = V::load(p##k + i + N); \
    bad[k].add(x, y); \
    V hi = vmax(x, y), lo = vmin(x, y); \
    b##k = vmax(vmax(b##k, lo), vmin(a##k, hi)); \
    a##k = vmax(a##k, hi); }
    STEP(0) STEP(1) STEP(2) STEP(3)
#undef STEP
  }
  float A[R][N], B[R][N];
  a0.store(A[0]); a1.store(A[1]); a2.store(A[2]); a3.store(A[3]);
  b0.store(B[0]); b1.store(B[1]); b2.store(B[2]); b3.store(B[3]);
  for (int k = 0; k < R; k++)
    for (int s = N / 2; s; s /= 2)
      for (int l = 0; l < s; l++) {
        float u = A[k][l], v = A[k][l + s], c = B[k][l], d = B[k][l + s];
        float lo = u < v ? u : v, m = c > d ? c : d;
        A[k][l] = u > v ? u : v;
        B[k][l] = lo > m ? lo : m;
      }
  for (int k = 0; k < R; k++) {
    float m1 = A[k][0], m2 = B[k][0];
    bool nan = bad[k].any();
    for (int64_t j = i; j < width; j++) {
      float x = rows[k][j];
      nan |= x != x;
      float lo = x < m1 ? x : m1;
      m1 = x > m1 ? x : m1;
      m2 = lo > m2 ? lo : m2;
    }
    *outs[k] = nan ? std::numeric_limits<float>::quiet_NaN() : m1 - m2;
  }
}

torch::Tensor top_two_margin(torch::Tensor logits) {
  TORCH_CHECK(logits.dim() == 2 && logits.scalar_type() == torch::kFloat32 && logits.size(1) >= 2);
  auto x = logits.contiguous();
  const int64_t rows = x.size(0), width = x.size(1);
  auto out = torch::empty({rows}, x.options());
  const float* p = x.data_ptr<float>();
  float* o = out.data_ptr<float>();
  #pragma omp parallel
  {
    const int64_t t = omp_get_thread_num(), n = omp_get_num_threads();
    const int64_t lo = rows * t / n, hi = rows * (t + 1) / n, q = (hi - lo) / 4;
    for (int64_t j = lo; j < lo + q; j++) {
      const float* in[4];
      float* to[4];
      for (int k = 0; k < 4; k++) {
        in[k] = p + (j + k * q) * width;
        to[k] = o + j + k * q;
      }
      margin4(in, to, width);
    }
    for (int64_t j = lo + 4 * q; j < hi; j++) o[j] = margin(p + j * width, width);
  }
  return out;
}
"""

_ext = load_inline(
    name="top_two_margin_ext",
    cpp_sources=SRC,
    functions=["top_two_margin"],
    extra_cflags=["-O3", "-march=native", "-fopenmp"],
    extra_ldflags=["-fopenmp"],
)


class ModelNew(nn.Module):
    def forward(self, logits: torch.Tensor) -> torch.Tensor:
        return _ext.top_two_margin(logits)

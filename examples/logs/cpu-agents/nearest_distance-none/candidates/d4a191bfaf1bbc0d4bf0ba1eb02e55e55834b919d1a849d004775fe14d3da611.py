import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <torch/types.h>
#include <immintrin.h>
#include <omp.h>
#include <cmath>
#include <limits>
#include <vector>

#if defined(__AVX512F__)
constexpr int W = 16;
typedef __m512 vf;
static inline vf vset(float a) { return _mm512_set1_ps(a); }
static inline vf vload(const float* p) { return _mm512_loadu_ps(p); }
static inline void vstore(float* p, vf a) { _mm512_storeu_ps(p, a); }
static inline vf vfma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
static inline vf vmin(vf a, vf b) { return _mm512_min_ps(a, b); }
static inline unsigned vnotgt(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_NGT_UQ); }
#else
constexpr int W = 8;
typedef __m256 vf;
static inline vf vset(float a) { return _mm256_set1_ps(a); }
static inline vf vload(const float* p) { return _mm256_loadu_ps(p); }
static inline void vstore(float* p, vf a) { _mm256_storeu_ps(p, a); }
static inline vf vfma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
static inline vf vmin(vf a, vf b) { return _mm256_min_ps(a, b); }
static inline unsigned vnotgt(vf a, vf b) { return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_NGT_UQ)); }
#endif

constexpr int B = 32;  // others in a block

// Differences first, as the operator is defined; NaN is handed on.
static inline float exact(const float* __restrict q, int count, float x, float y, float z) {
  float best = std::numeric_limits<float>::infinity(), sum = 0.f;
#pragma omp simd reduction(min : best) reduction(+ : sum)
  for (int k = 0; k < count; ++k) {
    float a = x - q[3 * k], b = y - q[3 * k + 1], c = z - q[3 * k + 2];
    float d = a * a + b * b + c * c;
    best = d < best ? d : best;
    sum += d;
  }
  return sum != sum ? sum : best;
}

static inline float lower(float a, float b) {  // NaN wins
  return (a < b || a != a) ? a : b;
}

template <int V>
static void group(const float* __restrict p, const float* __restrict q, const float* __restrict norm, int blocks,
                  float largest, float poison, float* __restrict mins, float* __restrict out) {
  constexpr int L = V * W;
  alignas(64) float x[L], y[L], z[L], slack[L];
#pragma omp simd
  for (int i = 0; i < L; ++i) {
    float a = p[3 * i], b = p[3 * i + 1], c = p[3 * i + 2];
    x[i] = -2.f * a; y[i] = -2.f * b; z[i] = -2.f * c;
    float n = a * a + b * b + c * c;
    slack[i] = (n + largest) * 0x1p-19f + (n - n) + poison;
  }
  vf px[V], py[V], pz[V], total[V];
  for (int v = 0; v < V; ++v) {
    px[v] = vload(x + v * W); py[v] = vload(y + v * W); pz[v] = vload(z + v * W);
    total[v] = vset(std::numeric_limits<float>::infinity());
  }
  for (int b = 0; b < blocks; ++b) {
    vf m[V];
    for (int v = 0; v < V; ++v) m[v] = vset(std::numeric_limits<float>::infinity());
    const float* qb = q + 3 * B * b;
    const float* nb = norm + B * b;
#pragma GCC unroll 2
    for (int k = 0; k < B; ++k) {
      vf qx = vset(qb[3 * k]), qy = vset(qb[3 * k + 1]), qz = vset(qb[3 * k + 2]), qn = vset(nb[k]);
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v)
        m[v] = vmin(m[v], vfma(pz[v], qz, vfma(py[v], qy, vfma(px[v], qx, qn))));
    }
    for (int v = 0; v < V; ++v) {
      vstore(mins + b * L + v * W, m[v]);
      total[v] = vmin(total[v], m[v]);
    }
  }
  float result[L];
  vf bound[V];
  for (int v = 0; v < V; ++v) {
    vstore(x + v * W, total[v]);
  }
  for (int i = 0; i < L; ++i) { x[i] += slack[i]; result[i] = std::numeric_limits<float>::infinity(); }
  for (int v = 0; v < V; ++v) bound[v] = vload(x + v * W);
  for (int b = 0; b < blocks; ++b) {
    for (int v = 0; v < V; ++v) {
      unsigned mask = vnotgt(vload(mins + b * L + v * W), bound[v]);
      while (mask) {
        int i = v * W + __builtin_ctz(mask);
        mask &= mask - 1;
        result[i] = lower(exact(q + 3 * B * b, B, p[3 * i], p[3 * i + 1], p[3 * i + 2]), result[i]);
      }
    }
  }
  for (int i = 0; i < L; ++i) out[i] = result[i];
}

template <int V>
static void run(const float* p, const float* q, float* out, int n, int m) {
  const int blocks = m / B, groups = n / (V * W);
#pragma omp parallel
  {
    std::vector<float> buffer((size_t)m + (size_t)blocks * V * W);
    float* norm = buffer.data();
    float* mins = norm + m;
    float largest = 0.f, sum = 0.f;
#pragma omp simd reduction(max : largest) reduction(+ : sum)
    for (int j = 0; j < m; ++j) {
      float a = q[3 * j], b = q[3 * j + 1], c = q[3 * j + 2];
      float s = a * a + b * b + c * c;
      norm[j] = s;
      largest = s > largest ? s : largest;
      sum += s;
    }
    const float poison = sum - sum;  // NaN makes every block be looked at exactly
#pragma omp for schedule(static) nowait
    for (int g = 0; g < groups; ++g)
      group<V>(p + (size_t)3 * V * W * g, q, norm, blocks, largest, poison, mins, out + (size_t)V * W * g);
#pragma omp for schedule(static) nowait
    for (int i = groups * V * W; i < n; ++i) out[i] = exact(q, m, p[3 * i], p[3 * i + 1], p[3 * i + 2]);
    if (blocks * B < m) {
#pragma omp barrier
#pragma omp for schedule(static) nowait
      for (int i = 0; i < groups * V * W; ++i)
        out[i] = lower(exact(q + 3 * blocks * B, m - blocks * B, p[3 * i], p[3 * i + 1], p[3 * i + 2]), out[i]);
    }
  }
}

torch::Tensor nearest(const torch::Tensor& points, const torch::Tensor& others) {
  TORCH_CHECK(points.dim() == 2 && others.dim() == 2 && points.size(1) == 3 && others.size(1) == 3);
  auto p = points.contiguous(), q = others.contiguous();
  const int n = p.size(0), m = q.size(0);
  auto out = torch::empty({n}, p.options());
  const int t = omp_get_max_threads();
  auto cost = [&](int v, double c) { int g = (n + v * W - 1) / (v * W); return c * ((g + t - 1) / t); };
  const double c4 = cost(4, 4.0), c2 = cost(2, 2.15), c1 = cost(1, 1.5);
  const float *a = p.data_ptr<float>(), *b = q.data_ptr<float>();
  float* o = out.data_ptr<float>();
  if (c4 <= c2 && c4 <= c1) run<4>(a, b, o, n, m);
  else if (c2 <= c1) run<2>(a, b, o, n, m);
  else run<1>(a, b, o, n, m);
  return out;
}
"""

extension = load_inline(
    name="nearest_distance_s386_a",
    cpp_sources=SOURCE,
    functions=["nearest"],
    extra_cflags=["-O3", "-march=native", "-fopenmp"],
    extra_ldflags=["-fopenmp"],
)


class ModelNew(nn.Module):
    def forward(self, points: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        return extension.nearest(points, others)

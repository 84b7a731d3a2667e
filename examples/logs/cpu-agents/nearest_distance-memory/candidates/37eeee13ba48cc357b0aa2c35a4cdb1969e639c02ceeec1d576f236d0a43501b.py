import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <torch/types.h>
#include <immintrin.h>
#include <omp.h>
#include <cmath>
#include <limits>
#include <algorithm>
#include <vector>
#include <cstring>
#include <cstdint>

#if defined(__AVX512F__)
#define W 16
typedef __m512 V;
static inline V vset(float a) { return _mm512_set1_ps(a); }
static inline V vload(const float* p) { return _mm512_loadu_ps(p); }
static inline void vstore(float* p, V a) { _mm512_storeu_ps(p, a); }
static inline V vsub(V a, V b) { return _mm512_sub_ps(a, b); }
static inline V vmul(V a, V b) { return _mm512_mul_ps(a, b); }
static inline V vfma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
static inline V vmin(V a, V b) { return _mm512_min_ps(a, b); }
static inline V vmax(V a, V b) { return _mm512_max_ps(a, b); }
static inline V vadd(V a, V b) { return _mm512_add_ps(a, b); }
static inline float vhmin(V a) { return _mm512_reduce_min_ps(a); }
static inline void vcell(V x, V y, V z, int32_t* out) {
    const __m512i a = _mm512_slli_epi32(_mm512_cvttps_epi32(x), 8), b = _mm512_slli_epi32(_mm512_cvttps_epi32(y), 4);
    _mm512_storeu_si512(out, _mm512_or_si512(_mm512_or_si512(a, b), _mm512_cvttps_epi32(z)));
}
#else
#define W 8
typedef __m256 V;
static inline V vset(float a) { return _mm256_set1_ps(a); }
static inline V vload(const float* p) { return _mm256_loadu_ps(p); }
static inline void vstore(float* p, V a) { _mm256_storeu_ps(p, a); }
static inline V vsub(V a, V b) { return _mm256_sub_ps(a, b); }
static inline V vmul(V a, V b) { return _mm256_mul_ps(a, b); }
static inline V vfma(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
static inline V vmin(V a, V b) { return _mm256_min_ps(a, b); }
static inline V vmax(V a, V b) { return _mm256_max_ps(a, b); }
static inline V vadd(V a, V b) { return _mm256_add_ps(a, b); }
static inline float vhmin(V a) {
    __m128 m = _mm_min_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    m = _mm_min_ps(m, _mm_movehl_ps(m, m));
    m = _mm_min_ss(m, _mm_shuffle_ps(m, m, 1));
    return _mm_cvtss_f32(m);
}
static inline void vcell(V x, V y, V z, int32_t* out) {
    const __m256i a = _mm256_slli_epi32(_mm256_cvttps_epi32(x), 8), b = _mm256_slli_epi32(_mm256_cvttps_epi32(y), 4);
    _mm256_storeu_si256((__m256i*)out, _mm256_or_si256(_mm256_or_si256(a, b), _mm256_cvttps_epi32(z)));
}
#endif

static bool all_finite(const float* p, int64_t n) {
    float acc[32] = {0};
    int64_t i = 0;
    for (; i + 32 <= n; i += 32)
        for (int k = 0; k < 32; ++k) acc[k] += p[i + k] * 0.0f;
    for (; i < n; ++i) acc[0] += p[i] * 0.0f;
    float s = 0;
    for (int k = 0; k < 32; ++k) s += acc[k];
    return s == 0.0f;
}

// G vectors of points against all others, whose coordinates are broadcast
template <int G>
static inline void group(const float* p, const float* q, float* out, int64_t first, int64_t n, int64_t m) {
    alignas(64) float c[3][G * W];
    for (int i = 0; i < G * W; ++i) {
        const int64_t at = std::min(first + i, n - 1) * 3;
        c[0][i] = p[at]; c[1][i] = p[at + 1]; c[2][i] = p[at + 2];
    }
    V x[G], y[G], z[G], best[G];
    for (int g = 0; g < G; ++g) {
        x[g] = vload(c[0] + g * W); y[g] = vload(c[1] + g * W); z[g] = vload(c[2] + g * W);
        best[g] = vset(std::numeric_limits<float>::infinity());
    }
    int64_t j = 0;
    for (; j + 2 <= m; j += 2) {
        V d[2][G];
#pragma GCC unroll 2
        for (int u = 0; u < 2; ++u) {
            const V a = vset(q[(j + u) * 3]), b = vset(q[(j + u) * 3 + 1]), e = vset(q[(j + u) * 3 + 2]);
#pragma GCC unroll 8
            for (int g = 0; g < G; ++g) {
                const V dx = vsub(x[g], a), dy = vsub(y[g], b), dz = vsub(z[g], e);
                d[u][g] = vfma(dz, dz, vfma(dy, dy, vmul(dx, dx)));
            }
        }
#pragma GCC unroll 8
        for (int g = 0; g < G; ++g) best[g] = vmin(best[g], vmin(d[0][g], d[1][g]));
    }
    for (; j < m; ++j) {
        const V a = vset(q[j * 3]), b = vset(q[j * 3 + 1]), e = vset(q[j * 3 + 2]);
        for (int g = 0; g < G; ++g) {
            const V dx = vsub(x[g], a), dy = vsub(y[g], b), dz = vsub(z[g], e);
            best[g] = vmin(best[g], vfma(dz, dz, vfma(dy, dy, vmul(dx, dx))));
        }
    }
    alignas(64) float r[G * W];
    for (int g = 0; g < G; ++g) vstore(r + g * W, best[g]);
    const int64_t count = std::min<int64_t>(G * W, n - first);
    for (int64_t i = 0; i < count; ++i) out[first + i] = r[i];
}

static void careful(const float* p, const float* q, float* out, int64_t from, int64_t to, int64_t m) {
    for (int64_t i = from; i < to; ++i) {
        float best = std::numeric_limits<float>::infinity();
        for (int64_t j = 0; j < m; ++j) {
            const float dx = p[i * 3] - q[j * 3], dy = p[i * 3 + 1] - q[j * 3 + 1], dz = p[i * 3 + 2] - q[j * 3 + 2];
            const float d = dx * dx + dy * dy + dz * dz;
            if (!(d >= best)) best = d;
            if (std::isnan(best)) break;
        }
        out[i] = best;
    }
}

static const int CELLS = 4096;

// place of each cell of a 16 x 16 x 16 grid along a Hilbert curve (a constant table)
struct Curve {
    uint16_t at[CELLS];
    constexpr Curve() : at{} {
        for (unsigned c = 0; c < (unsigned)CELLS; ++c) {
            unsigned a[3] = {c >> 8, (c >> 4) & 15u, c & 15u};
            for (unsigned s = 8; s > 1; s >>= 1)
                for (int i = 0; i < 3; ++i) {
                    if (a[i] & s) a[0] ^= s - 1;
                    else { const unsigned w = (a[0] ^ a[i]) & (s - 1); a[0] ^= w; a[i] ^= w; }
                }
            a[1] ^= a[0];
            a[2] ^= a[1];
            unsigned w = 0;
            for (unsigned s = 8; s > 1; s >>= 1) if (a[2] & s) w ^= s - 1;
            unsigned h = 0;
            for (int i = 0; i < 3; ++i) a[i] ^= w;
            for (int bit = 3; bit >= 0; --bit)
                for (int i = 0; i < 3; ++i) h = (h << 1) | ((a[i] >> bit) & 1u);
            at[c] = (uint16_t)h;
        }
    }
};
static const Curve curve;

struct Frame { float base[3], scale[3]; };

// where the grid lies: mean and mean deviation of each coordinate, cut at the extremes; false if not all is finite
static bool survey(const float* q, int64_t m, Frame& f) {
    const float inf = std::numeric_limits<float>::infinity();
    const int64_t total = m * 3, whole = total / (3 * W) * (3 * W);
    alignas(64) float t[3 * W];
    float sum[3] = {0, 0, 0}, lo[3] = {inf, inf, inf}, hi[3] = {-inf, -inf, -inf}, dev[3] = {0, 0, 0}, bad = 0;
    const V zero = vset(0.0f);
    V s[3], l[3], h[3], b[3];
    for (int k = 0; k < 3; ++k) { s[k] = zero; b[k] = zero; l[k] = vset(inf); h[k] = vset(-inf); }
    for (int64_t i = 0; i < whole; i += 3 * W) {
#pragma GCC unroll 3
        for (int k = 0; k < 3; ++k) {
            const V v = vload(q + i + k * W);
            s[k] = vadd(s[k], v); l[k] = vmin(l[k], v); h[k] = vmax(h[k], v); b[k] = vfma(v, zero, b[k]);
        }
    }
    for (int k = 0; k < 3; ++k) vstore(t + k * W, s[k]);
    for (int i = 0; i < 3 * W; ++i) sum[i % 3] += t[i];
    for (int k = 0; k < 3; ++k) vstore(t + k * W, l[k]);
    for (int i = 0; i < 3 * W; ++i) lo[i % 3] = std::min(lo[i % 3], t[i]);
    for (int k = 0; k < 3; ++k) vstore(t + k * W, h[k]);
    for (int i = 0; i < 3 * W; ++i) hi[i % 3] = std::max(hi[i % 3], t[i]);
    for (int k = 0; k < 3; ++k) vstore(t + k * W, b[k]);
    for (int i = 0; i < 3 * W; ++i) bad += t[i];
    for (int64_t i = whole; i < total; ++i) {
        sum[i % 3] += q[i]; lo[i % 3] = std::min(lo[i % 3], q[i]); hi[i % 3] = std::max(hi[i % 3], q[i]);
        bad += q[i] * 0.0f;
    }
    if (!(bad == 0.0f)) return false;
    float mean[3];
    for (int d = 0; d < 3; ++d) mean[d] = sum[d] / (float)m;
    for (int i = 0; i < 3 * W; ++i) t[i] = mean[i % 3];
    V mu[3];
    for (int k = 0; k < 3; ++k) { mu[k] = vload(t + k * W); s[k] = zero; }
    for (int64_t i = 0; i < whole; i += 3 * W) {
#pragma GCC unroll 3
        for (int k = 0; k < 3; ++k) {
            const V v = vload(q + i + k * W);
            s[k] = vadd(s[k], vmax(vsub(v, mu[k]), vsub(mu[k], v)));
        }
    }
    for (int k = 0; k < 3; ++k) vstore(t + k * W, s[k]);
    for (int i = 0; i < 3 * W; ++i) dev[i % 3] += t[i];
    for (int64_t i = whole; i < total; ++i) dev[i % 3] += std::fabs(q[i] - mean[i % 3]);
    for (int d = 0; d < 3; ++d) {
        const float reach = 3.2f * dev[d] / (float)m;
        const float from = std::max(lo[d], mean[d] - reach), to = std::min(hi[d], mean[d] + reach);
        f.base[d] = from;
        f.scale[d] = to > from ? 16.0f / (to - from) : 0.0f;
    }
    return true;
}

// the grid cell of each point
static void cells(const float* p, int64_t n, const Frame& f, int32_t* key) {
    const V zero = vset(0.0f), top = vset(15.0f);
    const V bx = vset(f.base[0]), by = vset(f.base[1]), bz = vset(f.base[2]);
    const V sx = vset(f.scale[0]), sy = vset(f.scale[1]), sz = vset(f.scale[2]);
#if W == 16
    alignas(64) int32_t one[3][16], two[3][16];
    for (int d = 0; d < 3; ++d)
        for (int i = 0; i < 16; ++i) {
            const int flat = 3 * i + d;
            one[d][i] = flat < 32 ? flat : 0;
            two[d][i] = flat < 32 ? i : flat - 16;
        }
    __m512i first[3], second[3];
    for (int d = 0; d < 3; ++d) { first[d] = _mm512_loadu_si512(one[d]); second[d] = _mm512_loadu_si512(two[d]); }
#endif
    alignas(64) float rest[3 * W];
    alignas(64) int32_t found[W];
    for (int64_t i = 0; i < n; i += W) {
        const bool full = i + W <= n;
        const float* at = p + i * 3;
        if (!full) {
            for (int k = 0; k < 3 * W; ++k) rest[k] = 0.0f;
            for (int64_t k = 0; k < (n - i) * 3; ++k) rest[k] = at[k];
            at = rest;
        }
        V c[3];
#if W == 16
        const V u = vload(at), v = vload(at + 16), w = vload(at + 32);
#pragma GCC unroll 3
        for (int d = 0; d < 3; ++d)
            c[d] = _mm512_permutex2var_ps(_mm512_permutex2var_ps(u, first[d], v), second[d], w);
#else
        alignas(64) float split[3][W];
        for (int k = 0; k < W; ++k) { split[0][k] = at[3 * k]; split[1][k] = at[3 * k + 1]; split[2][k] = at[3 * k + 2]; }
        for (int d = 0; d < 3; ++d) c[d] = vload(split[d]);
#endif
        // maximum with zero as second operand: what is not a number becomes zero
        const V gx = vmin(vmax(vmul(vsub(c[0], bx), sx), zero), top);
        const V gy = vmin(vmax(vmul(vsub(c[1], by), sy), zero), top);
        const V gz = vmin(vmax(vmul(vsub(c[2], bz), sz), zero), top);
        if (full) {
            vcell(gx, gy, gz, key + i);
        } else {
            vcell(gx, gy, gz, found);
            for (int64_t k = 0; k < n - i; ++k) key[i + k] = found[k];
        }
    }
}

static const int BOXES = 64, BATCH = 64;

struct Tree {
    alignas(64) float lo[3][BOXES], hi[3][BOXES];
    alignas(64) uint16_t place[CELLS];  // after the sort: where the cell ends
    Frame frame;
    int box;
};

// others in the order of the curve, in boxes of equal size: xs, ys, zs and the extent of each box
static void build(const float* q, int m, int box, int boxes, Tree& tree, int32_t* key, float* rows, float* xs, float* ys, float* zs) {
    const float inf = std::numeric_limits<float>::infinity();
    uint16_t* place = tree.place;
    tree.box = box;
    std::memset(place, 0, sizeof(tree.place));
    cells(q, m, tree.frame, key);
    for (int i = 0; i < m; ++i) {
        const int k = curve.at[key[i]];
        key[i] = k;
        place[k]++;
    }
    __m128i carry = _mm_setzero_si128();
    const __m128i last = _mm_set1_epi16((short)0x0F0E);
    for (int c = 0; c < CELLS; c += 8) {
        const __m128i v = _mm_load_si128((const __m128i*)(place + c));
        __m128i s = _mm_add_epi16(v, _mm_slli_si128(v, 2));
        s = _mm_add_epi16(s, _mm_slli_si128(s, 4));
        s = _mm_add_epi16(s, _mm_slli_si128(s, 8));
        _mm_store_si128((__m128i*)(place + c), _mm_add_epi16(_mm_sub_epi16(s, v), carry));
        carry = _mm_add_epi16(carry, _mm_shuffle_epi8(s, last));
    }
    for (int i = 0; i < m - 1; ++i) {
        const int at = place[key[i]]++;
        _mm_storeu_ps(rows + at * 4, _mm_loadu_ps(q + i * 3));
    }
    {
        const int i = m - 1, at = place[key[i]]++;
        _mm_storeu_ps(rows + at * 4, _mm_set_ps(0.0f, q[i * 3 + 2], q[i * 3 + 1], q[i * 3]));
    }
    const __m128 final_row = _mm_loadu_ps(rows + (m - 1) * 4);
    for (int i = m; i < box * boxes; ++i) _mm_storeu_ps(rows + i * 4, final_row);
    for (int b = 0; b < boxes; ++b) {
        __m128 l = _mm_set1_ps(inf), h = _mm_set1_ps(-inf);
        for (int i = b * box; i < (b + 1) * box; i += 4) {
            __m128 r0 = _mm_loadu_ps(rows + i * 4), r1 = _mm_loadu_ps(rows + i * 4 + 4);
            __m128 r2 = _mm_loadu_ps(rows + i * 4 + 8), r3 = _mm_loadu_ps(rows + i * 4 + 12);
            l = _mm_min_ps(l, _mm_min_ps(_mm_min_ps(r0, r1), _mm_min_ps(r2, r3)));
            h = _mm_max_ps(h, _mm_max_ps(_mm_max_ps(r0, r1), _mm_max_ps(r2, r3)));
            _MM_TRANSPOSE4_PS(r0, r1, r2, r3);
            _mm_storeu_ps(xs + i, r0);
            _mm_storeu_ps(ys + i, r1);
            _mm_storeu_ps(zs + i, r2);
        }
        alignas(16) float e[8];
        _mm_store_ps(e, l);
        _mm_store_ps(e + 4, h);
        for (int d = 0; d < 3; ++d) { tree.lo[d][b] = e[d]; tree.hi[d][b] = e[4 + d]; }
    }
    for (int b = boxes; b < BOXES; ++b)
        for (int d = 0; d < 3; ++d) { tree.lo[d][b] = inf; tree.hi[d][b] = -inf; }
}

static inline V apart(V x, V y, V z, V a, V b, V c) {
    const V dx = vsub(x, a), dy = vsub(y, b), dz = vsub(z, c);
    return vfma(dz, dz, vfma(dy, dy, vmul(dx, dx)));
}

// the least distance of one point to the others of a box, by lane; FIXED is the box size, 0 if only known at run time
template <int FIXED>
static inline V within(V x, V y, V z, const float* xs, const float* ys, const float* zs, int b, int size) {
    const int box = FIXED ? FIXED : size;
    const float *a = xs + b * box, *c = ys + b * box, *e = zs + b * box;
    V r = apart(x, y, z, vload(a), vload(c), vload(e));
#pragma GCC unroll 4
    for (int i = W; i < box; i += W) r = vmin(r, apart(x, y, z, vload(a + i), vload(c + i), vload(e + i)));
    return r;
}

// Bounds are computed in the order of operations of the distances, and rounding is monotone: a box is left out only if
// none of its points, as computed, is nearer. The result is that of all pairs.
template <int FIXED>
static void search(const float* p, float* out, int64_t n, const Tree& tree, const float* xs, const float* ys, const float* zs) {
    alignas(64) float best[BATCH * W];
    alignas(64) uint32_t list[BATCH * BOXES + 16];
    alignas(64) int32_t key[BATCH];
    float bound[BATCH];
    uint32_t seed[BATCH];
    const int size = tree.box;
    const uint32_t box = FIXED ? FIXED : size;
#if W == 16
    alignas(64) int32_t lanes[16];
    for (int i = 0; i < 16; ++i) lanes[i] = i;
    const __m512i lane = _mm512_loadu_si512(lanes);
#endif
    for (int64_t first = 0; first < n; first += BATCH, p += BATCH * 3, out += BATCH) {
        const int count = (int)std::min<int64_t>(BATCH, n - first);
        cells(p, count, tree.frame, key);
        for (int i = 0; i < count; ++i) {
            const uint32_t end = tree.place[curve.at[key[i]]];
            seed[i] = (end - (end > 0)) / box;
        }
        for (int i = 0; i < count; ++i) {
            const V r = within<FIXED>(vset(p[i * 3]), vset(p[i * 3 + 1]), vset(p[i * 3 + 2]), xs, ys, zs, (int)seed[i], size);
            vstore(best + i * W, r);
            bound[i] = vhmin(r);
        }
        uint32_t total = 0;
        for (int i = 0; i < count; ++i) {
            const V x = vset(p[i * 3]), y = vset(p[i * 3 + 1]), z = vset(p[i * 3 + 2]), most = vset(bound[i]);
            const uint64_t keep = ~(1ull << seed[i]);
#if W != 16
            uint64_t mask = 0;
#endif
#pragma GCC unroll 8
            for (int k = 0; k < BOXES / W; ++k) {
                const V cx = vmin(vmax(x, vload(tree.lo[0] + k * W)), vload(tree.hi[0] + k * W));
                const V cy = vmin(vmax(y, vload(tree.lo[1] + k * W)), vload(tree.hi[1] + k * W));
                const V cz = vmin(vmax(z, vload(tree.lo[2] + k * W)), vload(tree.hi[2] + k * W));
                const V least = apart(x, y, z, cx, cy, cz);
#if W == 16
                const uint32_t near = (uint32_t)_mm512_cmp_ps_mask(least, most, _CMP_LT_OQ) & (uint32_t)((keep >> (k * 16)) & 0xFFFFu);
                const __m512i id = _mm512_add_epi32(lane, _mm512_set1_epi32(i * BOXES + k * 16));
                _mm512_storeu_si512(list + total, _mm512_maskz_compress_epi32((__mmask16)near, id));
                total += (uint32_t)__builtin_popcount(near);
#else
                mask |= (uint64_t)(uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(least, most, _CMP_LT_OQ)) << (k * W);
#endif
            }
#if W != 16
            for (mask &= keep; mask; mask &= mask - 1) list[total++] = (uint32_t)(i * BOXES + __builtin_ctzll(mask));
#endif
        }
        for (uint32_t t = 0; t < total; ++t) {
            const int i = (int)(list[t] / BOXES), b = (int)(list[t] % BOXES);
            const V r = within<FIXED>(vset(p[i * 3]), vset(p[i * 3 + 1]), vset(p[i * 3 + 2]), xs, ys, zs, b, size);
            vstore(best + i * W, vmin(vload(best + i * W), r));
        }
        for (int i = 0; i < count; ++i) out[i] = vhmin(vload(best + i * W));
    }
}

static void pruned(const float* p, const float* q, float* out, int64_t n, int m, Tree& tree) {
    const int box = 16 * ((m + 16 * BOXES - 1) / (16 * BOXES)), boxes = (m + box - 1) / box, padded = box * boxes;
    const int SMALL = 2048;
    alignas(64) float local[SMALL * 8];
    std::vector<float> large;
    float* space = local;
    if (padded > SMALL) { large.resize((size_t)padded * 8); space = large.data(); }
    float *xs = space, *ys = xs + padded, *zs = ys + padded, *rows = zs + padded;
    int32_t* key = (int32_t*)(rows + (size_t)padded * 4);
    build(q, m, box, boxes, tree, key, rows, xs, ys, zs);
    if (box == 32) search<32>(p, out, n, tree, xs, ys, zs);
    else search<0>(p, out, n, tree, xs, ys, zs);
}

at::Tensor nearest(const at::Tensor& points, const at::Tensor& others) {
    TORCH_CHECK(points.dim() == 2 && others.dim() == 2 && points.size(1) == 3 && others.size(1) == 3 && others.size(0) > 0);
    TORCH_CHECK(points.scalar_type() == at::kFloat && others.scalar_type() == at::kFloat);
    const at::Tensor pc = points.contiguous(), qc = others.contiguous();
    const int64_t n = pc.size(0), m = qc.size(0);
    at::Tensor result = at::empty({n}, pc.options());
    const float* p = pc.data_ptr<float>();
    const float* q = qc.data_ptr<float>();
    float* out = result.data_ptr<float>();
    const int64_t vectors = (n + W - 1) / W;
#pragma omp parallel
    {
        const int64_t t = omp_get_thread_num(), count = omp_get_num_threads();
        int64_t v = vectors * t / count;
        const int64_t end = vectors * (t + 1) / count;
        if (v < end) {
            const int64_t from = v * W, to = std::min(n, end * W);
            Tree tree;
            if (!survey(q, m, tree.frame) || !all_finite(p + from * 3, (to - from) * 3)) {
                careful(p, q, out, from, to, m);
            } else if (m >= 256 && m < 65536) {
                pruned(p + from * 3, q, out + from, to - from, (int)m, tree);
            } else {
                for (; v + 4 <= end; v += 4) group<4>(p, q, out, v * W, n, m);
                for (; v + 2 <= end; v += 2) group<2>(p, q, out, v * W, n, m);
                for (; v < end; ++v) group<1>(p, q, out, v * W, n, m);
            }
        }
    }
    return result;
}
"""

module = load_inline(
    name="nearest_distance_boxes",
    cpp_sources=SOURCE,
    functions=["nearest"],
    extra_cflags=["-O3", "-march=native", "-fopenmp"],
    extra_ldflags=["-fopenmp"],
)


class ModelNew(nn.Module):
    def forward(self, points: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        return module.nearest(points, others)

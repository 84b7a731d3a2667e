import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SRC = r'''
#include <torch/types.h>
#include <cmath>
#include <cstdint>

typedef float vf __attribute__((vector_size(64)));
typedef float vu __attribute__((vector_size(64), aligned(4), may_alias));

static inline void row_norm(const float* x, float* y, const float* xn, int64_t w) {
    vf a0 = {}, a1 = {}, a2 = {}, a3 = {};
    int64_t i = 0;
    // While the row is read and summed, take ownership of the output lines.
    for (; i + 64 <= w; i += 64) {
        __builtin_prefetch(y + i, 1, 3);
        __builtin_prefetch(y + i + 16, 1, 3);
        __builtin_prefetch(y + i + 32, 1, 3);
        __builtin_prefetch(y + i + 48, 1, 3);
        const vf v0 = *(const vu*)(x + i), v1 = *(const vu*)(x + i + 16);
        const vf v2 = *(const vu*)(x + i + 32), v3 = *(const vu*)(x + i + 48);
        a0 += v0 * v0;
        a1 += v1 * v1;
        a2 += v2 * v2;
        a3 += v3 * v3;
    }
    float s = 0.f;
    for (; i < w; ++i) s += x[i] * x[i];
    const vf a = (a0 + a1) + (a2 + a3);
    float t[16];
    for (int j = 0; j < 16; ++j) t[j] = a[j];
    for (int h = 8; h > 0; h >>= 1)
        for (int j = 0; j < h; ++j) t[j] += t[j + h];
    s += t[0];
    const float n = std::sqrt(s);
    const float r = 1.0f / (n < 1e-12f ? 1e-12f : n);
    // While the row is scaled out of L1, fetch the next row: the hardware
    // prefetcher stops at the page boundary, which is where rows end.
    int64_t k = 0;
    for (; k + 64 <= w; k += 64) {
        __builtin_prefetch(xn + k, 0, 3);
        __builtin_prefetch(xn + k + 16, 0, 3);
        __builtin_prefetch(xn + k + 32, 0, 3);
        __builtin_prefetch(xn + k + 48, 0, 3);
        const vf v0 = *(const vu*)(x + k), v1 = *(const vu*)(x + k + 16);
        const vf v2 = *(const vu*)(x + k + 32), v3 = *(const vu*)(x + k + 48);
        *(vu*)(y + k) = v0 * r;
        *(vu*)(y + k + 16) = v1 * r;
        *(vu*)(y + k + 32) = v2 * r;
        *(vu*)(y + k + 48) = v3 * r;
    }
    for (; k < w; ++k) y[k] = x[k] * r;
}

torch::Tensor l2n(torch::Tensor x_) {
    torch::Tensor x = x_.contiguous();
    torch::Tensor out = torch::empty_like(x);
    const int64_t w = x.size(-1);
    const int64_t rows = w ? x.numel() / w : 0;
    const float* px = x.data_ptr<float>();
    float* py = out.data_ptr<float>();
    #pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; ++r) {
        const int64_t nr = r + 1 < rows ? r + 1 : r;
        row_norm(px + r * w, py + r * w, px + nr * w, w);
    }
    return out;
}
'''

_ext = load_inline(name="l2n_rows_c", cpp_sources=SRC, functions=["l2n"],
                   extra_cflags=["-O3", "-march=native", "-fopenmp"], extra_ldflags=["-fopenmp"])


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _ext.l2n(x)

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SRC = r'''
#include <torch/types.h>
#include <cmath>
#include <cstdint>

static inline void row_norm(const float* __restrict__ x, float* __restrict__ y, int64_t w) {
    constexpr int L = 64;
    float acc[L];
    for (int j = 0; j < L; ++j) acc[j] = 0.f;
    int64_t i = 0;
    for (; i + L <= w; i += L) {
        #pragma omp simd
        for (int j = 0; j < L; ++j) acc[j] += x[i + j] * x[i + j];
    }
    float s = 0.f;
    for (; i < w; ++i) s += x[i] * x[i];
    for (int h = L / 2; h > 0; h >>= 1)
        for (int j = 0; j < h; ++j) acc[j] += acc[j + h];
    s += acc[0];
    const float n = std::sqrt(s);
    const float r = 1.0f / (n < 1e-12f ? 1e-12f : n);
    #pragma omp simd
    for (int64_t k = 0; k < w; ++k) y[k] = x[k] * r;
}

torch::Tensor l2n(torch::Tensor x_) {
    torch::Tensor x = x_.contiguous();
    torch::Tensor out = torch::empty_like(x);
    const int64_t w = x.size(-1);
    const int64_t rows = w ? x.numel() / w : 0;
    const float* px = x.data_ptr<float>();
    float* py = out.data_ptr<float>();
    #pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < rows; ++r) row_norm(px + r * w, py + r * w, w);
    return out;
}
'''

_ext = load_inline(name="l2n_rows_a", cpp_sources=SRC, functions=["l2n"],
                   extra_cflags=["-O3", "-march=native", "-fopenmp"], extra_ldflags=["-fopenmp"])


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return _ext.l2n(x)

"""Row prefix sums, four rows at a time."""

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <torch/types.h>
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

torch::Tensor run(torch::Tensor x) {
    const int64_t rows = x.size(0), columns = x.size(1);
    torch::Tensor y = torch::empty_like(x);
    const float* input = x.data_ptr<float>();
    float* output = y.data_ptr<float>();
    #pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < rows; row += 4) {
        const int64_t some = std::min<int64_t>(4, rows - row);
        const float* in = input + row * columns;
        float* out = output + row * columns;
        if (some == 4) {
            float a = 0.0f, b = 0.0f, c = 0.0f, d = 0.0f;
            for (int64_t i = 0; i < columns; ++i) {
                out[i] = a += in[i];
                out[columns + i] = b += in[columns + i];
                out[2 * columns + i] = c += in[2 * columns + i];
                out[3 * columns + i] = d += in[3 * columns + i];
            }
            continue;
        }
        for (int64_t r = 0; r < some; ++r) {
            float sum = 0.0f;
            for (int64_t i = 0; i < columns; ++i) out[r * columns + i] = sum += in[r * columns + i];
        }
    }
    return y;
}
"""

module = load_inline(
    name="row_cumsum_b",
    cpp_sources=[SOURCE],
    functions=["run"],
    extra_cflags=["-O3", "-march=native", "-fopenmp"],
    extra_ldflags=["-fopenmp"],
)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return module.run(x.contiguous())

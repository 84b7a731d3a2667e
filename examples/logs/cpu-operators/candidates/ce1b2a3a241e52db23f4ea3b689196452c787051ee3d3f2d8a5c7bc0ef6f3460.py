"""Row prefix sums, one row at a time."""

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
    for (int64_t row = 0; row < rows; ++row) {
        float sum = 0.0f;
        for (int64_t i = 0; i < columns; ++i) {
            sum += input[row * columns + i];
            output[row * columns + i] = sum;
        }
    }
    return y;
}
"""

module = load_inline(
    name="row_cumsum_a",
    cpp_sources=[SOURCE],
    functions=["run"],
    extra_cflags=["-O3", "-march=native", "-fopenmp"],
    extra_ldflags=["-fopenmp"],
)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return module.run(x.contiguous())

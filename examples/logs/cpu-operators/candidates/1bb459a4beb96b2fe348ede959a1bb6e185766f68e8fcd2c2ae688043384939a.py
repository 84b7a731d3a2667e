"""Cross-entropy, one loop over tokens."""

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

torch::Tensor run(torch::Tensor x, torch::Tensor target) {
    const int64_t rows = x.size(0), columns = x.size(1);
    const float* input = x.data_ptr<float>();
    const int64_t* label = target.data_ptr<int64_t>();
    double total = 0.0;
    #pragma omp parallel for schedule(static) reduction(+ : total)
    for (int64_t row = 0; row < rows; ++row) {
        const float* in = input + row * columns;
        float highest = in[0];
        for (int64_t i = 1; i < columns; ++i) highest = std::max(highest, in[i]);
        float sum = 0.0f;
        for (int64_t i = 0; i < columns; ++i) sum += std::exp(in[i] - highest);
        total += highest + std::log(sum) - in[label[row]];
    }
    torch::Tensor y = torch::empty({}, x.options());
    *y.data_ptr<float>() = static_cast<float>(total / rows);
    return y;
}
"""

module = load_inline(
    name="cross_entropy_a",
    cpp_sources=[SOURCE],
    functions=["run"],
    extra_cflags=["-O3", "-march=native", "-fopenmp"],
    extra_ldflags=["-fopenmp"],
)


class ModelNew(nn.Module):
    def forward(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return module.run(logits.contiguous(), target.contiguous())

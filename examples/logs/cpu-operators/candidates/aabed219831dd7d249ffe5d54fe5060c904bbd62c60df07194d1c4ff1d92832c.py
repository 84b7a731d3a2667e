"""Sum over the middle dimension, rows in order."""

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
    const int64_t batch = x.size(0), middle = x.size(1), inner = x.size(2);
    torch::Tensor y = torch::empty({batch, inner}, x.options());
    const float* input = x.data_ptr<float>();
    float* output = y.data_ptr<float>();
    #pragma omp parallel for schedule(static)
    for (int64_t b = 0; b < batch; ++b) {
        float* out = output + b * inner;
        std::fill(out, out + inner, 0.0f);
        for (int64_t m = 0; m < middle; ++m) {
            const float* in = input + (b * middle + m) * inner;
            #pragma omp simd
            for (int64_t i = 0; i < inner; ++i) out[i] += in[i];
        }
    }
    return y;
}
"""

module = load_inline(
    name="sum_middle_b",
    cpp_sources=[SOURCE],
    functions=["run"],
    extra_cflags=["-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-mprefer-vector-width=512", "-fopenmp"],
    extra_ldflags=["-fopenmp"],
)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return module.run(x.contiguous())

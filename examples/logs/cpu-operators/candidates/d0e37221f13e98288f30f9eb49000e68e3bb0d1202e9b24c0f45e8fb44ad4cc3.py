"""Depthwise 3x3 convolution, nine products in registers."""

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

torch::Tensor run(torch::Tensor x, torch::Tensor weight) {
    const int64_t channels = x.size(1), height = x.size(2), width = x.size(3), planes = x.size(0) * channels;
    const int64_t kernel = weight.size(-1), padding = kernel / 2;
    torch::Tensor y = torch::empty_like(x);
    const float* input = x.data_ptr<float>();
    const float* filters = weight.data_ptr<float>();
    float* output = y.data_ptr<float>();
    #pragma omp parallel
    {
        std::vector<float> nothing(width + 32, 0.0f);
        #pragma omp for schedule(static)
        for (int64_t p = 0; p < planes; ++p) {
            const float* in = input + p * height * width;
            const float* f = filters + (p % channels) * kernel * kernel;
            float* out = output + p * height * width;
            if (kernel != 3 || width < 3) {
                for (int64_t n = 0; n < height * width; ++n) {
                    float sum = 0.0f;
                    for (int64_t k = 0; k < kernel * kernel; ++k) {
                        const int64_t h = n / width + k / kernel - padding, w = n % width + k % kernel - padding;
                        if (h >= 0 && h < height && w >= 0 && w < width) sum += f[k] * in[h * width + w];
                    }
                    out[n] = sum;
                }
                continue;
            }
            for (int64_t r = 0; r < height; ++r) {
                const float* a = r > 0 ? in + (r - 1) * width : nothing.data();
                const float* b = in + r * width;
                const float* c = r + 1 < height ? in + (r + 1) * width : nothing.data();
                float* line = out + r * width;
                #pragma omp simd
                for (int64_t w = 1; w < width - 1; ++w) {
                    const float top = f[0] * a[w - 1] + f[1] * a[w] + f[2] * a[w + 1];
                    const float middle = f[3] * b[w - 1] + f[4] * b[w] + f[5] * b[w + 1];
                    const float low = f[6] * c[w - 1] + f[7] * c[w] + f[8] * c[w + 1];
                    line[w] = top + middle + low;
                }
                line[0] = f[1] * a[0] + f[2] * a[1] + f[4] * b[0] + f[5] * b[1] + f[7] * c[0] + f[8] * c[1];
                const int64_t e = width - 1;
                line[e] = f[0] * a[e - 1] + f[1] * a[e] + f[3] * b[e - 1] + f[4] * b[e] + f[6] * c[e - 1] + f[7] * c[e];
            }
        }
    }
    return y;
}
"""

module = load_inline(
    name="depthwise_conv_2d_c",
    cpp_sources=[SOURCE],
    functions=["run"],
    extra_cflags=["-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-mprefer-vector-width=512", "-fopenmp"],
    extra_ldflags=["-fopenmp"],
)


class ModelNew(nn.Module):
    def __init__(self, channels: int, kernel: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, kernel, padding=kernel // 2, groups=channels, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return module.run(x.contiguous(), self.conv.weight.contiguous())

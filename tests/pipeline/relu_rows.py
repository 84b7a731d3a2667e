import torch
from torch.utils.cpp_extension import load_inline

SOURCE = """
#include <torch/extension.h>
torch::Tensor relu_rows(torch::Tensor x) {
  auto y = torch::empty_like(x);
  const float* p = x.data_ptr<float>();
  float* q = y.data_ptr<float>();
  for (int64_t i = 0; i < x.numel(); ++i) q[i] = p[i] > 0.0f ? p[i] : 0.0f;
  return y;
}
"""
FLAGS = ["-O2", "-fopenmp"]  # of most candidates in tests, for which headers are precompiled
module = load_inline(name="relu_rows", cpp_sources=SOURCE, functions=["relu_rows"], extra_cflags=FLAGS)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return module.relu_rows(x)

"""What the prompts ask for is what the guard lets through."""

import pytest

from artifacts.candidate import Language
from optimizer.evaluation.guard.static import check_source
from optimizer.llm.protocol import LlmAnswer
from optimizer.prompting.answer import parse_answer
from optimizer.tuning import declared

CUDA = '''import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

BLOCK = 256
TUNABLES = {"BLOCK": [256, 64, 128]}
SOURCE = r"""
#include <torch/types.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
__global__ void twice(const float* x, float* y, int64_t n) {
  int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
  if (i < n) y[i] = 2 * x[i];
}
torch::Tensor run(torch::Tensor x) {
  auto y = torch::empty_like(x);
  auto stream = at::cuda::getCurrentCUDAStream();
  int64_t n = x.numel();
  twice<<<(n + BLOCK - 1) / BLOCK, BLOCK, 0, stream>>>(x.data_ptr<float>(), y.data_ptr<float>(), n);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return y;
}
"""
module = load_inline(
    name="twice",
    cpp_sources="torch::Tensor run(torch::Tensor x);",
    cuda_sources=SOURCE,
    functions=["run"],
    extra_cuda_cflags=[f"-DBLOCK={BLOCK}"])

class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
    def forward(self, x):
        return module.run(x.contiguous())
'''

CPP = '''import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

BLOCK = 256
TUNABLES = {"BLOCK": [256, 64, 128]}
SOURCE = r"""
#include <torch/types.h>
torch::Tensor run(torch::Tensor x) {
  auto y = torch::empty_like(x);
  const float* a = x.data_ptr<float>(); float* b = y.data_ptr<float>(); int64_t n = x.numel();
  #pragma omp parallel for simd
  for (int64_t i = 0; i < n; ++i) b[i] = 2 * a[i];
  return y;
}
"""
module = load_inline(
    name="twice",
    cpp_sources=SOURCE,
    functions=["run"],
    extra_cflags=["-O3", "-march=native", "-fopenmp", f"-DBLOCK={BLOCK}"],
    extra_ldflags=["-fopenmp"])

class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
    def forward(self, x):
        return module.run(x.contiguous())
'''

TRITON = """import torch
import triton
import triton.language as tl

@triton.jit
def twice(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, 2 * tl.load(x + i, mask=i < n), mask=i < n)

class ModelNew(torch.nn.Module):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        twice[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), BLOCK=256)
        return y
"""


@pytest.mark.parametrize(
    ("source", "backend", "language"),
    [(CUDA, "cuda", Language.CUDA), (CPP, "cpu", Language.CPP), (TRITON, "cuda", Language.TRITON)],
)
def test_a_candidate_written_as_the_contract_says_passes_the_static_guard(
    source: str, backend: str, language: Language
) -> None:
    text = f"PLAN: double it.\nSTRATEGY: none\n```python\n{source}```\n"
    candidate = parse_answer(LlmAnswer(text=text, model="m")).candidate
    assert [finding.message for finding in check_source(candidate.source, backend) if finding.fatal] == []
    found = declared(candidate.source)
    assert (found is not None) == (language is not Language.TRITON)

"""Tasks and candidates for ``benchmarks/evaluation.py``: four ways to build, right, wrong and not building."""

from __future__ import annotations

from dataclasses import dataclass

ROWS, COLUMNS = 1024, 4096

_TASK = """
import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
    def __init__(self):
        super().__init__()
    def forward(self, x):
        return {expression}

def get_inputs():
    return [torch.randn({rows}, {columns})]

def get_init_inputs():
    return []
"""

ELEMENTWISE = {
    "relu": ("torch.relu(x)", "fmaxf(v, 0.0f)", "tl.maximum(v, 0.0)"),
    "sigmoid": ("torch.sigmoid(x)", "1.0f / (1.0f + expf(-v))", "1.0 / (1.0 + tl.exp(-v))"),
    "silu": ("F.silu(x)", "v / (1.0f + expf(-v))", "v / (1.0 + tl.exp(-v))"),
    "square": ("x * x", "v * v", "v * v"),
    "leaky": ("F.leaky_relu(x, 0.1)", "v > 0.0f ? v : 0.1f * v", "tl.where(v > 0.0, v, 0.1 * v)"),
    "hardswish": (
        "F.hardswish(x)",
        "v * fminf(fmaxf(v + 3.0f, 0.0f), 6.0f) / 6.0f",
        "v * tl.minimum(tl.maximum(v + 3.0, 0.0), 6.0) / 6.0",
    ),
}
"""Name → reference in torch, the same in CUDA C++ and in Triton."""

_ROW_SUM = "torch.sum(x, dim=1)"

_ELEMENTWISE_CUDA = """
{include}
__global__ void apply(const float* __restrict__ x, float* __restrict__ y, int64_t n) {{
  int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) {{ float v = x[i]; y[i] = {body}; }}
}}
torch::Tensor run(torch::Tensor x) {{
  auto y = torch::empty_like(x);
  int64_t n = x.numel();
  const int block = 256;
  apply<<<(n + block - 1) / block, block>>>(x.data_ptr<float>(), y.data_ptr<float>(), n);
  return y;
}}
{binding}
"""

_ROW_SUM_CUDA = """
{include}
template <int THREADS>
__global__ void row_sum(const float* __restrict__ x, float* __restrict__ y, int columns) {{
  __shared__ float part[THREADS];
  float total = 0.0f;
  for (int c = threadIdx.x; c < columns; c += THREADS) total += x[(int64_t)blockIdx.x * columns + c];
  part[threadIdx.x] = total;
  __syncthreads();
  for (int half = THREADS / 2; half > 0; half /= 2) {{
    if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
    __syncthreads();
  }}
  if (threadIdx.x == 0) y[blockIdx.x] = part[0]{wrong};
}}
torch::Tensor run(torch::Tensor x) {{
  auto y = torch::empty({{x.size(0)}}, x.options());
  row_sum<256><<<x.size(0), 256>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.size(1));
  return y;
}}
{binding}
"""

_INLINE = '''
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

cuda_source = r"""{cuda}"""
module = load_inline(name="{name}", cpp_sources="torch::Tensor run(torch::Tensor x);", cuda_sources=cuda_source,
                     functions=["run"], extra_cuda_cflags=["-O3"])

class ModelNew(nn.Module):
    def forward(self, x):
        return module.run(x)
'''

_LOAD = '''
import os, tempfile
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load

folder = tempfile.mkdtemp()
path = os.path.join(folder, "kernel.cu")
with open(path, "w") as file:
    file.write(r"""{cuda}""")
module = load(name="{name}", sources=[path], extra_cuda_cflags=["-O3"])

class ModelNew(nn.Module):
    def forward(self, x):
        return module.run(x)
'''

_TRITON = """
import torch
import torch.nn as nn
import triton
import triton.language as tl

@triton.jit
def apply(x, y, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + offsets, mask=offsets < n)
    tl.store(y + offsets, {body}, mask=offsets < n)

class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        n = x.numel()
        apply[(triton.cdiv(n, 1024),)](x, y, n, BLOCK=1024)
        return y
"""

_BINDING = 'PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("run", &run); }'


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkCandidate:
    """A candidate with its task, how it is built and the verdict it deserves."""

    name: str
    kind: str
    expected: str
    task: str
    source: str


def candidates() -> list[BenchmarkCandidate]:
    """All of them: 6 operators × 4 kinds right, 2 × 4 wrong, 1 × 4 not building, and row sums."""
    made = []
    for kind in ("extension_h", "types_h", "load", "triton"):
        names = list(ELEMENTWISE)
        made += [_elementwise(name, kind, "correct") for name in names]
        made += [_elementwise(name, kind, "wrong_result") for name in names[:2]]
        made.append(_elementwise(names[0], kind, "compile_error"))
        if kind != "triton":
            made += [_row_sum(kind, expected) for expected in ("correct", "wrong_result")]
    return made


def _elementwise(name: str, kind: str, expected: str) -> BenchmarkCandidate:
    reference, cuda, triton = ELEMENTWISE[name]
    task = _TASK.format(expression=reference, rows=ROWS, columns=COLUMNS)
    wrong = {"correct": "", "wrong_result": " + 0.125", "compile_error": " + undeclared_name"}[expected]
    title = f"{name}_{kind}_{expected}"
    if kind == "triton":
        body = f"({triton}){wrong}" if expected != "compile_error" else f"({triton}) +* 1"
        return BenchmarkCandidate(name=title, kind=kind, expected=expected, task=task, source=_TRITON.format(body=body))
    text = _ELEMENTWISE_CUDA.format(body=f"({cuda}){wrong}", **_dress(kind))
    return BenchmarkCandidate(name=title, kind=kind, expected=expected, task=task, source=_wrapped(kind, title, text))


def _row_sum(kind: str, expected: str) -> BenchmarkCandidate:
    task = _TASK.format(expression=_ROW_SUM, rows=ROWS, columns=COLUMNS)
    text = _ROW_SUM_CUDA.format(wrong="" if expected == "correct" else " * 0.5f", **_dress(kind))
    title = f"row_sum_{kind}_{expected}"
    return BenchmarkCandidate(name=title, kind=kind, expected=expected, task=task, source=_wrapped(kind, title, text))


def _dress(kind: str) -> dict[str, str]:
    include = {
        "extension_h": "#include <torch/extension.h>",
        "types_h": "#include <torch/types.h>",
        "load": "#include <torch/extension.h>",
    }[kind]
    return {"include": f"{include}\n#include <cuda_runtime.h>", "binding": _BINDING if kind == "load" else ""}


def _wrapped(kind: str, name: str, cuda: str) -> str:
    return (_LOAD if kind == "load" else _INLINE).format(cuda=cuda, name=name)

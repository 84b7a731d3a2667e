"""Honest candidates for tasks of KernelBench and robust-kbench, by task id; matrix products are left to torch."""

from __future__ import annotations

_HEAD = """
import torch
import torch.nn as nn
import torch.nn.functional as F
import triton
import triton.language as tl
"""

_ELEMENTWISE = """
@triton.jit
def apply(x, y, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + offsets, mask=offsets < n)
    tl.store(y + offsets, {body}, mask=offsets < n)


def elementwise(x):
    y = torch.empty_like(x)
    apply[(triton.cdiv(x.numel(), 2048),)](x, y, x.numel(), BLOCK=2048)
    return y
"""


def _elementwise(body: str) -> str:
    return _HEAD + _ELEMENTWISE.replace("{body}", body)


_PLAIN = """

class ModelNew(nn.Module):
    def forward(self, x):
        return elementwise(x)
"""

_NEW_GELU = "v / (1.0 + tl.exp(-1.5957691216057308 * (v + 0.044715 * v * v * v)))"
"""0.5 (1 + tanh z) is 1 / (1 + exp(-2 z))."""

_LAYER_NORM = """
@triton.jit
def chunk_sums(x, mean, parts, width, chunks, SQUARES: tl.constexpr, BLOCK: tl.constexpr):
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    offsets = chunk * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + row * width + offsets, mask=offsets < width, other=0.0)
    if SQUARES:
        v = tl.where(offsets < width, v - tl.load(mean + row), 0.0)
        v = v * v
    tl.store(parts + row * chunks + chunk, tl.sum(v))


@triton.jit
def row_means(parts, out, width, chunks, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, chunks, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        total += tl.load(parts + row * chunks + offsets, mask=offsets < chunks, other=0.0)
    tl.store(out + row, tl.sum(total) / width)


@triton.jit
def scale_shift(x, mean, variance, weight, bias, y, width, eps, BLOCK: tl.constexpr):
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    offsets = chunk * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < width
    v = tl.load(x + row * width + offsets, mask=inside)
    factor = 1.0 / tl.sqrt(tl.load(variance + row) + eps)
    v = (v - tl.load(mean + row)) * factor * tl.load(weight + offsets, mask=inside)
    tl.store(y + row * width + offsets, v + tl.load(bias + offsets, mask=inside), mask=inside)


def layer_norm(x, weight, bias, eps):
    width = weight.numel()
    rows, chunks = x.numel() // width, triton.cdiv(width, 4096)
    parts = torch.empty(rows, chunks, device=x.device, dtype=torch.float32)
    mean, variance = torch.empty(rows, device=x.device), torch.empty(rows, device=x.device)
    y = torch.empty_like(x)
    chunk_sums[(rows, chunks)](x, mean, parts, width, chunks, SQUARES=False, BLOCK=4096)
    row_means[(rows,)](parts, mean, width, chunks, BLOCK=1024)
    chunk_sums[(rows, chunks)](x, mean, parts, width, chunks, SQUARES=True, BLOCK=4096)
    row_means[(rows,)](parts, variance, width, chunks, BLOCK=1024)
    scale_shift[(rows, chunks)](x, mean, variance, weight, bias, y, width, eps, BLOCK=4096)
    return y
"""

_KERNELBENCH_LAYER_NORM = """

class ModelNew(nn.Module):
    def __init__(self, normalized_shape):
        super().__init__()
        self.ln = nn.LayerNorm(normalized_shape)

    def forward(self, x):
        return layer_norm(x, self.ln.weight, self.ln.bias, self.ln.eps)
"""

_ROBUST_LAYER_NORM = """

class ModelNew(nn.Module):
    def __init__(self, num_features, dim1, dim2, eps=1e-5, init_method="standard"):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(num_features, dim1, dim2))
        self.bias = nn.Parameter(torch.empty(num_features, dim1, dim2))

    def forward(self, x):
        return layer_norm(x, self.weight, self.bias, self.eps)
"""

_GEMM_SCALE_LEAKY = """

class ModelNew(nn.Module):
    def __init__(self, in_features, out_features, multiplier, negative_slope):
        super().__init__()
        self.gemm = nn.Linear(in_features, out_features)

    def forward(self, x):
        return elementwise(self.gemm(x))
"""

_BIAS_RELU = """
@triton.jit
def bias_relu(x, bias, y, n, width, BLOCK: tl.constexpr):
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + offsets, mask=offsets < n) + tl.load(bias + offsets % width, mask=offsets < n)
    tl.store(y + offsets, tl.maximum(v, 0.0), mask=offsets < n)


class ModelNew(nn.Module):
    def __init__(self, in_features, out_features, bias_shape):
        super().__init__()
        self.gemm = nn.Linear(in_features, out_features, bias=False)
        self.bias = nn.Parameter(torch.randn(bias_shape))

    def forward(self, x):
        product = self.gemm(x)
        y = torch.empty_like(product)
        bias_relu[(triton.cdiv(y.numel(), 2048),)](product, self.bias, y, y.numel(), y.shape[1], BLOCK=2048)
        return y
"""

_MLP = """

class OwnReLU(nn.Module):
    def forward(self, x):
        return elementwise(x)


class ModelNew(nn.Module):
    def __init__(self, input_size, hidden_layer_sizes, output_size):
        super().__init__()
        layers = []
        for size in hidden_layer_sizes:
            layers += [nn.Linear(input_size, size), OwnReLU()]
            input_size = size
        self.network = nn.Sequential(*layers, nn.Linear(input_size, output_size))

    def forward(self, x):
        return self.network(x)
"""

_RMS_NORM = """
@triton.jit
def rms_norm(x, weight, y, width, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    offsets = tl.arange(0, BLOCK)
    inside = offsets < width
    v = tl.load(x + row * width + offsets, mask=inside, other=0.0)
    factor = 1.0 / tl.sqrt(tl.sum(v * v) / width + eps)
    tl.store(y + row * width + offsets, v * factor * tl.load(weight + offsets, mask=inside), mask=inside)


class ModelNew(nn.Module):
    def __init__(self, num_features, eps):
        super().__init__()
        self.eps = eps
        self.w = nn.Parameter(torch.ones(num_features))

    def forward(self, x):
        y = torch.empty_like(x)
        width = x.shape[-1]
        rms_norm[(x.numel() // width,)](x, self.w, y, width, self.eps, BLOCK=triton.next_power_of_2(width))
        return y
"""

_LINEAR_RELU_BACKWARD = """
@triton.jit
def masked(product, bias, gradient, y, n, width, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < n
    v = tl.load(product + offsets, mask=inside) + tl.load(bias + offsets % width, mask=inside)
    tl.store(y + offsets, tl.where(v > 0.0, tl.load(gradient + offsets, mask=inside), 0.0), mask=inside)


@triton.jit
def column_sums(x, y, rows, width, BLOCK: tl.constexpr):
    column = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    tl.store(y + column, tl.sum(tl.load(x + offsets * width + column, mask=offsets < rows, other=0.0)))


class ForwardPass(nn.Module):
    def __init__(self, num_input_features, num_output_features):
        super().__init__()
        self.weights = nn.Parameter(torch.empty(num_output_features, num_input_features))
        self.biases = nn.Parameter(torch.empty(num_output_features))


class ModelNew(nn.Module):
    def __init__(self, num_input_features=4096, num_output_features=4096, init_method="normal"):
        super().__init__()
        self.forward_pass = ForwardPass(num_input_features, num_output_features)

    def forward(self, x, gradient):
        weights, biases = self.forward_pass.weights, self.forward_pass.biases
        product = torch.mm(x, weights.t())
        rows, width = product.shape
        inner, sums = torch.empty_like(product), torch.empty_like(biases)
        masked[(triton.cdiv(product.numel(), 1024),)](
            product, biases, gradient, inner, product.numel(), width, BLOCK=1024
        )
        column_sums[(width,)](inner, sums, rows, width, BLOCK=triton.next_power_of_2(rows))
        return torch.mm(inner, weights), torch.mm(inner.t(), x), sums
"""

_RELU = "tl.maximum(v, 0.0)"

CANDIDATES = {
    "kernelbench/1/19_relu": _elementwise(_RELU) + _PLAIN,
    "kernelbench/1/40_layernorm": _HEAD + _LAYER_NORM + _KERNELBENCH_LAYER_NORM,
    "kernelbench/1/88_mingptnewgelu": _elementwise(_NEW_GELU) + _PLAIN,
    "kernelbench/2/12_gemm_multiply_leakyrelu": _elementwise("tl.where(v > 0.0, 2.0 * v, 0.2 * v)") + _GEMM_SCALE_LEAKY,
    "kernelbench/2/76_gemm_add_relu": _HEAD + _BIAS_RELU,
    "kernelbench/3/3_deepnarrowmlp": _elementwise(_RELU) + _MLP,
    "robust_kbench/-/layernorm": _HEAD + _LAYER_NORM + _ROBUST_LAYER_NORM,
    "robust_kbench/-/llama_rmsnorm": _HEAD + _RMS_NORM,
    "robust_kbench/-/mnist_linear_relu_backward": _HEAD + _LINEAR_RELU_BACKWARD,
}

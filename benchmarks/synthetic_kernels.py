"""Made-up kernels of the sizes of real ones: CUDA inside Python, Triton and torch, made of pieces that can be changed.

No two pieces with different numbers are the same text, so that a source can be new or a repetition as wanted. An edit
touches about as much as in five public logs: 45 of 100 lines of a child are not in its parent (mean), and 77 of 100
characters of their distinct sources stand in functions or statements at top level that no earlier source has.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, replace
from typing import NamedTuple

CUDA = (
    """
// Stage a tile of the {noun} in shared memory, then reduce it warp by warp.
__global__ void {name}_{serial}(const float* __restrict__ input, float* __restrict__ output, int rows, int cols) {{
    __shared__ float tile[{block} / 32 + 1];
    const int row = blockIdx.x;
    const int lane = threadIdx.x & 31;
    float acc = {scale}f;
    for (int i = threadIdx.x; i < cols; i += {block}) {{
        const float value = input[row * cols + i] * {scale}f;
        acc += value > 0.0f ? value : value * 0.{block}f;
    }}
    #pragma unroll
    for (int offset = 16; offset > 0; offset >>= 1) {{
        acc += __shfl_down_sync(0xffffffff, acc, offset);
    }}
    if (lane == 0) tile[threadIdx.x / 32] = acc;
    __syncthreads();
    if (threadIdx.x == 0) {{
        float total = 0.0f;
        for (int warp = 0; warp < {block} / 32; ++warp) total += tile[warp];
        output[row] = total / (float)cols;  // mean of the {noun}
    }}
}}
""",
    """
// Vector loads: four elements of the {noun} a thread.
__global__ void {name}_{serial}(const float4* __restrict__ input, float4* __restrict__ output, size_t count) {{
    const size_t stride = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += stride) {{
        float4 value = __ldg(&input[i]);
        value.x = fmaxf(value.x * {scale}f + 0.5f, 0.0f);
        value.y = fmaxf(value.y * {scale}f + 0.5f, 0.0f);
        value.z = fmaxf(value.z * {scale}f + 0.5f, 0.0f);
        value.w = fmaxf(value.w * {scale}f + 0.5f, 0.0f);
        output[i] = value;
    }}
}}
""",
    """
// Tiled product; each thread keeps {serial} of the {noun} in registers.
template <int TILE>
__global__ void {name}_{serial}(const float* A, const float* B, float* C, int M, int N, int K) {{
    __shared__ float As[{block} / 8][{block} / 8 + 1];
    __shared__ float Bs[{block} / 8][{block} / 8 + 1];
    const int row = blockIdx.y * {block} / 8 + threadIdx.y;
    const int col = blockIdx.x * {block} / 8 + threadIdx.x;
    float acc[4] = {{0.0f, 0.0f, 0.0f, 0.0f}};
    for (int k0 = 0; k0 < K; k0 += {block} / 8) {{
        As[threadIdx.y][threadIdx.x] = (row < M && k0 + threadIdx.x < K) ? A[row * K + k0 + threadIdx.x] : 0.0f;
        Bs[threadIdx.y][threadIdx.x] = (col < N && k0 + threadIdx.y < K) ? B[(k0 + threadIdx.y) * N + col] : 0.0f;
        __syncthreads();
        #pragma unroll
        for (int k = 0; k < {block} / 8; ++k) {{
            acc[k & 3] = fmaf(As[threadIdx.y][k], Bs[k][threadIdx.x], acc[k & 3]);
        }}
        __syncthreads();
    }}
    if (row < M && col < N) {{
        C[row * N + col] = (acc[0] + acc[1] + acc[2] + acc[3]) * {scale}f;
    }}
}}
""",
    """
static inline __device__ float {name}_value_{serial}(float x, float bias) {{
    const float shifted = x + bias * {scale}f;  /* the {noun} before the activation */
    const float cubed = shifted * shifted * shifted;
    return 0.5f * shifted * (1.0f + tanhf(0.79788456f * (shifted + 0.044715f * cubed)));
}}

__global__ void __launch_bounds__({block}) {name}_{serial}(const float* x, const float* bias, float* y, int n, int c) {{
    const int index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= n) return;
    const int channel = (index / {block}) % c;
    y[index] = {name}_value_{serial}(x[index], bias[channel]);
}}
""",
)
TRITON = (
    """
@triton.jit
def {name}_{serial}(x_ptr, y_ptr, rows, cols, stride, BLOCK: tl.constexpr):
    # One program handles one row of the {noun}.
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    mask = offsets < cols
    values = tl.load(x_ptr + row * stride + offsets, mask=mask, other=-float("inf"))
    largest = tl.max(values, axis=0)
    shifted = tl.exp(values - largest) * {scale}
    total = tl.sum(shifted, axis=0)
    tl.store(y_ptr + row * stride + offsets, shifted / total, mask=mask)


def launch_{name}_{serial}(x):
    y = torch.empty_like(x)
    grid = (x.shape[0],)
    {name}_{serial}[grid](x, y, x.shape[0], x.shape[1], x.stride(0), BLOCK={block}, num_warps=4, num_stages=2)
    return y
""",
    """
@triton.autotune(configs=[triton.Config({{"BLOCK_M": {block}, "BLOCK_N": 64}}, num_warps=8)], key=["M", "N", "K"])
@triton.jit
def {name}_{serial}(a_ptr, b_ptr, c_ptr, M, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    pid_m = tl.program_id(0)
    pid_n = tl.program_id(1)
    offs_m = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, K, BLOCK_K):
        offs_k = k + tl.arange(0, BLOCK_K)
        a = tl.load(a_ptr + offs_m[:, None] * K + offs_k[None, :], mask=offs_k[None, :] < K, other=0.0)
        b = tl.load(b_ptr + offs_k[:, None] * N + offs_n[None, :], mask=offs_k[:, None] < K, other=0.0)
        acc += tl.dot(a, b)
    acc = acc * {scale}  # scale of the {noun}
    tl.store(c_ptr + offs_m[:, None] * N + offs_n[None, :], acc, mask=(offs_m[:, None] < M) & (offs_n[None, :] < N))
""",
)
TORCH = (
    """
class {name}_{serial}(nn.Module):
    def __init__(self, features: int = {block}) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(features, features) * {scale})
        self.bias = nn.Parameter(torch.zeros(features))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # The {noun} in one expression.
        x = torch.matmul(x, self.weight.t()) + self.bias
        x = F.gelu(x, approximate="tanh")
        return torch.softmax(x - x.amax(dim=-1, keepdim=True), dim=-1)
""",
    """
def {name}_{serial}(x, weight, bias, stride={serial}):
    x = F.conv2d(x, weight, bias, stride=stride, padding=1)
    x = F.relu(x, inplace=True)
    x = F.max_pool2d(x, kernel_size=2)
    mean = x.mean(dim=(2, 3), keepdim=True)
    var = x.var(dim=(2, 3), keepdim=True, unbiased=False)
    return (x - mean) * torch.rsqrt(var + 1e-5) * {scale}  # normalised {noun}
""",
)
NOUNS = ("epilogue", "row sums", "operand", "gradient", "histogram", "running maximum", "bias", "weights")
NAMES = ("fused_rows", "scaled_copy", "block_product", "gated_unit", "row_norm", "partial_sum", "window_sum", "gather")
LENGTHS = {"cuda": (8.79, 0.66), "triton": (9.06, 0.5), "torch": (7.75, 0.85)}
"""Logarithm of the median length, and its spread, of the sources in five public logs, by language."""
SHARES = {"cuda": 0.58, "triton": 0.14, "torch": 0.28}
"""How often a distinct source of those logs is in a language."""
PIECES = {"cuda": CUDA, "triton": TRITON, "torch": TORCH}
HEADS = {
    "cuda": "import torch\nimport torch.nn as nn\nfrom torch.utils.cpp_extension import load_inline\n\n"
    'source = r"""\n#include <torch/extension.h>\n#include <cuda_runtime.h>\n',
    "triton": "import torch\nimport torch.nn as nn\nimport triton\nimport triton.language as tl\n\n",
    "torch": "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n",
}
TAILS = {
    "cuda": """
torch::Tensor forward(torch::Tensor x) {
    auto y = torch::empty_like(x);
    const int n = x.numel();
    launch<<<(n + 255) / 256, 256>>>(x.data_ptr<float>(), y.data_ptr<float>(), n);
    return y;
}
\"\"\"

module = load_inline(name="kernels", cpp_sources="torch::Tensor forward(torch::Tensor x);", cuda_sources=source,
                     functions=["forward"], extra_cuda_cflags=["-O3"])


class ModelNew(nn.Module):
    def forward(self, x):
        return module.forward(x.contiguous())
""",
    "triton": "\n\nclass ModelNew(nn.Module):\n    def forward(self, x):\n        return launch(x.contiguous())\n",
    "torch": "\n\nclass ModelNew(nn.Module):\n    def forward(self, x):\n        return self.layers(x)\n",
}


REWRITTEN = 0.8
"""Share of the functions of a source that an edit changes."""
LOCALS = re.compile(
    r"\b(?:value|row|acc|lane|total|tile|index|channel|shifted|cubed|offsets|values|largest|pid_m|pid_n|offs_m|offs_n"
    r"|offs_k|grid|mean|As|Bs|k0|col)\b"
)
"""Names that a rewrite may change."""
SUFFIXED = {
    language: tuple(LOCALS.sub(r"\g<0>{suffix}", text) for text in pieces) for language, pieces in PIECES.items()
}


class Piece(NamedTuple):
    """One function of a source: which template, with which numbers and names."""

    template: int
    name: str
    noun: str
    serial: int
    block: int
    scale: float
    renamed: int

    def text(self, language: str) -> str:
        """The function."""
        suffix = f"_{self.renamed}" if self.renamed else ""
        return SUFFIXED[language][self.template].format(suffix=suffix, **self._asdict())


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """A source as the pieces it is made of."""

    language: str
    pieces: tuple[Piece, ...]

    def source(self) -> str:
        """The text."""
        body = "".join(piece.text(self.language) for piece in self.pieces)
        return HEADS[self.language] + body + TAILS[self.language]


def kernel(rng: random.Random) -> Kernel:
    """A source of a length that real ones have."""
    language = rng.choices(list(SHARES), list(SHARES.values()))[0]
    wanted = min(rng.lognormvariate(*LENGTHS[language]), 40_000)
    left = wanted - len(HEADS[language]) - len(TAILS[language])
    pieces: list[Piece] = []
    while left > 0 or not pieces:
        pieces.append(piece(rng, language))
        left -= len(pieces[-1].text(language))
    return Kernel(language=language, pieces=tuple(pieces))


def changed(parent: Kernel, rng: random.Random) -> Kernel:
    """``parent`` with most functions edited, and now and then one more or one less."""
    pieces = [edited(item, rng) if rng.random() < REWRITTEN else item for item in parent.pieces]
    place, deed = rng.randrange(len(pieces)), rng.random()
    if deed < 0.3:
        pieces.insert(place, piece(rng, parent.language))
    elif deed < 0.55 and len(pieces) > 1:
        del pieces[place]
    else:
        pieces[place] = piece(rng, parent.language)
    return replace(parent, pieces=tuple(pieces))


def edited(old: Piece, rng: random.Random) -> Piece:
    """The same function with another constant, and mostly other names and sizes."""
    if rng.random() < 0.15:
        return old._replace(scale=round(rng.uniform(0.1, 9.9), 6))
    return old._replace(scale=round(rng.uniform(0.1, 9.9), 6), block=_block(rng), renamed=rng.randrange(1, 1000))


def piece(rng: random.Random, language: str) -> Piece:
    """A function that hardly occurs a second time."""
    return Piece(
        template=rng.randrange(len(PIECES[language])),
        name=rng.choice(NAMES),
        noun=rng.choice(NOUNS),
        serial=rng.randrange(60),
        block=_block(rng),
        scale=round(rng.uniform(0.1, 9.9), 6),
        renamed=rng.randrange(1000),
    )


def _block(rng: random.Random) -> int:
    return rng.choice((64, 128, 256, 512, 1024))

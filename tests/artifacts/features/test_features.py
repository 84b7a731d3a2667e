from __future__ import annotations

import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from artifacts.candidate import Language
from artifacts.features import FEATURES, CodeFeatures, code_features, detect_language

CUDA_TILED = r"""
#include <torch/extension.h>
// __ldg and wmma are only mentioned here
template <int TILE>
__global__ void __launch_bounds__(256) tiled(const float* __restrict__ a, float* out, int n) {
    __shared__ float tile[2][TILE][TILE + 1];
    float acc[4][4] = {0};
    tile[0][threadIdx.y][threadIdx.x] = a[threadIdx.x];
    int row = blockIdx.y * blockDim.y + threadIdx.y;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += blockDim.x * gridDim.x) {
        float4 v = reinterpret_cast<const float4*>(a)[i];
        #pragma unroll
        for (int j = 0; j < 4; ++j) acc[j][0] = fmaf(v.x, v.y, acc[j][0]);
    }
    if (row < n) { out[row] = fmaxf(acc[0][0] + tile[0][0][0], 0.0f); }
}
"""

CUDA_REDUCE = r"""
__global__ void first(const float* x, float* y, int n) {
    extern __shared__ float s[];
    for (int stride = blockDim.x / 2; stride > 0; stride >>= 1) {
        if (threadIdx.x < stride) s[threadIdx.x] += s[threadIdx.x + stride];
        __syncthreads();
    }
    atomicAdd(y, s[0]);
}
__global__ void second(float* y) {
    float v = __shfl_down_sync(0xffffffff, y[0], 1);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(0), "l"(y));
    y[0] = __expf(v);
}
void run(float* x, float* y, int n) { first<<<1, 32>>>(x, y, n); second<<<1, 32>>>(y); }
"""

TRITON = """
import torch
import triton
import triton.language as tl

@triton.autotune(configs=[triton.Config({"BLOCK": 128}, num_warps=4, num_stages=3)], key=["n"])
@triton.jit
def kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, eviction_policy="evict_first")
    y = tl.dot(x, x).to(tl.float16)
    tl.store(y_ptr + offs, y, mask=offs < n)

class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        kernel[(1,)](x, y, x.numel())
        return torch.softmax(y, -1)
"""

TORCH = """
import torch
import torch.nn as nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.pool = nn.MaxPool2d(2)

class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3)
        self.step = torch.compile(self.conv)

    @torch.no_grad()
    def forward(self, x):
        return torch.relu(self.conv(x.to(memory_format=torch.channels_last))).mul_(2)

def get_inputs():
    return [torch.sort(torch.rand(4))[0]]
"""

CPP = '''
from torch.utils.cpp_extension import load_inline
source = """
#include <torch/extension.h>
torch::Tensor f(torch::Tensor a) {
  #pragma omp parallel for collapse(2) schedule(static)
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < 4; ++j) { __m256 v = _mm256_setzero_ps(); }
  return torch::matmul(a, a);
}
"""
module = load_inline("m", source, functions=["f"], extra_cflags=["-O3", "-ffast-math"])
'''


def in_python(cuda: str) -> str:
    return f'import torch\nfrom torch.utils.cpp_extension import load_inline\nsource = r"""{cuda}"""\n'


def test_more_than_forty_features_are_named_and_explained() -> None:
    assert len(FEATURES) >= 40
    assert all(len(meaning.split()) >= 1 and "\n" not in meaning for meaning in FEATURES.values())


@pytest.mark.parametrize(
    "name",
    [
        "shared_memory", "double_buffering", "bank_conflict_padding", "register_tiling", "grid_stride_loop",
        "vector_load", "unroll", "fma", "restrict", "launch_bounds", "template_constants", "block_2d",
        "boundary_check", "fused_epilogue", "cache_blocking", "thread_coarsening",
    ],
)  # fmt: skip
def test_a_tiled_cuda_kernel_shows_what_it_uses(name: str) -> None:
    assert name in code_features(CUDA_TILED).names


@pytest.mark.parametrize(
    "name",
    ["dynamic_shared_memory", "block_reduce", "warp_shuffle", "atomics", "async_copy", "fast_math",
     "multiple_kernels", "multiple_launches", "inline_asm"],
)  # fmt: skip
def test_a_reduction_in_two_kernels_shows_what_it_uses(name: str) -> None:
    assert name in code_features(CUDA_REDUCE).names


@pytest.mark.parametrize(
    "name",
    ["triton_kernel", "triton_autotune", "triton_num_warps", "triton_num_stages", "triton_dot", "cache_hints",
     "boundary_check", "half_precision", "torch_softmax"],
)  # fmt: skip
def test_a_triton_source_shows_kernel_and_torch_level(name: str) -> None:
    assert name in code_features(TRITON).names


@pytest.mark.parametrize(
    "name", ["torch_convolution", "torch_activation", "torch_compile", "channels_last", "no_grad", "in_place"]
)
def test_a_torch_source_shows_what_is_left_to_torch(name: str) -> None:
    assert name in code_features(TORCH).names


@pytest.mark.parametrize("name", ["omp_parallel", "omp_collapse", "omp_schedule", "avx", "fast_math", "torch_matmul"])
def test_a_cpu_source_shows_openmp_vectors_and_flags(name: str) -> None:
    assert name in code_features(CPP).names


def test_what_stands_only_in_comments_is_not_a_feature() -> None:
    assert not {"read_only_cache", "tensor_core_wmma"} & code_features(CUDA_TILED).names


def test_the_reference_model_and_the_input_makers_do_not_count() -> None:
    assert not {"torch_pooling", "torch_sort"} & code_features(TORCH).names


def test_a_kernel_inside_a_python_string_has_the_features_of_the_plain_file() -> None:
    assert code_features(CUDA_TILED).names <= code_features(in_python(CUDA_TILED)).names


@pytest.mark.parametrize(
    ("code", "language"),
    [
        (CUDA_TILED, Language.CUDA),
        (in_python(CUDA_TILED), Language.CUDA),
        (TRITON, Language.TRITON),
        (CPP, Language.CPP),
        (TORCH, Language.TORCH),
        ("", Language.TORCH),
    ],
)
def test_the_language_is_that_of_the_kernels(code: str, language: Language) -> None:
    assert detect_language(code) is language


def test_python_that_does_not_parse_is_still_read_by_its_tokens() -> None:
    broken = code_features(TRITON + "\ndef broken(:\n")
    assert {"triton_kernel", "triton_dot", "boundary_check"} <= broken.names


def test_a_fenced_answer_is_read_without_its_fence() -> None:
    fenced = f"Here it is:\n```python\n{TRITON}\n```\nDone."
    assert code_features(fenced).names == code_features(TRITON).names


def test_layout_does_not_change_features() -> None:
    assert code_features(textwrap.indent(CUDA_REDUCE, "\t")).counts == code_features(CUDA_REDUCE).counts


@given(st.text(max_size=400))
def test_any_text_has_known_features_only(text: str) -> None:
    assert code_features(text).names <= set(FEATURES)


@given(st.integers(0, len(CUDA_TILED)), st.sampled_from(["\x00", '"""', "{", "}}}", "/*", "\ud800", "<<<", "#"]))
def test_a_damaged_kernel_is_read_without_an_error(position: int, damage: str) -> None:
    damaged = CUDA_TILED[:position] + damage + CUDA_TILED[position:]
    assert code_features(damaged).names <= set(FEATURES)
    assert detect_language(damaged) in Language


@pytest.mark.parametrize("code", ["(" * 100_000, "x = " + "-" * 50_000 + "1", "__global__ void k() {" + "{" * 50_000])
def test_deep_nesting_is_survived(code: str) -> None:
    assert code_features(code).names <= set(FEATURES)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown code feature"):
        CodeFeatures(counts={"magic": 1})

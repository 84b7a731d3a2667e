from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimizer.evaluation.build.cuda_source import (
    Kind,
    UnreadableSourceError,
    items,
    split_arguments,
    without_comments,
)
from optimizer.evaluation.build.cuda_split import split_cuda_source

SOURCE = """
#include <torch/extension.h>
#include <cuda_fp16.h>
#define BLOCK 256
// a comment with <<< and { in it
struct __align__(16) Pair { float a, b; };
__device__ __forceinline__ float twice(float v) { return 2.0f * v; }
template <typename T, int N>
__global__ void __launch_bounds__(256) scale(const T* __restrict__ x, T* y, float s, int n) {
  __shared__ float part[N];
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = twice(x[i]) * s;
}
torch::Tensor run(torch::Tensor x, double s) {
  constexpr int threads = 128;
  auto y = torch::empty_like(x);
  cudaFuncSetAttribute(scale<float, threads>, cudaFuncAttributeMaxDynamicSharedMemorySize, 1024);
  scale<float, threads><<<dim3((x.numel() + 1) / 2), threads, 1024>>>(
      x.data_ptr<float>(), y.data_ptr<float>(), static_cast<float>(s), x.numel());
  return y;
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("run", &run); }
"""


def test_the_device_unit_has_the_kernels_and_no_torch() -> None:
    split = split_cuda_source(SOURCE, "0")
    assert split is not None
    assert "__global__" in split.device
    assert "struct __align__(16) Pair" in split.device
    assert "torch" not in split.device
    assert "PYBIND11" not in split.device
    assert "&scale<float, (128)>" in split.device


def test_the_host_unit_has_the_functions_and_no_device_code() -> None:
    split = split_cuda_source(SOURCE, "0")
    assert split is not None
    assert "<<<" not in split.host
    assert "__shared__" not in split.host
    assert "twice(x[i])" not in split.host
    assert "::htam_host::launch(" in split.host
    assert "PYBIND11_MODULE" in split.host


def test_a_kernels_address_comes_from_the_device_unit() -> None:
    split = split_cuda_source(SOURCE, "0")
    assert split is not None
    assert "cudaFuncSetAttribute(((decltype(&scale<float, threads>))::htam_host::kernel_0_" in split.host


def test_a_host_compiler_is_told_what_the_runtime_offers_to_nvcc_alone() -> None:
    groups = "#include <cooperative_groups/reduce.h>\nnamespace cg = cooperative_groups;\n"
    split = split_cuda_source(groups + SOURCE, "0")
    assert split is not None
    assert "#include <cooperative_groups/reduce.h>" in split.device
    assert "#include <cooperative_groups" not in split.host
    assert split.host.index("namespace cooperative_groups {}") < split.host.index("namespace cg")
    for name in ("cudaFuncSetAttribute", "cudaFuncSetCacheConfig", "cudaFuncGetAttributes"):
        assert f"inline cudaError_t {name}(" in split.host


def test_dispatched_types_are_made_for_each_type_the_macro_names() -> None:
    source = """
    template <typename scalar_t> __global__ void k(scalar_t* x) { x[0] = 1; }
    void run(torch::Tensor x) {
      AT_DISPATCH_FLOATING_TYPES_AND_HALF(x.scalar_type(), "k", ([&] {
        k<scalar_t><<<1, 1>>>(x.data_ptr<scalar_t>());
      }));
    }
    """
    split = split_cuda_source(source, "0")
    assert split is not None
    for kind in ("float", "double", "c10::Half"):
        assert f"&k<{kind}>" in split.device


@pytest.mark.parametrize(
    "source",
    [
        "torch::Tensor f(torch::Tensor x) { return x; }",  # no kernel
        "__global__ void k(torch::PackedTensorAccessor32<float, 1> x) {}",  # torch on the device
        "#define GO(k) k<<<1, 1>>>()\n__global__ void k() {}\nvoid f() { GO(k); }",  # launch in a macro
        "__global__ void k() {}\nvoid f() { other<<<1, 1>>>(); }",  # no kernel of this file
        "__global__ void k() { if (1) { }\nvoid f() {}",  # brackets do not match
        "template <int N> __global__ void k() {}\ntemplate <int N> void f() { k<N><<<1, 1>>>(); }",  # no address to ask
    ],
)
def test_what_cannot_be_cut_is_left_to_the_next_route(source: str) -> None:
    assert split_cuda_source(source, "0") is None


def test_strings_and_comments_do_not_confuse_the_reading() -> None:
    text = without_comments("int a = 1; /* { */ const char* s = \"}//{\"; // }\nchar c = '{';\nint b;")
    assert [item.kind for item in items(text)] == [Kind.DECLARATION] * 4


def test_namespaces_are_opened_and_closed() -> None:
    kinds = [item.kind for item in items("namespace a { namespace { int x; void f() { } } }")]
    assert kinds == [Kind.OPENING, Kind.OPENING, Kind.DECLARATION, Kind.FUNCTION, Kind.CLOSING, Kind.CLOSING]


def test_arguments_are_split_outside_brackets_only() -> None:
    assert split_arguments('f(a, b), x[1, 2], ",", {3, 4}') == ["f(a, b)", "x[1, 2]", '","', "{3, 4}"]
    assert split_arguments("  ") == []


@given(st.text(alphabet="{}()[];<>#\"'/*\\ \nkfx_,=R", max_size=120))
def test_any_text_is_read_or_refused_and_never_loses_an_item(text: str) -> None:
    try:
        found = list(items(without_comments(text)))
    except UnreadableSourceError:
        return
    joined = "".join(item.text for item in found)
    assert "".join(joined.split()) == "".join(without_comments(text).split())


@given(st.text(alphabet="{}()[];<>#\"'/* \nkfx_,=&", max_size=120))
def test_splitting_any_text_gives_units_or_none(text: str) -> None:
    source = "__global__ void k(int x) {}\n" + text
    split = split_cuda_source(source, "0")
    assert split is None or "__global__ void k(int x) {}" in split.device

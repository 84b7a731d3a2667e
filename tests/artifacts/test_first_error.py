"""The line of a failure that says what is wrong, on what compilers, linkers, Triton and Python really print."""

import pytest

from artifacts.first_error import LONGEST, first_error, lead_with_first_error
from artifacts.measurement import Measurement, Outcome

CANDIDATE = '''import torch
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
template <typename T, int N> struct Tile {
  static_assert(N % 8 == 0, "tile width must be a multiple of 8");
};
torch::Tensor run(torch::Tensor x) {
    float v = __shfl_dwn_sync(0xffffffff, x[0], 1);
  y.fil_(1.0);
  return y;
}
float again(float y) {
  return y;
}
"""
module = load_inline(name="soft", cpp_sources=SOURCE, functions=["run"])


@triton.jit
def kernel(x_ptr, n, BLOCK: tl.constexpr):
    x = tl.foo(x_ptr)
'''

GCC = """c++ -MMD -MF main.o.d -DTORCH_EXTENSION_NAME=soft -c /builds/tmp1/main.cpp -o main.o
/builds/tmp1/main.cpp: In function 'at::Tensor run(at::Tensor)':
/builds/tmp1/main.cpp:7:5: error: 'class at::Tensor' has no member named 'fil_'; did you mean 'fill_'?
    7 |   y.fil_(1.0);
      |     ^~~~
      |     fill_
/builds/tmp1/main.cpp:8:3: error: 'helper' was not declared in this scope
    8 |   helper(x);
      |   ^~~~~~
ninja: build stopped: subcommand failed."""

STATIC = """main.cpp: In instantiation of 'struct Tile<float, 7>':
main.cpp:10:18:   required from here
main.cpp:6:23: error: static assertion failed: tile width must be a multiple of 8
    6 |   static_assert(N % 8 == 0, "tile width must be a multiple of 8");
      |                 ~~~~~~^~~~
main.cpp:6:23: note: the comparison reduces to '(7 == 0)'"""

TEMPLATE = """In file included from /usr/include/c++/12/bits/stl_algobase.h:71,
                 from /venv/torch/include/torch/extension.h:5:
/usr/include/c++/12/bits/stl_algo.h:4820:18:   required from 'constexpr void std::sort(_RAIter, _RAIter)'
/builds/tmp1/main.cpp:10:12:   required from here
/usr/include/c++/12/bits/predefined_ops.h:69:22: error: no match for 'operator<' (operand types are 'Row' and 'Row')
   69 |       { return *__it < __val; }
      |                ~~~~~~^~~~~~~"""

NVCC = """b.cu(3): warning #177-D: variable "unused" was declared but never referenced
    int unused = 3; printf("launch error: none");
        ^

/builds/tmp1/cuda.cu(44): error: identifier "__shfl_dwn_sync" is undefined
    float v = __shfl_dwn_sync(0xffffffff, x[0], 1);
              ^

2 errors detected in the compilation of "cuda.cu"."""

TRITON = """CompilationError: at 2:8:
def kernel(x_ptr, n, BLOCK: tl.constexpr):
    x = tl.foo(x_ptr)
        ^
AttributeError("module 'triton.language' has no attribute 'foo'")
  line 40, in forward: kernel[grid](x, n, BLOCK=64)"""

LINKED = "collect2: error: ld returned 1 exit status"


@pytest.mark.parametrize(
    ("error", "wanted"),
    [
        (GCC, "line 10: error: 'class at::Tensor' has no member named 'fil_'; did you mean 'fill_'?"),
        (STATIC, "line 6: error: static assertion failed: tile width must be a multiple of 8"),
        (
            TEMPLATE,
            "predefined_ops.h:69:22: error: no match for 'operator<' (operand types are 'Row' and 'Row')"
            " (required from main.cpp:10)",
        ),
        (NVCC, 'line 9: error: identifier "__shfl_dwn_sync" is undefined'),
        (TRITON, "line 22: AttributeError(\"module 'triton.language' has no attribute 'foo'\")"),
        (
            "main.cpp:5:3: error: expected ';' before 'return'\n    5 |   return y;\n      |   ^~~~~~",
            "main.cpp:5:3: error: expected ';' before 'return'",  # such a line is there twice
        ),
        (
            "d.cu:1:10: fatal error: cutlass/nope.h: No such file or directory\n    1 | #include <cutlass/nope.h>",
            "d.cu:1:10: fatal error: cutlass/nope.h: No such file or directory",
        ),
        (
            "ptxas error   : Entry function '_Z1kPfi' uses too much shared data (0xc3500 bytes, 0xc000 max)",
            "ptxas error   : Entry function '_Z1kPfi' uses too much shared data (0xc3500 bytes, 0xc000 max)",
        ),
        (
            "ptxas /tmp/tmpxft_00007c9e-6_c.ptx, line 23; error   : Unknown modifier '.alignd'\n"
            "ptxas fatal   : Ptx assembly aborted due to errors",
            "ptxas tmpxft_00007c9e-6_c.ptx, line 23; error   : Unknown modifier '.alignd'",
        ),
        ("nvcc fatal   : Unknown option '--use-fast-math'", "nvcc fatal   : Unknown option '--use-fast-math'"),
        (
            'At end of source: error: expected a "}"\ne.cu(1): note #3196-D: to match this "{"',
            'At end of source: error: expected a "}"',
        ),
        (
            f"/usr/bin/ld: cannot find -lcublas_nope: No such file or directory\n{LINKED}",
            "ld: cannot find -lcublas_nope: No such file or directory",
        ),
        (
            f"/usr/bin/ld: main.o: in function `run(at::Tensor)':\nmain.cpp:(.text+0x6d): undefined reference to "
            f"`helper(float)'\n{LINKED}",
            "main.cpp:(.text+0x6d): undefined reference to `helper(float)'",
        ),
        (
            "ImportError: /cache/builds/3e/soft.so: undefined symbol: _Z6helperf\n"
            "  line 24, in import_candidate: \n  line 17, in <module>: module = load_inline(name='soft')",
            "line 17: ImportError: soft.so: undefined symbol: _Z6helperf",
        ),
        (
            "AcceleratorError: CUDA error: an illegal memory access was encountered\nSearch for more information.\n"
            "  line 30, in forward: return module.run(x)",
            "line 30: AcceleratorError: CUDA error: an illegal memory access was encountered",
        ),
        ("1.2 % of the elements are wrong", "1.2 % of the elements are wrong"),
        ("", ""),
    ],
)
def test_the_first_error_is_the_line_that_says_what_is_wrong_at_the_candidate_s_own_line(error, wanted):
    assert first_error(error, CANDIDATE) == wanted
    assert first_error(lead_with_first_error(error, CANDIDATE)) == wanted


def test_a_text_that_begins_with_its_first_error_is_left_as_it_is():
    led = lead_with_first_error(GCC, CANDIDATE)
    assert led.endswith(GCC)
    assert lead_with_first_error(led, CANDIDATE) == led


def test_a_first_error_is_one_line_of_bounded_length():
    assert len(first_error(f"main.cpp:1:1: error: {'x' * 1000}")) == LONGEST


def test_a_measurement_says_its_first_error():
    failed = Measurement(outcome=Outcome.COMPILE_ERROR, stage="build", device="cpu", error=GCC)
    assert (
        failed.first_error
        == "main.cpp:7:5: error: 'class at::Tensor' has no member named 'fil_'; did you mean 'fill_'?"
    )

"""Bindings compiled apart: the same module as with pybind11 in the candidate's own unit, and shared by signature."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from optimizer.evaluation.build.binding import Bindings, bound_apart, likely
from optimizer.evaluation.build.cache import BuildCache
from optimizer.evaluation.build.command import CompilerSlots, Order, ProcessRunner
from optimizer.evaluation.build.fast import FastRoute
from optimizer.evaluation.build.request import BuildRequest, SourceFile
from optimizer.evaluation.build.toolchain import detect_toolchain

INCLUDE = "#include <torch/extension.h>\n"
TAKES_MANY = """
#define Result std::vector<torch::Tensor>
static Result split(const torch::Tensor& x, int64_t parts = 2) { return x.chunk(parts); }
namespace inner {
torch::Tensor shifted(torch::Tensor x, c10::optional<torch::Tensor> by, const std::string& sign, double scale) {
  TORCH_CHECK(sign == "+" || sign == "-", "no sign: ", sign);
  return by.has_value() ? x + (sign == "+" ? scale : -scale) * *by : x;
}
}
using inner::shifted;
template <class T> T larger(T a, T b) { return a > b ? a : b; }
int64_t sized(at::IntArrayRef sizes) { return larger<int64_t>(sizes.size(), 2); }
void fill(torch::Tensor x) noexcept { x.fill_(abs(-1.5f)); }
double unlucky(bool out_of_range) { return out_of_range ? std::vector<double>().at(1) : 1.0; }
"""


def source(functions: str, *names: str) -> str:
    """A file as ``load_inline(functions=names)`` hands it over."""
    bound = [f'm.def("{name}", torch::wrap_pybind_function({name}), "{name}");' for name in names]
    return "\n".join([INCLUDE, functions, "PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {", *bound, "}"])


def plain(text: str) -> str:
    """The file as ``with_pytorch_error_handling=False`` makes it, or a person."""
    return re.sub(r"torch::wrap_pybind_function\((\w+)\)", r"\1", text)


class Host:
    """A route over a cache of its own, with what it built."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.route = FastRoute(detect_toolchain(), BuildCache(root / "cache"), split=False)

    def module(self, name: str, text: str, *cflags: str) -> Any:
        directory = self.root / name
        directory.mkdir()
        request = BuildRequest(name=name, files=(SourceFile(name="main.cpp", text=text),), cflags=cflags)
        attempt = self.route.build(request, directory, 600.0)
        assert attempt.library is not None, attempt.log
        spec = importlib.util.spec_from_file_location(name, attempt.library)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    def bindings(self) -> int:
        entries = [json.loads(path.read_text()) for path in self.root.glob("cache/entries/*/*/entry.json")]
        return sum(entry["route"] == "binding" for entry in entries)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Host:
    return Host(tmp_path_factory.mktemp("host"))


def test_functions_of_the_same_signatures_share_what_binds_them_however_they_are_compiled(
    host: Host,
) -> None:
    first = host.module("first", source("torch::Tensor twice(torch::Tensor x) { return x + x; }", "twice"))
    assert host.bindings() == 1
    text = "at::Tensor both(at::Tensor a, at::Tensor b) { return a * b; }\nat::Tensor same(at::Tensor a) { return a; }"
    second = host.module("second", source(text, "both", "same"), "-O1", "-march=native", "-fopenmp")
    assert host.bindings() == 1
    x = torch.ones(3)
    assert first.twice(x).tolist() == [2, 2, 2]
    assert second.both(x, first.twice(x)).tolist() == [2, 2, 2]
    assert second.same(x) is x
    assert (first.__name__, second.__name__) == ("first", "second")


def test_functions_of_other_signatures_behave_as_pybind11_makes_them(host: Host) -> None:
    text = source(TAKES_MANY, "split", "shifted", "sized", "fill", "unlucky")
    many = host.module("many", text.replace("torch::wrap_pybind_function(unlucky)", "unlucky"), "-w")
    assert host.bindings() == 2
    x = torch.ones(4)
    assert [part.tolist() for part in many.split(x, 2)] == [[1, 1], [1, 1]]
    assert many.shifted(x, None, "+", 1) is x
    assert many.shifted(x, x, "-", 3).tolist() == [-2] * 4
    assert many.sized([1, 2, 3]) == 3
    assert many.fill(x) is None
    assert x.tolist() == [1.5] * 4
    with pytest.raises(RuntimeError, match="no sign: /"):
        many.shifted(x, None, "/", 1)
    with pytest.raises(TypeError, match="incompatible function arguments"):
        many.split(x)
    with pytest.raises(IndexError):  # with torch's handling of errors a RuntimeError
        many.unlucky(True)


def test_types_that_are_not_surely_known_are_bound_in_the_file_itself(host: Host) -> None:
    text = "int64_t count(std::map<std::string, torch::Tensor> named) { return named.size(); }"
    assert host.module("own", source(text, "count"), "-g0").count({"a": torch.ones(1)}) == 1


def test_what_a_file_plainly_says_is_begun_before_it_is_compiled() -> None:
    text = "at::Tensor f(const torch::Tensor& x, int64_t n = 1,\n double s) {}\nvoid g() {}\nstd::vector<double> h() {}"
    assert likely(source(text, "f", "h") + plain(source("", "g"))) == {
        "void htam_module::def<at::Tensor, at::Tensor const&, long, double>"
        "(char const*, htam_wrapped<at::Tensor, at::Tensor const&, long, double>, char const*)",
        "void htam_module::def<void>(char const*, void (*)(), char const*)",
        "void htam_module::def<std::vector<double, std::allocator<double> >>"
        "(char const*, htam_wrapped<std::vector<double, std::allocator<double> >>, char const*)",
    }


@pytest.mark.parametrize(
    ("text", "apart"),
    [
        (source("torch::Tensor f(torch::Tensor x) { return x; }", "f"), True),
        (plain(source("torch::Tensor f(torch::Tensor x) { return x; }", "f", "g")), True),
        ("// by pybind11\n" + source("", "f", "g"), True),
        (INCLUDE + 'PYBIND11_MODULE(TORCH_EXTENSION_NAME, mod)\n{\n  mod.def("f", &ns::f);\n}\n', True),
        (source("", "f").replace("_function", "_function_no_gil"), False),
        (plain(source("", "f")).replace("f,", "[](int i) { return i; },"), False),
        (source("", "f").replace('"f")', '"f", py::arg("x"))'), False),
        (source("", "f").replace("}", 'm.attr("a") = 1; }'), False),
        (source("PyObject* f(PyObject* x) { return x; }", "f"), False),
        (source("", "f").replace("extension.h", "types.h"), False),
        (INCLUDE, False),
        (source("", "f") + source("", "f"), False),
    ],
)
def test_only_modules_of_plain_functions_are_bound_apart(text: str, apart: bool) -> None:
    assert bound_apart([SourceFile(name="main.cpp", text=text)]) is apart


SYMBOL = """
struct htam_module {{ template <class R, class... A> void def(const char*, R (*)(A...), const char*); }};
{declared}
void own(htam_module& module) {{ module.def("f", &f, ""); }}
"""


@pytest.mark.parametrize(
    ("declared", "compiled"),
    [
        ("void f(int, double);", True),
        ("struct Own {}; void f(Own);", False),
        ("void f(decltype(nullptr));", False),
        (
            r"""void f(int); void g() asm("\"_ZN11htam_module3defI9int();intJEEEvPKcPFT_DpT0_ES2_\""); auto h = g;""",
            False,
        ),
    ],
)
def test_of_a_candidates_names_only_known_types_are_compiled_again(
    tmp_path: Path, declared: str, compiled: bool
) -> None:
    (tmp_path / "unit.cpp").write_text(SYMBOL.format(declared=declared))
    runner = ProcessRunner()
    made = runner.run(["g++", "-c", "unit.cpp", "-o", "unit.o"], tmp_path, 600.0)
    assert made.status == 0, made.output
    compiler = ["sh", "-c", f"touch {tmp_path / 'compiled'}; false"]
    bindings = Bindings(BuildCache(tmp_path / "cache"), "", compiler, runner, CompilerSlots(1))
    assert bindings.of(["unit.o"], [], Order(tmp_path, 600.0, wait=True, ticket=1, stop=None)) is None
    assert (tmp_path / "compiled").exists() is compiled

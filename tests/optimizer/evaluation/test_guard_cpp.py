"""The static guard on C++ and CUDA text, as it is handed to the compiler."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from optimizer.evaluation.build.builder import BuildResult
from optimizer.evaluation.build.command import Stop
from optimizer.evaluation.build.request import BuildRequest, SourceFile
from optimizer.evaluation.guard.cpp_rules import check_cpp
from optimizer.evaluation.guard.static import ROUTE, GuardedBuilder, refused_symbols


def fatal(source: str) -> set[str]:
    return {finding.rule for finding in check_cpp(source) if finding.fatal}


@pytest.mark.parametrize(
    ("rule", "source"),
    [
        ("cpp_include", "#include <unistd.h>"),
        ("cpp_include", "#include <chrono>\nusing namespace std; auto f() { return chrono::steady_clock::now(); }"),
        ("cpp_thread", "void f() { std::thread t([] {}); t.detach(); }"),
        ("cpp_thread", "void f() { static std::vector<std::thread> t; t.emplace_back([] {}); t[0].join(); }"),
        ("cpp_thread", "std::vector<std::thread> t;\nvoid f() { t.emplace_back([] {}); t[0].join(); }"),
        ("cpp_thread", "struct P { std::thread t; };\nvoid f() { P p; p.t.join(); }"),
        ("cpp_thread", "void f() { auto* t = new std::thread([] {}); if (!t) t->join(); }"),
        ("cpp_thread", "void f(at::Tensor x) { std::thread t([&] { x = at::softmax(x, 1); }); t.join(); }"),
        ("cpp_timer", "long f() { return __rdtsc(); }"),
        ("cpp_timer", "double f() { return omp_get_wtime(); }"),
        ("cpp_include", '#include "/etc/passwd"'),
        ("cpp_include", "#include <cublas_v2.h>\nvoid f() { using namespace blas; }"),
        ("cpp_include", "#include <ATen/native/SoftMax.h>\nusing namespace at; auto y = native::softmax(x, -1);"),
        ("cpp_thread", "std::vector<std::future<void>> t;\nvoid f() { t.push_back(std::async(g)); t[0].get(); }"),
        ("cpp_thread", "void f() { auto t = std::async(std::launch::async, g); }"),
        ("cpp_timer", "__global__ void k(long* p) { *p = clock64(); }"),
        ("cpp_assembly", '__global__ void k(long* p) { asm volatile("mov.u64 %0, %globaltimer;" : "=l"(*p)); }'),
        ("cpp_loading", 'void f() { cudaGetDriverEntryPoint("cuStreamCreate", &p, 0, &q); }'),
        ("cpp_loading", "void f(const char* name) { cuGetProcAddress(name, &p, 0, 0, &q); }"),
        ("cpp_python", 'void f(at::Tensor x) { py::cast(x).attr("softmax")(1); }'),
        ("cpp_state", "void f() { c10::SetCPUAllocator(&mine, 255); }"),
        ("cpp_dispatcher", 'auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::mm", "");'),
        ("cpp_dispatcher", "auto y = op.redispatch(keys, a, b);"),
        ("cpp_process", "void f() { std::system(\"ls\"); }"),
        ("cpp_process", "void f() { syscall(1); }"),
        ("cpp_file", "void f() { std::ofstream out; }"),
        ("cpp_file", "const char* p = \"/proc/self/mem\";"),
        ("cpp_environment", "void f() { getenv(\"A\"); }"),
        ("cpp_network", "void f() { socket(1, 2, 3); }"),
        ("cpp_thread", "void f() { std::thread t; }"),
        ("cpp_loading", "void f() { dlopen(0, 1); }"),
        ("cpp_python", "void f() { PyRun_SimpleString(\"\"); }"),
        ("cpp_python", "void f() { py::module_::import(\"os\"); }"),
        ("cpp_stream", "void f() { cudaStreamCreate(&s); }"),
        ("cpp_stream", "auto s = at::cuda::getStreamFromPool();"),
        ("cpp_graph", "cudaGraph_t g;"),
        ("cpp_timer", "void f() { cudaEventRecord(e); }"),
        ("cpp_state", "void f() { cudaDeviceSetLimit(a, b); }"),
        ("cpp_library", "void f() { cublasSgemm(h); }"),
        ("cpp_dispatcher", "auto y = at::native::softmax(x, -1);"),
        ("cpp_dispatcher", "auto y = at::cuda::mm(a, b);"),
        ("cpp_constructor", "__attribute__((constructor)) void f() {}"),
        ("cpp_assembly", "void f() { asm volatile(\"syscall\"); }"),
        ("cpp_cache", "torch::Tensor f() { static torch::Tensor kept; return kept; }"),
        ("cpp_cache", "static torch::Tensor kept = torch::zeros({1});"),
        ("cpp_cache", "namespace {\nstd::vector<at::Tensor> kept;\n}"),
        ("cpp_cache", "torch::Tensor kept;"),
        ("cpp_cache", "at::Tensor f(at::Tensor x) { static auto y = torch::empty_like(x); return y; }"),
        ("cpp_cache", "static std::map<void*, c10::IValue> kept;"),
        ("cpp_cache", "using Row = at::Tensor;\nstatic Row kept;"),
        ("cpp_cache", "struct K { at::Tensor t{}; void f() { g(t); } };\nK& k() { static K one; return one; }"),
        ("cpp_cache", "template <class T> struct K { at::Tensor t; };\nstatic K<int> one;"),
        ("cpp_cache", "static py::object* kept = nullptr;"),
        ("cpp_cache", "static void* kept = nullptr;\nvoid f(at::Tensor x) { kept = new at::Tensor(x); }"),
    ],
)  # fmt: skip
def test_a_forbidden_construct_is_fatal(rule: str, source: str) -> None:
    assert rule in fatal(source)


@pytest.mark.parametrize(
    "source",
    [
        '// system("rm") std::thread\n/* fopen() */ int x;',
        'const char* m = "do not call system() or open()";',
        "#include <ATen/Tensor.h>\nusing torch::Tensor;\ntorch::Tensor f(torch::Tensor x);",
        "static torch::Tensor helper(torch::Tensor x) { return x; }",
        "static inline at::Tensor helper(const at::Tensor& x, int n);",
        "#include <torch/extension.h>\n#include <cuda_runtime.h>\n#include <mma.h>\n#include <cub/cub.cuh>",
        "__device__ float read(const float* p) { return *p; }\n__global__ void k(float* p) { p[0] = read(p); }",
        "void f() { object.write(1); it->open(2); a::close(3); }",
        '__global__ void k() { asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"); }',
        "#include <cublas_v2.h>\n#include <torch/script.h>\n#include <ATen/native/Math.h>\n#include <ctime>\nint x;",
        "#include <queue>\n#include <stack>\n#include <future>\nstd::priority_queue<int> f();",
        "void f() { auto t = std::async(std::launch::async, g); t.get(); }",
        "void f() { auto read = [&](int i) { return p[i]; }; read(3); }",
        'void f() { cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &p, 0, &q); }',
        'PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.attr("TILE") = 16; }',
        "template <class T> struct Pair { T a; };\nstruct Args { at::Tensor x; };\nstatic int f(Args a) { return 1; }",
        "void f() { static auto* p = at::cuda::getCurrentDeviceProperties(); static const auto n = std::string(); }",
        "auto s = at::cuda::getCurrentCUDAStream(); const at::cuda::OptionalCUDAGuard guard(d);",
        '#define CHECK(x) do { if (x) { fprintf(stderr, "bad"); exit(1); } } while (0)',
        "__global__ void k(float* p) { static __shared__ float t[32]; __syncthreads(); }",
        "void f() { cudaFuncSetAttribute(k, cudaFuncAttributeMaxDynamicSharedMemorySize, 1); }",
        "#include <chrono>\n#include <mutex>\n#include <fstream>\n#include <random>\nint x;",
        "#include <thread>\nvoid f(float* q) { std::vector<std::thread> t; for (int i = 0; i < 2; ++i) "
        "t.emplace_back([=] { q[i] = 1; }); for (auto& w : t) w.join(); }",
        'PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("f", &f); }',
    ],
)
def test_honest_text_passes(source: str) -> None:
    assert fatal(source) == set()


def test_a_continued_line_hides_nothing() -> None:
    assert "cpp_process" in fatal("void f() { sys\\\ntem(0); }")


def test_the_line_of_a_finding_is_the_line_in_the_file() -> None:
    (finding,) = check_cpp("int a;\n\nvoid f() { fork(); }")
    assert finding.line == 3


class EchoBuilder:
    """A builder that builds anything at once."""

    def build(self, request: BuildRequest, stop: Stop | None = None) -> BuildResult:
        """A library by the request's name."""
        return BuildResult(library=f"/{request.name}.so", route="echo")


def test_the_guarded_builder_refuses_and_passes_on() -> None:
    builder = GuardedBuilder(EchoBuilder())
    good = BuildRequest(name="good", files=(SourceFile(name="main.cpp", text="int x;"),))
    bad = BuildRequest(name="bad", files=(SourceFile(name="main.cpp", text="void f() { fork(); }"),))
    assert builder.build(good).route == "echo"
    assert builder.build(bad).route == ROUTE
    assert not builder.build(bad).library


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("void my(int) asm(\"sge\" \"mm_\"); void f() { my(1); }", ["sgemm_"]),
        ("extern \"C\" int system(const char*); void f() { auto run = &system; run(0); }", ["system"]),
        ("namespace at::native { void softmax(int); } void f() { at::native::softmax(1); }",
         ["_ZN2at6native7softmaxEi"]),
        ("#include <cmath>\n#include <cstdio>\nvoid f(double* x) { std::printf(\"%f\", std::exp(*x)); }", []),
    ],
)  # fmt: skip
def test_what_a_library_asks_for_is_read_from_the_library(source: str, found: list[str], tmp_path: Path) -> None:
    (tmp_path / "a.cpp").write_text(source)
    command = ["g++", "-std=c++17", "-shared", "-fPIC", "-o", str(tmp_path / "a.so"), str(tmp_path / "a.cpp")]
    subprocess.run(command, check=True)
    assert refused_symbols(tmp_path / "a.so", with_cuda=False) == found


def test_a_file_that_is_no_library_asks_for_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.so").write_bytes(b"text")
    assert refused_symbols(tmp_path / "a.so", with_cuda=False) == []


def test_headers_that_the_candidate_brings_may_be_included() -> None:
    files = (
        SourceFile(name="main.cpp", text='#include "own.h"'),
        SourceFile(name="own.h", text="int x;", compile=False),
    )
    assert GuardedBuilder(EchoBuilder()).build(BuildRequest(name="own", files=files)).route == "echo"

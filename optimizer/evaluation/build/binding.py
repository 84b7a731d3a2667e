"""Bindings compiled apart from the functions they bind, once for all that have the same signatures.

pybind11's headers and what they make of ``m.def("f", f)`` take most of a C++ extension's compile time and depend on the
type of ``f`` alone. So the unit that defines ``f`` sees a declaration of ``def`` alone (:data:`TABLE`), and the
definition for its type is an undefined symbol of the object. By that the compiler itself says what to bind: overloads,
defaults, macros and namespaces need no reading here.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from optimizer.evaluation.build.cache import BuildCache, Entry
from optimizer.evaluation.build.command import CompilerSlots, Order, ProcessRunner
from optimizer.evaluation.build.cuda_source import without_comments
from optimizer.evaluation.build.request import SourceFile
from optimizer.evaluation.kept_file import content_hash

BINDING_WORDS = ("PYBIND11", "py::", "pybind11", "PyObject")
"""A source that names one of them sees pybind11, unless it is compiled apart from its bindings."""

_INCLUDED = re.compile(r"^[ \t]*#[ \t]*include[ \t]*[<\"]torch/(?:extension|python|torch)\.h[>\"]", re.MULTILINE)
_MODULE = re.compile(
    r"\bPYBIND11_MODULE\s*\(\s*TORCH_EXTENSION_NAME\s*,\s*(\w+)\s*\)\s*\{"
    r'(?:\s*\1\.def\s*\(\s*"[^"\\\n]*"\s*,\s*(?:(?:&\s*)?[\w:]+|torch::wrap_pybind_function\([\w:]+\))\s*'
    r'(?:,\s*"[^"\\\n]*"\s*)?\)\s*;)+\s*\}'
)

_DECLARED = """
#pragma GCC visibility push(hidden)
template <class R, class... A> struct htam_wrapped { R (*function)(A...); };
struct htam_module {
  void* python;
  template <class R, class... A> void def(const char* name, R (*function)(A...), const char* doc = "");
  template <class R, class... A> void def(const char* name, htam_wrapped<R, A...> wrapped, const char* doc = "");
};
extern const char* const htam_module_name;
void htam_define(htam_module& module);
PyObject* htam_start();
#pragma GCC visibility pop
"""

TABLE = f"""
#include <Python.h>
#include <forward_list>
#include <list>
#include <stack>
#include <thread>
#include <valarray>
#if __cplusplus >= 202002L
#include <ranges>
#include <span>
#endif
{_DECLARED}
namespace torch {{
template <class R, class... A>
htam_wrapped<R, A...> wrap_pybind_function(R (*function)(A...)) {{ return {{function}}; }}
}}
#define HTAM_MODULE(name, variable) \\
  const char* const htam_module_name = #name; \\
  extern "C" __attribute__((visibility("default"))) PyObject* PyInit_##name() {{ return htam_start(); }} \\
  void htam_define(htam_module& variable)
#define PYBIND11_MODULE(name, variable) HTAM_MODULE(name, variable)
"""
"""What stands for pybind11 in a unit that is compiled apart, and the standard headers that come with pybind11."""

_BINDING = f"""
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/Exceptions.h>
{_DECLARED}
template <class R, class... A>
void htam_module::def(const char* name, R (*function)(A...), const char* doc) {{
  static_cast<pybind11::module_*>(python)->def(name, function, doc);
}}
template <class R, class... A>
void htam_module::def(const char* name, htam_wrapped<R, A...> wrapped, const char* doc) {{
  static_cast<pybind11::module_*>(python)->def(name, torch::wrap_pybind_function(*wrapped.function), doc);
}}
PYBIND11_MODULE(htam_extension, m) {{
  m.attr("__name__") = htam_module_name;
  htam_module module{{&m}};
  htam_define(module);
}}
PyObject* htam_start() {{ return PyInit_htam_extension(); }}
"""

_DEFINITION = re.compile(r"^ *U (void htam_module::def<.*)$", re.MULTILINE)
_KNOWN = re.compile(
    r"(?:\b(?:void|bool|char|int|long|short|unsigned|float|double|const|htam_module::def|htam_wrapped|at::Tensor"
    r"|c10::(?:ArrayRef|Device|Scalar|ScalarType)"
    r"|std::(?:allocator|array|char_traits|optional|pair|__cxx11::basic_string|tuple|vector)|\d+ul)\b|[<>(),*& ])*"
)


def _definition(result: str, types: str, *, wrapped: bool) -> str:
    """What binds functions of these types, as ``nm`` writes it."""
    all_types = ", ".join(part for part in (result, types) if part)
    function = f"htam_wrapped<{all_types}>" if wrapped else f"{result} (*)({types})"
    return f"void htam_module::def<{all_types}>(char const*, {function}, char const*)"


USUAL = frozenset(
    _definition(result, ", ".join([*[tensor] * count, *last]), wrapped=True)
    for result in ("at::Tensor", "std::vector<at::Tensor, std::allocator<at::Tensor> >")
    for tensor in ("at::Tensor", "at::Tensor const&")
    for last, most in (((), 6), (("long",), 3), (("double",), 3))
    for count in range(1, most + 1)
)
"""Definitions that one object holds together: most extensions need no other."""

_SAME_CALL = re.compile(
    r"-(O\w*|g\d?|w|W(?!p,|a,|l,)[\w=-]*|m(arch|tune)=\S+|fopenmp(-simd)?|pthread|funroll-\w+|ftree-vectorize"
    r"|ffast-math|f(no-)?(math-errno|trapping-math|signed-zeros|associative-math|finite-math-only))"
)
"""Flags that change code within functions, and no call of one with arguments of the known types."""

_BOUND = re.compile(r'\.def\s*\(\s*"[^"\n]*"\s*,\s*(torch::wrap_pybind_function\()?(?:&\s*)?(?:\w+::)*(\w+)')


def likely(text: str) -> frozenset[str]:
    """The definitions that a module seems to want, to begin with before the compiler has said which it does."""
    found = set()
    for wrapper, name in _BOUND.findall(text):
        if function := re.search(rf"\s{name}\s{{0,9}}\(([^()]{{0,999}})\)", text):
            parameters = [re.sub(r"\s*\w+\s*(=.*)?$", "", part.strip()) for part in function[1].split(",")]
            types = ", ".join(_spelled(part) for part in parameters if part)
            before = text[max(function.start() - 99, 0) : function.start()].split() or [""]
            found.add(_definition(_spelled(before[-1]), types, wrapped=bool(wrapper)))
    return frozenset(found)


def _spelled(kind: str) -> str:
    """A type of a source as ``nm`` writes the frequent ones."""
    plain = kind.replace("torch::", "at::").replace("int64_t", "long")
    plain = re.sub(r"std::vector<([\w:]+)>", r"std::vector<\1, std::allocator<\1> >", plain)
    return re.sub(r"^const\s+([\w:]+)\s*", r"\1 const", plain)


def bound_apart(files: Iterable[SourceFile]) -> bool:
    """Whether the only use of pybind11 is one module of ``m.def("name", function)`` as ``load_inline`` writes it."""
    text = "\n".join(without_comments(file.text) for file in files)
    rest, modules = _MODULE.subn("", text)
    if modules != 1 or not _INCLUDED.search(rest) or any(word in rest for word in BINDING_WORDS):
        return False
    return shutil.which("nm") is not None


class Bindings:
    """Objects that bind functions of given types, kept in the cache of builds.

    Args:
        cache: where they live.
        fingerprint: of the toolchain.
        command: compiler and include flags.
        slots: where to queue for a compiler.
    """

    def __init__(
        self, cache: BuildCache, fingerprint: str, command: Sequence[str], runner: ProcessRunner, slots: CompilerSlots
    ) -> None:
        self._cache = cache
        self._fingerprint = fingerprint
        self._command = tuple(command)
        self._runner = runner
        self._slots = slots

    def object(self, wanted: frozenset[str], flags: Sequence[str], order: Order) -> Path | None:
        """The object with the ``wanted`` definitions.

        None where they name a type that is not surely known, since they are spelled as a candidate likes; when it does
        not compile; and when it is not asked for any more.

        Flags that may change what a call looks like have an object of their own. At ``-O1`` a call takes no longer than
        at ``-O3`` (0.1 µs; 0.9 µs at ``-O0``).
        """
        if not wanted or not all(_KNOWN.fullmatch(definition) for definition in wanted):
            return None
        wanted = USUAL if wanted <= USUAL else wanted
        text = "\n".join([_BINDING, *(f"template {definition};" for definition in sorted(wanted)), ""])
        command = [*self._command, *(flag for flag in flags if not _SAME_CALL.fullmatch(flag)), "-O1"]
        key = content_hash(text, command, self._fingerprint)
        if (found := self._cache.find(key)) is None:
            with self._cache.lock(key):
                found = self._cache.find(key) or self._compiled(key, text, command, order)
        return found[1] / found[0].library if found else None

    def _compiled(self, key: str, text: str, command: Sequence[str], order: Order) -> tuple[Entry, Path] | None:
        with self._cache.workspace() as directory, self._slots.slot(order.ticket):
            if order.is_set():
                return None
            (directory / "binding.cpp").write_text(text, encoding="utf-8")
            made = directory / "binding.o"
            done = self._runner.run([*command, "-c", "binding.cpp", "-o", made.name], directory, order.timeout_s, order)
            if done.status:
                return None
            entry = Entry(name="binding", library=made.name, route="binding", seconds=done.seconds)
            return entry, self._cache.publish(key, entry, made)

    def of(self, objects: Sequence[str], flags: Sequence[str], order: Order) -> Path | None:
        """The object with the definitions that ``objects`` lack; see :meth:`object`."""
        said = self._runner.run(["nm", "-C", "-u", *objects], order.directory, order.timeout_s, order).output
        return self.object(frozenset(_DEFINITION.findall(said)), flags, order)

"""Enough of C++'s surface to cut a CUDA source into its top-level items."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

_SKIP = re.compile(
    r"//[^\n]*|/\*.*?\*/"
    r'|R"(?P<tag>[^()\\\s]{0,16})\(.*?\)(?P=tag)"'
    r'|"(?:\\.|[^"\\\n])*"'
    r"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'",
    re.DOTALL,
)
_OPEN, _CLOSE = "([{", ")]}"
_CONTAINER = re.compile(r'\s*(inline\s+)?(namespace\b[^;={]*|extern\s*"C(\+\+)?"\s*)\Z')
_ALIGNMENT = re.compile(r"\b(__align__|alignas|__attribute__)\s*\((?:[^()]|\([^()]*\))*\)")
_TYPE = re.compile(r"\b(struct|class|union|enum)\b")


class Kind(Enum):
    """What an item is."""

    DIRECTIVE = "directive"
    OPENING = "opening"  # of a namespace or extern "C" block
    CLOSING = "closing"
    FUNCTION = "function"  # with a body
    DECLARATION = "declaration"  # everything that ends with a semicolon


@dataclass(frozen=True, slots=True)
class Item:
    """One top-level item; ``head`` is what comes before the body (all of it without a body)."""

    kind: Kind
    head: str
    body: str = ""

    @property
    def text(self) -> str:
        """The item as it stood in the source, comments gone."""
        return self.head + self.body


class UnreadableSourceError(ValueError):
    """Brackets do not match; the source is left to the next route."""


def without_comments(text: str) -> str:
    """Comments become blanks, line ends stay."""
    text = text.replace("\\\r\n", "\\\n")

    def blank(match: re.Match[str]) -> str:
        found = match[0]
        if not found.startswith(("//", "/*")):
            return found
        return " " + "\n" * found.count("\n")

    return _SKIP.sub(blank, text)


def mask_strings(text: str) -> str:
    """Same length, string and character contents replaced, so that brackets in them do not count."""
    return _SKIP.sub(lambda match: match[0][0] + "_" * (len(match[0]) - 2) + match[0][-1], text)


def items(text: str) -> Iterator[Item]:
    """Cut comment-free ``text`` into items; namespaces are opened and closed by items of their own.

    Raises:
        UnreadableSourceError: brackets do not match.
    """
    masked = mask_strings(text)
    position, depth = 0, 0
    while True:
        match = re.compile(r"\S").search(masked, position)
        if match is None:
            break
        start = match.start()
        if masked[start] == "#":
            position = _directive_end(masked, start)
            yield Item(Kind.DIRECTIVE, text[start:position])
        elif masked[start] == "}" and depth:
            depth -= 1
            position = start + 1
            yield Item(Kind.CLOSING, "}")
        else:
            item, position = _item(text, masked, start)
            depth += item.kind is Kind.OPENING
            yield item
    if depth:
        raise UnreadableSourceError("unclosed namespace")


def matching(masked: str, start: int) -> int:
    """Index of the bracket that closes the one at ``start``; raises :class:`UnreadableSourceError`."""
    stack: list[str] = []
    for index in range(start, len(masked)):
        char = masked[index]
        if char in _OPEN:
            stack.append(_CLOSE[_OPEN.index(char)])
        elif char in _CLOSE:
            if not stack or stack.pop() != char:
                break
            if not stack:
                return index
    raise UnreadableSourceError(f"unmatched bracket at {start}")


def split_arguments(text: str) -> list[str]:
    """Split at commas outside brackets; an empty text has no arguments."""
    masked, parts, start, depth = mask_strings(text), [], 0, 0
    for index, char in enumerate(masked):
        depth += (char in _OPEN) - (char in _CLOSE)
        if char == "," and depth == 0:
            parts.append(text[start:index].strip())
            start = index + 1
    parts.append(text[start:].strip())
    return parts if parts != [""] else []


def _directive_end(masked: str, start: int) -> int:
    end = start
    while True:
        end = masked.find("\n", end)
        if end < 0:
            return len(masked)
        if not masked[:end].endswith("\\"):
            return end + 1
        end += 1


def _item(text: str, masked: str, start: int) -> tuple[Item, int]:
    """The item at ``start`` and the position after it."""
    index = start
    while index < len(masked):
        char = masked[index]
        if char == ";":
            return Item(Kind.DECLARATION, text[start : index + 1]), index + 1
        if char == "{":
            head = masked[start:index]
            if _CONTAINER.match(text[start:index]):
                return Item(Kind.OPENING, text[start : index + 1]), index + 1
            end = matching(masked, index)
            if not _needs_semicolon(head):
                return Item(Kind.FUNCTION, text[start:index], text[index : end + 1]), end + 1
            index = end
        elif char in "([":
            index = matching(masked, index)
        elif char in _CLOSE:
            break
        index += 1
    raise UnreadableSourceError(f"item at {start} does not end")


def _needs_semicolon(head: str) -> bool:
    """True for types and initialisers: their closing brace does not end the item."""
    plain = _ALIGNMENT.sub("", re.sub(r"\btemplate\s*<[^<>]*>", "", head))
    outside = re.sub(r"\([^()]*\)", "", plain)
    return "=" in outside or (_TYPE.search(outside) is not None and "(" not in plain)


HOST_PREAMBLE = """
#include <cuda_runtime.h>
#include <tuple>
#include <type_traits>
#include <utility>
namespace htam_host {
struct Config {
  dim3 grid, block; size_t shared; cudaStream_t stream;
  Config(dim3 g, dim3 b, size_t s = 0, cudaStream_t t = nullptr) : grid(g), block(b), shared(s), stream(t) {}
};
template <class... P, std::size_t... I>
inline void start(const void* kernel, const Config& c, std::tuple<P...>& values, std::index_sequence<I...>) {
  void* pointers[sizeof...(P) + 1] = {(void*)&std::get<I>(values)..., nullptr};
  (void)cudaLaunchKernel(kernel, c.grid, c.block, pointers, c.shared, c.stream);
}
template <class T>
inline T implicit(T value) { return value; }
template <class... P, class... A>
inline void launch(const void* kernel, void (*)(P...), const Config& c, A&&... arguments) {
  static_assert(sizeof...(P) == sizeof...(A), "a kernel's arguments are not its parameters");
  std::tuple<std::remove_cv_t<P>...> values{implicit<std::remove_cv_t<P>>(std::forward<A>(arguments))...};
  start(kernel, c, values, std::index_sequence_for<P...>{});
}
}  // namespace htam_host
// What cuda_runtime.h offers to nvcc alone: these calls with a kernel instead of its address.
template <class... P>
inline cudaError_t cudaFuncSetAttribute(void (*kernel)(P...), cudaFuncAttribute which, int value) {
  return ::cudaFuncSetAttribute((const void*)kernel, which, value);
}
template <class... P>
inline cudaError_t cudaFuncSetCacheConfig(void (*kernel)(P...), cudaFuncCache preference) {
  return ::cudaFuncSetCacheConfig((const void*)kernel, preference);
}
template <class... P>
inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* found, void (*kernel)(P...)) {
  return ::cudaFuncGetAttributes(found, (const void*)kernel);
}
// Device headers leave these empty for a host compiler, but aliases of them stand outside kernels.
namespace cooperative_groups {}
namespace nvcuda { namespace wmma {} }
"""
"""Launches through ``cudaLaunchKernel``, and what ``cuda_runtime.h`` offers to nvcc alone."""

"""Cut a CUDA source into a device unit without torch and a host unit without device code.

nvcc reads the torch headers three times (cudafe++, cicc and g++: 13 s with slim headers, 56 s with
all of them), though kernels hardly ever use them. The device unit holds kernels and what they
need: 0.6 s. The host unit holds the functions around them and is compiled by g++ with precompiled
headers: 1.7 s. ``kernel<<<grid, block>>>(a, b)`` in it becomes a call of ``cudaLaunchKernel`` with
the arguments converted to the kernel's parameter types, the kernel's address comes from the device
unit: the code that nvcc itself would have made.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from optimizer.evaluation.build.cuda_source import (
    HOST_PREAMBLE,
    Item,
    Kind,
    UnreadableSourceError,
    items,
    mask_strings,
    matching,
    split_arguments,
    without_comments,
)

_TORCH = re.compile(
    r"\b(torch|at|c10|py|pybind11|ATen)\s*(::|\b(?=;))|\b(PYBIND11_|TORCH_|AT_|C10_)\w+|\b(Tensor|IntArrayRef|THC\w*)\b"
)
_TORCH_INCLUDE = re.compile(r"#\s*include\s*[<\"](torch|ATen|c10|pybind11|THC|Python\.h)")
_DEVICE_INCLUDE = re.compile(r"#\s*include\s*[<\"](cooperative_groups|mma\.h)")
_DEVICE = re.compile(r"\b(__device__|__constant__|__shared__|__managed__)\b")
_GLOBAL = re.compile(r"\b__global__\b")
_ATTRIBUTES = re.compile(
    r"\b__global__\b|\b__(launch_bounds|maxnreg|cluster_dims|block_size)__\s*\([^()]*(\([^()]*\)[^()]*)*\)"
    r"|\bstatic\b|\b__forceinline__\b|\binline\b|\b__grid_constant__\b"
)
_NAME = re.compile(r"(\w+)\s*\Z")
_CONSTANT = re.compile(
    r"\b(?:const|constexpr)\s+(?:unsigned\s+)?(?:int|auto|size_t|u?int\d+_t)\s+(\w+)\s*=\s*([\w\s*+/()-]+);"
)
_DISPATCH = re.compile(r"\bAT_DISPATCH_(\w+)\s*\(")
_TEMPLATE = re.compile(r"\s*template\s*<([^{}()]*)>")
_PARAMETER = re.compile(r"(\w+)\s*(?:=[^,]*)?(?:,|$)")
_SCALARS = {
    "FLOATING_TYPES": ("float", "double"),
    "FLOATING_TYPES_AND_HALF": ("float", "double", "c10::Half"),
    "FLOATING_TYPES_AND2": ("float", "double", "c10::Half", "c10::BFloat16"),
    "ALL_TYPES": ("float", "double", "int64_t", "int32_t", "int16_t", "int8_t", "uint8_t"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitSource:
    """The two units of one ``.cu`` file: ``device`` for nvcc, ``host`` for g++."""

    device: str
    host: str


@dataclass(slots=True)
class _Kernels:
    """Kernels of a file and the addresses of theirs that the host unit asks for."""

    tag: str
    names: frozenset[str]
    scalars: tuple[str, ...]
    constants: dict[str, str]
    handles: dict[str, str] = field(default_factory=dict)

    def handle(self, expression: str) -> str:
        """An expression for the address of ``kernel`` or ``kernel<arguments>`` in the host unit."""
        name = self.handles.setdefault(expression, f"kernel_{self.tag}_{len(self.handles)}")
        return f"::htam_host::{name}{'<scalar_t>' if _is_dispatched(expression) else ''}()"

    def declarations(self) -> str:
        """For the host unit."""
        return self._wrap(
            f"{'template <class scalar_t> ' if _is_dispatched(expression) else ''}"
            f'__attribute__((visibility("hidden"))) const void* {name}();'
            + "".join(f" template <> const void* {name}<{kind}>();" for kind in self._kinds(expression))
            for expression, name in self.handles.items()
        )

    def definitions(self) -> str:
        """For the device unit, after all kernels."""
        lines = []
        for expression, name in self.handles.items():
            hidden = '__attribute__((visibility("hidden"))) const void*'
            plain = _substitute(expression, self.constants)
            if not _is_dispatched(expression):
                lines.append(f"{hidden} {name}() {{ return (const void*)(&{plain}); }}")
                continue
            lines.append(f"template <class scalar_t> {hidden} {name}();")
            for kind in self._kinds(expression):
                made = re.sub(r"\bscalar_t\b", kind, plain)
                lines.append(f"template <> {hidden} {name}<{kind}>() {{ return (const void*)(&{made}); }}")
        return self._wrap(lines)

    def _kinds(self, expression: str) -> tuple[str, ...]:
        return self.scalars if _is_dispatched(expression) else ()

    @staticmethod
    def _wrap(lines: Iterable[str]) -> str:
        return "\n".join(["namespace htam_host {", *lines, "}  // namespace htam_host", ""])


def split_cuda_source(text: str, tag: str) -> SplitSource | None:
    """Split one ``.cu`` file, or None when this reading of it does not hold.

    Args:
        text: the source.
        tag: makes names of this file unlike those of other files in the extension.
    """
    try:
        parts = list(items(without_comments(text)))
        names = frozenset(_kernel_name(item.head) for item in parts if _GLOBAL.search(item.head))
        if not names or any(_is_dirty(item) for item in parts):
            return None
        kernels = _Kernels(tag=tag, names=names, scalars=_scalars(text), constants=_local_constants(parts))
        host = [_host_part(item, kernels) for item in parts]
    except UnreadableSourceError:
        return None
    device = [_device_part(item) for item in parts]
    half = "#include <c10/util/Half.h>\n#include <c10/util/BFloat16.h>\n" if _wants_half(kernels) else ""
    return SplitSource(
        device=half
        + "#include <cuda_runtime.h>\n#include <cstdint>\n"
        + "\n".join(device)
        + "\n"
        + kernels.definitions(),
        host=HOST_PREAMBLE + kernels.declarations() + "\n".join(host) + "\n",
    )


def _is_dirty(item: Item) -> bool:
    """True for items that need torch on the device, or kernels and launches hidden in macros."""
    if item.kind is Kind.DIRECTIVE:
        return item.head.lstrip("# \t").startswith("define") and ("<<<" in item.head or "__global__" in item.head)
    on_device = _GLOBAL.search(item.head) or _DEVICE.search(item.head)
    return bool(on_device and _TORCH.search(item.text))


def _kernel_name(head: str) -> str:
    plain = _ATTRIBUTES.sub(" ", head)
    match = _NAME.search(plain[: plain.find("(")])
    if match is None:
        raise UnreadableSourceError(f"kernel without a name: {head[:60]!r}")
    return match[1]


def _device_part(item: Item) -> str:
    """What the device unit keeps of an item; blank lines stand for the rest."""
    if item.kind is Kind.DIRECTIVE:
        return "" if _TORCH_INCLUDE.search(item.head) else item.head.rstrip("\n")
    if item.kind in (Kind.OPENING, Kind.CLOSING):
        return item.text
    if _GLOBAL.search(item.head) or _DEVICE.search(item.head):
        return item.text
    if _TORCH.search(item.text) or "<<<" in item.text:
        return ""
    if item.kind is Kind.FUNCTION and "constexpr" not in item.head:
        return ""
    return item.text


def _host_part(item: Item, kernels: _Kernels) -> str:
    """What the host unit keeps of an item: no device code, launches rewritten."""
    if item.kind is Kind.DIRECTIVE:
        return "" if _DEVICE_INCLUDE.search(item.head) else item.head.rstrip("\n")
    if item.kind in (Kind.OPENING, Kind.CLOSING):
        return item.text
    if _GLOBAL.search(item.head):
        return _ATTRIBUTES.sub(" ", item.head.rstrip("; \n")) + ";"
    if item.kind is Kind.FUNCTION and _DEVICE.search(item.head):
        return item.text if "__host__" in item.head else ""
    if item.kind is Kind.DECLARATION and re.match(r"\s*(static\s+|extern\s+)*__(device|constant|managed)__", item.head):
        return ""
    return item.head + _host_body(item, kernels) if item.kind is Kind.FUNCTION else item.text


def _host_body(item: Item, kernels: _Kernels) -> str:
    """The rewritten body; a kernel that depends on a template parameter of its caller has no address to ask for."""
    template = _TEMPLATE.match(item.head)
    parameters = set(_PARAMETER.findall(template[1])) if template else set()
    for match in re.finditer(rf"\b({'|'.join(sorted(kernels.names))})\s*(?=<(?!<<))", item.body):
        expression = item.body[match.start() : _template_end(item.body, match.end())]
        if parameters & set(re.findall(r"\w+", expression)):
            raise UnreadableSourceError(f"{expression[:60]!r} depends on a template parameter of its caller")
    return _rewrite(item.body, kernels)


def _rewrite(body: str, kernels: _Kernels) -> str:
    """Replace launches, then the kernels' other uses (their addresses)."""
    while (at := mask_strings(body).find("<<<")) >= 0:
        body = _rewrite_launch(body, at, kernels)
    pattern = re.compile(rf"&?\s*(?<![\w:.])({'|'.join(sorted(kernels.names))})\b(?!\s*\(\s*const\s)")
    position = 0
    while match := pattern.search(mask_strings(body), position):
        end = _template_end(body, match.end())
        expression = body[match.start(1) : end]
        if body[: match.start()].endswith(("decltype(&", "decltype(")):
            position = end
            continue
        made = f"((decltype(&{expression})){kernels.handle(expression)})"
        body = body[: match.start()] + made + body[end:]
        position = match.start() + len(made)
    return body


def _rewrite_launch(body: str, at: int, kernels: _Kernels) -> str:
    masked = mask_strings(body)
    start = _expression_start(masked, at)
    expression = " ".join(body[start:at].split())
    if re.split(r"[<\s]", expression)[0] not in kernels.names:
        raise UnreadableSourceError(f"launch of {expression[:60]!r}, which is no kernel of this file")
    close = _configuration_end(masked, at + 3)
    opening = re.compile(r"\s*\(").match(masked, close + 3)
    if opening is None:
        raise UnreadableSourceError("launch without arguments")
    end = matching(masked, opening.end() - 1)
    configuration = body[at + 3 : close]
    arguments = split_arguments(body[opening.end() : end])
    joined = "".join(f", {argument}" for argument in arguments)
    call = (
        f"::htam_host::launch({kernels.handle(expression)}, (decltype(&{expression}))nullptr, "
        f"::htam_host::Config({configuration}){joined})"
    )
    return body[:start] + call + body[end + 1 :]


def _expression_start(masked: str, at: int) -> int:
    """Where ``name`` or ``name<arguments>`` before ``<<<`` begins."""
    index = at
    while masked[index - 1].isspace():
        index -= 1
    if masked[index - 1] == ">":
        depth = 0
        while index > 0:
            index -= 1
            depth += (masked[index] == ">") - (masked[index] == "<")
            if depth == 0:
                break
    match = re.search(r"\w+\s*\Z", masked[:index])
    if match is None:
        raise UnreadableSourceError("launch without a kernel")
    return match.start()


def _configuration_end(masked: str, start: int) -> int:
    depth = 0
    for index in range(start, len(masked)):
        depth += (masked[index] in "([{") - (masked[index] in ")]}")
        if depth == 0 and masked.startswith(">>>", index):
            return index
    raise UnreadableSourceError("launch without >>>")


def _template_end(body: str, position: int) -> int:
    """End of a template argument list that starts at ``position``; ``position`` when there is none."""
    if not body.startswith("<", position) or body.startswith("<<<", position):
        return position
    depth = 0
    for index in range(position, len(body)):
        depth += (body[index] == "<") - (body[index] == ">")
        if depth == 0:
            return index + 1
    raise UnreadableSourceError("unclosed template arguments")


def _is_dispatched(expression: str) -> bool:
    return re.search(r"\bscalar_t\b", expression) is not None


def _scalars(text: str) -> tuple[str, ...]:
    """All types that the file's dispatch macros name, in a fixed order."""
    found: dict[str, None] = {}
    for name in _DISPATCH.findall(text):
        for kind in _SCALARS.get(name, ()):
            found[kind] = None
    return tuple(found)


def _local_constants(parts: list[Item]) -> dict[str, str]:
    """Integer constants of host functions, by name: template arguments of launches may name them.

    A name with two values is left out, so the device unit does not compile and the next route builds.
    """
    values: dict[str, set[str]] = {}
    for item in parts:
        for name, value in _CONSTANT.findall(item.body if item.kind is Kind.FUNCTION else ""):
            values.setdefault(name, set()).add(value.strip())
    return {name: f"({next(iter(found))})" for name, found in values.items() if len(found) == 1}


def _substitute(expression: str, constants: dict[str, str]) -> str:
    """Template arguments with local constants replaced by their values."""
    name, bracket, arguments = expression.partition("<")
    return name + bracket + re.sub(r"\b[A-Za-z_]\w*\b", lambda match: constants.get(match[0], match[0]), arguments)


def _wants_half(kernels: _Kernels) -> bool:
    return any(_is_dispatched(expression) for expression in kernels.handles) and "c10::Half" in kernels.scalars

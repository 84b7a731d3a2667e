"""The fast routes: own compiler calls with slim and precompiled headers, all units at once."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from optimizer.evaluation.build.binding import BINDING_WORDS, TABLE, Bindings, bound_apart, likely
from optimizer.evaluation.build.cache import BuildCache
from optimizer.evaluation.build.command import CompilerSlots, Order, ProcessRunner, Stop
from optimizer.evaluation.build.cuda_split import split_cuda_source
from optimizer.evaluation.build.flags import divided, host_flags, names_architecture, words
from optimizer.evaluation.build.headers import (
    OPERATORS_FILE,
    PrecompiledHeaders,
    SlimHeaders,
    needs_all_headers,
    operator_header,
)
from optimizer.evaluation.build.request import Attempt, BuildRequest, SourceFile, write_files
from optimizer.evaluation.build.toolchain import NVCC_DEFINES, Toolchain


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One compiler call: the command without ``-o``, and the object it makes.

    ``header`` goes before the file, precompiled for ``code`` flags where that is to be had when the call begins.
    """

    command: tuple[str, ...]
    object: str
    header: Path | None = None
    code: tuple[str, ...] = ()


class FastRoute:
    """Slim headers for everything; CUDA files are split into a device and a host unit, or not.

    Args:
        toolchain: compilers and folders.
        cache: where objects with bindings live, and beside them slim and precompiled headers.
        split: True cuts ``.cu`` files in two, False gives them to nvcc whole.
        slots: where to queue for a compiler; one for each core when None.
    """

    def __init__(
        self,
        toolchain: Toolchain,
        cache: BuildCache,
        *,
        split: bool,
        slots: CompilerSlots | None = None,
    ) -> None:
        self.name = "split" if split else "slim"
        self._split = split
        self._toolchain = toolchain
        self._runner = ProcessRunner()
        self._slots = slots or CompilerSlots(os.cpu_count() or 1)
        root = cache.root / "headers"
        self._headers = SlimHeaders(root, toolchain)
        command = [toolchain.cxx, *self._include_flags(cuda=bool(toolchain.nvcc)), *_common_flags(toolchain)]
        self._precompiled = PrecompiledHeaders(root, command, self._runner, self._slots)
        self._bindings = Bindings(cache, toolchain.fingerprint, command, self._runner, self._slots)

    def supports(self, request: BuildRequest) -> bool:
        """No for sources that need all of torch's headers, or (when splitting) that cannot be cut."""
        if any(needs_all_headers(file.text) for file in request.files):
            return False
        if not request.with_cuda:
            return not self._split
        if not self._toolchain.nvcc or not self._toolchain.arch:
            return False
        return not self._split or self._splits(request) is not None

    def build(self, request: BuildRequest, directory: Path, timeout_s: float, stop: Stop | None = None) -> Attempt:
        """See :class:`optimizer.evaluation.build.request.Route`."""
        write_files(request, directory)
        order = Order(directory, timeout_s, wait=not request.with_cuda, ticket=self._slots.ticket(), stop=stop)
        apart = not request.with_cuda and bound_apart(request.files)
        objects, log = self._objects(request, order, apart=apart)
        if objects and apart:
            bound = self._bindings.of(objects, _code(request), order)
            if bound is None:
                objects, log = self._objects(request, order, apart=False)
            else:
                objects.append(str(bound))
        if not objects:
            return Attempt(library=None, log=log)
        with self._slots.slot(order.ticket):
            return self._link(request, objects, directory, timeout_s, log)

    def _objects(self, request: BuildRequest, order: Order, *, apart: bool) -> tuple[list[str], str]:
        """Objects of the sources, none when a compiler refused, and what compilers said.

        Args:
            apart: leave the bindings out; those that seem to be wanted are made at the same time where there are none.
        """
        text = "\n".join(file.text for file in request.files)
        operators = operator_header(text, self._toolchain.torch_include) + (TABLE if apart else "")
        (order.directory / OPERATORS_FILE).write_text(operators, encoding="utf-8")
        units = self._units(request, order.directory, apart=apart)
        with ThreadPoolExecutor(len(units) + 1) as pool:
            if apart:
                pool.submit(self._bindings.object, likely(text), _code(request), order)
            done = list(pool.map(lambda unit: self._compile(unit, order), units))
        log = "\n".join(output for _, output in done if output)
        return ([] if any(status for status, _ in done) else [unit.object for unit in units]), log

    def _compile(self, unit: Unit, order: Order) -> tuple[int, str]:
        """Status and output of one call; the first that fails stops the others, whose output says nothing then."""
        header: list[str] = []
        if unit.header is not None:
            header = self._precompiled.include_flags(unit.header, unit.code, wait=order.wait)
        with self._slots.slot(order.ticket, gets_cheaper=not self._precompiled.is_in(header)):
            if order.is_set():
                return 1, ""
            if unit.header is not None:  # it may be there by now
                header = self._precompiled.ready(unit.header, unit.code)
            command = [*unit.command, *header, "-o", unit.object]
            done = self._runner.run(command, order.directory, order.timeout_s, order)
        if done.status and order.is_set():
            return done.status, ""
        if done.status:
            order.failed.set()
        return done.status, done.output

    def _units(self, request: BuildRequest, directory: Path, *, apart: bool) -> list[Unit]:
        units = []
        splits = (self._splits(request) or {}) if self._split else {}
        for index, file in enumerate(file for file in request.files if file.compile):
            if not file.is_cuda:
                text = "" if apart else file.text  # pybind11's words in it are read without pybind11
                units.append(self._host_unit(request, file.name, text, request.cflags, f"unit{index}.o"))
            elif file.name in splits:
                units += self._split_units(request, file, splits[file.name], directory, index)
            else:
                units.append(self._cuda_unit(request, file.name, f"unit{index}.o", slim=True))
        return units

    def _split_units(
        self, request: BuildRequest, file: SourceFile, parts: tuple[str, str], directory: Path, index: int
    ) -> list[Unit]:
        device, host = f"device{index}.cu", f"host{index}.cpp"
        (directory / device).write_text(parts[0], encoding="utf-8")
        (directory / host).write_text(parts[1], encoding="utf-8")
        flags = host_flags(request.cuda_cflags)
        return [
            self._cuda_unit(request, device, f"device{index}.o", slim=False),
            self._host_unit(request, host, file.text, flags, f"host{index}.o"),
        ]

    def _splits(self, request: BuildRequest) -> dict[str, tuple[str, str]] | None:
        """File name → (device, host) of all CUDA files; None when one of them cannot be cut."""
        parts = {}
        for index, file in enumerate(request.files):
            if not file.is_cuda:
                continue
            split = split_cuda_source(file.text, str(index)) if file.compile else None
            if split is None:
                return None
            parts[file.name] = (split.device, split.host)
        return parts or None

    def _host_unit(self, request: BuildRequest, name: str, text: str, flags: Sequence[str], target: str) -> Unit:
        """g++ on one file, with the bindings precompiled only where they are used."""
        binds = any(word in text for word in BINDING_WORDS)
        header = self._headers.prefix if binds else self._headers.core
        if request.with_cuda:
            header = header.with_name(f"cuda_{header.name}")
        code, other = divided(flags)
        command = (
            self._toolchain.cxx,
            *self._include_flags(cuda=bool(self._toolchain.nvcc)),
            *_common_flags(self._toolchain),
            *code,
            *([] if binds else ["-DHTAM_NO_BINDING"]),
            *self._request_flags(request),
            *other,
            "-c",
            name,
        )
        return Unit(command=command, object=target, header=header, code=tuple(code))

    def _cuda_unit(self, request: BuildRequest, name: str, target: str, *, slim: bool) -> Unit:
        """nvcc on one file, for the device's architecture alone unless the request names one."""
        arch = self._toolchain.arch
        standard = [] if any(flag.startswith("-std=") for flag in request.cuda_cflags) else [self._toolchain.standard]
        folders = self._include_flags(cuda=True)
        binding = any(word in file.text for file in request.files if file.is_cuda for word in BINDING_WORDS)
        command = (
            self._toolchain.nvcc,
            *(folders if slim else folders[1:]),
            *self._request_flags(request),
            *([] if binding else ["-DHTAM_NO_BINDING"]),
            "-DTORCH_API_INCLUDE_EXTENSION_H",
            *NVCC_DEFINES,
            "--expt-relaxed-constexpr",
            *([] if names_architecture(request.cuda_cflags) else [f"-gencode=arch=compute_{arch},code=sm_{arch}"]),
            "--compiler-options",
            "-fPIC",
            *words(request.cuda_cflags),
            *standard,
            "-c",
            name,
        )
        return Unit(command=command, object=target)

    def _link(self, request: BuildRequest, objects: list[str], directory: Path, timeout_s: float, log: str) -> Attempt:
        library = f"{request.name}.so"
        tools = self._toolchain
        folders = [*tools.libraries, *(tools.cuda_libraries if request.with_cuda else ())]
        torch = ["-lc10", *(["-lc10_cuda"] if request.with_cuda else []), "-ltorch_cpu"]
        torch += ["-ltorch_cuda"] if request.with_cuda else []
        command = [tools.cxx, *objects, "-shared", *words(request.ldflags), *(f"-L{folder}" for folder in folders)]
        command += [*torch, "-ltorch", "-ltorch_python", *(["-lcudart"] if request.with_cuda else []), "-o", library]
        done = self._runner.run(command, directory, timeout_s)
        log = "\n".join(part for part in (log, done.output) if part)
        return Attempt(library=directory / library if done.status == 0 else None, log=log)

    def _include_flags(self, *, cuda: bool) -> list[str]:
        tools = self._toolchain
        folders = [*tools.includes, *(tools.cuda_includes if cuda else ())]
        return [f"-I{self._headers.folder}", "-I.", *(part for folder in folders for part in ("-isystem", folder))]

    def _request_flags(self, request: BuildRequest) -> list[str]:
        paths = [f"-I{os.path.abspath(path)}" for path in request.include_paths]  # noqa: PTH100 - as torch spells it
        return [*paths, f"-DTORCH_EXTENSION_NAME={request.name}"]


def _common_flags(toolchain: Toolchain) -> list[str]:
    return ["-DTORCH_API_INCLUDE_EXTENSION_H", "-fPIC", toolchain.standard]


def _code(request: BuildRequest) -> list[str]:
    return divided(request.cflags)[0]

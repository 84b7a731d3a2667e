"""Headers made cheap: slim ones behind the usual names, precompiled ones, and those that a source names."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path

from optimizer.evaluation.build.command import URGENT, BuildTimeoutError, CompilerSlots, ProcessRunner
from optimizer.evaluation.build.toolchain import Toolchain

OPERATORS_FILE = "htam_operators.h"
"""Written for each request by :func:`optimizer.evaluation.build.headers.operator_header`."""

_CORE = (
    "ATen/core/Tensor.h",
    "ATen/Context.h",
    "ATen/DeviceGuard.h",
    "ATen/DimVector.h",
    "ATen/Dispatch.h",
    "ATen/Formatting.h",
    "ATen/ScalarOps.h",
    "ATen/TensorGeometry.h",
    "ATen/TensorIndexing.h",
    "ATen/TensorOperators.h",
    "ATen/TracerMode.h",
    "ATen/Version.h",
    "ATen/core/Generator.h",
    "ATen/core/Reduction.h",
    "ATen/core/grad_mode.h",
    "c10/core/InferenceMode.h",
    "c10/core/TensorOptions.h",
    "c10/util/Exception.h",
    "c10/util/irange.h",
    "torch/csrc/autograd/variable.h",
    "torch/csrc/api/include/torch/detail/TensorDataContainer.h",
    "optional",
    "string",
    "vector",
)
_BINDING = ("torch/csrc/utils/pybind.h", "torch/csrc/Exceptions.h")

_CUDA = ("cuda.h", "cuda_runtime.h", "cuda_fp16.h", "cuda_bf16.h")

_FORWARD = '#pragma once\n#include <htam/core.h>\n#include "{operators}"\n'
_FORWARD_BINDING = '#pragma once\n#include <htam/core.h>\n{binding}#include "{operators}"\n'


class SlimHeaders:
    """The folder of slim headers for one toolchain, written once under ``root``.

    Attributes:
        folder: goes before torch's own folders on the include path.
        core, prefix: headers to precompile, without and with the bindings; their CUDA variants
            have the same names after ``cuda_``.
    """

    def __init__(self, root: Path, toolchain: Toolchain) -> None:
        texts = _texts(toolchain)
        self.folder = root / f"slim-{toolchain.fingerprint[:16]}-{_digest(texts)}"
        self.prefix = self.folder / "htam" / "prefix.h"
        self.core = self.folder / "htam" / "core.h"
        if not self.folder.is_dir():
            _publish(texts, self.folder)


def _texts(toolchain: Toolchain) -> dict[str, str]:
    include = toolchain.torch_include
    operators = [f"ATen/ops/{name}.h" for name in ALWAYS if (include / "ATen" / "ops" / f"{name}.h").is_file()]
    core = [
        "#pragma once",
        "#define AT_PER_OPERATOR_HEADERS",
        *_includes((*(name for name in _CORE if _exists(include, name)), *operators)),
        "namespace torch {",
        "using Deleter = std::function<void(void*)>;",
        "using at::MemoryFormat;",
        "}",
        torch_names(include),
    ]
    binding = "".join(f"{line}\n" for line in _includes(_BINDING))
    guarded = f"#ifndef HTAM_NO_BINDING\n{binding}#endif\n"
    plain = _FORWARD.format(operators=OPERATORS_FILE)
    prefix = f"#pragma once\n#include <htam/core.h>\n{binding}"
    cuda = "".join(f"{line}\n" for line in _includes(_CUDA))
    bound = _FORWARD_BINDING.format(operators=OPERATORS_FILE, binding=guarded)
    return {
        "htam/core.h": "\n".join(core),
        "htam/prefix.h": prefix,
        "htam/cuda_core.h": f"#pragma once\n#include <htam/core.h>\n{cuda}",
        "htam/cuda_prefix.h": prefix + cuda,
        "ATen/ATen.h": plain,
        "torch/types.h": plain,
        "torch/all.h": plain,
        "torch/torch.h": bound,
        "torch/extension.h": bound,
        "torch/python.h": bound,
    }


def _exists(include: Path, name: str) -> bool:
    return "/" not in name or (include / name).is_file()


def _includes(names: tuple[str, ...]) -> list[str]:
    return [f"#include <{name}>" for name in names]


def _digest(texts: dict[str, str]) -> str:
    import hashlib

    return hashlib.sha256("\0".join(f"{name}\0{text}" for name, text in sorted(texts.items())).encode()).hexdigest()[:8]


def _publish(texts: dict[str, str], folder: Path) -> None:
    """Write all files, then show the folder by one rename; a second process that was faster wins."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(dir=folder.parent))
    for name, text in texts.items():
        path = staging / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    staging.chmod(0o755)
    try:
        os.rename(staging, folder)  # noqa: PTH104 - Path.rename hides which error a loser of the race sees
    except OSError:
        if not folder.is_dir():
            raise


_TIMEOUT_S = 300.0
WORTH = 3
"""Builds with the same flags from which to wait for a precompiled header: it takes 13 s and saves each some 3 s."""


class PrecompiledHeaders:
    """Precompiled versions of headers, one for each set of code generation flags.

    gcc ignores a precompiled header that does not fit, so a wrong one costs time, never correctness.

    Args:
        folder: where they live, shared by processes.
        command: compiler and include flags common to all.
        slots: where to queue for a compiler.
        limit: sets of flags to keep; a file takes about 400 MB, further sets go without.
    """

    def __init__(
        self, folder: Path, command: Sequence[str], runner: ProcessRunner, slots: CompilerSlots, limit: int = 8
    ) -> None:
        self._folder = folder
        self._command = tuple(command)
        self._runner = runner
        self._slots = slots
        self._limit = limit
        self._started: set[Path] = set()
        self._lock = threading.Lock()

    def include_flags(self, header: Path, flags: Sequence[str], *, wait: bool) -> list[str]:
        """Flags that include ``header`` first, precompiled if it is already.

        Otherwise it is precompiled now: ``wait`` for it from the :data:`WORTH`-th build with these flags on, or go
        without this time, since it takes longer (13 s, most of it for writing) than a build that parses the header
        itself (8 s).
        """
        found = self.ready(header, flags)
        home = self._folder / self._key(header, flags)
        begun = (home / "lock").exists()
        if self.is_in(found) or (not begun and len(list(self._folder.glob("pch-*/lock"))) >= self._limit):
            return found
        home.mkdir(parents=True, exist_ok=True)
        if wait and not begun and _counted(home / "asked") < WORTH:
            return found
        if wait:
            return self._compile(header, home, flags)
        with self._lock:
            if home not in self._started:
                self._started.add(home)
                # Not a daemon: a program that ends sooner waits for it, or a host would never get its headers.
                threading.Thread(target=self._prepare, args=(header, home, tuple(flags)), name="headers").start()
        return ["-include", str(header)]

    def ready(self, header: Path, flags: Sequence[str]) -> list[str]:
        """Flags that include ``header`` first, precompiled if it is by now; nothing is begun."""
        home = self._folder / self._key(header, flags)
        return ["-include", str(home / header.name if (home / f"{header.name}.gch").is_file() else header)]

    def is_in(self, flags: Sequence[str]) -> bool:
        """Whether flags of :meth:`include_flags` name no header at all or a precompiled one."""
        return not flags or flags[1].startswith(str(self._folder / "pch-"))

    def _prepare(self, header: Path, home: Path, flags: Sequence[str]) -> None:
        with contextlib.suppress(BuildTimeoutError, OSError):  # a folder that is gone by now needs no headers
            self._compile(header, home, flags)

    def _compile(self, header: Path, home: Path, flags: Sequence[str]) -> list[str]:
        copy = home / header.name
        with (home / "lock").open("w") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            if not (home / f"{header.name}.gch").is_file():
                shutil.copyfile(header, copy)
                part = home / f"{os.getpid()}.part"
                command = [*self._command, *flags, "-x", "c++-header", str(copy), "-o", str(part)]
                with self._slots.slot(URGENT):
                    done = self._runner.run(command, home, _TIMEOUT_S)
                if done.status != 0:
                    part.unlink(missing_ok=True)
                    return ["-include", str(header)]
                part.rename(home / f"{header.name}.gch")
        return ["-include", str(copy)]

    def _key(self, header: Path, flags: Sequence[str]) -> str:
        parts = "\0".join([*self._command, str(header), *flags])
        return f"pch-{hashlib.sha256(parts.encode()).hexdigest()[:16]}"


def _counted(file: Path) -> int:
    """One more mark in a file that processes share; how many there are."""
    with file.open("ab") as marks:
        marks.write(b".")
        marks.flush()
        return marks.tell()


_QUALIFIED = re.compile(r"\b(?:torch|at)\s*::\s*(?:native\s*::\s*)?(\w+)")
_USING = re.compile(r"\busing\s+namespace\s+(?:torch|at)\b")
_CALLED = re.compile(r"(?<![\w.>:])(\w+)\s*\(")
_FACTORY = re.compile(r"^inline at::Tensor (\w+)\(.*?^\}\n", re.MULTILINE | re.DOTALL)
_NEEDS_ALL = re.compile(
    r"\b(?:torch|at)\s*::\s*(?:nn|optim|data|serialize|fft|linalg|special|sparse|nested|autograd|jit|python|enumtype"
    r"|native|meta|cpu|compositeimplicitautograd)\b|\btorch/script\.h|\btorch::k(?:Mean|Sum|None|Zeros|Reflect|Constant)\b"
    r"|\bc10::IValue|\bTORCH_LIBRARY"
)

ALWAYS = ("empty", "empty_like", "zeros", "zeros_like", "ones", "ones_like", "full", "full_like", "tensor", "from_blob")
"""Operators in the precompiled header: nearly every candidate allocates."""


def needs_all_headers(text: str) -> bool:
    """True when a source names parts of torch that the slim headers leave out."""
    return _NEEDS_ALL.search(text) is not None


def named_operators(text: str, torch_include: Path) -> tuple[str, ...]:
    """Operators that have a header of their own and are named in ``text``, sorted."""
    words = set(_QUALIFIED.findall(text))
    if _USING.search(text):
        words.update(_CALLED.findall(text))
    return tuple(sorted(word for word in words if (torch_include / "ATen" / "ops" / f"{word}.h").is_file()))


def operator_header(text: str, torch_include: Path) -> str:
    """A header that declares the operators named in ``text`` in namespaces ``at`` and ``torch``."""
    names = named_operators(text, torch_include)
    known = factories(torch_include)
    lines = ["#pragma once", *(f"#include <ATen/ops/{name}.h>" for name in names)]
    defined = [known[name] for name in dict.fromkeys((*ALWAYS, *names)) if name in known]
    return "\n".join([*lines, "namespace torch {", *defined, "}", ""])


@functools.cache
def factories(torch_include: Path) -> dict[str, str]:
    """Factory name → its overloads in namespace ``torch``, as the installed header spells them."""
    path = torch_include / "torch" / "csrc" / "autograd" / "generated" / "variable_factories.h"
    found: dict[str, str] = {}
    for match in _FACTORY.finditer(path.read_text(encoding="utf-8")):
        found[match[1]] = found.get(match[1], "") + match[0]
    return found


def torch_names(torch_include: Path) -> str:
    """What ``torch/types.h`` itself declares, without its includes."""
    path = torch_include / "torch" / "csrc" / "api" / "include" / "torch" / "types.h"
    return without_includes(path.read_text(encoding="utf-8").splitlines())


def without_includes(lines: Iterable[str]) -> str:
    """The lines that are no ``#include`` and no ``#pragma once``."""
    kept = (line for line in lines if not re.match(r"\s*#\s*(include|pragma\s+once)\b", line))
    return "\n".join(kept) + "\n"

"""The stock route: torch's own extension builder, in a process of its own, as the author would run it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from optimizer.evaluation.build.command import NICENESS, ProcessRunner, Runner, Stop, scrubbed_environment
from optimizer.evaluation.build.request import BuildRequest
from optimizer.evaluation.build.route import Attempt, write_files

_LIMIT = 20_000

_PROGRAM = """
import json, sys
from torch.utils import cpp_extension
cpp_extension._import_module_from_library = lambda *ignored: None  # build only, load nothing here
order = json.load(open(sys.argv[1]))
cpp_extension.load(**order)
"""


class StockRoute:
    """Calls ``torch.utils.cpp_extension.load`` on the same files and flags.

    Args:
        arch: compute capability to build for, as ``90``; empty lets torch ask the driver.
        runner: how commands are run.
    """

    name = "stock"

    def __init__(self, arch: str = "", runner: Runner | None = None) -> None:
        environment = scrubbed_environment()
        if arch:
            environment["TORCH_CUDA_ARCH_LIST"] = f"{arch[:-1]}.{arch[-1]}" if arch[-1].isdigit() else _suffixed(arch)
        # Whoever comes here has waited for a fast route already: it is the last candidate of a batch to be decided.
        self._runner = runner or ProcessRunner(environment, niceness=NICENESS // 2)

    def supports(self, request: BuildRequest) -> bool:
        """Anything: this route decides."""
        return True

    def build(self, request: BuildRequest, directory: Path, timeout_s: float, stop: Stop | None = None) -> Attempt:
        """See :class:`optimizer.evaluation.build.route.Route`."""
        sources = write_files(request, directory)
        order = {
            "name": request.name,
            "sources": [str(path) for path in sources],
            "extra_cflags": list(request.cflags),
            "extra_cuda_cflags": list(request.cuda_cflags),
            "extra_ldflags": list(request.ldflags),
            "extra_include_paths": list(request.include_paths),
            "build_directory": str(directory),
            "with_cuda": request.with_cuda,
        }
        (directory / "order.json").write_text(json.dumps(order), encoding="utf-8")
        done = self._runner.run([sys.executable, "-P", "-c", _PROGRAM, "order.json"], directory, timeout_s, stop)
        library = directory / f"{request.name}.so"
        return Attempt(
            library=library if done.status == 0 and library.is_file() else None, log=_compiler_part(done.output)
        )


def _suffixed(arch: str) -> str:
    """``90a`` → ``9.0a``."""
    return f"{arch[:-2]}.{arch[-2:]}"


def _compiler_part(output: str) -> str:
    """Without the Python traceback that repeats the compilers' output, and not longer than useful."""
    start = output.rfind("Error building extension")
    return (output[start:] if start >= 0 else output)[-_LIMIT:]

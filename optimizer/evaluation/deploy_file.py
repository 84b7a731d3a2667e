"""Trying kernels inside the model that a file defines."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any

import torch
from torch import nn

from artifacts.errors import UnavailableError
from optimizer.evaluation import deploy_runtime
from optimizer.evaluation.deploy import Swap, factory, swap

WARM_UP, SAMPLES = 3, 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """A winner file, and the source of its task, which knows how the operator is made."""

    path: Path
    task_source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What swapping gave; times are medians of whole calls in microseconds, coarse, for orientation only."""

    swaps: tuple[Swap, ...]
    training: bool
    before_us: float
    after_us: float


def try_in_file(model: Path, kernels: Mapping[str, Kernel], device: str, calls: int) -> Trial:
    """Make the model of a file, swap ``kernels`` (by submodule name) into it and check them on ``calls`` inputs.

    Raises:
        UnavailableError: torch cannot use ``device`` here.
    """
    _require(device)
    torch.manual_seed(0)
    file = _module(model.read_text(encoding="utf-8"), str(model))
    net = file.Model(*file.get_init_inputs()).to(device).eval()
    inputs = [[_moved(item, device) for item in file.get_inputs()] for _ in range(calls)]
    before = _median_us(net, inputs)
    made = {
        name: factory(kernel.path, _module(kernel.task_source, "task").get_init_inputs())
        for name, kernel in kernels.items()
    }
    swaps = swap(net, made, inputs)
    return Trial(swaps=swaps, training=net.training, before_us=before, after_us=_median_us(net, inputs))


PACKAGE = '''"""Verified kernels for {model}, written by htam apply from {run}.

    from {name} import accelerate
    model = accelerate(model)  # a Model on its device and in its mode, as it was checked: {device}, {mode}

Kernels run without gradients (torch.no_grad or torch.inference_mode), also under torch.compile; for gradients, autocast
and other shapes, types or devices than those below the original runs.
"""

import functools

import torch

from . import runtime, {modules}

SWAPS = [
{swaps}]


def accelerate(model):
    """Put the kernels into ``model`` and return it; ``runtime.restore(model)`` takes them out."""
    return runtime.accelerate(model, SWAPS)
'''


def write_package(folder: Path, trial: Trial, kernels: Mapping[str, Kernel], **words: str) -> None:
    """Write the kernels that were swapped as a package that needs torch alone.

    Args:
        kernels: by submodule name, as for :func:`try_in_file`.
        words: ``model``, ``run`` and ``device``, for the docstring.
    """
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(deploy_runtime.__file__, folder / "runtime.py")
    lines, modules = [], []
    for number, one in enumerate(each for each in trial.swaps if not each.problem):
        kernel = kernels[one.name]
        modules += [f"kernel_{number}", f"task_{number}"]
        shutil.copyfile(kernel.path, folder / f"kernel_{number}.py")
        (folder / f"task_{number}.py").write_text(kernel.task_source, encoding="utf-8")
        made = "".join(f"            {key!r}: {value!r},\n" for key, value in one.verified.items())
        load = f"functools.partial(kernel_{number}.load, *task_{number}.get_init_inputs())"
        lines.append(f"    ({one.name!r}, {load}, {{\n{made}        }}, {trial.training}),\n")
    text = PACKAGE.format(
        name=folder.name,
        modules=", ".join(modules),
        swaps="".join(lines),
        mode="training" if trial.training else "eval()",
        **words,
    )
    (folder / "__init__.py").write_text(text, encoding="utf-8")


def _require(device: str) -> None:
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as problem:  # torch says it in any of these
        reason = str(problem).splitlines()[0]
        raise UnavailableError(f"device {device!r} cannot be used: {reason}", "e.g. cpu, or cuda:0") from problem


def _module(source: str, name: str) -> ModuleType:
    module = ModuleType("applied")
    exec(compile(source, name, "exec"), module.__dict__)
    return module


def _moved(item: Any, device: str) -> Any:
    return item.to(device) if isinstance(item, torch.Tensor) else item


def _median_us(net: nn.Module, inputs: Sequence[Sequence[Any]]) -> float:
    samples = []
    with torch.no_grad():
        for number in range(WARM_UP + SAMPLES):
            start = time.perf_counter()
            net(*inputs[number % len(inputs)])
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            samples.append((time.perf_counter() - start) * 1e6)
    return median(samples[WARM_UP:])

"""Trying kernels inside the model that a file defines."""

from __future__ import annotations

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
    return Trial(swaps=swaps, before_us=before, after_us=_median_us(net, inputs))


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

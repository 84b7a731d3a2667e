"""One candidate through KernelBench's own evaluator, in a process that imports nothing of this project.

``python driver.py MODULE ORDER.json RESULT.json`` with the folder of ``MODULE`` on ``PYTHONPATH``; ``MODULE`` is
``kernelbench.eval``, or ``src.eval`` in older checkouts. Packages that it imports and evaluation does not use, such as
clients of LLM services, are stood in for where they are not installed.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import inspect
import json
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

UNUSED = frozenset(
    {
        *("anthropic", "datasets", "dotenv", "google", "litellm", "modal", "openai", "pydantic", "pydra", "requests"),
        *("tabulate", "together", "tomli", "tqdm", "transformers"),
    }
)
"""Packages that KernelBench imports at its top level and that evaluation does well without."""


class Record:
    """Stands in for any class of a package that is not here; with keywords it is a record, which pydantic's base is."""

    def __init__(self, *_: Any, **values: Any) -> None:
        self.__dict__.update(values)


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Asked last, so that what is installed is used."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Offer an empty package for a name that nothing else knows."""
        known = name.partition(".")[0] in UNUSED
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if known else None

    def exec_module(self, module: types.ModuleType) -> None:
        """Give the module a class for whatever is imported from it."""
        module.__dict__["__getattr__"] = lambda name: _class(name)


def _class(name: str) -> type[Record]:
    if name.startswith("__"):
        raise AttributeError(name)
    return Record


def evaluate(module: str, order: dict[str, Any]) -> dict[str, Any]:
    """What ``eval_kernel_against_ref`` says: ``correct`` (None for no verdict), ``error``, ``time_us``."""
    import torch

    function = importlib.import_module(module).eval_kernel_against_ref
    wanted = {
        "original_model_src": order["task"],
        "custom_model_src": order["candidate"],
        "num_correct_trials": order["correctness_trials"],
        "num_perf_trials": order["timing_trials"],
        "measure_performance": True,
        "build_dir": order["build_dir"],
        "device": torch.device("cuda:0"),
        "backend": order["backend"],
        "precision": getattr(torch, order["dtype"]),
    }
    known = inspect.signature(function).parameters  # the last two came with later versions
    result = function(**{name: value for name, value in wanted.items() if name in known})
    if result is None:
        return {"correct": None, "error": "KernelBench gave no result"}
    runtime_ms = float(getattr(result, "runtime", -1.0))
    return {
        "correct": bool(result.correctness),
        "error": "" if result.correctness else _reason(result),
        "time_us": runtime_ms * 1e3 if result.correctness and runtime_ms > 0 else None,
    }


def _reason(result: Any) -> str:
    words = "; ".join(f"{name}: {value}" for name, value in dict(getattr(result, "metadata", {}) or {}).items())
    return f"{'' if result.compiled else 'does not compile; '}{words}"[:2000]


def main() -> None:
    """Evaluate one order and write the result."""
    module, order, result = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    sys.meta_path.append(StandIns())
    found = evaluate(module, json.loads(order.read_text(encoding="utf-8")))
    result.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()

"""KernelBench's own verdict on the same candidates, each in a fresh process as its documentation has it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from artifacts.codec import decode, encode
from artifacts.errors import BadInputError, UnavailableError
from optimizer.evaluation.worker.devices import nvidia_devices
from pipeline.bench.kernelbench import OtherVerdict, Sample

CORRECTNESS_TRIALS, TIMING_TRIALS = 5, 100
"""KernelBench's own defaults."""
LONGEST_S = 600.0
"""For one candidate, compilers included; one that takes longer gets no verdict."""
_PACKAGES = (("src/kernelbench/eval.py", "src", "kernelbench.eval"), ("src/eval.py", ".", "src.eval"))
"""Where versions keep their evaluator: its file, the folder to import from, and its name there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossCheck:
    """The evaluator of a checkout.

    Attributes:
        path: file of results, one a line; what is there is not asked again.
        dtype: to which both sides are cast; versions that know no precision leave tasks as they are.
    """

    checkout: Path
    path: Path
    dtype: str = "float32"

    def require(self) -> None:
        """See that the evaluator can run here.

        Raises:
            UnavailableError: there is no CUDA device.
            BadInputError: the checkout holds no evaluator.
        """
        _package(self.checkout)
        if not nvidia_devices():
            raise UnavailableError(
                "--cross-check needs a CUDA device: KernelBench's evaluator runs nowhere else", "leave it out here"
            )

    def verdicts(
        self,
        samples: Sequence[Sample],
        *,
        deadline: float | None = None,
        listener: Callable[[Sample, OtherVerdict], None] = lambda sample, verdict: None,
    ) -> dict[str, OtherVerdict]:
        """Verdicts by name of the sample, up to the deadline (of :func:`time.monotonic`)."""
        file, _, _ = _package(self.checkout)
        rules = hashlib.sha256(f"{file.read_text(encoding='utf-8')}{self.dtype}".encode()).hexdigest()
        known = _known(self.path)
        found = {}
        for sample in samples:
            key = hashlib.sha256(f"{rules}{sample.problem.task.source}{sample.source}".encode()).hexdigest()
            if key not in known:
                left_s = LONGEST_S if deadline is None else min(LONGEST_S, deadline - time.monotonic())
                verdict = verdict_of(
                    self.checkout, sample.problem.task.source, sample.source, dtype=self.dtype, timeout_s=left_s
                )
                if verdict is None:
                    break
                known[key] = verdict
                with self.path.open("a", encoding="utf-8") as results:
                    results.write("\n" + json.dumps({"key": key, "verdict": encode(verdict)}) + "\n")
                listener(sample, verdict)
            found[sample.name] = known[key]
        return found


def verdict_of(
    checkout: Path, task: str, candidate: str, *, dtype: str = "float32", timeout_s: float = LONGEST_S
) -> OtherVerdict | None:
    """What the evaluator of a checkout says of a candidate, asked in a fresh process.

    Args:
        task, candidate: Python sources with ``Model`` and ``ModelNew``.
        timeout_s: seconds for build and evaluation.

    Returns:
        None when ``timeout_s`` was too short for a verdict.

    Raises:
        BadInputError: the checkout holds no evaluator.
    """
    _, folder, module = _package(checkout)
    if timeout_s <= 0:
        return None
    with tempfile.TemporaryDirectory(prefix="htam-kernelbench-") as scratch:
        order, result = Path(scratch) / "order.json", Path(scratch) / "result.json"
        order.write_text(json.dumps(_order(task, candidate, dtype, scratch)), encoding="utf-8")
        driver = str(Path(__file__).with_name("driver.py"))
        environment = {**os.environ, "PYTHONPATH": str(folder.resolve())}
        command = [sys.executable, "-P", driver, module, str(order), str(result)]
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False
            )
        except subprocess.TimeoutExpired:
            if timeout_s < LONGEST_S:
                return None
            return OtherVerdict(correct=None, error=f"no verdict within {LONGEST_S:g} s")
        if not result.is_file():
            return OtherVerdict(correct=None, error=_last_line(done))
        return decode(OtherVerdict, json.loads(result.read_text(encoding="utf-8")))


def _order(task: str, candidate: str, dtype: str, scratch: str) -> dict[str, Any]:
    return {
        "task": task,
        "candidate": candidate,
        "correctness_trials": CORRECTNESS_TRIALS,
        "timing_trials": TIMING_TRIALS,
        "build_dir": str(Path(scratch) / "build"),
        "backend": "triton" if "triton" in candidate else "cuda",
        "dtype": dtype,
    }


def _package(checkout: Path) -> tuple[Path, Path, str]:
    for file, folder, module in _PACKAGES:
        if (checkout / file).is_file():
            return checkout / file, checkout / folder, module
    raise BadInputError(f"{checkout} has no evaluator ({_PACKAGES[0][0]})", "name a whole checkout of KernelBench")


def _known(path: Path) -> dict[str, OtherVerdict]:
    """Verdicts of earlier runs; a line that was cut is asked again."""
    known: dict[str, OtherVerdict] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        with contextlib.suppress(json.JSONDecodeError):
            data = json.loads(line)
            known[data["key"]] = decode(OtherVerdict, data["verdict"])
    return known


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    lines = (done.stderr or done.stdout).strip().splitlines()
    return f"its process ended with {done.returncode}: {lines[-1] if lines else 'no word'}"[:500]

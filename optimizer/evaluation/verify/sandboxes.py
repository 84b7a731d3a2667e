"""The processes of one evaluation: the candidate's first one, and fresh ones for it and the incumbent."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from optimizer.evaluation.verify.memory_budget import Sizes
from optimizer.evaluation.verify.sandbox_client import SandboxClient

_OUTPUT_SLACK = 64 << 20
"""Bytes beyond those of two outputs, however wide, that a candidate may deliver."""


class Sandboxes:
    """All processes of a candidate and its incumbent so far.

    Args:
        backend: that they use.
        first: a fresh process for the candidate.
        more: gives another fresh process.
        sizes: of the task, where they could be counted.

    Attributes:
        first: as given.
        started: every process so far.
        call_s: limit in seconds of one call in later ones.
    """

    def __init__(
        self, backend: str, first: SandboxClient, more: Callable[[], SandboxClient], sizes: Sizes | None
    ) -> None:
        self._backend = backend
        self._more = more
        self._sizes = sizes
        self.first = first
        self.started = [first]
        self.call_s = math.inf

    def start_first(self) -> None:
        """Let the first process start its device, and start ours meanwhile."""
        self._start(self.first)

    def load_first(self, source: str) -> None:
        """Load the candidate into the first process.

        Raises:
            Failure: it does not load.
        """
        self._load(self.first, source)

    def fresh(self, source: str) -> SandboxClient:
        """Another process, with ``source`` loaded.

        Raises:
            Failure: it does not load.
        """
        sandbox = self._more()
        self.started.append(sandbox)
        self._start(sandbox)
        self._load(sandbox, source)
        sandbox.call_s = self.call_s
        return sandbox

    def cpu_s(self) -> float:
        """CPU seconds of this process and of all these so far."""
        return time.process_time() + sum(sandbox.cpu_s() for sandbox in self.started)

    def _start(self, sandbox: SandboxClient) -> None:
        if self._backend == "cuda":
            import torch

            sandbox.start()
            torch.cuda.synchronize()
            sandbox.started()

    def _load(self, sandbox: SandboxClient, source: str) -> None:
        if self._sizes is not None:
            sandbox.output_limit = 4 * self._sizes.outputs + _OUTPUT_SLACK
        sandbox.load(source)

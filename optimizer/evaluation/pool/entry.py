"""Names of the files in a pool: everything that claiming and returning must know is in the name, never inside."""

from __future__ import annotations

import hashlib
import json
import secrets
from dataclasses import dataclass, replace

from artifacts.codec import encode
from optimizer.evaluation.job import EvaluationJob


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One job on its way.

    Attributes:
        key: of the job's content, see :func:`job_key`.
        attempt: workers that were lost with it so far.
        worker: who holds it; empty while it waits.
        claim: tells two claims of one worker apart.
    """

    backend: str
    key: str
    attempt: int = 0
    worker: str = ""
    claim: str = ""

    @property
    def name(self) -> str:
        """Name of its file."""
        waiting = f"{self.backend}.{self.key}.{self.attempt}"
        return f"{waiting}.{self.worker}.{self.claim}" if self.worker else waiting

    @classmethod
    def parse(cls, name: str) -> Entry | None:
        """Read a name; None for files that are not ours, such as half-written ones."""
        parts = name.split(".")
        if len(parts) not in (3, 5) or not parts[2].isdecimal() or not parts[0]:
            return None
        worker, claim = parts[3:] or ("", "")
        return cls(backend=parts[0], key=parts[1], attempt=int(parts[2]), worker=worker, claim=claim)

    def held_by(self, worker: str) -> Entry:
        """The same job once ``worker`` has claimed it."""
        return replace(self, worker=worker, claim=secrets.token_hex(4))

    def waiting(self, *, lost: bool) -> Entry:
        """The same job back in the queue; ``lost`` counts the worker that had it."""
        return replace(self, worker="", claim="", attempt=self.attempt + lost)


def job_key(job: EvaluationJob) -> str:
    """Identity of a job by its whole content, so that a job sent twice is one job with one result."""
    return hashlib.sha256(json.dumps(encode(job), sort_keys=True).encode()).hexdigest()[:32]

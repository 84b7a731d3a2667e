"""An evaluation job, everything a worker on a bare host needs as one JSON line, and the seam that evaluates it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from artifacts.candidate import normalise_source
from artifacts.measurement import BASELINES, Measurement, Precision

PRECISIONS = ("auto", "strict", "tf32")
DTYPES = ("float32", "bfloat16", "float16")
_HALF = ("bfloat16", "float16")


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationSettings:
    """How to evaluate; part of the job's identity.

    Attributes:
        seeds: number of hidden correctness seeds.
        min_samples, max_samples: bounds for the adaptive number of timed repetitions.
        budget_s: aimed-at measuring time per callable in seconds.
        build_timeout_s, run_timeout_s: wall-clock limits per stage in seconds.
        memory_gib: address-space limit of a CPU stage in GiB.
        precision: ``strict`` forbids TF32 to both sides, ``tf32`` allows it to both; ``auto`` is strict for float32
            and leaves half types as they are.
        dtype: to which model and inputs of the task are cast, one of :data:`DTYPES`; empty for as the task has them.
        baselines: names to time beside the reference; None for those that tell the fastest of the class.
        profile: ask for hardware counters when the host allows them.
    """

    seeds: int = 3
    min_samples: int = 20
    max_samples: int = 400
    budget_s: float = 1.0
    build_timeout_s: float = 300.0
    run_timeout_s: float = 120.0
    memory_gib: float = 16.0
    precision: str = "auto"
    dtype: str = ""
    baselines: tuple[str, ...] | None = None
    profile: bool = False

    def __post_init__(self) -> None:
        for what, value, known in (("precision", self.precision, PRECISIONS), ("dtype", self.dtype, ("", *DTYPES))):
            if value not in known:
                raise ValueError(f"unknown {what} {value!r}, one of {', '.join(filter(None, known))}")
        if self.dtype in _HALF and self.precision != "auto":
            raise ValueError(f"precision {self.precision} is for float32, not for dtype {self.dtype}")
        unknown = set(self.baselines or ()) - set(BASELINES)
        if unknown:
            raise ValueError(f"unknown baseline {min(unknown)!r}, one of {', '.join(BASELINES)}")

    @property
    def tf32(self) -> bool:
        """Whether TF32 is allowed, in every process that works on the job."""
        return self.precision == "tf32"

    def precision_class(self, dtype: str = "") -> Precision:
        """The class in which a task is judged; ``dtype`` is that of its floating-point inputs, where it is known."""
        dtype = dtype or self.dtype
        if dtype in _HALF:
            return Precision(dtype)
        return Precision.TF32 if self.tf32 else Precision.STRICT


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationJob:
    """One candidate to evaluate against one task.

    Attributes:
        job_id: chosen by the sender, returned with the result.
        task_id: for messages only; ``task_source``: Python source with Model, get_inputs, get_init_inputs.
        candidate_source: Python source with ModelNew.
        reference_only: there is no candidate: run the task's reference and time it, to know that the task can be
            evaluated here before anything is paid for.
        incumbent_source: source to interleave with (ABBA); empty for none.
        backend: ``cpu`` or ``cuda``.
        seed: secret from which the worker derives its hidden seeds.
    """

    job_id: str
    task_id: str
    task_source: str
    candidate_source: str
    backend: str
    seed: int
    reference_only: bool = False
    incumbent_source: str = ""
    settings: EvaluationSettings = field(default_factory=EvaluationSettings)
    labels: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.backend not in ("cpu", "cuda"):
            raise ValueError(f"unknown backend {self.backend!r}, one of cpu, cuda")
        if self.reference_only and (self.candidate_source or self.incumbent_source):
            raise ValueError("a job of the reference alone has no candidate and no incumbent")
        if not self.reference_only:
            object.__setattr__(self, "candidate_source", normalise_source(self.candidate_source))


class Evaluator(Protocol):
    """Turns jobs into measurements; implementations: local worker pool, files, fakes in tests.

    Contract: every job yields exactly one ``(job_id, measurement)``, in any order, as soon as it is
    known; a failing candidate is a measurement, never an exception; an exception means that the
    evaluator itself cannot work (:class:`artifacts.errors.UnavailableError`).
    """

    def evaluate(self, jobs: Iterable[EvaluationJob]) -> Iterator[tuple[str, Measurement]]:
        """Evaluate all jobs and yield results as they arrive."""
        ...

    def close(self) -> None:
        """End all processes; the evaluator cannot be used afterwards."""
        ...

"""Candidates of a benchmark through the local evaluator; a result is on disk before it counts."""

from __future__ import annotations

import contextlib
import hashlib
import json
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from artifacts.candidate import source_hash
from artifacts.codec import encode
from artifacts.measurement import Measurement, Outcome
from optimizer.evaluation.job import EvaluationJob, EvaluationSettings, Evaluator
from optimizer.evaluation.worker.job_files import finished_jobs, write_results
from pipeline.bench.kernelbench import Sample

Result = tuple[str, Measurement]
"""Key of a result, and the result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What a result depends on beside task and candidate; ``devices`` are names in words."""

    backend: str
    devices: tuple[str, ...]
    settings: EvaluationSettings

    def key(self, sample: Sample) -> str:
        """Identity of a result: a candidate that is met again under the same conditions is not evaluated again."""
        parts = [source_hash(sample.problem.task.source), sample.sha256, json.dumps(encode(self), sort_keys=True)]
        digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:24]
        return f"level_{sample.problem.level}_problem_{sample.problem.number}/{digest}"


def evaluate(
    samples: Sequence[Sample],
    conditions: Conditions,
    path: Path,
    open_evaluator: Callable[[], Evaluator],
    *,
    seed: int,
    deadline: float | None = None,
    listener: Callable[[Sample, Measurement], None] = lambda sample, measurement: None,
) -> dict[str, Measurement]:
    """Evaluate what ``path`` does not know yet, append to it, and return all results by key.

    What the host failed on before is tried again.

    Args:
        open_evaluator: called when there is something to do.
        seed: secret from which hidden seeds derive.
        deadline: of :func:`time.monotonic`; what is under way then is dropped.
        listener: told of every new result.
    """
    by_key = {conditions.key(sample): sample for sample in reversed(samples)}
    found = {key: measurement for key, measurement in finished_jobs(path).items() if key in by_key}
    done = {key for key, measurement in found.items() if measurement.outcome is not Outcome.INFRA_ERROR}
    jobs = [_job(by_key[key], key, conditions, seed) for key in reversed(by_key) if key not in done]

    if not jobs:
        return found
    evaluator = open_evaluator()

    def arriving() -> Iterator[Result]:
        for key, measurement in until(evaluator.evaluate(jobs), deadline):
            found[key] = measurement
            listener(by_key[key], measurement)
            yield key, measurement

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_results(path, arriving())
    finally:
        evaluator.close()
    return found


def _job(sample: Sample, key: str, conditions: Conditions, seed: int) -> EvaluationJob:
    return EvaluationJob(
        job_id=key,
        task_id=sample.problem.task.ref.task_id,
        task_source=sample.problem.task.source,
        candidate_source=sample.source,
        backend=conditions.backend,
        seed=seed,
        settings=conditions.settings,
    )


def until(results: Iterable[Result], deadline: float | None) -> Iterator[Result]:
    """Results as they come, up to the deadline; nobody waits for the rest."""
    inbox: queue.Queue[Result | Exception | None] = queue.Queue()

    def pass_on() -> None:
        try:
            for result in results:
                inbox.put(result)
            inbox.put(None)
        except Exception as problem:  # noqa: BLE001 - raised again where it is waited for
            inbox.put(problem)

    threading.Thread(target=pass_on, daemon=True, name="results").start()
    with contextlib.suppress(queue.Empty):
        while (
            item := inbox.get(timeout=None if deadline is None else max(deadline - time.monotonic(), 0.0))
        ) is not None:
            if isinstance(item, Exception):
                raise item
            yield item

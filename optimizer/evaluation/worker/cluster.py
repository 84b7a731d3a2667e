"""Evaluate on a Dask cluster whose workers have one GPU each, for hosts that are always on.

::

    dask scheduler                                                               # on one host
    CUDA_VISIBLE_DEVICES=0 dask worker tcp://HOST:8786 --nworkers 1 --nthreads 8 # for each GPU, this project installed

While one job of a worker is measured its other threads build. Dask gives the jobs of a lost worker to others, and gives
up a job that has lost several.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any

from artifacts.errors import HtamError, UnavailableError
from artifacts.measurement import Measurement, Outcome
from optimizer.evaluation.job import EvaluationJob
from optimizer.evaluation.worker.devices import devices_of
from optimizer.evaluation.worker.local import LocalEvaluator

if TYPE_CHECKING:
    from distributed import Client, Future

LOOK_S = 1.0
CONNECT_S = 30.0
_starting = threading.Lock()
_evaluators: list[LocalEvaluator] = []


class ClusterEvaluator:
    """A :class:`optimizer.evaluation.job.Evaluator` over the workers of a Dask cluster.

    Args:
        address: of the scheduler, e.g. ``tcp://gpu-host:8786``.
        patience_s: seconds without any worker after which we give up.

    Raises:
        UnavailableError: no scheduler answers at ``address``, or ``distributed`` is not installed.
    """

    def __init__(self, address: str, *, patience_s: float = 600.0) -> None:
        self._address = address
        self._patience_s = patience_s
        self._client = _connected(address)

    def evaluate(self, jobs: Iterable[EvaluationJob]) -> Iterator[tuple[str, Measurement]]:
        """Evaluate all jobs and yield results as they arrive.

        Raises:
            UnavailableError: no worker for too long, the scheduler is gone, or the evaluator is closed.
        """
        done: queue.SimpleQueue[Future[Any]] = queue.SimpleQueue()
        try:
            # A job is never taken for an earlier equal one, whose verdict may be what the search wants to ask again.
            waiting = {self._client.submit(evaluated, job, pure=False): job.job_id for job in jobs}
            for future in waiting:
                future.add_done_callback(done.put)
            while waiting:
                future = self._next(done)
                yield waiting.pop(future), _measurement(future)
        except (OSError, CancelledError) as gone:
            raise UnavailableError(
                f"the Dask scheduler at {self._address} is gone", "start it and give the command again"
            ) from gone

    def device_name(self, backend: str) -> str:
        """Product name of what the workers measure ``backend`` on; waits for the first of them.

        Raises:
            UnavailableError: there is no worker, one has no such device, or they differ.
        """
        names: set[str] = set()
        while not names:  # whoever is there may be gone before it is asked
            self._wait_for_worker()
            names = {str(name) for name in self._client.run(_name_here, backend).values()}
        if len(names) > 1:
            raise UnavailableError(
                f"workers of {self._address} measure on {' and '.join(sorted(names))}",
                "times of different devices cannot be compared: start a scheduler for each",
            )
        return names.pop()

    @property
    def workers(self) -> int:
        """Workers that are there now."""
        return len(self._client.nthreads())

    def close(self) -> None:
        """Withdraw what is not finished; the cluster itself stays."""
        self._client.close()

    def _next(self, done: queue.SimpleQueue[Future[Any]]) -> Future[Any]:
        """The next future that is done, such as one that took the last worker with it, or was cancelled."""
        seen = time.monotonic()
        while True:
            with contextlib.suppress(queue.Empty):
                return done.get(timeout=LOOK_S)
            seen = self._last_seen(seen)

    def _wait_for_worker(self) -> None:
        seen = time.monotonic()
        while not self.workers:
            seen = self._last_seen(seen)
            time.sleep(LOOK_S)

    def _last_seen(self, before: float) -> float:
        """When a worker was there last, known to be ``before`` or later; raises when that is too long ago."""
        if self.workers:
            return time.monotonic()
        if time.monotonic() > before + self._patience_s:
            raise UnavailableError(
                f"no worker serves {self._address}", f"start one: dask worker {self._address} --nworkers 1"
            )
        return before


def evaluated(job: EvaluationJob) -> Measurement:
    """What a worker does with a job, in one of its threads."""
    return next(measurement for _, measurement in _evaluator_here().evaluate([job]))


def _evaluator_here() -> LocalEvaluator:
    """The one evaluator of this worker; its processes end with the worker."""
    with _starting:
        if not _evaluators:
            _evaluators.append(LocalEvaluator())
        return _evaluators[0]


def _name_here(backend: str) -> str:
    return devices_of(backend)[0].name


def _connected(address: str) -> Client:
    try:
        from distributed import Client
    except ImportError as missing:
        raise UnavailableError("Dask is not installed", "pip install 'htam-kernels[dask]'") from missing
    # What goes wrong with a job comes back as its result; these logs tell of each connection that comes and goes.
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    try:
        return Client(address, timeout=CONNECT_S, set_as_default=False)
    except (OSError, ValueError) as problem:
        raise UnavailableError(
            f"no Dask scheduler answers at {address}", "start one: dask scheduler; the address is its tcp://HOST:8786"
        ) from problem


def _measurement(future: Future[Any]) -> Measurement:
    """The result of a job; one that took all its workers with it, or that a worker could not do, says so."""
    problem: Any = future.exception()
    if problem is None:
        result: Measurement = future.result()
        return result
    what = problem.what if isinstance(problem, HtamError) else f"{type(problem).__name__}: {problem}"
    return Measurement(outcome=Outcome.INFRA_ERROR, stage="infrastructure", device="", error=what)

"""What a worker does with a pool: claim, evaluate, publish, and be heard of."""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

from artifacts.codec import decode
from artifacts.errors import BadInputError, UnavailableError
from artifacts.measurement import Measurement
from artifacts.outcome import Outcome
from optimizer.evaluation.hosts import Device
from optimizer.evaluation.job import EvaluationJob
from optimizer.evaluation.pool.entry import Entry
from optimizer.evaluation.pool.folder import Card, PoolFolder
from optimizer.evaluation.protocol import Evaluator

POLL_S = 0.25


class PoolWorker:
    """Serves a pool with one evaluator.

    Args:
        devices: what the evaluator measures on.
        lanes: jobs under way at a time: while one is measured, others build.
        idle_s: end after so many seconds without a job; None to go on for ever.

    Raises:
        UnavailableError: the pool's other workers measure on something else, so results could not be compared.
    """

    def __init__(
        self,
        pool: PoolFolder,
        evaluator: Evaluator,
        devices: Sequence[Device],
        *,
        lanes: int,
        idle_s: float | None = None,
    ) -> None:
        self._pool = pool
        self._evaluator = evaluator
        names = {device.backend: device.name for device in devices}
        self.card = Card(worker=secrets.token_hex(6), host=socket.gethostname(), pid=os.getpid(), devices=names)
        self._lanes = lanes
        self._idle_s = idle_s
        self._stop = threading.Event()
        self._last = 0.0
        self._held: set[Entry] = set()
        self._dropped = False
        self._lock = threading.Lock()

    @property
    def busy(self) -> int:
        """Jobs that this worker has claimed, by what others see: a signal may come while one is being claimed."""
        return self._pool.claimed_by(self.card.worker)

    def stop(self) -> None:
        """Claim nothing new; what is under way is finished and published."""
        self._stop.set()

    def serve(self) -> None:
        """Work until stopped or idle for too long.

        Raises:
            UnavailableError: the evaluator cannot work; its jobs are back in the queue.
            KeyboardInterrupt: raised by a signal handler; what was under way is back in the queue, and its results
                will not be published. Close the evaluator, which may still be at work.
        """
        now = self._pool.beat(self.card)
        try:
            self._require_same_devices(now)
            self._pool.sweep(now)
            list(self._evaluator.evaluate(()))  # starts its processes once, before the lanes do it all at a time
            threads = ThreadPoolExecutor(self._lanes, thread_name_prefix="lane")
            try:
                self._watch([threads.submit(self._lane) for _ in range(self._lanes)])
            except KeyboardInterrupt:
                self._drop()
                raise
            finally:
                threads.shutdown(wait=not self._dropped)
        finally:
            self._pool.leave(self.card.worker)

    def _watch(self, lanes: Sequence[Future[None]]) -> None:
        """Send heartbeats and return what others lost until all lanes have ended."""
        self._last = time.monotonic()  # what came before was no idleness
        try:
            while not all(lane.done() for lane in lanes):
                self._pool.repair(self._pool.beat(self.card))
                end = time.monotonic() + self._pool.lease_s / 8
                while time.monotonic() < end and not all(lane.done() for lane in lanes):
                    time.sleep(min(POLL_S, self._pool.lease_s / 8))
                    self._stop_when_idle()
        finally:
            self.stop()
        for lane in lanes:
            lane.result()

    def _drop(self) -> None:
        """Give back what is under way without waiting for it, and claim nothing any more."""
        self.stop()  # the lanes may not all have begun, and then nobody else has said so
        with self._lock:
            self._dropped = True
            for held in self._held:
                self._pool.give_back(held)

    def _stop_when_idle(self) -> None:
        if self._idle_s is not None and not self._held and time.monotonic() - self._last > self._idle_s:
            self.stop()

    def _lane(self) -> None:
        try:
            while not self._stop.is_set():
                claimed = self._claim()
                if claimed is None:
                    self._stop.wait(POLL_S)
                else:
                    self._do(*claimed)
        finally:
            self.stop()  # a lane that failed takes the others with it

    def _claim(self) -> tuple[Entry, str] | None:
        """Take a job that :meth:`_drop` will give back: what is claimed and what is held never differ for others."""
        with self._lock:
            claimed = None if self._dropped else self._pool.claim(self.card.worker, tuple(self.card.devices))
            if claimed is not None:
                self._held.add(claimed[0])
        return claimed

    def _do(self, held: Entry, text: str) -> None:
        with self._returning(held):
            measurement = self._measured(text)
            if not self._dropped:  # else the evaluator was ended while it was at it
                self._pool.publish(held.key, measurement)
                self._pool.release(held)

    def _measured(self, text: str) -> Measurement:
        try:
            job = decode(EvaluationJob, json.loads(text))
        except (ValueError, BadInputError) as problem:
            error = f"the worker on {self.card.host} cannot read the job: {problem}; use the same version on all hosts"
            return Measurement(outcome=Outcome.INFRA_ERROR, stage="infrastructure", device="", error=error)
        return next(measurement for _, measurement in self._evaluator.evaluate([job]))

    @contextmanager
    def _returning(self, held: Entry) -> Iterator[None]:
        """Give the job back when anything keeps it from being finished."""
        try:
            yield
        except BaseException:
            self._pool.give_back(held)
            raise
        finally:
            with self._lock:
                self._held.discard(held)
                self._last = time.monotonic()

    def _require_same_devices(self, now: float) -> None:
        for other in self._pool.living(now):
            for backend, name in other.devices.items():
                if self.card.devices.get(backend, name) != name:
                    raise UnavailableError(
                        f"workers of {self._pool.path} measure on {name}, not on {self.card.devices[backend]}",
                        "times of different devices cannot be compared: use a pool of its own for each",
                    )

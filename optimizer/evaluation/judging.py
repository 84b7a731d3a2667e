"""Judge and cells at work on one job, watched by the worker."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import signal
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from artifacts.codec import decode, encode
from artifacts.measurement import Measurement
from artifacts.outcome import Outcome
from optimizer.evaluation.build.channel import BuildServer
from optimizer.evaluation.cells import CellProcess, SpareCells
from optimizer.evaluation.gate import DeviceGate
from optimizer.evaluation.hosts import Device
from optimizer.evaluation.job import EvaluationJob
from optimizer.evaluation.judges import JudgeProcess, Judges
from optimizer.evaluation.process.channel import ChannelClosedError, ChannelTimeoutError
from optimizer.evaluation.process.memory import resident_bytes, shared_bytes
from optimizer.evaluation.process.spawn import Child, ForkServer

_JUDGE_STAGES = 8
"""A judge may take this many run time-outs in all: it makes that many kinds of requests."""
_POLL_S = 0.25
_SPARE_S = 10.0
"""For a process with its device started; after that one is made on the spot."""
_REMEMBERED = 1000


class Judging:
    """Gives each job a judge and a fresh process for its candidate; one instance serves all threads of a worker.

    Args:
        server: starts processes.
        builds: compiles what cells ask for.
        folder: of built libraries, which cells may read, and of measured ceilings.
    """

    def __init__(self, server: ForkServer, builds: BuildServer, folder: Path) -> None:
        self._server = server
        self._builds = builds
        self._folder = str(folder.resolve())
        self._judges = Judges(server)
        self._spares: dict[str, SpareCells[CellProcess]] = {}
        self._lock = threading.Lock()
        self._seconds: deque[tuple[str, Mapping[str, float]]] = deque(maxlen=_REMEMBERED)

    @property
    def seconds(self) -> dict[str, Mapping[str, float]]:
        """Where the last jobs' judges spent their time, for benchmarks."""
        return dict(tuple(self._seconds))

    def judged(self, job: EvaluationJob, device: Device, *, alone: bool = False) -> Measurement:
        """One judge's verdict; ``alone`` keeps all others from the device meanwhile."""
        if alone:
            self._spares_of(device).dismiss()
            self._judges.dismiss(device)
        with contextlib.ExitStack() as stack:
            cell = stack.enter_context(self.cell(job, device, spare_wait_s=None if alone else _SPARE_S))
            judge = stack.enter_context(self._judges.judge(device))
            request = {"job": encode(job), "scratch": stack.enter_context(_scratch()), "folder": self._folder}
            request |= {"device_name": device.name, "device_key": device.key, "alone": alone, "cell": _known(cell)}
            cells = [cell]
            stack.callback(_end, cells)  # first: the judge's death frees the device
            try:
                judge.channel.send(request, [cell.channel.fileno()])
            except ChannelClosedError:
                return infrastructure(device, f"the judge ended unexpectedly{ending(judge.child)}")
            return self._await(judge, cells, job, device, stack, None if alone else 0.0)

    def _await(
        self,
        judge: JudgeProcess,
        cells: list[CellProcess],
        job: EvaluationJob,
        device: Device,
        stack: contextlib.ExitStack,
        spare_wait_s: float | None,
    ) -> Measurement:
        """Wait for the verdict; meanwhile give the judge more cells and watch their memory.

        The judge's time stands still while it waits for the device. As it holds the device it must not wait for a
        cell that has yet to start there.
        """
        left, waits, last = _JUDGE_STAGES * job.settings.run_timeout_s, False, time.monotonic()
        watch = _MemoryWatch(cells, job.settings.memory_gib, judge.child)
        while left > 0:
            now = time.monotonic()
            left, last = left - (0.0 if waits else now - last), now
            try:
                message, _ = judge.channel.receive(_POLL_S)
            except ChannelTimeoutError:
                watch.look()
                continue
            except ChannelClosedError:
                return infrastructure(device, f"the judge ended unexpectedly{ending(judge.child)}")
            if "waits" in message:
                waits = bool(message["waits"])
            elif "want" in message:
                cells.append(stack.enter_context(self.cell(job, device, spare_wait_s=spare_wait_s)))
                with contextlib.suppress(ChannelClosedError):  # the next message says how it ended
                    judge.channel.send(_known(cells[-1]), [cells[-1].channel.fileno()])
            else:
                return self._settled(message, judge, cells, job, watch)
        return Measurement(
            outcome=Outcome.TIMEOUT,
            stage="timing",
            device=device.name,
            error=f"evaluation took more than {_JUDGE_STAGES} × {job.settings.run_timeout_s:g} s in all",
        )

    def _settled(
        self,
        message: dict[str, Any],
        judge: JudgeProcess,
        cells: list[CellProcess],
        job: EvaluationJob,
        watch: _MemoryWatch,
    ) -> Measurement:
        """The verdict; the cells end while the judge still has the device, so that no timing sees them go."""
        measurement = decode(Measurement, message["measurement"])
        self._seconds.append((job.job_id, message["seconds"]))
        suffix = (watch.excess or ending(cells[-1].child)) if message["gone"] else ""
        _end(cells)
        with contextlib.suppress(ChannelClosedError):
            judge.channel.send({"ended": True})
            judge.served = True
        return dataclasses.replace(measurement, error=measurement.error + suffix)

    @contextlib.contextmanager
    def cell(
        self, job: EvaluationJob, device: Device | None, *, spare_wait_s: float | None = None
    ) -> Iterator[CellProcess]:
        """A fresh candidate process; it is gone afterwards. Without a device it sees none.

        On a CUDA device it has started already where one is ready within ``spare_wait_s`` (None: do not ask).
        """
        cell = None
        if device is not None and device.backend == "cuda" and spare_wait_s is not None:
            cell = self._spares_of(device).take(spare_wait_s)
        cell = cell or self._fresh(job.backend, device)
        try:
            cell.admit(job, job.settings.build_timeout_s + _JUDGE_STAGES * job.settings.run_timeout_s)
            yield cell
        finally:
            cell.close()

    def _fresh(self, backend: str, device: Device | None) -> CellProcess:
        return CellProcess(self._server, self._builds, backend=backend, device=device, readable=[self._folder])

    def _spares_of(self, device: Device) -> SpareCells[CellProcess]:
        with self._lock:
            if device.key not in self._spares:
                gate = DeviceGate(device.key)
                self._spares[device.key] = SpareCells(lambda: self._fresh("cuda", device), gate)
            return self._spares[device.key]

    def close(self) -> None:
        """End the processes that wait for work."""
        for spares in self._spares.values():
            spares.close()
        self._judges.close()


class _MemoryWatch:
    """Ends cells that hold more memory than allowed; ``excess`` then says so.

    What a cell shares with the judge, inputs and outputs on their way, is not its own.
    """

    def __init__(self, cells: list[CellProcess], limit_gib: float, judge: Child) -> None:
        self._cells = cells
        self._limit_gib = limit_gib
        self._judge = judge
        self.excess = ""

    def look(self) -> None:
        """Look now."""
        limit = self._limit_gib * 2**30 + shared_bytes(self._judge.pid)
        for cell in self._cells:
            if not self.excess and resident_bytes(cell.child.pid) > limit:
                self.excess = f": more than {self._limit_gib:g} GiB of memory"
                cell.child.kill()


def _end(cells: list[CellProcess]) -> None:
    for cell in cells:
        cell.end()


def _known(cell: CellProcess) -> dict[str, Any]:
    """What a judge must know of a cell beside its channel."""
    return {"pid": cell.child.pid, "started": cell.started}


def ending(child: Child) -> str:
    """How a process ended, as a suffix for a message."""
    status = child.wait(5)
    if status is None:
        return ""
    if status >= 0:
        return f" (exit status {status})"
    with contextlib.suppress(ValueError):
        return f" ({signal.Signals(-status).name})"
    return f" (signal {-status})"


def infrastructure(device: Device, reason: str) -> Measurement:
    """No verdict, for a reason that is not the candidate's."""
    return Measurement(outcome=Outcome.INFRA_ERROR, stage="infrastructure", device=device.name, error=reason)


@contextlib.contextmanager
def _scratch() -> Iterator[str]:
    folder = tempfile.mkdtemp(prefix="htam-")
    try:
        yield str(Path(folder).resolve())
    finally:
        shutil.rmtree(folder, ignore_errors=True)

"""What a run is doing, while it does it: a live table on a terminal, a line a step elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import click

from artifacts.measurement import Timing
from pipeline.report.charts import microseconds

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

    from artifacts.runlog import Event
    from optimizer.llm.openai_client import Retry

DOING = {"request": "asking", "answer": "answered", "candidate": "measuring", "measurement": "measured"}
"""Kind of an event → what a task does after it."""
WAITING = ("asking", "measuring")
AGAIN = "/confirm"
"""End of the key of a winner's second measurement."""


class Progress:
    """Listens to a run's new events; a context manager around one sitting.

    Args:
        tasks: task ids in order; ``steps``: steps that they take on average.
    """

    def __init__(self, tasks: tuple[str, ...], steps: int) -> None:
        self._rows = {task: _Row() for task in tasks}
        self._steps = steps
        self._calls = 0
        self._usd = 0.0
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.live import Live

            self._live = Live(get_renderable=self._table, console=Console(stderr=True), refresh_per_second=4)
            self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.__exit__(kind, error, trace)

    def recall(self, events: Iterable[Event]) -> None:
        """Take in what happened before this sitting, without a word."""
        for event in events:
            self._take(event)

    def __call__(self, event: Event) -> None:
        """Take in one event, and say it where there is no table."""
        self._take(event)
        key, again = event.key.removesuffix(AGAIN), event.key.endswith(AGAIN)
        if self._live is None and (event.kind == "step" or again):
            what = "measured again" if again else event.payload["mode"]
            click.echo(f"{key}  {what:<8}  {outcome(_result(event))}", err=True)

    def _take(self, event: Event) -> None:
        if event.kind == "answer":
            self._calls += 1
            self._usd += event.payload["cost_usd"] or 0.0
        row = self._rows.get(event.key.removesuffix(AGAIN).rsplit("/", 1)[0])
        if row is not None:
            row.take(event)

    def say(self, line: str) -> None:
        """Print a line that stays, above the table where there is one."""
        if self._live is None:
            click.echo(line, err=True)
        else:
            self._live.console.print(line, markup=False, highlight=False)

    def retrying(self, retry: Retry) -> None:
        """Say that a task waits because its endpoint gave no answer, and why."""
        task = retry.request.task
        if self._live is None:
            click.echo(f"{task}/{retry.request.slot}  {retry}", err=True)
        elif task in self._rows:
            self._rows[task].does(str(retry))

    def _table(self) -> Table:
        from rich.table import Table

        done, planned = sum(row.steps for row in self._rows.values()), self._steps * len(self._rows)
        table = Table(caption=f"{done} of {planned} steps, {self._calls} answers, {self._usd:.2f} USD")
        for name in ("task", "step", "best over eager", "now"):
            table.add_column(name)
        for task, row in self._rows.items():
            best = "" if row.best is None else f"{row.best:.2f}x"
            table.add_row(task, str(row.steps), best, row.now())
        return table


class _Row:
    """Where one task is."""

    def __init__(self) -> None:
        self.steps = 0
        self.best: float | None = None
        self._now = ""
        self._since = 0.0

    def now(self) -> str:
        """What is going on, and for how long where something is waited for."""
        seconds = time.monotonic() - self._since
        return f"{self._now}, {seconds:.0f} s" if self._now in WAITING and seconds >= 1 else self._now

    def does(self, what: str) -> None:
        """Note what begins now."""
        self._now, self._since = what, time.monotonic()

    def take(self, event: Event) -> None:
        """Update from one event of the task."""
        if event.kind in DOING:
            self.does(DOING[event.kind])
        if event.kind == "step":
            self.steps = max(self.steps, event.payload["index"] + 1)
            self.does(outcome(event.payload)[:60])
            ratio = _speedup(event.payload)
            if ratio is not None:
                self.best = max(ratio, self.best or 0.0)
        elif event.key.endswith(AGAIN):
            self.does(f"measured again: {outcome(_result(event))}"[:60])


def _result(event: Event) -> Mapping[str, Any]:
    """What a step gave, in the form of its payload, or what measuring its candidate again gave."""
    return event.payload if event.kind == "step" else {"measurement": event.payload}


def outcome(payload: Mapping[str, Any]) -> str:
    """What a ``step`` event gave, in a few words."""
    measured = payload["measurement"]
    if measured is None:
        return f"no candidate: {payload['error']}"
    if measured["timing"] is None:
        first = (measured["error"].splitlines() or [""])[0]
        return f"{measured['outcome']}: {first[:100]}"
    ratio = _speedup(payload)
    busy = " (not steady: a busy host?)" if any(_unsteady(timing) for timing in _timings(measured)) else ""
    speed = "" if ratio is None else f", {ratio:.2f}x eager"
    return f"correct, {microseconds(measured['timing']['median_us'])}{speed}{busy}"


def _timings(measured: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [measured["timing"], *measured["baselines"].values()]


def _unsteady(timing: Mapping[str, Any]) -> bool:
    median, samples = timing["median_us"], tuple(timing.get("samples_us", ()))
    return Timing(median_us=median, low_us=median, high_us=median, samples_us=samples).unsteady


def _speedup(payload: Mapping[str, Any]) -> float | None:
    measured = payload["measurement"]
    if measured is None or measured["timing"] is None or "eager" not in measured["baselines"]:
        return None
    return float(measured["baselines"]["eager"]["median_us"] / measured["timing"]["median_us"])

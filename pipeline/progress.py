"""What a run is doing, while it does it: a live table on a terminal, a line a step elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from artifacts.codec import decode
from artifacts.measurement import Measurement, Timing, doubt_mark
from pipeline.report.charts import microseconds
from pipeline.voice import counted, doing, quiet, say

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

    from artifacts.runlog import Event
    from optimizer.llm.openai_client import Retry

DOING = {"task_started": "checking", "request": "asking", "answer": "answered", "candidate": "measuring"}
DOING |= {"measurement": "measured"}
"""Kind of an event → what a task does after it."""
WAITING = {
    "checking": "running the reference of",
    "asking": "waiting for an answer for",
    "measuring": "building and measuring",
    "confirming": "measuring again the winner of",
}
"""What a task does while it waits → the same for a line of its own."""
MOST_WAITING = 3
"""Tasks that such a line names at most."""
AGAIN = "/confirm"
"""End of the key of a winner's second measurement."""
REFERENCE = "/reference"
"""End of the key of a task's check."""


class Progress:
    """Listens to a run's new events; a context manager around one session.

    Args:
        tasks: task ids in order; ``steps``: steps that they take on average.
        confirm: winners are measured again once all steps are taken.
    """

    def __init__(self, tasks: tuple[str, ...], steps: int, *, confirm: bool = False) -> None:
        self._rows = {task: _Row() for task in tasks}
        self._steps = steps
        self._confirm = confirm
        self._calls = 0
        self._usd = 0.0
        self._live: Live | None = None
        self._beating = doing(self._now)

    def __enter__(self) -> Self:
        self._beating.__enter__()
        if sys.stderr.isatty() and not quiet():
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
        self._beating.__exit__(kind, error, trace)

    def _now(self) -> str:
        """What the tasks wait for, on one line; nothing where a table shows it."""
        waiting: dict[str, list[str]] = {}
        for task, row in self._rows.items():
            if words := row.waits():
                waiting.setdefault(words, []).append(f"{task.rpartition('/')[2]} ({row.seconds:.0f} s)")
        lines = [f"{words} {', '.join(tasks[:MOST_WAITING])}{_more(tasks)}" for words, tasks in waiting.items()]
        return "" if self._live is not None else "; ".join(lines) or "working"

    def recall(self, events: Iterable[Event]) -> None:
        """Take in what happened before this session, without a word."""
        for event in events:
            self._take(event)

    @property
    def known(self) -> str:
        """How many of all steps were taken, in words; empty when none was."""
        return f"{self._done} of {counted(self._planned, 'step')} known" if self._done else ""

    @property
    def _done(self) -> int:
        return sum(row.steps for row in self._rows.values())

    @property
    def _planned(self) -> int:
        return self._steps * len(self._rows)

    def __call__(self, event: Event) -> None:
        """Take in one event, and say it where there is no table."""
        self._take(event)
        key, again = event.key.removesuffix(AGAIN), event.key.endswith(AGAIN)
        if self._live is None and (event.kind == "step" or again):
            what = "measured again" if again else event.payload["mode"]
            say(f"{key}  {what:<8}  {outcome(_result(event))}")
        elif self._live is None and key.endswith(REFERENCE) and event.kind == "measurement" and event.payload["error"]:
            say(f"{key}  {outcome(_result(event))}")

    def _take(self, event: Event) -> None:
        if event.kind == "answer":
            self._calls += 1
            self._usd += event.payload["cost_usd"] or 0.0
        begun = event.kind == "task_started"
        row = self._rows.get(event.key if begun else event.key.removesuffix(AGAIN).rsplit("/", 1)[0])
        if row is not None:
            row.take(event)
        if self._confirm and event.kind == "step" and self._done >= self._planned:
            for each in self._rows.values():
                each.confirms()

    def say(self, line: str) -> None:
        """Print a line that stays, above the table where there is one."""
        if self._live is None:
            say(line)
        else:
            self._live.console.print(line, markup=False, highlight=False)

    def retrying(self, retry: Retry) -> None:
        """Say that a task waits because its endpoint gave no answer, and why."""
        task = retry.request.task
        if self._live is None:
            say(f"{task}/{retry.request.slot}  {retry}")
        elif task in self._rows:
            self._rows[task].does(str(retry))

    def _table(self) -> Table:
        from rich.table import Table

        steps = f"{self._done} of {counted(self._planned, 'step')}"
        table = Table(caption=f"{steps}, {counted(self._calls, 'answer')}, {self._usd:.2f} USD")
        for name in ("task", "step", "best speedup", "now"):
            table.add_column(name)
        for task, row in self._rows.items():
            best = "" if row.best is None else f"{row.best:.2f}x"
            table.add_row(task, str(row.steps), best, row.now())
        return table


def _more(tasks: list[str]) -> str:
    return f" and {len(tasks) - MOST_WAITING} more" if len(tasks) > MOST_WAITING else ""


class _Row:
    """Where one task is."""

    def __init__(self) -> None:
        self.steps = 0
        self.best: float | None = None
        self._now = ""
        self._since = 0.0

    def now(self) -> str:
        """What the task is doing, and for how long where it waits."""
        seconds = time.monotonic() - self._since
        return f"{self._now}, {seconds:.0f} s" if self._now in WAITING and seconds >= 1 else self._now

    @property
    def seconds(self) -> float:
        """Since the task does what it does."""
        return time.monotonic() - self._since

    def waits(self) -> str:
        """What the task waits for; empty when it does not."""
        return WAITING.get(self._now, "")

    def does(self, what: str) -> None:
        """Note what begins now."""
        self._now, self._since = what, time.monotonic()

    def confirms(self) -> None:
        """Note that a winner, where there is one, is measured again now."""
        if self.best is not None:
            self.does("confirming")

    def take(self, event: Event) -> None:
        """Update from one event of the task."""
        if event.kind in DOING:
            self.does(DOING[event.kind])
        if event.kind == "step":
            self.steps = max(self.steps, event.payload["index"] + 1)
            self.does(outcome(event.payload)[:60])
            measured = _measurement(event.payload)
            ratio = None if measured is None else measured.speedup()
            if ratio is not None:
                self.best = max(ratio, self.best or 0.0)
        elif event.key.endswith(AGAIN):
            self.does(f"measured again: {outcome(_result(event))}"[:60])


def _result(event: Event) -> Mapping[str, Any]:
    """What a step gave, in the form of its payload, or what measuring its candidate again gave."""
    return event.payload if event.kind == "step" else {"measurement": event.payload}


def outcome(payload: Mapping[str, Any]) -> str:
    """What a ``step`` event gave, in a few words."""
    measured = _measurement(payload)
    if measured is None:
        return f"no candidate: {payload['error']}"
    if measured.timing is None:
        return f"{measured.outcome.value}: {measured.first_error}"
    ratio = measured.speedup()
    doubt = doubt_mark(measured.doubts)
    speed = "" if ratio is None else f", {ratio:.2f}x {measured.fastest_baseline}"
    stays = _lost_paired(measured, payload.get("state", {}).get("runtime_us"))
    return f"correct, {microseconds(measured.timing.median_us)}{speed}{doubt and f' ({doubt}: believe it less)'}{stays}"


def _lost_paired(measured: Measurement, before_us: float | None) -> str:
    """Why a candidate that looks faster than its parent did, ``before_us`` then, is not taken for faster."""
    timing, incumbent = measured.timing, measured.incumbent
    if timing is None or incumbent is None or measured.faster_than_incumbent is not False or before_us is None:
        return ""
    looked = before_us / timing.median_us
    if looked <= 1:
        return ""
    low, ratio, high = paired_ratio(timing, incumbent)
    return f"; looked {looked:.2f}x, paired {ratio:.2f}x [{low:.2f}, {high:.2f}]: the incumbent stays"


def paired_ratio(timing: Timing, incumbent: Timing) -> tuple[float, float, float]:
    """(low, median, high) of incumbent time / candidate time over the blocks in which both were timed.

    Of several input settings there are no blocks any more; then of the two medians, with their intervals.
    """
    from optimizer.evaluation.verify.timing import block_ratios, median_interval

    try:
        return median_interval(block_ratios(timing.samples_us, incumbent.samples_us))
    except ValueError:  # samples do not pair
        middle = incumbent.median_us / timing.median_us
        return incumbent.low_us / timing.high_us, middle, incumbent.high_us / timing.low_us


def _measurement(payload: Mapping[str, Any]) -> Measurement | None:
    return None if payload["measurement"] is None else decode(Measurement, payload["measurement"])

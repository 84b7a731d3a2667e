"""A session of a run: live progress, a safe stop, and what to do next."""

from __future__ import annotations

import asyncio
import json
import shlex
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from artifacts.errors import BadTaskError
from artifacts.measurement import describe_speedups
from pipeline.progress import Progress
from pipeline.voice import counted, say

if TYPE_CHECKING:
    from artifacts.runlog import RunLog
    from optimizer.run.resources import Resources
    from optimizer.search.session import Session, Standing


def advance(log: RunLog, resources: Resources, *, store: str = "", as_json: bool = False) -> Standing:
    """Advance a run as far as it goes, print where it stands, and raise what a user must solve.

    Args:
        store: where the run's memory is now; where the run found it when empty.

    Raises:
        HtamError: budget used up, endpoint gone, ...; everything measured so far is kept.
        BadTaskError: the run is complete but for tasks whose reference cannot be evaluated.
        click.Abort: stopped by Ctrl-C before its end, so that no later command takes it for done.
    """
    stopped: list[int] = []
    standing = asyncio.run(_session(log, resources, store, stopped))
    _report(log.path, standing, as_json)
    if standing.problem is not None:
        raise standing.problem
    if stopped and not standing.complete:
        say(f"go on with: htam optimize --run {shlex.quote(str(log.path))}")
        raise click.Abort
    if standing.complete and standing.unusable:
        *several, last = _unusable(standing)
        what = f"{len(several) + 1} tasks cannot be evaluated, see above" if several else last
        raise BadTaskError(what, "correct the task file and start another run")
    return standing


def _unusable(standing: Standing) -> list[str]:
    return [f"{task}: cannot be evaluated, {reason}" for task, reason in standing.unusable.items()]


async def _session(log: RunLog, resources: Resources, store: str, stopped: list[int]) -> Standing:
    from optimizer.run.manifest import read_manifest
    from optimizer.run.opening import OpenRun, release_memory
    from optimizer.run.winners import write_winners

    known = read_manifest(log)
    progress = Progress(
        tuple(entry.task.task_id for entry in known.tasks), known.search.steps, confirm=known.search.confirm
    )
    progress.recall(log.events())
    if progress.known:
        say(f"resumes: {progress.known}")
    run = OpenRun(log, resources=resources, listener=progress, on_retry=progress.retrying, store=store)
    try:
        session = run.session()
        _stop_on_interrupt(session, progress, stopped)
        with progress:
            standing = await session.advance()
        write_winners(log.path, session.searches, run.manifest)
        if standing.complete:
            for manifest in (known, run.manifest):  # a run that started elsewhere holds its memory there
                release_memory(log.path, manifest)
        return standing
    finally:
        await run.close()


def _stop_on_interrupt(session: Session, progress: Progress, stopped: list[int]) -> None:
    """First Ctrl-C: finish what is under way and stop, which ``stopped`` then tells; second: as usual."""
    loop = asyncio.get_running_loop()

    def stop() -> None:
        progress.say("stopping after what is under way; press Ctrl-C again to drop it")
        stopped.append(signal.SIGINT)
        session.stop()
        loop.remove_signal_handler(signal.SIGINT)

    loop.add_signal_handler(signal.SIGINT, stop)


def _report(path: Path, standing: Standing, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(summary(path, standing), indent=1))
        return
    for finished in standing.finished:
        speed = describe_speedups(finished.speedups) or "no correct candidate"
        again = "" if not finished.speedups else ", measured again" if finished.confirmed else ", unconfirmed"
        doubts = "".join(f" ({doubt.text})" for doubt in finished.doubts)
        click.echo(
            f"{finished.task_id}: {speed}{again}{doubts}, after {counted(finished.steps, 'step')} ({finished.reason})"
        )
    if (path / "best").is_dir():
        click.echo(f"best candidates: {path / 'best'}")
    unusable = _unusable(standing)
    for line in unusable if len(unusable) > 1 or not standing.complete else ():  # a single one is the command's end
        click.echo(line)
    for task_id, reason in standing.suspended.items():
        known = reason == str(standing.problem)  # said last, once for all tasks
        if not (known or standing.open_requests or standing.open_jobs):
            click.echo(f"{task_id}: not finished, {reason}")
    if standing.open_requests or standing.open_jobs:
        click.echo(_next(path, standing))


def _next(path: Path, standing: Standing) -> str:
    parts, files = [], []
    if standing.open_requests:
        parts.append(counted(len(standing.open_requests), "LLM request"))
        files.append("--requests requests.jsonl")
    if standing.open_jobs:
        parts.append(counted(len(standing.open_jobs), "evaluation job"))
        files.append("--jobs jobs.jsonl")
    run, several = shlex.quote(str(path)), len(standing.open_requests) + len(standing.open_jobs) > 1
    by_hand = f"\nby hand: htam ask {run} --print, then htam tell {run} --answer FILE" if standing.open_requests else ""
    return (
        f"{' and '.join(parts)} {'are' if several else 'is'} open.\n"
        f"next: htam ask {run} {' '.join(files)}\n"
        f"then: htam tell {run} FILE... with the answers or measurements{by_hand}"
    )


def summary(path: Path, standing: Standing) -> dict[str, Any]:
    """Where a run stands, for machines."""
    from artifacts.codec import encode

    return {
        "run": str(path),
        "complete": standing.complete,
        "open_requests": len(standing.open_requests),
        "open_jobs": len(standing.open_jobs),
        "suspended": dict(standing.suspended),
        "unusable": dict(standing.unusable),
        "finished": [encode(finished) for finished in standing.finished],
    }

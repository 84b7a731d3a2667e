"""Sitting with a run: live progress, a safe stop, and what to do next."""

from __future__ import annotations

import asyncio
import json
import shlex
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pipeline.progress import Progress

if TYPE_CHECKING:
    from artifacts.runlog import RunLog
    from optimizer.run.resources import Resources
    from optimizer.search.session import Session, Standing


def go_on(log: RunLog, resources: Resources, *, store: str = "", as_json: bool = False) -> Standing:
    """Advance a run as far as it goes, print where it stands, and raise what a user must solve.

    Args:
        store: where the run's memory is now; where the run found it when empty.

    Raises:
        HtamError: budget used up, endpoint gone, ...; everything measured so far is kept.
        click.Abort: stopped by Ctrl-C before its end, so that no later command takes it for done.
    """
    stopped: list[int] = []
    standing = asyncio.run(_sit(log, resources, store, stopped))
    _report(log.path, standing, as_json)
    if standing.result.problem is not None:
        raise standing.result.problem
    if stopped and not standing.complete:
        raise click.Abort
    return standing


async def _sit(log: RunLog, resources: Resources, store: str, stopped: list[int]) -> Standing:
    from optimizer.run.holding import release_memory
    from optimizer.run.manifest import read_manifest
    from optimizer.run.opening import OpenRun
    from optimizer.run.winners import write_winners

    known = read_manifest(log)
    progress = Progress(tuple(entry.task.task_id for entry in known.tasks), known.search.steps)
    progress.recall(log.events())
    run = OpenRun(log, resources=resources, listener=progress, on_retry=progress.retrying, store=store)
    try:
        session = run.session()
        _stop_on_interrupt(session, progress, stopped)
        with progress:
            standing = await session.advance()
        write_winners(log.path, session.searches, run.manifest)
        if standing.complete:
            for manifest in (known, run.manifest):  # a run that was begun elsewhere holds its memory there
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
    for finished in standing.result.finished:
        speed = ", ".join(f"{ratio:.2f}x {name}" for name, ratio in finished.speedups.items()) or "no correct candidate"
        again = ", measured again" if finished.confirmed else ""
        again += f" ({finished.confirmed.doubt})" if finished.confirmed and finished.confirmed.doubt else ""
        click.echo(f"{finished.task_id}: {speed}{again}, after {finished.steps} steps ({finished.reason})")
    if standing.result.finished:
        click.echo(f"best candidates: {path / 'best'}")
    for task_id, reason in standing.result.suspended.items():
        known = reason == str(standing.result.problem)  # said last, once for all tasks
        if not (known or standing.open_requests or standing.open_jobs):
            click.echo(f"{task_id}: not finished, {reason}")
    if standing.open_requests or standing.open_jobs:
        click.echo(_next(path, standing))


def _next(path: Path, standing: Standing) -> str:
    parts, files = [], []
    if standing.open_requests:
        parts.append(f"{len(standing.open_requests)} LLM requests")
        files.append("--requests requests.jsonl")
    if standing.open_jobs:
        parts.append(f"{len(standing.open_jobs)} evaluation jobs")
        files.append("--jobs jobs.jsonl")
    return (
        f"{' and '.join(parts)} are open.\n"
        f"next: htam ask {shlex.quote(str(path))} {' '.join(files)}\n"
        f"then: htam tell {shlex.quote(str(path))} FILE... with the answers or measurements"
    )


def summary(path: Path, standing: Standing) -> dict[str, Any]:
    """Where a run stands, for machines."""
    from artifacts.codec import encode

    return {
        "run": str(path),
        "complete": standing.complete,
        "open_requests": len(standing.open_requests),
        "open_jobs": len(standing.open_jobs),
        "suspended": dict(standing.result.suspended),
        "finished": [encode(finished) for finished in standing.result.finished],
    }

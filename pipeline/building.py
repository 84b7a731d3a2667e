"""Run the build flow for one command line: Prefect's own files beside the work, progress on stderr."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

from artifacts.errors import BadInputError, HtamError


def build_memory(
    logs: list[str],
    store: str,
    name: str,
    *,
    work: str,
    model: str,
    tag: str,
    force: bool,
    no_replay: bool,
    runner: str,
    workers: int,
    refine: str = "",
    refine_url: str | None = None,
) -> str:
    """Build, publish and return ``name@version``.

    Raises:
        HtamError: bad logs, a damaged store, or a replay that is worse and not forced.
        OSError: the store or the work folder cannot be written.
    """
    for problem in build_problems(logs, store, name, tag):
        raise problem
    from flows.environment import keep_home_in

    keep_home_in(Path(work) / "prefect")
    with progress():
        logging.getLogger("htam").info("starting")  # the packages and the embedded server take seconds
        from flows import engine
        from flows.build_memory import build_memory as flow

        settings = engine.EngineSettings(runner=runner, workers=workers)
        reference: str = engine.run(
            flow, settings, logs, store, name, work, model, tag, force, not no_replay, refine, refine_url
        )
    return reference


def build_problems(logs: Sequence[str], store: str, name: str, tag: str) -> Iterator[HtamError | OSError]:
    """What a build would fail on at its end, or only after a server has started for it."""
    from artifacts.memory.files import Files
    from artifacts.memory.store import checked

    for path in logs:
        if not Path(path).exists():
            yield BadInputError(f"no logs at {path}", "give files or folders that hold logs")
    try:
        checked(name, "memory name")
        checked(tag, "tag")
        Files(store).require_writable()
    except (HtamError, OSError) as problem:
        yield problem


@contextmanager
def progress() -> Iterator[None]:
    """Show what the flows log on stderr, with the seconds since the start."""
    logger = logging.getLogger("htam")
    handler = _Lines()
    before = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.level, logger.propagate = before


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self._begin = time.monotonic()

    def emit(self, record: logging.LogRecord) -> None:
        """Print one line."""
        click.echo(f"{time.monotonic() - self._begin:6.1f} s  {record.getMessage()}", err=True)

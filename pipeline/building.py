"""Build a memory for one command line, in this process or as a flow, with progress on stderr."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from artifacts.errors import BadInputError, HtamError
from pipeline.voice import doing, say

HERE = "here"
"""Runner that needs no server."""


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
) -> str:
    """Build, publish and return ``name@version``.

    Raises:
        HtamError: bad logs, a damaged store, or a replay that is worse and not forced.
        OSError: the store or the work folder cannot be written.
    """
    for problem in build_problems(logs, store, name, tag):
        raise problem
    with progress():
        logging.getLogger("htam").info("starting")  # the packages take seconds
        if runner == HERE:  # without a Prefect server, whose start costs more than a small build
            from builder import build

            settings = build.BuildSettings(name=name, model=model, cache=Path(work) / "build", replay=not no_replay)
            built = build.build(logs, settings)
            return build.published(built.memory, store, tag, force, built.quarantined, work)
        from flows import keep_home_in

        keep_home_in(Path(work) / "prefect")
        from flows import engine
        from flows.build_memory import build_memory as flow

        runners = engine.EngineSettings(runner=runner, workers=workers)
        reference: str = engine.run(flow, runners, logs, store, name, work, model, tag, force, not no_replay)
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
        with doing(handler.beat):
            yield
    finally:
        logger.removeHandler(handler)
        logger.level, logger.propagate = before


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self._begin = time.monotonic()
        self.last = "building"

    def beat(self) -> str:
        """The last line again, with the seconds by now; it says what was done, not what is under way."""
        return f"{time.monotonic() - self._begin:6.1f} s  working, last: {self.last}"

    def emit(self, record: logging.LogRecord) -> None:
        """Print one line."""
        self.last = record.getMessage()
        say(f"{time.monotonic() - self._begin:6.1f} s  {self.last}")

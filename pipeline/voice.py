"""What a command says while it works: lines on stderr, one at least every few seconds, none with ``--quiet``."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

BEAT_S = 4.5
"""Silence after which a long command says what it does: nobody waits longer than five seconds."""


class _Voice:
    """What is being done, innermost last, and when something was said last."""

    def __init__(self) -> None:
        self.quiet = False
        self.doing: list[Callable[[], str]] = []
        self._said = time.monotonic()
        self._lock = threading.Lock()

    def say(self, line: str) -> None:
        with self._lock:
            self._said = time.monotonic()
            if not self.quiet:
                click.echo(line, err=True)

    def beat(self, over: threading.Event) -> None:
        """Say what is being done whenever nothing was said for a while."""
        self._said = time.monotonic()
        while not over.wait(max(self._said + BEAT_S - time.monotonic(), 0.1)):
            if time.monotonic() - self._said >= BEAT_S and self.doing and (line := self.doing[-1]()):
                self.say(line)


_VOICE = _Voice()


def say(line: str) -> None:
    """Print a line on stderr unless the command is to be quiet."""
    _VOICE.say(line)


@contextmanager
def doing(what: str | Callable[[], str]) -> Iterator[None]:
    """While this lasts, say what is being done after each :data:`BEAT_S` seconds of silence.

    Args:
        what: a few words, to which the seconds are added; or what gives the whole line, empty to say nothing.
    """
    begin, over, outermost = time.monotonic(), threading.Event(), not _VOICE.doing
    _VOICE.doing.append(what if callable(what) else lambda: f"{what} ({time.monotonic() - begin:.0f} s)")
    thread = threading.Thread(target=_VOICE.beat, args=(over,), daemon=True, name="heartbeat") if outermost else None
    if thread is not None:
        thread.start()
    try:
        yield
    finally:
        over.set()
        if thread is not None:
            thread.join()
        _VOICE.doing.pop()


def long_command(what: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate a command that may take long: it gets ``--quiet`` and is never silent without it."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @click.option("-q", "--quiet", is_flag=True, help="Print results and errors, no progress.")
        @functools.wraps(function)
        def command(*args: Any, quiet: bool, **options: Any) -> Any:
            before, _VOICE.quiet = _VOICE.quiet, _VOICE.quiet or quiet
            try:
                with doing(what):
                    return function(*args, **options)
            finally:
                _VOICE.quiet = before

        return command

    return decorate


def quiet() -> bool:
    """Whether the command was told to be quiet."""
    return _VOICE.quiet


def counted(number: int, noun: str, many: str = "") -> str:
    """``1 request``, ``2 requests``: the number with its noun; ``many`` is a plural that English forms without s."""
    return f"{number:,} {noun if number == 1 else many or f'{noun}s'}"

"""Who is told what became of a run, and how; travels in the environment, because runs are processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from urllib.parse import urlsplit

from artifacts.codec import decode, encode

VARIABLE = "HTAM_NOTIFY"
LIMIT_S = 60.0
STATES = ("failed", "crashed", "completed", "promoted", "kept", "unchanged")
"""Ends of a run that people can be told of; the last three are those of a rebuild."""


class UntoldError(OSError):
    """Somebody could not be told; says why without the words of a command or an address, which may hold a secret."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """Who is told of what.

    Attributes:
        on: some of :data:`STATES`.
        url: gets a POST with the news as JSON, whose field ``text`` is what chat services show; or
        command: gets the news as one line of JSON on its standard input.
    """

    on: tuple[str, ...] = ("failed", "crashed")
    url: str = ""
    command: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if bool(self.url) == bool(self.command):
            raise ValueError("a notice has either a url or a command")
        if self.url and not self.url.startswith(("http://", "https://")):
            raise ValueError(f"url {self.url!r} is not http or https")
        if self.url and not urlsplit(self.url).hostname:
            raise ValueError(f"url {self.url!r} names no host")
        unknown = sorted(set(self.on) - set(STATES))
        if unknown:
            raise ValueError(f"state {unknown[0]!r} is not known, one of {', '.join(STATES)}")

    @property
    def whom(self) -> str:
        """Who is told, as logs may name them: paths of chat services and arguments of commands are often keys."""
        return urlsplit(self.url).hostname or self.command[0]

    def send(self, news: Mapping[str, str]) -> None:
        """Deliver ``news``.

        Raises:
            OSError: it could not be delivered.
        """
        try:
            self._deliver(news)
        except subprocess.CalledProcessError as problem:
            raise UntoldError(f"exit code {problem.returncode}") from None
        except subprocess.TimeoutExpired:
            raise UntoldError(f"no end within {LIMIT_S:g} s") from None
        except (HTTPException, ValueError) as problem:
            raise UntoldError(f"no address or answer of HTTP ({type(problem).__name__})") from None

    def _deliver(self, news: Mapping[str, str]) -> None:
        body = json.dumps(dict(news)).encode()
        if self.command:
            subprocess.run(self.command, input=body + b"\n", timeout=LIMIT_S, check=True, stdout=subprocess.DEVNULL)
            return
        request = urllib.request.Request(self.url, data=body, headers={"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=LIMIT_S):
            pass


def keep(notices: Sequence[Notice]) -> None:
    """Let the runs that this process and its children start tell ``notices``."""
    os.environ[VARIABLE] = json.dumps([encode(notice) for notice in notices])


def kept() -> list[Notice]:
    """What :func:`keep` left."""
    return [decode(Notice, item) for item in json.loads(os.environ.get(VARIABLE, "[]"))]

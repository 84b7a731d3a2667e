"""``htam.toml``: what a project always says on the command line, read from this folder or the nearest one above."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from artifacts.errors import BadInputError

FILE = "htam.toml"
KEYS = {
    **dict.fromkeys(("store", "memory", "backend", "device", "language", "llm", "evaluator", "arm", "precision"), str),
    **dict.fromkeys(("steps", "candidates", "workers", "concurrency"), int),
    "prices": str,
}
"""Options that may stand in the file → type; each is a default of every command that has the option."""
PATHS = ("store", "prices")
"""Keys whose relative paths begin at the file."""
UNTOUCHED = {"apply": {"device"}, "ask": {"store"}, "tell": {"store"}, "demo": set(KEYS), "serve": set(KEYS)}
"""Command → keys that mean something else there: a run knows its own store, torch names devices its own way."""


def project_file(start: Path | None = None) -> Path | None:
    """The nearest ``htam.toml``, from ``start`` (the current directory) upwards; None where there is none."""
    folder = (start or Path.cwd()).absolute()
    return next((place / FILE for place in (folder, *folder.parents) if (place / FILE).is_file()), None)


def project_settings(path: Path) -> dict[str, Any]:
    """Option → value, checked, with paths that hold from the current directory.

    Raises:
        BadInputError: the file is no TOML, or has an unknown key or a value of the wrong type.
    """
    found: dict[str, Any] = {}
    for key, value in read_toml(path).items():
        if key not in KEYS:
            near = difflib.get_close_matches(key, KEYS, 1)
            fix = f"did you mean {near[0]!r}?" if near else f"it may have {', '.join(KEYS)}"
            raise BadInputError(f"{path}: unknown key {key!r}", fix)
        if type(value) is not KEYS[key]:
            raise BadInputError(
                f"{path}: {key} is {value!r}", f"give a {'text' if KEYS[key] is str else 'whole number'}"
            )
        away = key in PATHS and "://" not in str(value) and path.parent != Path.cwd()
        found[key] = str(path.parent / str(value)) if away else value
    return found


def defaults_of(name: str, command: click.Command | None) -> dict[str, Any]:
    """The default map of ``htam`` for one command that is about to run; of a group, for all of its commands."""
    path = project_file()
    if path is None or command is None:
        return {}
    values = {key: value for key, value in project_settings(path).items() if key not in UNTOUCHED.get(name, ())}
    return {name: dict.fromkeys(command.commands, values) if isinstance(command, click.Group) else values}


def read_toml(path: Path) -> Mapping[str, Any]:
    """A TOML file as plain data.

    Raises:
        BadInputError: no such file, or no TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise BadInputError(f"{path} cannot be read ({problem.strerror})", "check the path") from problem
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise BadInputError(f"{path} is no TOML: {problem}", "correct the file") from problem

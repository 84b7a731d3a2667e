"""Results that processes keep for each other: one JSON file each, of which a reader sees all or nothing."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import TypeVar

from artifacts.codec import decode, encode
from artifacts.errors import BadInputError

T = TypeVar("T")


def content_hash(*content: object) -> str:
    """SHA-256 (hex) over what a result depends on, as JSON."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode("utf-8", "surrogatepass")).hexdigest()


def read_kept(kind: type[T], path: Path) -> T | None:
    """What is kept at ``path``; None when it is not there or cannot be read."""
    try:
        return decode(kind, json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, BadInputError):
        return None


def keep(path: Path, record: object) -> None:
    """Keep a record; the last of several writers wins."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
        json.dump(encode(record), file)
    os.replace(file.name, path)  # noqa: PTH105 - one rename

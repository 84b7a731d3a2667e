"""Edits as answers: search/replace blocks that are anchored in the parent's code and applied strictly."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from artifacts.errors import BadAnswerError

SEARCH, DIVIDER, REPLACE = "<<<<<<< SEARCH", "=======", ">>>>>>> REPLACE"
"""Lines that begin an edit, part its two halves, and end it."""

_FIX = "copy the lines of each SEARCH part exactly from the candidate, with enough of them to occur once"


@dataclass(frozen=True, slots=True)
class Edit:
    """Lines of the parent, which occur in it once, and the lines that take their place."""

    search: tuple[str, ...]
    replace: tuple[str, ...]

    @property
    def text(self) -> str:
        """The edit as an answer holds it."""
        return "\n".join([SEARCH, *self.search, DIVIDER, *self.replace, REPLACE])


def has_edits(text: str) -> bool:
    """Whether an answer holds edits rather than a file."""
    return any(line.strip() == SEARCH for line in text.split("\n"))


def read_edits(text: str) -> tuple[Edit, ...]:
    """All edits of an answer in their order; whatever stands between them is left out.

    Raises:
        BadAnswerError: a block that is not finished or searches for nothing.
    """
    lines = iter(text.replace("\r\n", "\n").split("\n"))
    return tuple(Edit(_until(lines, DIVIDER), _until(lines, REPLACE)) for line in lines if line.strip() == SEARCH)


def applied(parent: str, edits: Sequence[Edit]) -> str:
    """``parent`` with all edits made; each anchor is looked for in the parent as it was shown.

    Raises:
        BadAnswerError: an anchor that does not occur exactly once, or edits that overlap.
    """
    lines = [line.rstrip() for line in parent.split("\n")]
    places = sorted(
        (_place(lines, edit, number), len(edit.search), edit.replace) for number, edit in enumerate(edits, 1)
    )
    result: list[str] = []
    at = 0
    for start, length, replacement in places:
        if start < at:
            raise BadAnswerError(f"two edits change line {start + 1}", "make them one edit")
        result += [*lines[at:start], *replacement]
        at = start + length
    return "\n".join([*result, *lines[at:]])


def _until(lines: Iterator[str], mark: str) -> tuple[str, ...]:
    found: list[str] = []
    for line in lines:
        if line.strip() == mark:
            return tuple(found)
        found.append(line.rstrip())
    raise BadAnswerError(f"an edit lacks its line {mark!r}", f"write {SEARCH!r}, {DIVIDER!r} and {REPLACE!r}")


def _place(lines: Sequence[str], edit: Edit, number: int) -> int:
    if not any(edit.search):
        raise BadAnswerError(f"edit {number} searches for nothing", _FIX)
    size = len(edit.search)
    found = [start for start in range(len(lines) - size + 1) if tuple(lines[start : start + size]) == edit.search]
    if len(found) != 1:
        first = next(line for line in edit.search if line).strip()[:80]
        raise BadAnswerError(f"the SEARCH part of edit {number} ({first!r} ...) occurs {len(found)} times", _FIX)
    return found[0]

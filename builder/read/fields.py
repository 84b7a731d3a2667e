"""Typed access to records of unknown honesty: each wrong value becomes a reason, never a crash."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from artifacts.candidate import python_literal

MAX_CODE_CHARS = 1_000_000
MAX_TEXT_CHARS = 200_000
MAX_RUN = 1_000
"""Letters, or blanks, in a row beyond which a source is no source: patterns take the square of such a run. The longest
in 2,402 published kernels have 63 and 122."""
_RUN = re.compile(rf"\s{{{MAX_RUN}}}|\w{{{MAX_RUN}}}")
_SHORT = 20_000
"""Characters up to which a source may be one run: looking for runs costs more than it could."""
MAX_METRICS = 500


class BadRecordError(ValueError):
    """A record cannot become a step; the message is the reason shown in quarantine."""


@dataclass(frozen=True, slots=True)
class Fields:
    """One mapping of a record.

    Every reader takes the names under which formats spell the field; the first present one counts.
    A missing or null field gives the default; a field of the wrong kind raises BadRecordError.
    """

    data: Mapping[str, Any]

    @classmethod
    def of(cls, value: object, what: str = "record") -> Fields:
        """Wrap ``value``, which must be an object."""
        if not isinstance(value, Mapping):
            raise BadRecordError(f"{what} is {_kind(value)}, not an object")
        return cls(value)

    def get(self, *names: str) -> Any:
        """The first present value that is not null, unchecked."""
        return next((self.data[name] for name in names if self.data.get(name) is not None), None)

    def text(self, *names: str) -> str:
        """Text with lone surrogates replaced, cut at 200,000 characters; empty when missing."""
        value = self.get(*names)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise BadRecordError(f"{names[0]} is {_kind(value)}, not text")
        return clean(value[:MAX_TEXT_CHARS])

    def word(self, *names: str) -> str:
        """Text, or a whole number as text: for identifiers that formats write either way."""
        value = self.get(*names)
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)[:100]
        return self.text(*names)[:1000]

    def code(self, *names: str) -> str:
        """Source code; empty when missing."""
        value = self.get(*names)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise BadRecordError(f"{names[0]} is {_kind(value)}, not source code")
        return checked_code(value, names[0])

    def integer(self, *names: str) -> int | None:
        """Whole number, also when written as text or as a whole float."""
        value = self.get(*names)
        if value is None or value == "":
            return None
        number = self._number(names[0], value)
        if not math.isfinite(number) or number != int(number) or abs(number) > 1e15:
            raise BadRecordError(f"{names[0]} is {_shown(value)}, not a whole number")
        return int(number)

    def number(self, *names: str) -> float | None:
        """Finite number, also when written as text."""
        value = self.get(*names)
        if value is None or value == "":
            return None
        number = self._number(names[0], value)
        if not math.isfinite(number):
            raise BadRecordError(f"{names[0]} is {_shown(value)}")
        return number

    def time_us(self, *names: str, unit_us: float = 1.0, unset: Sequence[float] = ()) -> float | None:
        """A positive time in microseconds from a field in units of ``unit_us`` microseconds.

        Args:
            unset: values by which the format means "not timed", e.g. -1.
        """
        value = self.number(*names)
        if value is None or value in unset:
            return None
        if value <= 0 or not math.isfinite(value * unit_us) or value * unit_us <= 0:
            raise BadRecordError(f"{names[0]} is {_shown(value)}, not a positive time")
        return value * unit_us

    def flag(self, *names: str) -> bool | None:
        """Truth value, also as 0/1 or as the text ``True``/``False``."""
        value = self.get(*names)
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, (int, float)) and value in (0, 1):
            return bool(value)
        if isinstance(value, str) and value.strip().lower() in ("true", "false", "1", "0", ""):
            return value.strip().lower() in ("true", "1")
        raise BadRecordError(f"{names[0]} is {_shown(value)}, neither true nor false")

    def child(self, *names: str) -> Fields:
        """Nested object, also when written as a Python literal; empty when missing."""
        value = self.get(*names)
        if isinstance(value, str):
            value = self._literal(names[0], value)
        if value is None:
            return Fields({})
        return Fields.of(value, names[0])

    def items(self, *names: str) -> list[Any]:
        """Nested list; empty when missing."""
        value = self.get(*names)
        if value is None:
            return []
        if not isinstance(value, list):
            raise BadRecordError(f"{names[0]} is {_kind(value)}, not a list")
        return value

    def metrics(self, *names: str) -> dict[str, float]:
        """Finite numbers of a nested object (or of its Python literal), one level of nesting joined by ``.``."""
        value = self.get(*names)
        if isinstance(value, str):
            value = self._literal(names[0], value)
        if not isinstance(value, Mapping):
            return {}
        found: dict[str, float] = {}
        for name, item in value.items():
            nested = item.items() if isinstance(item, Mapping) else (("", item),)
            for tail, number in nested:
                if len(found) < MAX_METRICS and _is_finite(number):
                    found[clean(f"{name}.{tail}" if tail else str(name))[:200]] = float(number)
        return found

    @staticmethod
    def _literal(name: str, text: str) -> Any:
        try:
            return literal(text)
        except ValueError as problem:
            raise BadRecordError(f"{name}: {problem}") from problem

    @staticmethod
    def _number(name: str, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float, str)):
            raise BadRecordError(f"{name} is {_kind(value)}, not a number")
        try:
            return float(value[:64] if isinstance(value, str) else value)
        except (ValueError, OverflowError) as problem:
            raise BadRecordError(f"{name} is {_shown(value)}, not a number") from problem


def checked_code(code: str, name: str) -> str:
    """Source code as it may become a step: of bounded size, without NUL, lone surrogates and endless words or blanks.

    Raises:
        BadRecordError: it is too long, holds NUL or a run of more than :data:`MAX_RUN`; ``name`` is in the message.
    """
    if len(code) > MAX_CODE_CHARS:
        raise BadRecordError(f"{name} has {len(code)} characters, more than {MAX_CODE_CHARS}")
    if "\0" in code:
        raise BadRecordError(f"{name} holds NUL characters")
    if len(code) > _SHORT and _RUN.search(code):
        raise BadRecordError(f"{name} holds {MAX_RUN} letters or blanks in a row")
    return clean(code)


def clean(text: str) -> str:
    """Replace lone surrogates, which no encoder and no column of text accepts."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _is_finite(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False


def _kind(value: object) -> str:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return f"the number {_shown(value)}"
    names = {dict: "an object", list: "a list", str: "text", bool: "a truth value", type(None): "null"}
    return names.get(type(value), "something else")


def _shown(value: object) -> str:
    return repr(clean(value[:60])) if isinstance(value, str) else str(value)[:60]


MAX_LITERAL_CHARS = 1_000_000


def literal(text: str) -> Any:
    """Return the dict, list, tuple, string, number, truth value or None that ``text`` spells.

    Raises:
        ValueError: not a literal, larger than any honest log writes, or deeper than the parser goes.
    """
    if len(text) > MAX_LITERAL_CHARS:
        raise ValueError(f"Python literal of {len(text)} characters, more than {MAX_LITERAL_CHARS}")
    try:
        return python_literal(text.strip())
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError) as problem:
        raise ValueError(f"not a Python literal: {type(problem).__name__}") from problem

"""Records to JSON-ready data and back, driven by the dataclass annotations.

Kept on the standard library because the evaluation worker runs on hosts that have nothing else.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, TypeVar

from artifacts.errors import BadInputError

T = TypeVar("T")
_LEAVES = frozenset({str, int, bool, type(None)})
"""Kinds that are encoded as they are: those of most values."""
_PLAIN = (str, float, int)
"""Kinds whose values are taken as they are; lists of nothing else, such as timing samples, are taken whole."""


def encode(value: object) -> Any:
    """Return ``value`` as dicts, lists, strings, finite numbers, booleans and None; omits nothing.

    NaN and infinities become None: JSON has no word for them, and what reads the strict kind refuses the file.
    """
    if type(value) in _LEAVES:
        return value
    if isinstance(value, Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: encode(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(encode(item) for item in value)
    if isinstance(value, (list, tuple)):
        return [encode(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def decode(cls: type[T], data: object) -> T:
    """Build ``cls`` from what :func:`encode` gave; unknown keys are refused.

    Raises:
        BadInputError: a field is missing, unknown or of the wrong kind; the message names it.
    """
    result = _decode(cls, data, cls.__name__)
    return typing.cast(T, result)


def _decode(kind: Any, data: object, where: str) -> object:
    return data if type(data) is kind else _reader(kind)(data, where)


@functools.cache
def _reader(kind: Any) -> Callable[[object, str], object]:
    """What reads values of ``kind``: found once a kind, because a log asks for the same ones a million times."""
    origin = typing.get_origin(kind)
    if kind is Any or kind is object:
        return lambda data, where: data
    if origin in (types.UnionType, typing.Union):
        return functools.partial(_decode_union, typing.get_args(kind))
    if origin is not None and issubclass(origin, Mapping):
        return functools.partial(_decode_mapping, typing.get_args(kind)[1])
    if origin is not None:
        return functools.partial(_decode_items, origin, typing.get_args(kind))
    if dataclasses.is_dataclass(kind):
        return functools.partial(_decode_record, kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return functools.partial(_decode_member, kind)
    return functools.partial(_decode_scalar, kind)


def _decode_union(options: tuple[Any, ...], data: object, where: str) -> object:
    if data is None and type(None) in options:
        return None
    problems: list[BadInputError] = []
    for option in options:
        if option is type(None):
            continue
        try:
            return _decode(option, data, where)
        except BadInputError as problem:
            problems.append(problem)
    raise problems[0] if problems else _wrong(where, "null", data)


def _decode_mapping(kind: Any, data: object, where: str) -> object:
    if not isinstance(data, Mapping):
        raise _wrong(where, "an object", data)
    return {
        str(key): item if type(item) is kind else _decode(kind, item, f"{where}.{key}") for key, item in data.items()
    }


def _decode_items(origin: Any, args: tuple[Any, ...], data: object, where: str) -> object:
    if not isinstance(data, (list, tuple)):
        raise _wrong(where, "a list", data)
    if origin is tuple and not (len(args) == 2 and args[1] is Ellipsis):
        if len(args) != len(data):
            raise _wrong(where, f"a list of {len(args)}", data)
        return tuple(_decode(arg, item, where) for arg, item in zip(args, data, strict=True))
    if args[0] in _PLAIN and set(map(type, data)) <= {args[0]}:
        return frozenset(data) if origin is frozenset else tuple(data)
    items = (_decode(args[0], item, f"{where}[{index}]") for index, item in enumerate(data))
    return frozenset(items) if origin is frozenset else tuple(items)


def _decode_record(kind: Any, data: object, where: str) -> object:
    if not isinstance(data, Mapping):
        raise _wrong(where, "an object", data)
    hints = _hints(kind)
    if not data.keys() <= hints.keys():
        unknown = sorted(set(data) - set(hints))
        raise BadInputError(f"{where}: unknown field {unknown[0]!r}", f"known fields: {', '.join(hints)}")
    plain = _taken_as_they_are(kind)
    values = {
        name: value if type(value) in plain[name] else _decode(hints[name], value, f"{where}.{name}")
        for name, value in data.items()
    }
    try:
        return kind(**values)
    except TypeError as problem:
        raise BadInputError(f"{where}: {_lacking(kind, values) or problem}", "add it") from problem
    except ValueError as problem:
        raise BadInputError(f"{where}: {problem}", "correct the value") from problem


def _lacking(kind: Any, values: Mapping[str, object]) -> str:
    """Which field without a default ``values`` has none of; empty when that is not what is wrong."""
    missing = dataclasses.MISSING
    needed = [
        field.name for field in dataclasses.fields(kind) if (field.default, field.default_factory) == (missing,) * 2
    ]
    return next((f"field {name!r} is missing" for name in needed if name not in values), "")


def _decode_member(kind: type[Enum], data: object, where: str) -> object:
    try:
        return kind(data)
    except ValueError as problem:
        names = ", ".join(str(member.value) for member in kind)
        raise BadInputError(f"{where}: unknown value {data!r}", f"one of: {names}") from problem


def _decode_scalar(kind: Any, data: object, where: str) -> object:
    if kind is float and isinstance(data, int) and not isinstance(data, bool):
        return float(data)
    if kind is type(None) and data is None:
        return None
    if not isinstance(data, kind) or (kind is int and isinstance(data, bool)):
        raise _wrong(where, kind.__name__, data)
    return data


def _wrong(where: str, wanted: str, data: object) -> BadInputError:
    return BadInputError(f"{where}: expected {wanted}, got {type(data).__name__} {repr(data)[:80]}", "correct the file")


@functools.cache
def _taken_as_they_are(kind: type) -> dict[str, frozenset[type]]:
    """Kinds of values that each field takes without a look inside: what most fields of most records hold."""
    return {
        name: frozenset({hint, *typing.get_args(hint)} & {*_PLAIN, bool, type(None)})
        if typing.get_origin(hint) in (None, types.UnionType, typing.Union)
        else frozenset()
        for name, hint in _hints(kind).items()
    }


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}

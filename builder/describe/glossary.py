"""The glossary: terms of GPU optimization as authors write them, in English and Chinese, and what they promise."""

from __future__ import annotations

import functools
import hashlib
import itertools
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from artifacts.features import FEATURES
from builder.read.trust import sure_text

_FILE = Path(__file__).with_name("terms.toml")
_WORD = re.compile(r"[a-z0-9]+|[^\x00-\x7f]+")
_CAPITAL = re.compile(r"(?<!\\)[A-Z]")  # outside escapes such as \W
_CJK = re.compile(r"[\u3400-\u9fff]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One technique or notion of GPU optimization.

    Attributes:
        name: key in ``terms.toml``.
        phrase: canonical English wording.
        wordings: patterns for lower-case text.
        features: code features that a plan with this term promises; any one of them keeps the promise.
    """

    name: str
    phrase: str
    wordings: tuple[str, ...]
    features: frozenset[str]

    def __post_init__(self) -> None:
        unknown = sorted(self.features - set(FEATURES))
        if unknown:
            raise ValueError(f"term {self.name}: unknown code feature {unknown[0]!r}")


@functools.cache
def terms() -> tuple[Term, ...]:
    """All terms, in the order of the file."""
    data = tomllib.loads(_FILE.read_text(encoding="utf-8"))
    return tuple(
        Term(
            name=name,
            phrase=entry["phrase"],
            wordings=_wordings(entry["match"], entry.get("zh", [])),
            features=frozenset(entry.get("features", [])),
        )
        for name, entry in data.items()
    )


@functools.cache
def glossary_sha256() -> str:
    """SHA-256 of the glossary file; part of the identity of an encoder that uses it."""
    return hashlib.sha256(_FILE.read_bytes()).hexdigest()


@functools.lru_cache(maxsize=50_000)
def find_terms(text: str) -> Mapping[str, tuple[int, ...]]:
    """Name of each term found → start offsets of its occurrences, in the order of the glossary."""
    # Lower case is a few times faster than IGNORECASE. The few letters whose lower case is longer are kept, so that
    # offsets hold.
    lowered = (
        text.lower() if text.isascii() else "".join(low if len(low := char.lower()) == 1 else char for char in text)
    )
    found: dict[str, tuple[int, ...]] = {}
    hinted = frozenset().union(*map(_hinted, {"", *_WORD.findall(lowered)}))
    for index, choices in itertools.groupby(sorted(hinted), key=lambda hint: hint[0]):
        pattern = _pattern(index, tuple(number for _, number in choices))
        starts = tuple(match.start() for match in pattern.finditer(lowered))
        if starts:
            found[terms()[index].name] = starts
    return MappingProxyType(found)


@functools.lru_cache(maxsize=50_000)
def _hinted(word: str) -> frozenset[tuple[int, int]]:
    """Wordings (number of the term, number within it) that a text with this word may hold.

    Texts share their words, so that most patterns are spared most texts.
    """
    return frozenset(place for place, mark in _marks() if mark in word)


@functools.cache
def _marks() -> tuple[tuple[tuple[int, int], str], ...]:
    """Place of each wording with a part of a word that it cannot do without; empty where none is sure."""
    return tuple(
        ((index, number), max(_WORD.findall(sure_text(wording)), key=len, default=""))
        for index, term in enumerate(terms())
        for number, wording in enumerate(term.wordings)
    )


@functools.lru_cache(maxsize=50_000)
def _pattern(index: int, numbers: tuple[int, ...]) -> re.Pattern[str]:
    """Some wordings of a term; those left out must match nowhere, so that the others match as all would."""
    return re.compile("|".join(terms()[index].wordings[number] for number in numbers))


_IDENTIFIER = re.compile(r"\b(?!\w*kernel)[A-Za-z]\w*[a-z0-9](?:_|[A-Z][a-z])\w*\b", re.ASCII)
_JOINT = re.compile(r"(?<=[A-Za-z0-9])_+(?=[A-Za-z0-9])|(?<=[a-z]{2})(?=[A-Z][a-z])")


def split_identifiers(text: str) -> str:
    """``text`` with the words of identifiers apart: ``tune_blockSize`` says the same as ``tune block Size``.

    Names of kernels are left alone: ``conv_kernel`` says where a change is, not what it does.
    """
    return _IDENTIFIER.sub(lambda found: _JOINT.sub(" ", found[0]), text)


def normalise(text: str) -> str:
    """Rewrite ``text`` for the encoder: canonical phrases of its terms in order of appearance, then the text.

    Identifiers are split into their words, in which the encoder and the terms know them.

    Chinese runs are dropped from the text part once their terms are translated, because an English
    encoder reads them as noise.
    """
    found = dict(find_terms(text))  # some terms are identifiers themselves
    text = split_identifiers(text)
    found |= find_terms(text)
    order = sorted(found, key=lambda name: found[name][0])
    canonical = ", ".join(_phrases()[name] for name in order)
    rest = " ".join(_CJK.sub(" ", text).split())
    return ". ".join(part for part in (canonical, rest) if part) or text


@functools.cache
def _phrases() -> dict[str, str]:
    return {term.name: term.phrase for term in terms()}


def _wordings(match: list[str], chinese: list[str]) -> tuple[str, ...]:
    lowered = (_CAPITAL.sub(lambda letter: letter.group().lower(), pattern) for pattern in match)
    return (*lowered, *(re.escape(word.lower()) for word in chinese))

"""Plain text that a regular expression cannot do without: looking for it first spares most searches by pattern."""

from __future__ import annotations

import re

_BRACKETS = "()[]|"
_ESCAPED = re.compile(r"\\([()\[\]|])")
_SET = re.compile(r"\[(?:\\.|[^\]\\])*\](?:[?*+]|\{[\d,]*\})?")
_GROUP = re.compile(r"\([^()]*\)(?:[?*+]|\{[\d,]*\})?")
_NO_TEXT = re.compile(r"\\[^\W\d_](?:[?*+]|\{[\d,]*\})?|\\?.(?:[?*]|\{[\d,]*\})|\\(?=\W)|[+]|(?<!\\)[.^$]")


def sure_text(pattern: str) -> str:
    """Longest text that stands in whatever ``pattern`` matches; empty when none is sure.

    Groups, sets and classes are taken to hold none, nor does a letter that a quantifier may take away. Patterns with
    alternatives outside of groups give none.
    """
    bare, groups = _SET.sub("\n", _ESCAPED.sub(lambda match: chr(_BRACKETS.index(match[1]) + 1), pattern)), 1
    while groups:
        bare, groups = _GROUP.subn("\n", bare)
    if "|" in bare:
        return ""
    longest = max(_NO_TEXT.sub("\n", bare).split("\n"), key=len)
    return "".join(_BRACKETS[ord(letter) - 1] if ord(letter) <= len(_BRACKETS) else letter for letter in longest)

"""The errors a user can act on.

HtamError
├── BadInputError      a file, option or value the user gave
│   ├── BadTaskError   a task file without Model, get_inputs, ...
│   └── BadAnswerError an LLM answer without usable code
├── ArtifactError      a memory artifact that is missing, corrupt or of an unknown schema
├── RunLogError        a run directory that cannot be read or does not fit the command
├── BudgetExceededError  a hard limit in money, tokens, calls or time was reached
└── UnavailableError   something the host lacks (GPU, key, package, network)

Outcomes of candidates are never exceptions; they are :class:`artifacts.measurement.Outcome` values.
"""

from __future__ import annotations


class HtamError(Exception):
    """A mistake the user can fix: shown as one line, exit code 1.

    Args:
        what: what is wrong, including the offending value.
        fix: what to do next; empty when the message already says so.
    """

    def __init__(self, what: str, fix: str = "") -> None:
        self.what = what
        self.fix = fix
        super().__init__(f"{what}; {fix}" if fix else what)


class BadInputError(HtamError):
    """A file, option or value given by the user cannot be used."""


class BadTaskError(BadInputError):
    """A task file does not define what a task needs."""


class BadAnswerError(BadInputError):
    """An LLM answer holds no usable candidate."""


class ArtifactError(HtamError):
    """A memory artifact is missing, corrupt or of an unknown schema version."""


class RunLogError(HtamError):
    """A run directory cannot be read or does not fit the command."""


class BudgetExceededError(HtamError):
    """A hard budget is used up; everything measured so far is kept."""


class UnavailableError(HtamError):
    """The host lacks something the command needs."""

"""Constants that a candidate declares as tunable, searched by program: all settings when few, else by Optuna."""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from artifacts.candidate import syntax_tree
from artifacts.errors import BadAnswerError
from artifacts.measurement import Measurement

NAME = "TUNABLES"
"""Top-level dictionary in a candidate: constant → its legal values, as the prompt asks for it."""

MOST_CONSTANTS = 4
MOST_VALUES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """What a candidate lets a program search.

    Attributes:
        values: constant → legal values, in the order of the declaration.
        assigned: constant → the value that the source has now.
    """

    values: Mapping[str, tuple[int, ...]]
    assigned: Mapping[str, int]

    @property
    def combinations(self) -> int:
        """Number of settings, the assigned one included."""
        return math.prod(len(values) for values in self.values.values())

    def settings(self) -> Iterator[dict[str, int]]:
        """All settings, in the order of the declaration."""
        for values in itertools.product(*self.values.values()):
            yield dict(zip(self.values, values, strict=True))


def declared(source: str) -> Declared | None:
    """Read the declaration of ``source``; None when it has none.

    Raises:
        BadAnswerError: there is one and it cannot be used; the candidate itself is not touched by that.
    """
    body = syntax_tree(source).body
    found = [node.value for node in body if isinstance(node, ast.Assign) and _target(node) == NAME]
    if not found:
        return None
    values = _values(found[-1])
    assigned = {name: int(ast.literal_eval(_assigned(body, name))) for name in values}
    for name, legal in values.items():
        if assigned[name] not in legal:
            raise _bad(f"{name} = {assigned[name]} is not among its legal values {list(legal)}")
    return Declared(values=values, assigned=assigned)


def with_setting(source: str, setting: Mapping[str, int]) -> str:
    """Return ``source`` with its constants set to ``setting``; everything else stays as it is.

    Raises:
        BadAnswerError: a constant is not assigned once at top level.
    """
    body = syntax_tree(source).body
    lines = source.encode("utf-8").split(b"\n")
    for name, value in setting.items():
        node = _assigned(body, name)
        line = lines[node.lineno - 1]
        assert node.end_col_offset is not None
        lines[node.lineno - 1] = line[: node.col_offset] + str(value).encode() + line[node.end_col_offset :]
    return b"\n".join(lines).decode("utf-8")


def _values(node: ast.expr) -> dict[str, tuple[int, ...]]:
    try:
        data = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError) as problem:
        raise _bad("it is not written out as plain values") from problem
    if not isinstance(data, dict) or not 1 <= len(data) <= MOST_CONSTANTS:
        raise _bad(f"it must be a dictionary of one to {MOST_CONSTANTS} constants")
    return {_name(name): _legal(name, values) for name, values in data.items()}


def _name(name: object) -> str:
    if not isinstance(name, str) or not name.isidentifier():
        raise _bad(f"{name!r} is not the name of a constant")
    return name


def _legal(name: object, values: object) -> tuple[int, ...]:
    if not isinstance(values, (list, tuple)) or not values:
        raise _bad(f"{name} needs a list of values")
    if not all(type(value) is int for value in values):
        raise _bad(f"{name} takes whole numbers only")
    distinct = tuple(dict.fromkeys(values))
    if len(distinct) > MOST_VALUES:
        raise _bad(f"{name} has {len(distinct)} values, at most {MOST_VALUES} are searched")
    return distinct


def _assigned(body: list[ast.stmt], name: str) -> ast.Constant:
    found = [node.value for node in body if isinstance(node, ast.Assign) and _target(node) == name]
    if len(found) != 1 or not isinstance(found[0], ast.Constant) or type(found[0].value) is not int:
        raise _bad(f"{name} must be assigned once at top level, to a whole number")
    return found[0]


def _target(node: ast.Assign) -> str:
    target = node.targets[0]
    return target.id if len(node.targets) == 1 and isinstance(target, ast.Name) else ""


def _bad(reason: str) -> BadAnswerError:
    return BadAnswerError(f"{NAME} cannot be used: {reason}", "the candidate is taken as it is")


def declared_or_none(source: str) -> Declared | None:
    """What a candidate lets a program search; None when it declares nothing that can be used."""
    try:
        return declared(source)
    except BadAnswerError:
        return None


if TYPE_CHECKING:
    import optuna


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A candidate under one setting; ``label`` names the setting, the same in every repetition."""

    source: str
    label: str


Measure = Callable[[Sequence[Variant]], Awaitable[Sequence[Measurement]]]
"""From variants to their measurements, in the same order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningSettings:
    """How far a search goes.

    Attributes:
        gpu_s: seconds of measuring after which no new batch starts.
        trials: settings that are measured at most.
        batch: settings that are measured side by side.
        least_gain: how much faster a setting must be, as a share, before it replaces the candidate's own; where
            the evaluator compared the two itself, its verdict must not speak against it.
        seed: of the sampler.
    """

    gpu_s: float = 30.0
    trials: int = 24
    batch: int = 4
    least_gain: float = 0.02
    seed: int = 0

    def __post_init__(self) -> None:
        if self.gpu_s <= 0 or self.trials < 1 or self.batch < 1 or self.least_gain < 0:
            raise ValueError("gpu_s must be positive, trials and batch count from 1, least_gain is not negative")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One setting that was measured."""

    setting: Mapping[str, int]
    measurement: Measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """What a search found.

    Attributes:
        source: the candidate with the best setting; the candidate itself when none was clearly faster.
        setting: the best setting; ``measurement``: of ``source``.
        trials: all that was measured, in order, without the candidate itself.
    """

    source: str
    setting: Mapping[str, int]
    measurement: Measurement
    trials: tuple[Trial, ...]

    @property
    def improved(self) -> bool:
        """Whether another setting than the candidate's own is the best."""
        return any(trial.measurement is self.measurement for trial in self.trials)


async def tune(
    source: str, found: Declared, measurement: Measurement, measure: Measure, settings: TuningSettings
) -> Tuned:
    """Search the declared constants of a correct candidate.

    Equal measurements lead to equal searches, so a run that is resumed from its log repeats none of them.

    Args:
        source: the candidate; ``measurement`` is its own, with a timing.
        measure: measures a batch of variants, e.g. through the run's log.
    """
    sampler = _Sampler(found, settings)
    trials: list[Trial] = []
    while sum(trial.measurement.gpu_s for trial in trials) < settings.gpu_s:
        batch = sampler.next_batch(settings.trials - len(trials))
        if not batch:
            break
        variants = [Variant(source=with_setting(source, one), label=label_of(one)) for one in batch]
        measured = await measure(variants)
        done = [Trial(setting=one, measurement=result) for one, result in zip(batch, measured, strict=True)]
        sampler.tell(done)
        trials += done
    return _best(source, found, measurement, trials, settings.least_gain)


def label_of(setting: Mapping[str, int]) -> str:
    """Name a setting, e.g. ``BLOCK=128,TILE=16``."""
    return ",".join(f"{name}={value}" for name, value in setting.items())


def _best(source: str, found: Declared, measurement: Measurement, trials: Sequence[Trial], least_gain: float) -> Tuned:
    assert measurement.timing is not None
    faster = [trial for trial in trials if trial.measurement.faster_than_incumbent is not False]
    best = min(faster, key=_time, default=None)
    if best is None or _time(best) > measurement.timing.median_us * (1 - least_gain):
        return Tuned(source=source, setting=found.assigned, measurement=measurement, trials=tuple(trials))
    tuned = with_setting(source, best.setting)
    return Tuned(source=tuned, setting=best.setting, measurement=best.measurement, trials=tuple(trials))


def _time(trial: Trial) -> float:
    timing = trial.measurement.timing
    return float("inf") if timing is None else timing.median_us


class _Sampler:
    """Which settings to measure next: all of them in order, or what Optuna's TPE proposes."""

    def __init__(self, found: Declared, settings: TuningSettings) -> None:
        self._found = found
        self._settings = settings
        self._seen = {label_of(found.assigned)}
        self._study = None if found.combinations - 1 <= settings.trials else _study(settings.seed)
        self._open: dict[str, optuna.trial.Trial] = {}

    def next_batch(self, left: int) -> list[dict[str, int]]:
        """Return up to ``batch`` settings that were not measured yet, at most ``left``."""
        batch: list[dict[str, int]] = []
        wanted = min(self._settings.batch, left, self._found.combinations - len(self._seen))
        while len(batch) < wanted:
            setting = self._next()
            self._seen.add(label_of(setting))
            batch.append(setting)
        return batch

    def tell(self, trials: Sequence[Trial]) -> None:
        """Learn from what was measured."""
        if self._study is None:
            return
        from optuna.trial import TrialState

        for trial in trials:
            asked = self._open.pop(label_of(trial.setting), None)
            if asked is not None:
                failed = trial.measurement.timing is None
                value = None if failed else _time(trial)
                self._study.tell(asked, value, state=TrialState.FAIL if failed else TrialState.COMPLETE)

    def _next(self) -> dict[str, int]:
        proposed = None if self._study is None else self._proposed(self._study)
        if proposed is not None:
            return proposed
        return next(one for one in self._found.settings() if label_of(one) not in self._seen)

    def _proposed(self, study: optuna.Study) -> dict[str, int] | None:
        """Ask a few times for something new; a sampler that repeats itself has converged."""
        from optuna.trial import TrialState

        for _ in range(10):
            asked = study.ask()
            setting = {name: asked.suggest_categorical(name, values) for name, values in self._found.values.items()}
            if label_of(setting) not in self._seen:
                self._open[label_of(setting)] = asked
                return setting
            study.tell(asked, state=TrialState.FAIL)
        return None


def _study(seed: int) -> optuna.Study:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed, n_startup_trials=8, constant_liar=True))

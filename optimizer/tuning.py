"""Constants that a candidate declares as tunable, searched by program: all settings when few, else by Optuna."""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from artifacts.candidate import syntax_tree
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
    """Read the declaration of ``source``; None when it has none that can be used, and the candidate stays as it is.

    It names one to four constants, each with one to six whole numbers of which it is assigned one, once at top level.
    """
    body = syntax_tree(source).body
    found = [node.value for node in body if isinstance(node, ast.Assign) and _target(node) == NAME]
    try:
        data = ast.literal_eval(found[-1]) if found else None
    except (ValueError, TypeError, SyntaxError, RecursionError):
        return None
    if not isinstance(data, dict) or not 1 <= len(data) <= MOST_CONSTANTS:
        return None
    values = {name: _legal(given) for name, given in data.items()}
    assigned = {name: int(ast.literal_eval(node)) for name in values if (node := _assigned(body, name)) is not None}
    usable = all(assigned.get(name) in legal for name, legal in values.items())
    return Declared(values=values, assigned=assigned) if usable else None


def with_setting(source: str, setting: Mapping[str, int]) -> str:
    """Return ``source`` with constants that it declares set to ``setting``; everything else stays as it is."""
    body = syntax_tree(source).body
    lines = source.encode("utf-8").split(b"\n")
    for name, value in setting.items():
        node = _assigned(body, name)
        assert node is not None
        assert node.end_col_offset is not None
        line = lines[node.lineno - 1]
        lines[node.lineno - 1] = line[: node.col_offset] + str(value).encode() + line[node.end_col_offset :]
    return b"\n".join(lines).decode("utf-8")


def _legal(values: object) -> tuple[int, ...]:
    """The values of one constant; none where they cannot be searched."""
    if not isinstance(values, (list, tuple)) or not all(type(value) is int for value in values):
        return ()
    distinct = tuple(dict.fromkeys(values))
    return distinct if len(distinct) <= MOST_VALUES else ()


def _assigned(body: list[ast.stmt], name: str) -> ast.Constant | None:
    """The whole number that ``name`` is assigned once at top level; None for anything else."""
    found = [node.value for node in body if isinstance(node, ast.Assign) and _target(node) == name]
    if len(found) != 1 or not isinstance(found[0], ast.Constant) or type(found[0].value) is not int:
        return None
    return found[0]


def _target(node: ast.Assign) -> str:
    target = node.targets[0]
    return target.id if len(node.targets) == 1 and isinstance(target, ast.Name) else ""


if TYPE_CHECKING:
    import optuna


Measure = Callable[[Mapping[str, str]], Awaitable[Sequence[Measurement]]]
"""From sources by the label of their setting, the same in every repetition, to their measurements in the same order."""


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
        measure: measures a batch of settings, e.g. through the run's log.
    """
    sampler = _Sampler(found, settings)
    trials: list[Trial] = []
    while sum(trial.measurement.gpu_s for trial in trials) < settings.gpu_s:
        batch = sampler.next_batch(settings.trials - len(trials))
        if not batch:
            break
        measured = await measure({label_of(one): with_setting(source, one) for one in batch})
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

"""Everything that replay can say of one memory, as one record."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from artifacts.memory.attention import ATTENDED
from artifacts.memory.htg import Memory
from builder.judge.contrasts import Contrast, contrast
from builder.judge.deals import chance, deals, together
from builder.judge.occasions import Occasion, occasions
from builder.judge.offpolicy import OffPolicy, off_policy
from builder.judge.rankers import Attention, Ranker, StateOnly, baselines
from builder.judge.replay import FOLDS, Figures, Record, Split, figures, group_splits, run, task_splits
from builder.judge.selecting import SELECTED, Picked, Selected
from builder.judge.steps import Calibration, calibration, predictions, predictions_across

LEVELS = ("direction", "strategy")
PAPER = Attention("attention to state and prefix", ATTENDED)
"""The paper's score, shown beside the shipped one."""
GOAL = 0.10
"""Share of a baseline's regret that the memory's ranking has to save."""
LEAST_STEPS = 100
"""Steps of a source or device from which calibration for it is shown."""
POWER = 2.8
"""Standard errors of an effect that a two-sided 5 % test finds with 80 % probability."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelReport:
    """Replay of one level.

    Attributes:
        figures: the shipped score first, then the paper's, the one selected on training folds, and the baselines.
        selected: outer fold to the formula that its training tasks chose.
        across: name of a left-out source or device to its figures; ``calibration_across``: to how far predictions for
            it can be believed.
        detectable: least saving over the state-only baseline that these logs could have shown.
        off_policy: gain of the ranking's first choice, from steps that carry their choice probability; None without.
        beaten: baseline to whether at least :data:`GOAL` of its regret is saved and the interval excludes zero.
        chance: probability that labels dealt out at random rank as well.
        contrasts: what the options explain among siblings: ``step``, where failures lose, and ``kept``, where they
            gain nothing.
    """

    level: str
    figures: tuple[Figures, ...]
    calibration: Calibration | None
    selected: Mapping[str, str] = field(default_factory=dict)
    across: Mapping[str, tuple[Figures, ...]] = field(default_factory=dict)
    calibration_across: Mapping[str, Calibration] = field(default_factory=dict)
    detectable: float | None = None
    off_policy: OffPolicy | None = None
    beaten: Mapping[str, bool] = field(default_factory=dict)
    chance: float | None = None
    contrasts: Mapping[str, Contrast] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayReport:
    """Replay of one memory, or of one memory on logs that it does not hold (``test``)."""

    reference: str
    test: str
    levels: tuple[LevelReport, ...]


def replay(memory: Memory, *, selection: bool = False, across: bool = True, folds: int = FOLDS) -> ReplayReport:
    """Leave-tasks-out replay of ``memory`` at both levels.

    Args:
        selection: also choose formula and parameters on training folds (minutes), an unbiased figure of the whole
            procedure.
        across: also leave out each source and each device.
    """
    levels = tuple(_level(memory, level, selection, across, folds) for level in LEVELS)
    return ReplayReport(reference=memory.reference, test="held-out tasks", levels=levels)


def replay_on(memory: Memory, test: Memory) -> ReplayReport:
    """Replay of ``memory`` on the occasions of ``test``, whose tasks leave the memory first."""
    found = []
    for level in LEVELS:
        asked = occasions(test, level)
        train = memory.filter(exclude_tasks={item.task for item in asked})
        split = Split(name="test logs", train=train, test=asked)
        judged = Attention()
        records = run((split,), _rankers(judged), level) if asked else ()
        found.append(replace(_report(level, _figures(records, judged)), chance=chance(records, judged.name)))
    return ReplayReport(reference=memory.reference, test=test.reference, levels=tuple(found))


def _level(memory: Memory, level: str, selection: bool, across: bool, folds: int) -> LevelReport:
    splits = tuple(task_splits(memory, level, folds))
    if not splits:
        return LevelReport(level=level, figures=(), calibration=None)
    judged: Ranker = Attention()
    picked = {split.name: Picked(Selected().choose(split.train, level)) for split in splits} if selection else {}
    records = [
        record
        for split in splits
        for record in run((split,), _rankers(judged, *([picked[split.name]] if selection else [])), level)
    ]
    report = _report(level, _figures(records, judged))
    steps = predictions(memory, judged, level)
    return replace(
        report,
        calibration=calibration(steps) if steps else None,
        selected={name: ranker.inner.name for name, ranker in picked.items()},
        across=_across(memory, level, judged) if across else {},
        calibration_across=_calibration_across(memory, level, judged) if across else {},
        off_policy=off_policy(memory, judged, level),
        chance=chance(records, judged.name),
        contrasts=_contrasts(memory, level),
    )


def _rankers(judged: Ranker, *more: Ranker) -> tuple[Ranker, ...]:
    return (judged, PAPER, *more, *baselines(), *deals(judged))


def _figures(records: Sequence[Record], judged: Ranker) -> tuple[Figures, ...]:
    return figures(together(records), judged.name) if records else ()


def _contrasts(memory: Memory, level: str) -> dict[str, Contrast]:
    found = {name: contrast(memory, level, kept=kept) for name, kept in (("step", False), ("kept", True))}
    return {name: item for name, item in found.items() if item is not None}


def _report(level: str, found: Sequence[Figures]) -> LevelReport:
    others = [item for item in found[1:] if item.ranker not in (SELECTED, PAPER.name)]
    return LevelReport(
        level=level,
        figures=tuple(found),
        calibration=None,
        detectable=next((detectable(item) for item in others if item.ranker == StateOnly().name), None),
        beaten={item.ranker: item.saving.value >= GOAL and item.saving.low > 0 for item in others},
    )


def detectable(against: Figures) -> float:
    """Least saving over a baseline that would have been found, from the width of the interval."""
    return POWER * (against.saving.high - against.saving.low) / 3.92


def _across(memory: Memory, level: str, judged: Ranker) -> dict[str, tuple[Figures, ...]]:
    found: dict[str, tuple[Figures, ...]] = {}
    for what, group in (("source", _source), ("device", _arch)):
        for split in _large(group_splits(memory, level, group)):
            found[f"{what} {split.name}"] = _figures(run((split,), _rankers(judged), level), judged)
    return found


def _calibration_across(memory: Memory, level: str, judged: Ranker) -> dict[str, Calibration]:
    found = predictions_across(memory, judged, level)
    return {name: calibration(steps) for name, steps in found if len(steps) >= LEAST_STEPS}


def _large(splits: Iterable[Split]) -> Iterable[Split]:
    """Splits with enough occasions to say anything."""
    return (split for split in splits if len(split.test) >= 10)


def _source(occasion: Occasion) -> str:
    return occasion.source


def _arch(occasion: Occasion) -> str:
    return occasion.arch

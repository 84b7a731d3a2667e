"""May a build take the place of a published version? Both are asked at the same recorded choices.

Two sets of figures from two sets of logs cannot be compared: more logs make other choices to be right or wrong at. Here
each memory ranks what was tried at the choices that both hold, with the operators of each fold held out of both, and is
credited with what its first option gained. The difference is paired by choice, with an interval over operators.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from artifacts.errors import HtamError
from artifacts.memory.columns import Bools
from artifacts.memory.htg import Memory
from artifacts.memory.manifest import RankingQuality
from artifacts.statistics import nested_means
from artifacts.task import operator_name
from builder.validate.decision_points import LEVELS, DecisionPoint, decision_points, options_of
from builder.validate.rankers import HTAM, RANKERS
from builder.validate.replay import Record, held_out, run
from builder.validate.report import sampled

Choice = frozenset[str]
"""The transitions that were tried from one parent."""


def gate(best: Memory, new: Memory) -> bool:
    """Whether ``new`` ranks at least as well as ``best`` on the average of the choices that both hold.

    Raises:
        HtamError: it is surely worse there, or ranks no better than its own shuffles, as ``best`` did.
    """
    _better_than_shuffles(best, new)
    gained = [_gained(best, new, level) for level in LEVELS]
    return all(mean >= 0.0 for mean in gained)


def _better_than_shuffles(best: Memory, new: Memory) -> None:
    before = {item.level: item for item in best.manifest.quality}
    for now in new.manifest.quality:
        then = before.get(now.level)
        if then is not None and then.ranks and now.chance is not None and not now.ranks:
            raise HtamError(
                f"the new {new.manifest.name} ranks {now.what} no better than its own shuffles (p = {now.chance:.2f}), "
                f"which {best.reference} did",
                "look at htam memory replay, then publish with --force if you want its fixes and kernels",
            )


def _gained(best: Memory, new: Memory, level: str) -> float:
    """Log2 gain a choice that ``new`` adds to what ``best`` would have chosen; 0 without common choices."""
    before, after = chosen_gains(best, new, level), chosen_gains(new, best, level)
    common = [choice for choice in after if choice in before]
    if not common:
        return 0.0
    tasks = np.unique([operator_name(after[choice][0]) for choice in common], return_inverse=True)[1]
    gained = np.array([after[choice][1] - before[choice][1] for choice in common])
    ones, nothing = np.ones(len(common)), np.zeros(len(common), np.int64)
    found = nested_means(gained, ones, nothing, 1, plans=np.arange(len(common)), tasks=tasks, sources=nothing)
    mean, high = float(found.mean[0]), float(found.mean[0] + found.half[0])
    if high < 0:
        raise HtamError(
            f"the new {new.manifest.name} chooses {RankingQuality.plural(level)} worse than {best.reference} at "
            f"{len(common)} choices that both hold: {mean:+.3f} log2 a choice, at most {high:+.3f}",
            "look at htam memory replay, then publish with --force if you mean it",
        )
    return mean


def chosen_gains(memory: Memory, other: Memory, level: str) -> Mapping[Choice, tuple[str, float]]:
    """Choice to its task and the gain of what ``memory`` ranks first there, over transitions that ``other`` has too."""
    memory = sampled(memory)
    points = decision_points(memory, level, among=_shared(memory, other, level), least=1)
    records = run(held_out(memory, points), {HTAM: RANKERS[HTAM]}, level)
    names = memory.table["transition_id"].to_pylist()
    return {_choice(names, item.point): (item.point.task, _value(item)) for item in records}


def _shared(memory: Memory, other: Memory, level: str) -> Bools:
    """Rows of ``memory`` that ``other`` has with an option too."""
    labelled = options_of(other, level).values >= 0
    known = {name for name, kept in zip(other.table["transition_id"].to_pylist(), labelled, strict=True) if kept}
    rows: Bools = np.array([name in known for name in memory.table["transition_id"].to_pylist()], np.bool_)
    return rows


def _choice(names: list[str], point: DecisionPoint) -> Choice:
    return frozenset(names[row] for row in point.rows)


def _value(item: Record) -> float:
    return max(item.point.gains.values()) - item.regret

"""What predicted gains really came to: a monotone map that a memory learns beside its regression.

A regression is a straight line through outcomes that have a floor: where it says that a little is gained, most steps of
a search fail. The map is learnt from predictions for tasks that the regression had not seen, so that it corrects what
the line gets wrong elsewhere too and not only what it fitted.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from artifacts.memory.columns import Floats

LEAST = 25.0
"""Weight of the steps that a bin needs before its mean is believed; about 0.15 log2 either way."""
BINS = 40


@dataclass(frozen=True, slots=True)
class Correction:
    """Gains that were observed at ``predicted`` ones, both ascending; straight between them and level beyond.

    Without any point nothing is corrected.
    """

    predicted: tuple[float, ...] = ()
    observed: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if len(self.predicted) != len(self.observed):
            raise ValueError(f"{len(self.predicted)} predictions cannot have {len(self.observed)} observed means")

    def of(self, predicted: Floats) -> Floats:
        """Corrected predictions."""
        if not self.predicted:
            return predicted
        return np.interp(predicted, self.predicted, self.observed).astype(np.float32)


def learn(predicted: Floats, observed: Floats, weight: Floats) -> Correction:
    """The monotone map from ``predicted`` to ``observed``; rows with NaN in either are left out.

    Steps are taken in bins of equal weight; a bin that gained less than one below it is pooled with it. Fewer steps
    than two bins need correct nothing.
    """
    known = ~np.isnan(observed) & ~np.isnan(predicted) & (weight > 0)
    order = np.argsort(predicted[known], kind="stable")
    told, seen = predicted[known][order].astype(np.float64), observed[known][order].astype(np.float64)
    heavy = weight[known][order].astype(np.float64)
    total = float(heavy.sum())
    count = min(BINS, int(total / LEAST))
    if count < 2:
        return Correction()
    place = np.minimum((np.cumsum(heavy) - heavy / 2) * count / total, count - 1).astype(np.int64)
    bins = np.zeros((count, 3))
    np.add.at(bins, place, np.stack([heavy, heavy * told, heavy * seen], axis=1))
    return _pooled(bins[bins[:, 0] > 0])


def _pooled(bins: npt.NDArray[np.float64]) -> Correction:
    """Pool adjacent violators: means over runs of bins, as few as needed for what was observed to ascend.

    Args:
        bins: weight of each, and its weighted sums of predicted and of observed gains; shape [bins, 3].
    """
    runs: list[npt.NDArray[np.float64]] = []
    for one in bins:
        runs.append(one)
        while len(runs) > 1 and runs[-2][2] * runs[-1][0] >= runs[-1][2] * runs[-2][0]:
            last = runs.pop()
            runs[-1] = runs[-1] + last
    predicted, observed = (tuple(float(run[k] / run[0]) for run in runs) for k in (1, 2))
    return Correction(predicted, observed)

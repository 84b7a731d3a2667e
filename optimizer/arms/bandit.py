"""A bandit over (behaviour cluster, direction) in the manner of KernelBand (arXiv 2511.18868).

As published: candidates of a task are clustered by how they behave (k-means, three clusters), again as the frontier
grows; the pair with the highest upper confidence bound (weight 2) is taken; its reward is the share of the time that a
step saved, 0 for a failure; within a cluster the parent is drawn by a softmax of its speed; directions whose resource
stands at 75 % or more in the hardware counters are masked. Otherwise here: strategies are the directions of a memory
(none of its experience), clusters are made at 1, 2, 4, 8 ... candidates instead of every ten steps because a task has
few, features are those counters that are read (no block size, no shared memory), and without counters the mask falls
back to the share of the bound. The paper takes 20 iterations a task.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from artifacts.memory.attention import saturation
from artifacts.memory.htg import Memory
from artifacts.memory.records import Direction
from optimizer.applicability import inapplicable
from optimizer.arms.protocol import Arm, ArmContext, Choice, Member
from optimizer.selection import SelectionSettings

UCB = 2.0
"""Weight of the exploration bonus, as published."""

CLUSTERS = 3
SATURATED = 75.0
"""Per cent of peak from which a resource can give no more."""

COUNTERS = {"memory": ("dram_percent", "memory_percent"), "compute": ("sm_percent", "tensor_percent")}
"""Resource of a direction → counters of which any may saturate it."""

FEATURES = ("dram_percent", "sm_percent", "occupancy_percent", "registers")

_Cell = tuple[int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class BanditArm(Arm):
    """Knows the directions of a memory and their resources, none of its experience."""

    memory: Memory
    settings: SelectionSettings
    name: str = "bandit"

    def start(self, context: ArmContext) -> str:
        """A parent from the cluster of the most promising pair, drawn by speed."""
        groups = clusters(context.members)
        alive = {place: [one for one in group if one.alive] for place, group in enumerate(groups)}
        bounds = self._bounds(context, groups, [place for place, group in alive.items() if group])
        if not bounds:
            return context.parent
        cell = context.draw("cell").choice(_best(bounds))
        weights = [math.exp(member.score or 0.0) for member in alive[cell[0]]]
        return context.draw("parent").choices(alive[cell[0]], weights)[0].step_id

    def choose(self, context: ArmContext) -> Choice:
        """Choose the direction with the highest bound in the parent's cluster; untried ones first, in random order."""
        groups = clusters(context.members)
        own = [place for place, group in enumerate(groups) if any(one.step_id == context.parent for one in group)]
        bounds = self._bounds(context, groups, own or [-1])
        fresh = {cell: value for cell, value in bounds.items() if cell[1] not in context.taken} or bounds
        if not fresh:
            return Choice(arm=self.name, gate="every direction is masked")
        best = _best(fresh)
        return Choice(arm=self.name, direction=context.draw("direction").choice(best)[1], probability=1 / len(best))

    def _bounds(
        self, context: ArmContext, groups: Sequence[Sequence[Member]], places: Sequence[int]
    ) -> dict[_Cell, float]:
        """Upper confidence bound of every pair in the clusters ``places`` that is not masked."""
        rewards = _rewards(context.members, groups)
        total = max(sum(len(found) for found in rewards.values()), 1)
        return {
            (place, direction.direction_id): _bound(rewards.get((place, direction.direction_id), []), total)
            for place in places
            for direction in self.memory.directions
            if not inapplicable(direction.direction_id, context.state)
            and not self._masked(direction, context, groups[place] if place >= 0 else ())
        }

    def _masked(self, direction: Direction, context: ArmContext, group: Sequence[Member]) -> bool:
        """Whether the resource that a direction relieves is used up by the fastest of a cluster."""
        metric = max(group, key=lambda member: member.score or 0.0).metric if group else {}
        if any(name in metric for names in COUNTERS.values() for name in names):
            return any(metric.get(name, 0.0) >= SATURATED for name in COUNTERS.get(direction.resource, ()))
        return bool(saturation(direction, context.state, self.settings.attention))


def clusters(members: Sequence[Member]) -> tuple[tuple[Member, ...], ...]:
    """Correct candidates by how they behave; centres move whenever their number has doubled."""
    import faiss

    correct = [member for member in members if member.score is not None]
    seen = 2 ** (len(correct).bit_length() - 1) if correct else 0
    count = min(CLUSTERS, max(1, seen // 2))
    if count < 2:
        return (tuple(correct),) if correct else ()
    points = _points(correct, seen)
    found = faiss.Kmeans(points.shape[1], count, niter=20, seed=1, min_points_per_centroid=1)
    found.train(points[:seen])
    _, nearest = found.index.search(points, 1)
    groups = [
        tuple(one for one, place in zip(correct, nearest[:, 0], strict=True) if place == wanted)
        for wanted in range(count)
    ]
    return tuple(group for group in groups if group)


def _points(members: Sequence[Member], seen: int) -> npt.NDArray[np.float32]:
    """Features of each member in standard deviations of the first ``seen``; 0 for what was not counted."""
    rows = [
        [member.score or 0.0, _fraction(member), *(member.metric.get(name, np.nan) for name in FEATURES)]
        for member in members
    ]
    points = np.asarray(rows, np.float64)
    known = [column[~np.isnan(column)] for column in points[:seen].T]
    for place, values in enumerate(known):
        spread = values.std() if len(values) else 0.0
        points[:, place] = (points[:, place] - values.mean()) / spread if spread > 0 else 0.0
    return np.ascontiguousarray(np.nan_to_num(points), np.float32)


def _fraction(member: Member) -> float:
    profile = member.measurement.profile
    return math.nan if profile is None or profile.fraction_of_bound is None else profile.fraction_of_bound


def _rewards(members: Sequence[Member], groups: Sequence[Sequence[Member]]) -> dict[_Cell, list[float]]:
    """Share of the time that steps saved, by the cluster of their parent and their direction; failures saved nothing.

    The reference belongs to no cluster; its place is -1.
    """
    places = {member.step_id: place for place, group in enumerate(groups) for member in group}
    found: dict[_Cell, list[float]] = {}
    for member, start in _steps(members):
        place = -1 if start is None else places[start.step_id]
        saved = 0.0 if member.gain is None else max(0.0, 1 - 2**-member.gain)
        found.setdefault((place, member.direction), []).append(saved)
    return found


def _steps(members: Sequence[Member]) -> Iterator[tuple[Member, Member | None]]:
    """Steps with a direction that say something of it, each with the correct candidate that it started from."""
    known = {member.step_id: member for member in members}
    for member in members:
        start = known.get(member.parent_id or "")
        while start is not None and start.score is None:
            start = known.get(start.parent_id or "")
        if member.direction and member.measurement.outcome.charged_to_candidate:
            yield member, start


def _bound(rewards: list[float], total: int) -> float:
    if not rewards:
        return math.inf
    return sum(rewards) / len(rewards) + UCB * math.sqrt(math.log(total) / len(rewards))


def _best(bounds: dict[_Cell, float]) -> list[_Cell]:
    return [cell for cell, value in bounds.items() if value == max(bounds.values())]

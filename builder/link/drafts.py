"""Drafts: transitions before they know their direction, one table a log, cacheable by the log's digest.

A draft holds all that later stages need of a step; of its code only a fragment and, once a trajectory, a kernel to
show. So a million of them fit in memory, and a log whose digest is known need not be read, parsed or described again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import pyarrow as pa

from artifacts.candidate import Language
from artifacts.memory.records import LONGEST_KERNEL, Transition
from artifacts.memory.schemas import BATCH, TEXT, TRANSITIONS
from artifacts.memory.tables import transition_row
from artifacts.trajectory import Step, Trajectory, TrustFlag, time_ratio
from builder.describe import DescribedStep
from builder.describe.failure import reason
from builder.link.fragment import added_fragment
from builder.link.trust import weight

CATEGORY = pa.dictionary(pa.int32(), pa.string())
DRAFTS = pa.schema(
    [
        *TRANSITIONS,
        pa.field("added", CATEGORY, nullable=False),
        pa.field("removed", CATEGORY, nullable=False),
        pa.field("fragment", TEXT, nullable=False),
        pa.field("previous", TEXT, nullable=False),
        pa.field("error_class", CATEGORY, nullable=False),
    ]
)
"""Columns of a transition and ``added``, ``removed`` (features), ``fragment`` (code), ``previous`` (transition that
made the parent, empty for none) and ``error_class``."""
CARRIED = frozenset({TrustFlag.HACK_PATTERN, TrustFlag.BELOW_PHYSICAL_LIMIT, TrustFlag.NO_CODE})
"""Flags of a parent that spoil what is said of its child."""
LEAST_GAIN = 0.05
"""Log2 gain from which a step may lend its plan and code to a strategy, if it is also:"""
TRUSTED = 0.4
"""The least weight of a transition that gives a recipe or a template."""
OWN = "htam"
"""Format of the logs whose harness has itself held a kernel to the precision of its task, whatever types it uses."""
LONGEST_TEXT = 1200
LONGEST_ERROR = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """One transition without direction, strategy and history; see :data:`DRAFTS` for the rest."""

    transition: Transition
    added: frozenset[str]
    removed: frozenset[str]
    fragment: str
    previous: str
    error_class: str


def drafts(trajectory: Trajectory, described: Iterable[DescribedStep]) -> Iterator[Draft]:
    """Drafts of the steps that have a parent; a root is no transition."""
    found = [(item, _draft(trajectory, item, item.parent)) for item in described if item.parent is not None]
    speeds = [_speed(item, draft.transition) for item, draft in found]
    fastest = max(speeds, default=0.0)
    for (item, draft), speed in zip(found, speeds, strict=True):
        if speed == fastest > 0.0:
            reference = trajectory.reference if len(trajectory.reference) <= LONGEST_KERNEL else ""
            shown = replace(draft.transition, kernel=item.step.code, reference=reference)
            draft = replace(draft, transition=shown)
            fastest = math.inf  # the first of equals
        yield draft


def draft_table(items: Iterable[Draft]) -> pa.Table:
    """Drafts as a table, read in batches."""
    iterator = iter(items)
    batches = []
    while rows := [_row(item) for item in islice(iterator, BATCH)]:
        batches.append(pa.Table.from_pylist(rows, schema=DRAFTS))
    return pa.concat_tables(batches) if batches else DRAFTS.empty_table()


def reward(parent: Step, child: Step) -> float | None:
    """Log2(parent time / child time); None unless both are correct and comparable."""
    ratio = time_ratio(parent, child)
    return None if ratio is None else math.log2(ratio)


def _draft(trajectory: Trajectory, item: DescribedStep, parent: Step) -> Draft:
    child = item.step
    identity = f"{trajectory.trajectory_id}/{child.step_id}"
    gain = reward(parent, child)
    flags = child.flags | (parent.flags & CARRIED)
    transition = Transition(
        transition_id=identity,
        source=trajectory.source,
        trajectory_id=trajectory.trajectory_id,
        task=trajectory.task,
        device=trajectory.device,
        llm=trajectory.llm,
        state=replace(item.state, history=()),
        direction_id="",
        strategy_id="",
        plan=item.text[:LONGEST_TEXT],
        outcome=child.outcome,
        reward=gain,
        expected=None,
        weight=weight(flags),
        flags=flags,
        siblings=_siblings(trajectory, parent),
        parent_sha256=parent.sha256,
        child_sha256=child.sha256,
        parent_us=parent.runtime_us,
        child_us=child.runtime_us,
        error=reason(child.error, LONGEST_ERROR),
        choice_probability=child.choice_probability,
        provenance=child.provenance,
    )
    return Draft(
        transition=transition,
        added=item.added,
        removed=item.removed,
        fragment=added_fragment(parent.code, child.code) if _exemplary(transition) else "",
        previous="" if parent.parent_id is None else f"{trajectory.trajectory_id}/{parent.step_id}",
        error_class=item.error_class or "",
    )


def _speed(item: DescribedStep, transition: Transition) -> float:
    """Log2 of how much faster than the baseline a kernel is that may be shown to others; 0 for any other."""
    gain, before = transition.reward, transition.state.log2_speedup
    own = item.language is transition.state.language is not Language.TORCH
    precise = TrustFlag.PRECISION_DROPPED not in transition.flags or transition.provenance.format == OWN
    shown = own and precise and transition.weight >= TRUSTED and len(item.step.code) <= LONGEST_KERNEL
    return before + gain if shown and gain is not None and before is not None else 0.0


def _siblings(trajectory: Trajectory, parent: Step) -> str:
    """One id for all children of the same code, also where several trajectories of a collection start from it."""
    if TrustFlag.NO_CODE in parent.flags:
        return f"{trajectory.trajectory_id}/{parent.step_id}"
    return f"{trajectory.source}|{trajectory.task.task_id}|{trajectory.device}|{parent.sha256[:16]}"


def _exemplary(transition: Transition) -> bool:
    return transition.reward is not None and transition.reward >= LEAST_GAIN and transition.weight >= TRUSTED


def _row(item: Draft) -> dict[str, Any]:
    return transition_row(item.transition) | {
        "added": " ".join(sorted(item.added)),
        "removed": " ".join(sorted(item.removed)),
        "fragment": item.fragment,
        "previous": item.previous,
        "error_class": item.error_class,
    }

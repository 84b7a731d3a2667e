"""Raw transitions: steps before they know their direction, one table a log, cacheable by the log's digest."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from artifacts.candidate import Language
from artifacts.features.techniques import moves, techniques
from artifacts.measurement import Outcome
from artifacts.memory.records import LONGEST_KERNEL, Transition
from artifacts.memory.schemas import BATCH, CATEGORY, TEXT, TRANSITIONS
from artifacts.memory.tables import transition_row
from artifacts.trajectory import Step, Trajectory, TrustFlag
from builder.describe.evidence import reason
from builder.describe.fragment import added_fragment
from builder.describe.steps import DescribedStep, gain_over

WEIGHTS: dict[TrustFlag, float] = {
    TrustFlag.NO_CODE: 0.0,  # nothing was run, whatever score the log gives
    TrustFlag.UNSTEADY: 0.0,  # neither size nor sign of the ratio can be believed
    TrustFlag.HACK_PATTERN: 0.1,  # the gain is likely to come from the cheat
    TrustFlag.UNDECIDED: 0.0,  # nothing says that the output was right
    TrustFlag.ROUGH: 0.5,  # the sign stands
    TrustFlag.TORCH_ONLY: 0.5,  # real gains, but of a rewrite that holds no kernel
    TrustFlag.PRECISION_DROPPED: 0.5,
    TrustFlag.BASELINE_CHANGED: 0.5,  # the harness or the machine changed under the run
    TrustFlag.DUPLICATED: 0.5,  # the same code again is not a second observation
    TrustFlag.RATIO_ONLY: 0.7,
    TrustFlag.RECONSTRUCTED: 0.7,
    TrustFlag.WEAK_BASELINE: 0.9,  # concerns speedups over the baseline, not gains over the parent
    TrustFlag.PLAN_NOT_FOLLOWED: 0.9,  # directions are read from the code change, so little is lost
    TrustFlag.ONE_SEED: 0.9,
}
"""Factor of each flag; docs/reference/logs.md repeats the table and a test keeps the two alike."""


def weight(flags: Iterable[TrustFlag]) -> float:
    """Product of the factors of ``flags``, 0..1."""
    product = 1.0
    for flag in sorted(flags):
        product *= WEIGHTS[flag]
    return round(product, 4)


RAW_TRANSITIONS = pa.schema(
    [
        *TRANSITIONS,
        pa.field("added", CATEGORY, nullable=False),
        pa.field("removed", CATEGORY, nullable=False),
        pa.field("fragment", TEXT, nullable=False),
        pa.field("diff", TEXT, nullable=False),
        pa.field("previous", TEXT, nullable=False),
        pa.field("chosen", CATEGORY, nullable=False),
        pa.field("error_class", CATEGORY, nullable=False),
    ]
)
"""Columns of a transition and ``added``, ``removed`` (features), ``fragment`` (code), ``diff`` (code
before and after, of own logs), ``previous`` (transition that
made the parent, empty for none), ``chosen`` (direction whose probability is logged) and ``error_class``."""
CARRIED = frozenset(
    {TrustFlag.HACK_PATTERN, TrustFlag.NO_CODE, TrustFlag.UNSTEADY, TrustFlag.ROUGH, TrustFlag.UNDECIDED}
)
"""Flags of a parent that spoil what is said of its child."""
LEAST_GAIN = 0.05
"""Log2 gain from which a step may lend its plan and code to a strategy, if it is also:"""
TRUSTED = 0.4
"""The least weight of a transition that gives a recipe or a template."""
OWN = "htam"
"""Format of the logs whose harness has itself held a kernel to the precision of its task, whatever types it uses."""
LONGEST_TEXT = 1200
LONGEST_ERROR = 400
LINES_SHOWN = 8
"""Lines of each side of a difference."""


class RawTransition(NamedTuple):
    """One transition without direction, strategy and history; see :data:`RAW_TRANSITIONS` for the rest."""

    transition: Transition
    added: str
    removed: str
    fragment: str
    diff: str
    previous: str
    chosen: str
    error_class: str


def raw_transitions(trajectory: Trajectory, described: Iterable[DescribedStep]) -> Iterator[RawTransition]:
    """Raw transitions of the steps that have a parent; a root is no transition."""
    found = [(item, _raw(trajectory, item, item.parent)) for item in described if item.parent is not None]
    speeds = [_speed(item, raw.transition) for item, raw in found]
    fastest = max(speeds, default=0.0)
    for (item, raw), speed in zip(found, speeds, strict=True):
        if speed == fastest > 0.0:
            reference = trajectory.reference if len(trajectory.reference) <= LONGEST_KERNEL else ""
            raw = raw._replace(transition=replace(raw.transition, kernel=item.step.code, reference=reference))
            fastest = math.inf  # the first of equals
        yield raw


def raw_transition_table(items: Iterable[RawTransition]) -> pa.Table:
    """Rows of a table, read in batches."""
    iterator = iter(items)
    batches = []
    while rows := [_row(item) for item in islice(iterator, BATCH)]:
        batches.append(pa.Table.from_pylist(rows, schema=RAW_TRANSITIONS))
    return pa.concat_tables(batches) if batches else RAW_TRANSITIONS.empty_table()


def _raw(trajectory: Trajectory, item: DescribedStep, parent: Step) -> RawTransition:
    child = item.step
    identity = f"{trajectory.trajectory_id}/{child.step_id}"
    before = techniques(parent.code)
    gain = gain_over(parent, child)
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
        repair=parent.outcome is not Outcome.CORRECT,
        techniques=frozenset(map(str, before)),
        moves=moves(before, techniques(child.code, item.language)),
    )
    return RawTransition(
        transition=transition,
        added=" ".join(sorted(item.added)),
        removed=" ".join(sorted(item.removed)),
        fragment=added_fragment(parent.code, child.code) if _exemplary(transition) else "",
        diff=_diff(parent, child) if transition.moves and _exemplary(transition) else "",
        previous="" if parent.parent_id is None else f"{trajectory.trajectory_id}/{parent.step_id}",
        chosen=child.direction,
        error_class=item.error_class,
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


def _diff(parent: Step, child: Step) -> str:
    """The longest run of changed lines between two kernels of an own log; others' code is not passed on."""
    if child.provenance.format != OWN:
        return ""
    before, after = parent.code.splitlines(), child.code.splitlines()
    matched = difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    changes = [change for change in matched if change[0] != "equal"]
    if not changes:
        return ""
    _, i1, i2, j1, j2 = max(changes, key=lambda change: change[4] - change[3])
    removed = [f"- {line.strip()}" for line in before[i1:i2]][:LINES_SHOWN]
    added = [f"+ {line.strip()}" for line in after[j1:j2]][:LINES_SHOWN]
    return "\n".join([*removed, *added])[:LONGEST_TEXT]


def _exemplary(transition: Transition) -> bool:
    return transition.reward is not None and transition.reward >= LEAST_GAIN and transition.weight >= TRUSTED


def _row(item: RawTransition) -> dict[str, Any]:
    return transition_row(item.transition) | item._asdict()


TASK = ("source", "task_id", "state_arch", "state_language")
"""Rows that agree in these compete; sources do not, so that a filter on them leaves what the others have."""


def fastest_kernels(table: pa.Table) -> pa.Table:
    """``table`` with one trusted ``kernel`` left for each :data:`TASK`, so that sources grow with tasks, not with runs.

    Trust is asked for here too, because what a log gives is known before what other logs repeat of it.
    """
    trusted = pc.greater_equal(table["weight"], TRUSTED)
    offered = np.flatnonzero(np.asarray(pc.and_(pc.not_equal(table["kernel"], ""), trusted)))
    rows = table.select([*TASK, "transition_id", "reward", "state_log2_speedup"]).take(pa.array(offered))
    speed = pc.add(rows["reward"], rows["state_log2_speedup"])
    ranked = pa.table({name: rows[name].cast(pa.string()) for name in (*TASK, "transition_id")})
    ranked = ranked.append_column("speed", speed).append_column("row", pa.array(offered))
    ranked = ranked.sort_by([("speed", "descending"), ("transition_id", "ascending")])
    best = ranked.group_by(TASK, use_threads=False).aggregate([("row", "first")])["row_first"]
    kept = np.zeros(table.num_rows, np.bool_)
    kept[np.asarray(best)] = True
    for name in ("kernel", "reference"):
        place = table.schema.get_field_index(name)
        left = pc.if_else(pa.array(kept), table[name], pa.scalar("", table[name].type))
        table = table.set_column(place, table.schema.field(place), left)
    return table

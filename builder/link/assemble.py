"""Labelled transitions and what clustering named, put together as a memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from artifacts.errors import HtamError
from artifacts.memory.edges import computed
from artifacts.memory.htg import Memory, refreshed
from artifacts.memory.manifest import Manifest
from artifacts.memory.records import Excerpt, Strategy
from artifacts.memory.schemas import TRANSITIONS, canonical
from builder.cluster.record import NOTHING_YET, Labels, StrategyNode
from builder.describe.plan import whole_sentences
from builder.describe.raw_transitions import LEAST_GAIN, TRUSTED, fastest_kernels
from builder.link.risks import Failure, risks, with_risky_states

EVIDENCE = 50
RECIPES = 5
TEMPLATES = 5


def assemble(raw: pa.Table, labels: Labels, manifest: Manifest) -> Memory:
    """The memory of raw transitions; effects, conditions and expectations are computed from its rows."""
    labels = without_repairs(raw, labels)
    texts = texts_by_strategy(raw, labels.strategy_ids)
    strategies = tuple(_strategy(node, texts.get(node.strategy_id, Texts())) for node in labels.strategies)
    table = transitions(fastest_kernels(raw), labels)
    bare = Memory(manifest=manifest, directions=labels.directions, strategies=strategies, table=table)
    memory = refreshed(with_risky_states(with_expectations(bare)))
    shown = raw.select(["transition_id", "diff"]).filter(pc.not_equal(raw["diff"], ""))
    excerpts = dict(zip(*(column.to_pylist() for column in shown.columns), strict=True))
    return replace(memory, edges=computed(memory.table, memory.columns, excerpts))


def without_repairs(raw: pa.Table, labels: Labels) -> Labels:
    """``labels`` with none for repairs: they say how a failure was cured, not what their plan's strategy gains."""
    kept = [not repair for repair in raw["repair"].to_pylist()]
    return replace(
        labels,
        direction_ids=[name if keep else "" for name, keep in zip(labels.direction_ids, kept, strict=True)],
        strategy_ids=[name if keep else "" for name, keep in zip(labels.strategy_ids, kept, strict=True)],
    )


def transitions(raw: pa.Table, labels: Labels) -> pa.Table:
    """Raw transitions with directions, strategies and histories, as a canonical table.

    Raises:
        HtamError: two logs hold different transitions of the same id.
    """
    identities = raw["transition_id"].to_pylist()
    if len(set(identities)) != len(identities):
        repeated, _ = Counter(identities).most_common(1)[0]
        raise HtamError(f"transition {repeated!r} comes from two logs", "give each collection a name of its own")
    changed = {
        "direction_id": list(labels.direction_ids),
        "strategy_id": list(labels.strategy_ids),
        "state_history": histories(identities, raw["previous"].to_pylist(), labels.direction_ids),
    }
    # The probability of a direction that the step did not take in the end says nothing of the one that it took.
    taken = pc.equal(raw["chosen"].cast(pa.string()), pa.array(labels.direction_ids, pa.string()))
    probability = pc.if_else(taken, raw["choice_probability"], None)
    raw = raw.set_column(raw.schema.get_field_index("choice_probability"), "choice_probability", probability)
    columns = [
        pa.array(changed[field.name], pa.string()).cast(field.type) if field.name in changed else raw[field.name]
        for field in TRANSITIONS
    ]
    return canonical(pa.table(columns, schema=TRANSITIONS))


def histories(identities: Sequence[str], previous: Sequence[str], direction_ids: Sequence[str]) -> list[str]:
    """Directions taken on the way to each row's parent, oldest first and separated by blanks; noise is left out."""
    position = {name: row for row, name in enumerate(identities)}
    through: dict[int, str] = {}
    before: list[str] = []
    for row in range(len(identities)):
        chain: list[int] = []
        at: int | None = position.get(previous[row])
        while at is not None and at not in through:
            chain.append(at)
            at = position.get(previous[at])
        path = through[at] if at is not None else ""
        for link in reversed(chain):
            path = f"{path} {direction_ids[link]}".strip()
            through[link] = path
        parent = position.get(previous[row])
        before.append("" if parent is None else through[parent])
    return before


def with_expectations(memory: Memory) -> Memory:
    """``memory`` with what the state predicts in its rows and manifest, rounded so that platforms agree."""
    column = pa.array(np.round(memory.expected.astype(np.float64), 4), pa.float64())
    table = memory.table
    place = table.schema.get_field_index("expected")
    return replace(
        memory,
        manifest=replace(memory.manifest, expectation=memory.expectation.rounded()),
        table=table.set_column(place, table.schema.field(place), column),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """What the transitions of one strategy say and show, best first."""

    recipes: tuple[Excerpt, ...] = ()
    templates: tuple[Excerpt, ...] = ()
    risks: tuple[str, ...] = ()
    risk_evidence: tuple[tuple[str, ...], ...] = ()
    evidence: tuple[str, ...] = ()


def texts_by_strategy(raw: pa.Table, strategy_ids: Sequence[str]) -> Mapping[str, Texts]:
    """Texts of each strategy; rows are visited strategy by strategy, so that no more than one is in memory."""
    strategy = pa.array(strategy_ids, pa.string()).dictionary_encode()
    order = np.argsort(np.asarray(strategy.indices), kind="stable")
    codes = np.asarray(strategy.indices)[order]
    wanted = ["transition_id", "plan", "outcome", "reward", "weight", "fragment", "error", "error_class"]
    narrow = raw.select(wanted)
    starts = np.flatnonzero(np.diff(codes, prepend=-1))
    ends = [*starts[1:], len(codes)]
    found: dict[str, Texts] = {}
    for start, end in zip(starts, ends, strict=True):
        identity = strategy.dictionary[int(codes[start])].as_py()
        if identity:
            found[identity] = _texts(narrow.take(pa.array(order[start:end])))
    return found


def _texts(rows: pa.Table) -> Texts:
    gained = _excerpts(rows)
    failed = rows.filter(pc.not_equal(rows["outcome"].cast(pa.string()), "correct"))
    rules = risks([Failure(**row) for row in failed.select(Failure._fields).to_pylist()], rows.num_rows)
    return Texts(
        recipes=_distinct([row | {"plan": whole_sentences(str(row["plan"]))} for row in gained], "plan", RECIPES),
        templates=_distinct(gained, "fragment", TEMPLATES),
        risks=tuple(rule.words for rule in rules),
        risk_evidence=tuple(rule.evidence for rule in rules),
        evidence=_telling(rows),
    )


def _excerpts(rows: pa.Table) -> list[dict[str, object]]:
    good = rows.filter(pc.and_(pc.greater_equal(rows["reward"], LEAST_GAIN), pc.greater_equal(rows["weight"], TRUSTED)))
    best = good.sort_by([("reward", "descending"), ("transition_id", "ascending")]).slice(0, 20 * RECIPES)
    found: list[dict[str, object]] = best.to_pylist()
    return found


def _distinct(rows: list[dict[str, object]], field: str, most: int) -> tuple[Excerpt, ...]:
    seen: dict[str, Excerpt] = {}
    for row in rows:
        text = str(row[field])
        if text and text not in seen and len(seen) < most:
            gain = float(str(row["reward"]))
            seen[text] = Excerpt(text=text, transition_id=str(row["transition_id"]), gain=round(gain, 4))
    return tuple(seen.values())


def _telling(rows: pa.Table) -> tuple[str, ...]:
    strength = pc.multiply(pc.fill_null(pc.abs(rows["reward"]), 0.0), rows["weight"])
    ranked = rows.select(["transition_id"]).append_column("strength", strength)
    ranked = ranked.sort_by([("strength", "descending"), ("transition_id", "ascending")]).slice(0, EVIDENCE)
    return tuple(ranked["transition_id"].to_pylist())


def _strategy(node: StrategyNode, texts: Texts) -> Strategy:
    return Strategy(
        strategy_id=node.strategy_id,
        direction_id=node.direction_id,
        name=node.name,
        intent=node.description,
        when=(),
        recipe="",
        template="",
        effect=NOTHING_YET,
        risks=texts.risks,
        evidence=texts.evidence,
        risk_evidence=texts.risk_evidence,
        recipes=texts.recipes,
        templates=texts.templates,
    )

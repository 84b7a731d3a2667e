"""Labelled transitions and what clustering named, put together as a memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from artifacts.memory.effects import refreshed
from artifacts.memory.htg import Memory
from artifacts.memory.manifest import Manifest
from artifacts.memory.records import Direction, Effect, Excerpt, Strategy
from builder.describe.sentences import whole_sentences
from builder.link.drafts import LEAST_GAIN, TRUSTED
from builder.link.kernels import fastest_kernels
from builder.link.labels import Labels, labelled
from builder.link.risks import Failure, risks
from builder.link.risky_states import with_risky_states

EVIDENCE = 50
RECIPES = 5
TEMPLATES = 5
NOTHING_YET = Effect(mean=0.0, low=0.0, high=0.0, n=0, effective_n=0.0, failures=0)


def assemble(drafts: pa.Table, labels: Labels, manifest: Manifest) -> Memory:
    """The memory of ``drafts`` under ``labels``; effects, conditions and expectations are computed from its rows."""
    table = labelled(fastest_kernels(drafts), labels)
    texts = texts_by_strategy(drafts, labels)
    directions = tuple(
        Direction(
            direction_id=identity,
            name=named.name,
            description=named.description,
            effect=NOTHING_YET,
            resource=labels.resources.get(identity, ""),
        )
        for identity, named in sorted(labels.directions.items())
    )
    strategies = tuple(
        _strategy(identity, labels, texts.get(identity, Texts())) for identity in sorted(labels.strategies)
    )
    bare = Memory(manifest=manifest, directions=directions, strategies=strategies, table=table)
    return refreshed(with_risky_states(with_expectations(bare)))


def with_expectations(memory: Memory) -> Memory:
    """``memory`` with what the state predicts in its rows and manifest, rounded so that platforms agree."""
    column = pa.array(np.round(memory.expected.astype(np.float64), 4), pa.float64())
    table = memory.table
    place = table.schema.get_field_index("expected")
    return replace(
        memory,
        manifest=replace(memory.manifest, expectation=memory.expectation.mapping()),
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


def texts_by_strategy(drafts: pa.Table, labels: Labels) -> Mapping[str, Texts]:
    """Texts of each strategy; rows are visited strategy by strategy, so that no more than one is in memory."""
    strategy = pa.array(labels.strategy_ids, pa.string()).dictionary_encode()
    order = np.argsort(np.asarray(strategy.indices), kind="stable")
    codes = np.asarray(strategy.indices)[order]
    wanted = ["transition_id", "plan", "outcome", "reward", "weight", "fragment", "error", "error_class"]
    narrow = drafts.select(wanted)
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
    rules = risks([_failure(row) for row in failed.to_pylist()], rows.num_rows)
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


def _failure(row: dict[str, str]) -> Failure:
    names = ("transition_id", "outcome", "error_class", "error")
    return Failure(**{name: row[name] for name in names})


def _strategy(identity: str, labels: Labels, texts: Texts) -> Strategy:
    named = labels.strategies[identity]
    return Strategy(
        strategy_id=identity,
        direction_id=labels.parents[identity],
        name=named.name,
        intent=named.description,
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

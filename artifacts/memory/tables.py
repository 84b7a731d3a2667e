"""Records of a memory to rows of its tables (:mod:`artifacts.memory.schemas`) and back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from artifacts.candidate import Language
from artifacts.measurement import Bottleneck, Outcome
from artifacts.memory.records import Condition, Direction, Effect, Excerpt, Strategy, Transition
from artifacts.memory.schemas import BATCH, DIRECTIONS, SOURCES, STRATEGIES, TRANSITIONS, canonical, plain
from artifacts.task import TaskRef
from artifacts.trajectory import Provenance, State, TrustFlag


def direction_rows(directions: Iterable[Direction]) -> pa.Table:
    """One row a direction, sorted by id."""
    rows = [asdict(direction) for direction in sorted(directions, key=lambda item: item.direction_id)]
    return pa.Table.from_pylist(rows, schema=DIRECTIONS)


def directions_of(table: pa.Table) -> tuple[Direction, ...]:
    """Inverse of :func:`direction_rows`."""
    return tuple(Direction(**row | {"effect": Effect(**row["effect"])}) for row in table.to_pylist())


def strategy_rows(strategies: Iterable[Strategy]) -> pa.Table:
    """One row a strategy, sorted by id."""
    rows = []
    for strategy in sorted(strategies, key=lambda item: item.strategy_id):
        row = asdict(strategy)
        row["when"] = [_condition_row(condition) for condition in strategy.when]
        rows.append(row)
    return pa.Table.from_pylist(rows, schema=STRATEGIES)


def strategies_of(table: pa.Table) -> tuple[Strategy, ...]:
    """Inverse of :func:`strategy_rows`."""
    return tuple(_strategy_of(row) for row in table.to_pylist())


def transition_rows(transitions: Iterable[Transition]) -> pa.Table:
    """One row a transition, sorted by id; reads the records in batches so that a generator stays a generator."""
    iterator = iter(transitions)
    batches = []
    while rows := [transition_row(item) for item in islice(iterator, BATCH)]:
        batches.append(pa.Table.from_pylist(rows, schema=TRANSITIONS))
    if not batches:
        return TRANSITIONS.empty_table()
    return canonical(pa.concat_tables(batches))


def transitions_of(table: pa.Table) -> Iterator[Transition]:
    """Records of the rows, one at a time."""
    for batch in table.to_batches(max_chunksize=BATCH):
        for row in batch.to_pylist():
            yield _transition_of(row)


def _condition_row(condition: Condition) -> dict[str, Any]:
    is_text = isinstance(condition.value, str)
    return {
        "field": condition.field,
        "op": condition.op,
        "text": condition.value if is_text else None,
        "number": None if is_text else float(condition.value),
        "words": condition.words,
    }


def _condition_of(row: dict[str, Any]) -> Condition:
    value = row["number"] if row["text"] is None else row["text"]
    return Condition(field=row["field"], op=row["op"], value=value, words=row["words"])


def _strategy_of(row: dict[str, Any]) -> Strategy:
    changed = {
        "effect": Effect(**row["effect"]),
        "when": tuple(_condition_of(item) for item in row["when"]),
        "risks": tuple(row["risks"]),
        "evidence": tuple(row["evidence"]),
        "risk_evidence": tuple(tuple(ids) for ids in row["risk_evidence"]),
        "recipes": tuple(Excerpt(**item) for item in row["recipes"]),
        "templates": tuple(Excerpt(**item) for item in row["templates"]),
    }
    return Strategy(**row | changed)


def _joined(names: Iterable[str]) -> str:
    return " ".join(names)


STRAIGHT = (
    *("transition_id", "source", "trajectory_id", "device", "llm", "direction_id", "strategy_id", "plan", "reward"),
    *("expected", "weight", "siblings", "parent_sha256", "child_sha256", "parent_us", "child_us", "error"),
    *("choice_probability", "kernel", "reference", "repair"),
)
"""Fields of a transition that are columns as they are."""
STATE_STRAIGHT = (
    *("family", "arch", "dtype", "size", "fraction_of_bound", "log2_speedup", "log2_progress", "runtime_us"),
    *("step", "stagnation"),
)
PROVENANCE = ("format", "importer_version", "file", "file_sha256", "line")


def transition_row(item: Transition) -> dict[str, Any]:
    """Columns of one transition as plain values."""
    state, task, provenance = item.state, item.task, item.provenance
    row = {name: getattr(item, name) for name in STRAIGHT}
    row |= {"task_id": task.task_id, "suite": task.suite, "family": task.family, "level": task.level}
    row |= {"outcome": item.outcome.value, "flags": _joined(sorted(flag.value for flag in item.flags))}
    row |= {f"state_{name}": getattr(state, name) for name in STATE_STRAIGHT}
    row |= {
        "state_language": state.language.value,
        "state_bottleneck": state.bottleneck.value,
        "state_last_outcome": None if state.last_outcome is None else state.last_outcome.value,
        "state_features": _joined(sorted(state.features)),
        "state_history": _joined(state.history),
    }
    row |= {"techniques": _joined(sorted(item.techniques)), "moves": _joined(item.moves)}
    return row | {f"provenance_{name}": getattr(provenance, name) for name in PROVENANCE}


def _transition_of(row: dict[str, Any]) -> Transition:
    last = row["state_last_outcome"]
    state = State(
        **{name: row[f"state_{name}"] for name in STATE_STRAIGHT},
        language=Language(row["state_language"]),
        bottleneck=Bottleneck(row["state_bottleneck"]),
        last_outcome=None if last is None else Outcome(last),
        features=frozenset(row["state_features"].split()),
        history=tuple(row["state_history"].split()),
    )
    return Transition(
        **{name: row[name] for name in STRAIGHT},
        task=TaskRef(task_id=row["task_id"], suite=row["suite"], family=row["family"], level=row["level"]),
        state=state,
        outcome=Outcome(row["outcome"]),
        flags=frozenset(TrustFlag(name) for name in row["flags"].split()),
        techniques=frozenset(row["techniques"].split()),
        moves=tuple(row["moves"].split()),
        provenance=Provenance(**{name: row[f"provenance_{name}"] for name in PROVENANCE}),
    )


def source_rows(transitions: pa.Table) -> pa.Table:
    """Figures of each input file, from the transitions that were read out of it."""
    keys = ["source", "provenance_format", "provenance_file", "provenance_file_sha256", "provenance_importer_version"]
    wanted = plain(transitions.select([*keys, "reward", "outcome"]))
    measured = wanted["reward"].is_valid().cast(pa.int64())
    failed = pc.not_equal(wanted["outcome"], "correct").cast(pa.int64())
    counted = wanted.select(keys).append_column("m", measured).append_column("f", failed)
    sums = counted.group_by(keys).aggregate([("m", "count"), ("m", "sum"), ("f", "sum")])
    columns = {
        "source": sums["source"],
        "format": sums["provenance_format"],
        "file": sums["provenance_file"],
        "file_sha256": sums["provenance_file_sha256"],
        "importer_version": sums["provenance_importer_version"].cast(pa.int64()),
        "transitions": sums["m_count"],
        "measured": sums["m_sum"],
        "failures": sums["f_sum"],
    }
    table = pa.table({field.name: columns[field.name] for field in SOURCES})
    return table.sort_by([("source", "ascending"), ("file", "ascending")]).cast(SOURCES).combine_chunks()

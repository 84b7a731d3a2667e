"""Logs to raw transitions: one log at a time, remembered by content, and all of them as one table."""

from __future__ import annotations

import gc
import hashlib
import io
import itertools
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import artifacts
import artifacts.features
import artifacts.memory.records
import artifacts.memory.schemas
import artifacts.memory.tables
import builder.describe
import builder.read
from artifacts.codec import decode, encode
from artifacts.errors import BadInputError
from artifacts.measurement import Outcome
from artifacts.memory.columns import codes
from artifacts.memory.files import Files
from artifacts.memory.schemas import table_of
from artifacts.statistics import combined
from artifacts.trajectory import Quarantined, TrustFlag
from builder.describe.raw_transitions import (
    RAW_TRANSITIONS,
    fastest_kernels,
    raw_transition_table,
    raw_transitions,
    weight,
)
from builder.describe.steps import describe
from builder.read.collector import LogFile
from builder.read.reading import log_digest, read

BESIDE = b"htam"
"""Key of the metadata that holds what a remembered log says beside its rows."""
PACKAGES = (artifacts.features, builder.describe, builder.read)
MODULES = (artifacts.memory.records, artifacts.memory.schemas, artifacts.memory.tables)
"""What decides how a log's raw transitions look, beside the files at the root of ``artifacts``."""
SOURCES = (".py", ".toml", ".txt")


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedLog:
    """Raw transitions of one log.

    Attributes:
        table: rows as in :data:`builder.describe.raw_transitions.RAW_TRANSITIONS`.
        reused: whether they were remembered, not read.
    """

    name: str
    digest: str
    table: pa.Table
    quarantined: tuple[Quarantined, ...]
    reused: bool

    def without_rows(self) -> DescribedLog:
        """What is still to say of the log once its rows are gathered; a million of them need not be held twice."""
        return replace(self, table=RAW_TRANSITIONS.empty_table())


def describe_log(log: LogFile, cache: Path | None = None) -> DescribedLog:
    """Read and describe one log, or take what that gave from the folder ``cache``.

    An entry there is named by all that decides its content; entries of other releases are never asked for again.
    """
    digest = log_digest(log)
    key = hashlib.sha256("\0".join([fingerprint(), digest, log.format, log.name]).encode()).hexdigest()
    remembered = None if cache is None else _remembered(Files(str(cache)), key)
    if remembered is not None:
        return _unpacked(log, digest, remembered)
    with _without_cycles():
        result = read(log, digest)
        table = raw_transition_table(
            item for trajectory in result.trajectories for item in raw_transitions(trajectory, describe(trajectory))
        )
    described = DescribedLog(
        name=log.name,
        digest=digest,
        table=fastest_kernels(table.unify_dictionaries().combine_chunks()),
        quarantined=result.quarantined,
        reused=False,
    )
    if cache is not None:
        body = _packed(described)
        Files(str(cache)).write(hashlib.sha256(body).digest() + body, key)
    return described


@contextmanager
def _without_cycles() -> Iterator[None]:
    """Leave the search for cyclic garbage out: it is an eighth of the work, and describing a log makes none."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _remembered(files: Files, key: str) -> bytes | None:
    """What was written under ``key``; None when there is nothing, or something damaged."""
    try:
        data = files.read(key)
    except FileNotFoundError:
        return None
    digest, body = data[:32], data[32:]
    return body if hashlib.sha256(body).digest() == digest else None


def fingerprint() -> str:
    """SHA-256 over the sources of whatever turns a log into rows: a changed reader forgets what the old one gave."""
    digest = hashlib.sha256()
    for path in fingerprinted():
        digest.update(f"{path.parent.name}/{path.name}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def fingerprinted() -> tuple[Path, ...]:
    """Files that :func:`fingerprint` covers, in an order that does not depend on where they are installed."""
    records = Path(str(artifacts.__file__)).parent.glob("*")
    inside = (Path(str(package.__file__)).parent.rglob("*") for package in PACKAGES)
    found = [sorted(path for path in paths if path.suffix in SOURCES) for paths in (records, *inside)]
    return (*itertools.chain(*found), *(Path(str(module.__file__)) for module in MODULES))


def _packed(described: DescribedLog) -> bytes:
    table = described.table.replace_schema_metadata({BESIDE: json.dumps(encode(described.quarantined))})
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd")
    return sink.getvalue()


def _unpacked(log: LogFile, digest: str, body: bytes) -> DescribedLog:
    table = table_of(body)
    return DescribedLog(
        name=log.name,
        digest=digest,
        table=table.replace_schema_metadata(None).cast(RAW_TRANSITIONS),
        quarantined=tuple(decode(Quarantined, entry) for entry in json.loads(table.schema.metadata[BESIDE])),
        reused=True,
    )


EDGE = ("task_id", "device", "parent_sha256", "child_sha256")
"""Columns that, with the measured figure, say which edge a row is."""


@dataclass(frozen=True, slots=True)
class Corpus:
    """Raw transitions of all logs, and the logs they came from, without their rows."""

    table: pa.Table
    logs: tuple[DescribedLog, ...]

    @property
    def quarantined(self) -> tuple[Quarantined, ...]:
        """Records that could not be read, with file, line and reason."""
        return tuple(entry for log in self.logs for entry in log.quarantined)


def gather(logs: Iterable[DescribedLog]) -> Corpus:
    """Rows of all logs in the order of their ids, so that the order of the logs does not matter.

    A log that repeats another one byte by byte counts once; an edge that two logs share is flagged in the second.

    Raises:
        BadInputError: there is no transition in them.
    """
    given = tuple(logs)
    distinct = {log.digest: log.table for log in given}
    table = pa.concat_tables(list(distinct.values()) or [RAW_TRANSITIONS.empty_table()])
    if not table.num_rows:
        raise BadInputError("the logs hold no step with a parent", "htam logs inspect shows what was read and why")
    table = with_repeats_flagged(table.unify_dictionaries().sort_by("transition_id").combine_chunks())
    return Corpus(table, tuple(log.without_rows() for log in given))


def with_repeats_flagged(table: pa.Table) -> pa.Table:
    """``table`` with later rows of an edge marked as duplicated and counted accordingly.

    Args:
        table: rows in the order of their transition ids, which decides whose row of an edge is the first one.

    An edge repeats when another trajectory has the same task, device, both sources and measured figure. It is looked
    for here and not in the logs, because what a log gives must not depend on which others are there.
    """
    again = pa.array(_repeated(table))
    if not pc.any(again).as_py():
        return table
    flagged = codes(table["flags"])
    more = [" ".join(sorted({*names.split(), TrustFlag.DUPLICATED.value})) for names in flagged.names]
    which = pa.array(flagged.values)
    flags = pc.if_else(again, pa.array(more).take(which), pa.array(flagged.names).take(which))
    lighter = pa.array([weight(TrustFlag(name) for name in names.split()) for names in more], pa.float64()).take(which)
    weights = pc.if_else(again, lighter, table["weight"])
    return _replaced(_replaced(table, "flags", flags), "weight", weights)


def _repeated(table: pa.Table) -> npt.NDArray[np.bool_]:
    """Rows whose edge a row of another trajectory had before."""
    again = np.zeros(table.num_rows, bool)
    rows = np.flatnonzero(np.asarray(pc.equal(table["outcome"].cast(pa.string()), Outcome.CORRECT.value)))
    if not len(rows):
        return again
    correct = table.select([*EDGE, "child_us", "reward", "trajectory_id"]).take(pa.array(rows))
    figures = (*(correct[name] for name in EDGE), _figure(correct))
    first, which = combined([codes(column).values.astype(np.int64) for column in figures])
    trajectory = codes(correct["trajectory_id"]).values
    again[rows] = trajectory != trajectory[first][which]
    return again


def _figure(rows: pa.Table) -> pa.ChunkedArray:
    """Measured time; the gain, below zero and so unlike any time, where a log gives only the ratio."""
    ratio = pc.subtract(pc.multiply(-1.0, pc.exp(rows["reward"])), 1.0)
    return pc.fill_null(pc.coalesce(rows["child_us"], ratio), 0.0)


def _replaced(table: pa.Table, name: str, values: pa.Array) -> pa.Table:
    place = table.schema.get_field_index(name)
    field = table.schema.field(place)
    return table.set_column(place, field, values.cast(pa.string()).dictionary_encode() if name == "flags" else values)

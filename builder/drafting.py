"""One log to drafts, remembered by content: a log that was drafted before is not read, parsed or described again."""

from __future__ import annotations

import functools
import gc
import hashlib
import io
import itertools
import json
import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import artifacts
import artifacts.features
import artifacts.memory.records
import artifacts.memory.schemas
import artifacts.memory.tables
import builder.describe
import builder.glossary
import builder.link
import builder.logs
import builder.trust
from artifacts.codec import decode, encode
from artifacts.memory.files import Files
from artifacts.parquet import table_of
from artifacts.trajectory import Quarantined, Trajectory
from builder.describe import DescribedStep, describe
from builder.describe.refine import Refiner, refined
from builder.link.drafts import DRAFTS, draft_table, drafts
from builder.link.kernels import fastest_kernels
from builder.logs.logfile import LogFile
from builder.logs.reading import log_digest, read

SIDE = b"htam"
"""Key of the metadata that holds what a draft file says beside its rows."""
PACKAGES = (artifacts.features, builder.describe, builder.glossary, builder.link, builder.logs)
MODULES = (artifacts.memory.records, artifacts.memory.schemas, artifacts.memory.tables, builder.trust)
"""What decides how a log's drafts look, beside the files at the root of ``artifacts``."""
MOST_NEIGHBOURS = 16
SOURCES = (".py", ".toml", ".txt")


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftedLog:
    """Drafts of one log.

    Attributes:
        table: rows as in :data:`builder.link.drafts.DRAFTS`.
        records: records the log holds; ``reused`` is True when they were remembered, not read.
    """

    name: str
    format: str
    digest: str
    table: pa.Table
    quarantined: tuple[Quarantined, ...]
    records: int
    reused: bool

    def without_rows(self) -> DraftedLog:
        """What is still to say of the log once its rows are gathered; a million of them need not be held twice."""
        return replace(self, table=DRAFTS.empty_table())


class DraftCache:
    """Drafted logs in a folder, one file a log, named by all that decides its content.

    Args:
        folder: created on first use. Entries of other releases are simply never asked for again.
    """

    def __init__(self, folder: Path) -> None:
        self._files = Files(str(folder))

    def get(self, key: str) -> bytes | None:
        """What was put under ``key``; None when there is nothing, or something damaged."""
        try:
            data = self._files.read(key)
        except FileNotFoundError:
            return None
        digest, body = data[:32], data[32:]
        return body if hashlib.sha256(body).digest() == digest else None

    def put(self, key: str, body: bytes) -> None:
        """Remember ``body``; a reader sees all of it or nothing."""
        self._files.write(hashlib.sha256(body).digest() + body, key)


def draft_logs(
    logs: Sequence[LogFile], cache: DraftCache | None = None, refiner: Refiner | None = None, workers: int = 1
) -> Iterator[DraftedLog]:
    """Draft logs in their order, in ``workers`` processes where that is more than one."""
    draft = functools.partial(draft_log, cache=cache, refiner=refiner)
    if min(workers, len(logs)) < 2:
        yield from map(draft, logs)
        return
    # Not forked: libraries that are loaded here may hold threads and locks.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(workers, len(logs)), context, _collect_rarely) as pool:
        yield from pool.map(draft, logs, chunksize=neighbours(len(logs), workers))


def neighbours(logs: int, workers: int) -> int:
    """How many logs in a row go to the same process: neighbours share sources, which a process reads but once.

    At least eight lots a process, so that none waits long for the others at the end.
    """
    return max(1, min(MOST_NEIGHBOURS, logs // (8 * workers)))


def _collect_rarely() -> None:
    """Syntax trees are many objects without cycles: the default looks through them for cycles all the time."""
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)


def draft_log(log: LogFile, cache: DraftCache | None = None, refiner: Refiner | None = None) -> DraftedLog:
    """Read, describe and draft one log, or remember what that gave; ``refiner`` rewrites texts where one is given."""
    digest = log_digest(log)
    model = refiner.name if refiner is not None else ""
    key = hashlib.sha256("\0".join([fingerprint(), digest, log.format, log.name, model]).encode()).hexdigest()
    remembered = cache.get(key) if cache is not None else None
    if remembered is not None:
        return _unpacked(log, digest, remembered)
    result = read(log, digest)
    table = draft_table(
        draft for trajectory in result.trajectories for draft in drafts(trajectory, _described(trajectory, refiner))
    )
    drafted = DraftedLog(
        name=log.name,
        format=log.format,
        digest=digest,
        table=fastest_kernels(table.unify_dictionaries().combine_chunks()),
        quarantined=result.quarantined,
        records=result.records,
        reused=False,
    )
    if cache is not None:
        cache.put(key, _packed(drafted))
    return drafted


def _described(trajectory: Trajectory, refiner: Refiner | None) -> tuple[DescribedStep, ...]:
    described = describe(trajectory)
    return described if refiner is None else refined(described, refiner)


def fingerprint() -> str:
    """SHA-256 over the sources of whatever turns a log into drafts: a changed reader forgets what the old one gave."""
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


def _packed(drafted: DraftedLog) -> bytes:
    side = {"records": drafted.records, "quarantined": [encode(entry) for entry in drafted.quarantined]}
    table = drafted.table.replace_schema_metadata({SIDE: json.dumps(side)})
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd")
    return sink.getvalue()


def _unpacked(log: LogFile, digest: str, body: bytes) -> DraftedLog:
    table = table_of(body)
    side = json.loads(table.schema.metadata[SIDE])
    return DraftedLog(
        name=log.name,
        format=log.format,
        digest=digest,
        table=table.replace_schema_metadata(None).cast(DRAFTS),
        quarantined=tuple(decode(Quarantined, entry) for entry in side["quarantined"]),
        records=side["records"],
        reused=True,
    )

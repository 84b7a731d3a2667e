"""Formats of one record a row: one reader for JSON lines, JSON arrays, CSV and Parquet; an importer is the mapping."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from builder.read.collector import Collector, Importer, LogFile, alone
from builder.read.fields import Fields
from builder.read.files import MAX_LINES, Probe, UnreadableError, csv_rows, json_lines, parquet_rows, read_json

Rows = Iterator[tuple[int, Any]]
Enter = Callable[[Fields, int], None]
"""Makes steps of a record and its 1-based number; raises BadRecordError for one that cannot become any."""


def table(
    *,
    name: str,
    version: int,
    summary: str,
    fields: tuple[frozenset[str], ...],
    mapping: Callable[[Collector], Enter],
    rows: Callable[[Path], Rows] = json_lines,
    companions: Callable[[Path], tuple[Path, ...]] = alone,
) -> Importer:
    """An importer of files of one record a row.

    Args:
        fields: names that tell the format; one of these sets is among those of the file.
        mapping: called once a log; what it gives enters each record, and may keep what one record says of the next.
        rows: (1-based line or number, row or why it cannot be read) of the file.
    """

    def claims(probe: Probe) -> bool:
        return any(wanted <= probe.fields for wanted in fields)

    def read(log: LogFile, collector: Collector) -> None:
        enter = mapping(collector)
        for number, row in rows(log.path):
            with collector.record(number):
                if isinstance(row, UnreadableError):
                    raise row
                enter(Fields.of(row, "record"), number)
            if collector.gives_up(number) or number > MAX_LINES:
                break

    return Importer(name=name, version=version, summary=summary, claims=claims, companions=companions, read=read)


def json_items(path: Path, within: str = "") -> Rows:
    """Items of the one list in a JSON file, or of the list under ``within`` in its object; its only value otherwise."""
    try:
        whole = read_json(path)
    except UnreadableError as problem:
        yield 1, problem
        return
    rows = whole.get(within) if isinstance(whole, dict) else whole
    yield from enumerate(rows if isinstance(rows, list) else [whole], start=1)


def cells(path: Path) -> Rows:
    """Rows of a CSV or Parquet file without their empty cells."""
    try:
        for number, row in parquet_rows(path) if Probe(path).is_parquet else csv_rows(path):
            yield number, row if isinstance(row, UnreadableError) else _filled(row)
    except UnreadableError as problem:
        yield 1, problem


def _filled(row: dict[str, Any]) -> dict[str, Any]:
    """Empty cells and NaN are missing values in a table."""
    return {name: value for name, value in row.items() if value != "" and not _is_nan(value)}


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)

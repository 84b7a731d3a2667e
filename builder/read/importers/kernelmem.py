"""KernelMem task folders: CudaForge's layout with explicit parents, strategies and profiles.

Parents and plans come from ``code/<parent>/opt_round_*.json`` and ``repair_round_*.json`` and, where the run
ended in order, from ``optimization_tree.json``. Profiles are ``ncu --csv`` pages per kernel: raw
pages have a column a metric, detail pages a row a metric; a file may hold several of both, one after the other, with
marker lines between.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import Path, PurePosixPath

from artifacts.trajectory import TrustFlag
from builder.read.collector import Collector, Importer, LogFile, Run
from builder.read.fields import MAX_METRICS, BadRecordError, Fields
from builder.read.files import MAX_SOURCE_BYTES, Probe, UnreadableError, is_regular, read_json, read_text
from builder.read.importers.cudaforge import TaskFolder, evaluations, kernels, plan_of

_PREFIXES = ("sm__", "smsp__", "dram__", "gpu__", "l1tex__", "lts__", "launch__")
_DEVICE_NAME = "device__attribute_display_name"
_DURATIONS = ("gpu__time_duration.sum", "Duration")
_TO_NS = {"nsecond": 1.0, "ns": 1.0, "usecond": 1e3, "us": 1e3, "msecond": 1e6, "ms": 1e6, "second": 1e9, "s": 1e9}


def _claims(probe: Probe) -> bool:
    if not {"code", "evaluation"} <= probe.entries or not evaluations(probe.path):
        return False
    return "optimization_tree.json" in probe.entries or any(_rounds(probe.path))


def _companions(path: Path) -> tuple[Path, ...]:
    tree = path / "optimization_tree.json"
    pages = (file for file in sorted((path / "profile").glob("*_ncu.csv")) if is_regular(file))
    return (*kernels(path), *evaluations(path), *_rounds(path), *([tree] if is_regular(tree) else []), *pages)


def _read(log: LogFile, collector: Collector) -> None:
    """One trajectory a folder."""
    folder, lineage = TaskFolder.at(log.path), _Lineage.of(log.path)
    pages = {kernel.stem: read_ncu_csv(log.path / "profile" / f"{kernel.stem}_ncu.csv") for kernel in kernels(log.path)}
    device = next((name for name, _ in pages.values() if name), "")
    run = Run(key="run", source=f"{collector.log.format}/{log.path.parent.name}", task=folder.task, device=device)
    for number, file in enumerate(folder.evaluations, start=1):
        with collector.record(number):
            step = folder.step(collector, file, None, "", {})
            parent = lineage.parents.get(step.step_id)
            flags = step.flags | ({TrustFlag.RECONSTRUCTED} if lineage.reconstructed else set())
            _, metrics = pages.get(step.step_id, ("", {}))
            plan = lineage.plans.get(step.step_id, "")
            collector.add(run, replace(step, parent_id=parent, plan=plan, profile=metrics, flags=frozenset(flags)))


@dataclass(slots=True)
class _Lineage:
    """Kernel name → parent's name and plan."""

    parents: dict[str, str] = field(default_factory=dict)
    plans: dict[str, str] = field(default_factory=dict)
    reconstructed: bool = False

    @classmethod
    def of(cls, path: Path) -> _Lineage:
        lineage = cls()
        with suppress(UnreadableError, BadRecordError):  # only runs that ended in order have a tree
            lineage._read_tree(Fields.of(read_json(path / "optimization_tree.json", MAX_SOURCE_BYTES)))
        for file in _rounds(path):
            try:
                lineage._read_round(Fields.of(read_json(file, MAX_SOURCE_BYTES)))
            except (UnreadableError, BadRecordError):
                continue
        return lineage

    def _read_tree(self, tree: Fields) -> None:
        self.reconstructed = bool(tree.flag("reconstructed"))
        kernels_found = tree.child("kernels")
        for name in kernels_found.data:
            parent = kernels_found.child(name).text("parent")
            if parent and parent != name:
                self.parents[name] = parent

    def _read_round(self, record: Fields) -> None:
        child = _stem(record.text("test_kernel", "repaired_kernel"))
        parent = record.text("parent_kernel_name", "kernel_to_repair_name")
        if not child or child == parent:
            return
        if parent:
            self.parents.setdefault(child, parent)
        strategy = record.child("optimization_strategy", "repair_strategy", "problem_identification")
        self.plans[child] = plan_of(strategy)


def _rounds(path: Path) -> Iterator[Path]:
    found = sorted((*(path / "code").glob("*/opt_round_*.json"), *(path / "code").glob("*/repair_round_*.json")))
    return (file for file in found if is_regular(file) and not file.parent.is_symlink())


def _stem(path: str) -> str:
    return PurePosixPath(path.replace("\\", "/")).name.removesuffix(".py")


def read_ncu_csv(path: Path) -> tuple[str, dict[str, float]]:
    """Return (device name, metric → value, durations in ns); both empty when the file is missing or no such page."""
    try:
        lines = read_text(path, MAX_SOURCE_BYTES).splitlines()
    except UnreadableError:
        return "", {}
    device, kernels = "", dict[str, dict[str, float]]()
    try:
        for header, rows in _pages(lines):
            details = "Metric Name" in header
            device = device or _device(header, rows)
            for kernel, metrics in _details(header, rows) if details else _columns(header, rows):
                known = kernels.setdefault(kernel, {})
                kernels[kernel] = {**metrics, **known}  # sections repeat names in other units: the first counts
    except csv.Error:
        return device, {}
    longest = max(kernels.values(), key=_duration, default={})
    return device, dict(list(longest.items())[:MAX_METRICS])


def _pages(lines: list[str]) -> Iterator[tuple[list[str], list[list[str]]]]:
    """(column names, rows) of each page; a page ends at a marker line, a blank one or the next header."""
    for number, line in enumerate(lines):
        if line.startswith('"ID"'):
            body = takewhile(lambda text: text.startswith('"') and not text.startswith('"ID"'), lines[number + 1 :])
            header, *rows = csv.reader([line, *body])
            yield header, rows


def _device(header: list[str], rows: list[list[str]]) -> str:
    row = dict(zip(header, rows[-1], strict=False)) if rows else {}
    return row.get(_DEVICE_NAME, "")


def _columns(header: list[str], rows: list[list[str]]) -> Iterator[tuple[str, dict[str, float]]]:
    """Kernel and metrics of each row of a raw page; its first row holds the units."""
    units = dict(zip(header, rows[0], strict=False)) if rows else {}
    for row in rows[1:]:
        cells = dict(zip(header, row, strict=False))
        wanted = ((name, text) for name, text in cells.items() if name.startswith(_PREFIXES))
        numbers = ((name, _number(name, text, units.get(name, ""))) for name, text in wanted)
        yield cells.get("Kernel Name", ""), {name: value for name, value in numbers if value is not None}


def _details(header: list[str], rows: list[list[str]]) -> Iterator[tuple[str, dict[str, float]]]:
    """Kernel and one metric of each row of a detail page."""
    for row in rows:
        cells = dict(zip(header, row, strict=False))
        name = cells.get("Metric Name", "")
        value = _number(name, cells.get("Metric Value", ""), cells.get("Metric Unit", ""))
        if name and value is not None:
            yield cells.get("Kernel Name", ""), {name[:200]: value}


def _duration(metrics: dict[str, float]) -> float:
    return next((metrics[name] for name in _DURATIONS if name in metrics), 0.0)


def _number(name: str, text: str, unit: str) -> float | None:
    try:
        value = float(text.replace(",", "")[:40])
    except ValueError:
        return None
    factor = _TO_NS.get(unit, 1.0) if name in _DURATIONS else 1.0
    return value * factor if math.isfinite(value * factor) else None


IMPORTER = Importer(
    name="kernelmem",
    version=1,
    summary="KernelMem task folders: CudaForge's layout with explicit parents, strategies and ncu pages",
    claims=_claims,
    companions=_companions,
    read=_read,
)

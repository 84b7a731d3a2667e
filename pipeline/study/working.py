"""Doing one cell of a study; the result is a small JSON file, so that a cell is done once."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from artifacts.codec import encode
from artifacts.errors import HtamError
from artifacts.measurement import FASTEST, DoubtKind
from artifacts.memory.htg import Memory
from artifacts.memory.store import MemoryStore
from builder.validate.transfer import restricted, transfer
from flows.supervised import htam, option_words
from optimizer.tasks import load_tasks
from pipeline.report import page
from pipeline.study.spec import Cell, StudyMemory
from pipeline.voice import counted


def without(memory: Memory, task_ids: Sequence[str], families: Collection[str]) -> Memory:
    """``memory`` without the operators of ``task_ids``, under whatever id, and without ``families``."""
    memory = memory.filter(exclude_tasks=memory.same_operators(task_ids), exclude_families=sorted(families))
    left = {*memory.same_operators(task_ids), *(set(memory.table["family"].unique().to_pylist()) & set(families))}
    if left:
        raise AssertionError(f"leakage: {memory.reference} still knows {min(left)}")
    return memory


RESULTS = "cells"
MEMORIES = "memories"


def done(cell: Cell, out: Path) -> dict[str, Any] | None:
    """The kept result of a cell; None when it is still to do."""
    path = out / RESULTS / f"{cell.key}.json"
    try:
        kept: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return kept


class WaitingError(HtamError):
    """A run needs answers or measurements that come through files."""


def work(cell: Cell, out: Path, base: Memory | None) -> dict[str, Any]:
    """Do one cell and keep its result; ``base`` is None for runs of arms without memory.

    Raises:
        WaitingError: the run has got as far as it can without answers or measurements from files.
    """
    body = _run(cell, out, base) if cell.target.kind == "run" else _recorded(cell, base)
    place = {"memory": cell.memory.name if cell.memory else "", "target": cell.target.name, "kind": cell.target.kind}
    result = {**place, "arm": cell.arm, "seed": cell.seed, **body}
    path = out / RESULTS / f"{cell.key}.json"
    page.write(path, json.dumps(result, indent=1, allow_nan=False))
    return result


def _recorded(cell: Cell, base: Memory | None) -> dict[str, Any]:
    assert base is not None
    assert cell.memory is not None
    found = transfer(base, cell.memory.part, cell.target.part, leave_out=cell.leave_out, level=cell.level)
    return {"transfer": None if found is None else encode(found)}


def run_folder(cell: Cell, out: Path) -> Path:
    """Directory of the run of a cell."""
    return out / "runs" / cell.key


def _run(cell: Cell, out: Path, base: Memory | None) -> dict[str, Any]:
    """``htam optimize``, with a part of the base memory that has been published in the study's own store."""
    run = run_folder(cell, out)
    words = ["optimize", *cell.target.tasks, "--run", str(run), "--arm", cell.arm, "--seed", str(cell.seed), "--json"]
    if cell.memory is not None and base is not None:
        tasks = [task.ref for task in load_tasks([Path(path) for path in cell.target.tasks])]
        ids, families = [task.task_id for task in tasks], {task.family for task in tasks}
        reference = publish_part(cell.memory, cell.leave_out, ids, families, out, base)
        words += ["--memory", reference, "--store", str(out / MEMORIES)]
    standing = json.loads(htam([*words, *option_words(cell.target.options)], run.with_suffix(".log")))
    if not standing["complete"]:
        open_ones = f"open: {counted(standing['open_requests'], 'request')} and {counted(standing['open_jobs'], 'job')}"
        raise WaitingError(f"{run}: {open_ones}", "htam transfer STUDY.toml --ask DIR")
    return {"run": str(run), "speedups": believed(standing["finished"])}


def believed(finished: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Task id → speedup over the fastest baseline, without tasks whose times were not steady; None without a winner."""
    return {
        item["task_id"]: item["speedups"].get(FASTEST)
        for item in finished
        if DoubtKind.UNSTEADY not in [doubt["kind"] for doubt in item["doubts"]]
    }


def publish_part(
    part: StudyMemory, leave_out: str, task_ids: Sequence[str], families: set[str], out: Path, base: Memory
) -> str:
    """Publish what ``part`` keeps of ``base`` without the target's tasks (or families); check that they are gone.

    The same operator in another suite or backend's folder (``cuda/-/row_softmax``, ``cpu/-/row_softmax``) is the same
    task.
    """
    memory = without(restricted(base, part.part), task_ids, families if leave_out == "family" else set())
    memory = replace(memory, manifest=replace(memory.manifest, name=_file_name(part.name), quality=()))
    return MemoryStore(str(out / MEMORIES)).publish(memory).reference


def _file_name(name: str) -> str:
    """A memory's name in words as a store takes it."""
    return re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("-._")[:64] or "memory"

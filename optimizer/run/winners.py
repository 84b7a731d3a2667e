"""The best verified candidate of each task as a file that can be used as it is."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from artifacts.measurement import Measurement
from optimizer.run.manifest import RunManifest
from optimizer.search.population import Node
from optimizer.search.task_search import TaskSearch

FOLDER = "best"
LOADER = '''

def load(*args, reference=None, **kwargs):
    """Make ModelNew(*args, **kwargs); with ``reference`` take over its state in its types, its device and its mode."""
    module = ModelNew(*args, **kwargs)
    if reference is not None:
        module.load_state_dict({name: value.clone() for name, value in reference.state_dict().items()}, assign=True)
        tensor = next(reference.parameters(), None)
        module.to(tensor.device if tensor is not None else "cpu").train(reference.training)
    return module
'''


def write_winners(folder: Path, searches: Iterable[TaskSearch], manifest: RunManifest) -> tuple[Path, ...]:
    """Write ``best/<task>.py`` below a run directory for every task with a correct candidate."""
    written = []
    for search in searches:
        best = search.population.best
        if best is not None:
            path = folder / FOLDER / f"{winner_name(search.task.ref.task_id)}.py"
            path.parent.mkdir(exist_ok=True)
            part = path.with_suffix(".part")
            again = search.confirmation.measurement
            part.write_text(winner_source(search.task.ref.task_id, best, manifest, again), encoding="utf-8")
            part.replace(path)
            written.append(path)
    return tuple(written)


def winner_name(task_id: str) -> str:
    """File name for a task, without ending."""
    return re.sub(r"[^a-z0-9]+", "_", task_id.lower()).strip("_")


def winner_source(task_id: str, best: Node, manifest: RunManifest, again: Measurement | None = None) -> str:
    """Source of a winner: what was verified as comments, the candidate, and ``load()``.

    Args:
        again: the measurement that was taken after the search; its figures are the ones to believe.
    """
    measured = again or best.measurement
    lines = [
        f"Verified kernel for {task_id}, found by HTAM.",
        *_speed(measured),
        _occasion(best.measurement, again),
        f"measured on: {measured.device}, precision class {measured.precision.value}",
        f"checks passed: {', '.join(measured.checks) or 'those of the evaluator'}",
        f"memory: {manifest.memory or 'none'} (arm {manifest.arm}, model {manifest.model})",
        f"candidate: {best.sha256} (step {best.step_id} of run {manifest.run_id})",
        *(f"note: {note}" for note in measured.notes),
    ]
    head = "\n".join(f"# {' '.join(line.split())}".rstrip() for line in lines)
    return f"{head}\n\n{best.source.rstrip()}\n{LOADER}"


def _speed(measured: Measurement) -> list[str]:
    timing = measured.timing
    if timing is None:
        return []
    lines = [f"time: {timing.median_us:.1f} us (95 % interval {timing.low_us:.1f} to {timing.high_us:.1f})"]
    fastest = measured.fastest_baseline
    for name in sorted(measured.baselines, key=lambda name: (name != fastest, name)):
        ratio, interval = measured.speedup(name), measured.speedup_interval(name)
        what = f"{name}, the fastest baseline" if name == fastest and len(measured.baselines) > 1 else name
        if ratio and interval:
            lines.append(f"speedup over {what}: {ratio:.3f} (interval {interval[0]:.3f} to {interval[1]:.3f})")
    lines.append(f"times are of: {measured.scope}")
    return [*lines, *(f"doubt: {doubt.text}" for doubt in measured.doubts)]


def _occasion(searched: Measurement, again: Measurement | None) -> str:
    """When the figures were taken, because a maximum of noisy figures flatters itself."""
    if again is None:
        return "measured in the search that chose it: expect a little less when you time it yourself"
    before = searched.speedup()
    seen = "" if before is None else f"; in the search it was {before:.3f} over the fastest baseline"
    return f"measured again after the search, in a new process with other seeds{seen}"

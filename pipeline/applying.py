"""Which kernels of a run go where in a model file, and saying what that gave."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from artifacts.errors import BadTaskError, RunLogError
from artifacts.runlog import RunLog
from optimizer.run.manifest import read_manifest
from optimizer.run.winners import FOLDER, winner_name
from optimizer.tasks.source import check_task
from pipeline.report.charts import microseconds

if TYPE_CHECKING:
    from optimizer.evaluation.deploy import Swap
    from optimizer.evaluation.deploy_file import Kernel


def applied(run: Path, model: Path, pairs: Mapping[str, str], device: str, calls: int) -> tuple[tuple[Swap, ...], str]:
    """Swap, check and time; returns the swaps and a report in words.

    Args:
        pairs: submodule name → task whose winner goes there.

    Raises:
        RunLogError: no run, or a task without a winner.
        BadTaskError: the model file cannot be read or lacks something.
    """
    log = RunLog.open(run)
    kernels = {name: _kernel(log, task) for name, task in pairs.items()}
    try:
        check_task(model.read_text(encoding="utf-8"), str(model))
    except (OSError, UnicodeDecodeError) as problem:
        raise BadTaskError(f"{model} cannot be read: {problem}", "check the path") from problem
    from optimizer.evaluation.deploy_file import try_in_file

    trial = try_in_file(model, kernels, device, calls)
    lines = [_line(result, pairs[result.name]) for result in trial.swaps]
    before, after = microseconds(trial.before_us), microseconds(trial.after_us)
    lines.append(f"whole model: {before} before, {after} with the kernels")
    return trial.swaps, "\n".join(lines)


def _line(result: Swap, task: str) -> str:
    name = result.name or "the model itself"
    if result.problem:
        return f"{name}: original kept, {result.problem}"
    kinds = f"{len(result.signatures)} kind{'s' if len(result.signatures) != 1 else ''} of input"
    return f"{name}: kernel of {task} for {kinds}, largest error {result.error:.2g}"


def _kernel(log: RunLog, task: str) -> Kernel:
    from optimizer.evaluation.deploy_file import Kernel

    entries = read_manifest(log).tasks
    found = [entry for entry in entries if entry.task.task_id == task or entry.task.task_id.endswith(f"/{task}")]
    if len(found) != 1:
        names = ", ".join(entry.task.task_id for entry in entries[:6])
        raise RunLogError(f"{log.path} has {len(found)} tasks named {task!r}", f"its tasks are {names}")
    path = log.path / FOLDER / f"{winner_name(found[0].task.task_id)}.py"
    if not path.is_file():
        raise RunLogError(
            f"{path} does not exist",
            f"htam optimize writes it as soon as {task} has a correct candidate; search on, or swap another task",
        )
    return Kernel(path=path, task_source=log.candidate(found[0].sha256))

"""``htam apply``: check verified kernels of a run inside an nn.Module."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from artifacts.errors import BadInputError, BadTaskError, RunLogError
from artifacts.runlog import RunLog
from optimizer.run.manifest import read_manifest
from optimizer.tasks.source import check_task
from pipeline.report.charts import microseconds
from pipeline.voice import counted, long_command


@click.command(name="apply")
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("model", type=click.Path(path_type=Path))
@click.option(
    "--swap",
    "swaps",
    multiple=True,
    required=True,
    metavar="NAME=TASK",
    help="Submodule and the task whose kernel replaces it; . is the model itself.",
)
@click.option("--device", default="cpu", show_default=True, help="Torch device to run on.")
@click.option(
    "--calls", default=3, show_default=True, type=click.IntRange(min=1), help="Draws of get_inputs() to check with."
)
@click.option("--out", type=click.Path(path_type=Path), help="Package to write [default: MODEL_fast, here].")
@long_command("building the kernels")
def command(run: Path, model: Path, swaps: tuple[str, ...], device: str, calls: int, out: Path | None) -> None:
    """Check the best kernels of RUN inside the Model that the file MODEL defines, and write them as a package.

    MODEL has the form of a task file: Model, get_inputs, get_init_inputs. Kernels that agree with the original on
    its inputs are used for such inputs, also under torch.compile; the original for all others and wherever gradients
    are wanted. The package needs torch and what builds its kernels, nothing of htam.

    \b
    Examples:
      htam apply runs/first network.py --swap encoder.norm=layer_norm --device cuda
      htam apply runs/first examples/tasks/cpu/row_softmax.py --swap .=row_softmax
    """

    pairs = dict(_pair(text) for text in swaps)
    folder = out or Path(f"{re.sub(r'[^A-Za-z0-9_]', '_', model.stem)}_fast")
    _require_ours(folder)
    results, report = applied(run, model, pairs, device, calls, folder)
    click.echo(report)
    refused = [result for result in results if result.problem]
    if refused:
        raise BadInputError(
            f"{refused[0].name or 'the model itself'} keeps its original: {refused[0].problem}",
            "the other kernels were swapped" if len(refused) < len(results) else "nothing was swapped",
        )


def _require_ours(folder: Path) -> None:
    """See that a package can be written and imported; only one that this command wrote is written again."""
    if not folder.name.isidentifier():
        raise BadInputError(f"a package cannot be called {folder.name!r}", "give --out a name of letters and digits")
    if folder.exists() and not (folder / "runtime.py").is_file():
        raise BadInputError(f"{folder} is there and was not written by htam apply", "name another place with --out")


def _pair(text: str) -> tuple[str, str]:
    name, found, task = text.partition("=")
    if not found or not name or not task:
        raise BadInputError(f"--swap {text!r} is not NAME=TASK", "e.g. --swap encoder.norm=layer_norm")
    return ("" if name == "." else name), task


if TYPE_CHECKING:
    from optimizer.evaluation.deploy import Swap
    from optimizer.evaluation.deploy_file import Kernel


def applied(
    run: Path, model: Path, pairs: Mapping[str, str], device: str, calls: int, out: Path
) -> tuple[tuple[Swap, ...], str]:
    """Swap, check, time and write the package ``out``; returns the swaps and a report in words.

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
    from optimizer.evaluation.deploy_file import try_in_file, write_package

    trial = try_in_file(model, kernels, device, calls)
    lines = [_line(result, pairs[result.name]) for result in trial.swaps]
    before, after = microseconds(trial.before_us), microseconds(trial.after_us)
    lines.append(f"whole model: {before} before, {after} with the kernels")
    if any(not result.problem for result in trial.swaps):
        write_package(out, trial, kernels, model=model.name, run=str(run), device=device)
        lines += ["", f"written: {out}{os.sep}", *_use(out, model)]
    return trial.swaps, "\n".join(lines)


def _use(out: Path, model: Path) -> list[str]:
    """Three lines to paste, after the import."""
    return [
        f"use it, from {out.parent.absolute()}:",
        f"    from {out.name} import accelerate",
        f"    model = accelerate(model)       # the Model of {model.name}, in eval() and on its device",
        "    with torch.inference_mode():    # with gradients, or on other inputs, the original runs",
        "        model(*inputs)              # torch.compile(model, fullgraph=True) works too",
    ]


def _line(result: Swap, task: str) -> str:
    name = result.name or "the model itself"
    if result.problem:
        return f"{name}: original kept, {result.problem}"
    kinds = counted(len(result.verified), "kind")
    return f"{name}: kernel of {task} for {kinds} of input, largest error {result.error:.2g}"


def _kernel(log: RunLog, task: str) -> Kernel:
    from optimizer.evaluation.deploy_file import Kernel
    from optimizer.run.winners import FOLDER, winner_name

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

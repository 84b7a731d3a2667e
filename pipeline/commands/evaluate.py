"""``htam evaluate``: build, check and time one candidate."""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

import click

from artifacts.errors import BadInputError
from pipeline.precision import evaluation_settings, precision_options
from pipeline.voice import long_command

if TYPE_CHECKING:
    from artifacts.measurement import Measurement, Timing
    from optimizer.evaluation.job import EvaluationSettings


@click.command(name="evaluate")
@click.argument("task", type=click.Path(path_type=Path))
@click.argument("candidate", type=click.Path(path_type=Path))
@click.option("--backend", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
@click.option("--incumbent", type=click.Path(path_type=Path), help="Another candidate to time in turns with this one.")
@click.option("--seeds", type=click.IntRange(2, 20), default=3, show_default=True, help="Hidden correctness seeds.")
@click.option(
    "--timeout", type=click.FloatRange(min=1), default=120.0, show_default=True, help="Seconds for one request."
)
@precision_options
@click.option("--profile", is_flag=True, help="Ask for hardware counters where the host allows them.")
@click.option("--json", "as_json", is_flag=True, help="Print the whole measurement as JSON.")
@long_command("building and measuring the candidate")
def command(
    task: Path,
    candidate: Path,
    backend: str,
    incumbent: Path | None,
    seeds: int,
    timeout: float,
    precision: str,
    dtype: str | None,
    baselines: tuple[str, ...],
    profile: bool,
    as_json: bool,
) -> None:
    """Build CANDIDATE, check it against TASK and time it, each stage in a process of its own.

    Exit code 0 means correct, 2 any other verdict, 1 that the command itself could not work.

    \b
    Examples:
      htam evaluate examples/tasks/cpu/layer_norm.py my_kernel.py
    """
    settings = evaluation_settings(precision, dtype, baselines, seeds=seeds, run_timeout_s=timeout, profile=profile)
    measurement = evaluated(task.stem, _task_source(task), candidate, incumbent, backend, settings)
    _show(measurement, as_json)
    if measurement.timing is None:
        click.get_current_context().exit(2)


def evaluated(
    task_id: str, task: str, candidate: Path, incumbent: Path | None, backend: str, settings: EvaluationSettings
) -> Measurement:
    """The verdict on one candidate.

    Args:
        task: its source; ``candidate`` and ``incumbent`` are files.

    Raises:
        BadInputError: a file is missing or no text.
        UnavailableError: there is no device of the backend.
    """
    sources = _read(candidate, "candidate"), _read(incumbent, "incumbent") if incumbent else ""
    from optimizer.evaluation.job import EvaluationJob
    from optimizer.evaluation.worker.devices import devices_of
    from optimizer.evaluation.worker.local import LocalEvaluator

    job = EvaluationJob(
        job_id="evaluate",
        task_id=task_id,
        task_source=task,
        candidate_source=sources[0],
        incumbent_source=sources[1],
        backend=backend,
        seed=secrets.randbits(48),
        settings=settings,
    )
    devices_of(backend)
    evaluator = LocalEvaluator()
    try:
        return next(measurement for _, measurement in evaluator.evaluate([job]))
    finally:
        evaluator.close()


def _task_source(path: Path) -> str:
    from optimizer.evaluation.verify.task_module import check_task_source

    source = _read(path, "task")
    check_task_source(source, path.name)
    return source


def _read(path: Path, what: str) -> str:
    if not path.is_file():
        raise BadInputError(f"no {what} file at {path}", "check the path")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as problem:
        raise BadInputError(f"{what} file {path} is not UTF-8 text", "give a Python source file") from problem


def _show(measurement: Measurement, as_json: bool) -> None:
    from artifacts.codec import encode

    if as_json:
        click.echo(json.dumps(encode(measurement), ensure_ascii=False))
        return
    click.echo(f"{measurement.outcome.value} (stage {measurement.stage}, {measurement.device})")
    if measurement.error and not any(finding.message in measurement.error for finding in measurement.findings):
        click.echo(measurement.error)
    if measurement.timing is not None:
        click.echo(f"candidate {_microseconds(measurement.timing)}, {measurement.scope}")
    _show_baselines(measurement)
    for doubt in measurement.doubts:
        click.echo(f"doubt: {doubt.text}")
    for one in measurement.input_sets:
        reference = _microseconds(one.baselines[measurement.precision.reference])
        click.echo(f"{one.name}: candidate {_microseconds(one.timing)}, reference {reference}")
    for finding in measurement.findings:
        where = f"line {finding.line}: " if finding.line is not None else ""
        click.echo(f"{'rejected' if finding.fatal else 'noted'}: {where}{finding.message} [{finding.rule}]")
    if measurement.checks:
        click.echo(f"checked: {', '.join(measurement.checks)}")
    for note in measurement.notes:
        click.echo(f"note: {note}")


def _show_baselines(measurement: Measurement) -> None:
    """Each with its time and the speedup over it, the headline first."""
    fastest = measurement.fastest_baseline
    for name in sorted(measurement.baselines, key=lambda name: (name != fastest, name)):
        mark = f", the fastest of class {measurement.precision.value}" if name == fastest else ""
        ratio = measurement.speedup(name)
        speedup = "" if ratio is None else f", speedup {ratio:.2f}"
        click.echo(f"{name} {_microseconds(measurement.baselines[name])}{speedup}{mark}")


def _microseconds(timing: Timing) -> str:
    return f"{timing.median_us:.1f} µs ({timing.low_us:.1f} to {timing.high_us:.1f})"

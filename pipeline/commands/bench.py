"""``htam bench``: candidates that others wrote, on a benchmark that everybody uses."""

from __future__ import annotations

import re
import secrets
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from artifacts.measurement import doubt_mark
from pipeline.precision import evaluation_settings, precision_options
from pipeline.voice import counted, long_command, say

if TYPE_CHECKING:
    from artifacts.measurement import Measurement
    from pipeline.bench.kernelbench import OtherVerdict, Sample
    from pipeline.report.bench_page import Bench

RESULTS, VERDICTS = "results.jsonl", "kernelbench.jsonl"
"""What is known of candidates: our measurements, and what KernelBench says."""


@click.group(name="bench")
def command() -> None:
    """Evaluate a folder of candidates on a benchmark and write its table.

    \b
    Examples:
      htam bench kernelbench --checkout KernelBench --folder candidates
    """


def _numbers(context: click.Context, option: click.Parameter, text: str) -> tuple[int, ...]:
    """Numbers and ranges, ``1,5,9-12``, in the order in which they are named."""
    parts = [re.fullmatch(r"\s*(\d{1,4})(?:-(\d{1,4}))?\s*", part) for part in text.split(",") if text]
    if not all(parts):
        raise click.BadParameter(f"{text!r} is no list of numbers such as 1,5,9-12", context, option)
    ranges = [range(int(part[1]), int(part[2] or part[1]) + 1) for part in parts if part]
    return tuple(dict.fromkeys(number for each in ranges for number in each))


@command.command(name="kernelbench")
@click.option("--checkout", required=True, type=click.Path(path_type=Path), help="A checkout of KernelBench.")
@click.option(
    "--folder",
    "--run-folder",
    "folder",
    required=True,
    type=click.Path(path_type=Path),
    help="Candidates: level_L_problem_P*.py, a run folder of KernelBench (level_L_problem_P_sample_S_kernel.py), or "
    "RUN/best of htam optimize.",
)
@click.option("--levels", default="1,2,3", show_default=True, callback=_numbers, help="Levels of the benchmark.")
@click.option("--tasks", default="", callback=_numbers, help="Problems of each level, e.g. 1,5,9-12 [default: all].")
@click.option("--backend", type=click.Choice(["cpu", "cuda"]), default="cuda", show_default=True)
@precision_options
@click.option(
    "--out", default="bench", show_default=True, type=click.Path(path_type=Path), help="Folder of results and tables."
)
@click.option("--cross-check", is_flag=True, help="Ask KernelBench's own evaluator too; it needs a CUDA device.")
@click.option(
    "--limit-s", type=click.FloatRange(min=0, min_open=True), help="Stop after so many seconds; run again to go on."
)
@long_command("evaluating candidates")
def kernelbench(
    checkout: Path,
    folder: Path,
    levels: tuple[int, ...],
    tasks: tuple[int, ...],
    backend: str,
    precision: str,
    dtype: str | None,
    baselines: tuple[str, ...],
    out: Path,
    cross_check: bool,
    limit_s: float | None,
) -> None:
    """Evaluate candidates against the KernelBench tasks in a checkout.

    OUT gets summary.json, summary.md and report.html. Results are kept by candidate, task and settings in
    results.jsonl: the same command goes on where it stopped, and knows what it has seen.

    \b
    Examples:
      htam bench kernelbench --checkout KernelBench --run-folder KernelBench/runs/mine --levels 1,2
      htam bench kernelbench --checkout KernelBench --folder candidates --tasks 1,5,9-12 --cross-check --limit-s 500
    """
    from optimizer.evaluation.worker.devices import devices_of
    from optimizer.evaluation.worker.local import LocalEvaluator
    from pipeline.bench.crosscheck import CrossCheck
    from pipeline.bench.evaluating import Conditions, evaluate
    from pipeline.bench.kernelbench import read_problems, read_samples
    from pipeline.report.bench_page import Bench, write_tables

    deadline = None if limit_s is None else time.monotonic() + limit_s
    problems = read_problems(checkout, levels, tasks)
    samples = read_samples(folder, problems)
    names = tuple(sorted({device.name for device in devices_of(backend)}))
    settings = evaluation_settings(precision, dtype, baselines)
    other = CrossCheck(checkout=checkout, path=out / VERDICTS, dtype=dtype or "float32") if cross_check else None
    if other is not None:
        other.require()
    conditions = Conditions(backend=backend, devices=names, settings=settings)
    seed = secrets.randbits(48)
    found = evaluate(
        samples, conditions, out / RESULTS, LocalEvaluator, seed=seed, deadline=deadline, listener=_say_measured
    )
    measured = tuple(replace(sample, measurement=found.get(conditions.key(sample))) for sample in samples)
    title = f"KernelBench, level{'s' if len(levels) > 1 else ''} {', '.join(map(str, levels))}"
    facts = {"checkout": str(checkout), "candidates": str(folder), "device": ", ".join(names), "backend": backend}
    facts |= {"precision": precision, "dtype": dtype or "as the task has it"}
    bench = Bench(title=title, problems=problems, samples=measured, facts=facts)
    write_tables(out, bench)
    if other is not None:
        verdicts = other.verdicts(samples, deadline=deadline, listener=_say_verdict)
        bench = replace(bench, samples=tuple(replace(sample, other=verdicts.get(sample.name)) for sample in measured))
        write_tables(out, bench)
    _report(out, bench)


def _say_measured(sample: Sample, found: Measurement) -> None:
    speed = f", {found.speedup() or 0:.2f}x" if found.timing is not None else ""
    doubt = doubt_mark(found.doubts)
    say(f"{sample.name}: {found.outcome.value}{speed}{doubt and f' ({doubt})'}")


def _say_verdict(sample: Sample, verdict: OtherVerdict) -> None:
    word = {True: "correct", False: "not correct", None: "no verdict"}[verdict.correct]
    say(f"{sample.name}: KernelBench says {word}")


def _report(out: Path, bench: Bench) -> None:
    from pipeline.report.bench_page import as_markdown

    click.echo(as_markdown(bench), nl=False)
    if bench.waiting:
        click.echo(f"\n{counted(bench.waiting, 'candidate')} not evaluated yet; the same command goes on")
    click.echo(f"\n{out / 'report.html'}")

"""Whether the jobs of a settings file could run on this host, asked of the same code that will run them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from artifacts.errors import HtamError
from pipeline.building import build_problems
from pipeline.parameters import optimize_options
from pipeline.settings import Job, OptimizeJob, RebuildJob, TeamSettings, TransferJob

if TYPE_CHECKING:
    from optimizer.tasks import Task
    from pipeline.study.spec import Study


def problems(settings: TeamSettings) -> Iterator[str]:
    """What would keep a job of ``settings`` from running here, one line each."""
    if not settings.jobs:
        yield "the file names no job"
    for job in settings.jobs:
        kind = type(job).__name__.removesuffix("Job").lower()
        yield from (f"{kind} {job.name}: {problem}" for problem in (*_problems(job), *_cron_problem(job.cron)))


def _problems(job: Job) -> Iterator[str]:
    if isinstance(job, RebuildJob):
        yield from _rebuild_problems(job)
    elif isinstance(job, TransferJob):
        yield from _study_problems(job.study)
    else:
        yield from _optimize_problems(job)


def _rebuild_problems(job: RebuildJob) -> Iterator[str]:
    from builder.embed import HASHING, SentenceTransformerEmbedder
    from flows.engine import EngineSettings, task_runner

    for found in build_problems(job.logs, job.store, job.name, job.tag):
        yield found.what if isinstance(found, HtamError) else str(found)
    try:
        if job.model != HASHING:
            _ = SentenceTransformerEmbedder(job.model).sha256
        task_runner(EngineSettings(runner=job.runner, workers=job.workers, address=job.address))
    except (HtamError, OSError, ValueError) as problem:
        yield str(problem)


def _study_problems(path: str) -> Iterator[str]:
    """What would make cells of a study fail: its memories and their parts, tasks and options of its targets."""
    from pipeline.study.spec import read_study

    try:
        study = read_study(Path(path))
    except HtamError as problem:
        yield str(problem)
        return
    for target in study.target:
        if target.kind == "run":
            words = ["--arm", "feedback", *target.words]  # the study gives the others their memories
            yield from (f"target {target.name}: {what}" for what in _request_problems(target.tasks, study.out, words))
    yield from _part_problems(study)


def _part_problems(study: Study) -> Iterator[str]:
    from builder.judge.transfer import restricted
    from pipeline.study.simulated import simulation_of
    from pipeline.study.studying import bases

    try:
        memories = bases(study)
        for memory in study.memory:
            restricted(memories[memory.name], memory.part)
        base = memories[study.memory[0].name]
        for target in study.target:
            if target.kind != "run":
                restricted(base, target.part)
            if target.kind == "simulate":
                simulation_of(target, study.arms[0], study.seeds[0], base)
    except HtamError as problem:
        yield str(problem)


def _optimize_problems(job: OptimizeJob) -> Iterator[str]:
    """Everything that ``htam optimize`` would refuse."""
    elsewhere = bool(job.work_pool) or job.evaluator.startswith("pool:")  # its device is not known before it is there
    words = [word for name, value in optimize_options(job).items() for word in (f"--{name}", value)]
    words += ["--device", "elsewhere"] if elsewhere else []
    if job.work_pool and job.devices:
        yield f"devices belong to this host; the workers of {job.work_pool} have their own"
    if job.backend == "cuda" and job.evaluator == "local" and not (job.devices or job.work_pool):
        yield 'backend cuda needs devices, for example devices = [0], or evaluator = "pool:DIR"'
        return
    yield from _request_problems(job.tasks, job.runs, words)


def _request_problems(paths: Sequence[str], runs: str, words: Sequence[str]) -> Iterator[str]:
    """What ``htam optimize`` would refuse of tasks and options, for a run below the folder ``runs``."""
    from optimizer.run.resources import require_price
    from optimizer.tasks import load_tasks
    from pipeline.commands.optimize import command, resources
    from pipeline.run_request import wanted_manifest

    tasks: tuple[Task, ...] = ()
    try:
        tasks = load_tasks([Path(task) for task in paths])
    except HtamError as problem:
        yield str(problem)
    try:
        options = command.make_context("htam optimize", [*paths, "--run", runs, *words]).params
        require_price(wanted_manifest(Path(runs) / "task", tasks, options), resources(options))
    except HtamError as problem:
        yield str(problem)
    except click.ClickException as problem:
        yield problem.format_message()


def _cron_problem(cron: str) -> Iterator[str]:
    if cron:
        from prefect.client.schemas.schedules import CronSchedule

        try:
            CronSchedule(cron=cron)
        except ValueError:
            yield f"cron {cron!r} is no schedule; five fields such as '0 3 * * *'"

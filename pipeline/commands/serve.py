"""``htam serve``: the jobs of one settings file as deployments, checked before by the code that will run them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from artifacts.errors import BadInputError, HtamError
from flows import server
from flows.supervised import option_words
from pipeline.building import build_problems
from pipeline.commands import optimize
from pipeline.settings import (
    Job,
    OptimizeJob,
    RebuildJob,
    Service,
    TeamSettings,
    TransferJob,
    deployment,
    read_settings,
)

if TYPE_CHECKING:
    from optimizer.tasks import Task
    from pipeline.study.spec import Study


@click.command(name="serve")
@click.argument("settings", type=click.Path(path_type=Path), metavar="SETTINGS.toml")
@click.option(
    "--check", is_flag=True, help="Only say whether every job could run here; exit code 1 when one could not."
)
def command(settings: Path, check: bool) -> None:
    """Serve what SETTINGS.toml schedules until interrupted: rebuilds, tuning jobs, studies.

    Starts a Prefect server on loopback unless the file names one; its pages show every run with tables and links.

    \b
    Examples:
      htam serve examples/team/team.toml --check
      htam serve team.toml
    """
    if check:
        click.echo("\n".join(lines(checked(settings))))
        return
    service = read_settings(settings).service
    home = Path(service.work) / "prefect"
    url, port = placed(service, home)
    team = checked(settings)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if port:
        click.echo("starting a Prefect server on loopback")
    with suppress(KeyboardInterrupt), server.running(home, port=port) if port else nullcontext():
        click.echo("\n".join(lines(team)))
        click.echo(f"pages and on-demand runs: {url.removesuffix('/api')}; stop with Ctrl-C")
        items = [deployment(job, service.work) for job in team.jobs]
        server.serve(items, parallel=service.parallel, alone=port > 0, notifications=team.notify)


def placed(service: Service, home: Path) -> tuple[str, int]:
    """Tell Prefect where its server is or will be, which it reads once, when it is first imported.

    Returns:
        URL and port of the server; 0 when it is not ours to start.
    """
    home.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("PREFECT_HOME", str(home.absolute()))
    given = service.server or os.environ.get("PREFECT_API_URL", "")
    port = 0 if given else service.port or server.free_port()
    os.environ["PREFECT_API_URL"] = url = given or server.address(port)
    return url, port


def checked(path: Path) -> TeamSettings:
    """Read a settings file and see whether its jobs could run here.

    Raises:
        BadInputError: the file is wrong, or a job could not run; every problem is in the message.
    """
    settings = read_settings(path)
    found = list(problems(settings))
    if found:
        raise BadInputError(f"{path}: {'; '.join(found)}", "correct it and run htam serve --check again")
    return settings


def lines(settings: TeamSettings) -> Iterator[str]:
    """One line a job: what it does and when."""
    for job in settings.jobs:
        yield f"{job.flow:<10} {job.name:<24} {when(job)}"


def when(job: Job) -> str:
    """Schedule in words."""
    if job.cron:
        return f"cron {job.cron} UTC"
    return f"every {job.every_s:g} s" if job.every_s else "on demand"


def problems(settings: TeamSettings) -> Iterator[str]:
    """What would keep a job of ``settings`` from running here, one line each."""
    if not settings.jobs:
        yield "the file names no job"
    for job in settings.jobs:
        if isinstance(job, RebuildJob):
            found = _rebuild_problems(job)
        else:
            found = _study_problems(job.study) if isinstance(job, TransferJob) else _optimize_problems(job)
        yield from (f"{job.flow} {job.name}: {what}" for what in (*found, server.cron_problem(job.cron)) if what)


def _rebuild_problems(job: RebuildJob) -> Iterator[str]:
    from builder.embed.encoders import HASHING, SentenceTransformerEmbedder
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
            words = ["--arm", "feedback", *option_words(target.options)]  # the study gives the others their memories
            yield from (f"target {target.name}: {what}" for what in _request_problems(target.tasks, study.out, words))
    yield from _part_problems(study)


def _part_problems(study: Study) -> Iterator[str]:
    from builder.validate.transfer import restricted
    from pipeline.study.studying import bases

    try:
        memories = bases(study)
        for memory in study.memory:
            restricted(memories[memory.name], memory.part)
        base = memories[study.memory[0].name]
        for target in study.target:
            if target.kind != "run":
                restricted(base, target.part)
    except HtamError as problem:
        yield str(problem)


def _optimize_problems(job: OptimizeJob) -> Iterator[str]:
    """Everything that ``htam optimize`` would refuse."""
    evaluator = job.options.get("evaluator", "local")
    words = option_words(job.options)
    if evaluator.startswith("dask:"):  # the device is not known before its workers are there
        words += ["--device", "elsewhere"]
    if evaluator != "local" and job.devices:
        yield f"devices belong to this host, and evaluator {evaluator} measures elsewhere"
    if job.options.get("backend") == "cuda" and evaluator == "local" and not job.devices:
        yield 'backend cuda needs devices, for example devices = [0], or evaluator = "dask:tcp://HOST:8786"'
        return
    yield from _request_problems(job.tasks, job.runs, words)


def _request_problems(paths: Sequence[str], runs: str, words: Sequence[str]) -> Iterator[str]:
    """What ``htam optimize`` would refuse of tasks and options, for a run below the folder ``runs``."""
    from optimizer.run.resources import require_price
    from optimizer.tasks import load_tasks
    from pipeline.run_request import wanted_manifest

    tasks: tuple[Task, ...] = ()
    try:
        tasks = load_tasks([Path(task) for task in paths])
    except HtamError as problem:
        yield str(problem)
    try:
        options = optimize.command.make_context("htam optimize", [*paths, "--run", runs, *words]).params
        require_price(wanted_manifest(Path(runs) / "task", tasks, options), optimize.resources(options))
    except HtamError as problem:
        yield str(problem)
    except click.ClickException as problem:
        yield problem.format_message()

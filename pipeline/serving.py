"""From a settings file to served deployments, checked before by the code that will run them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from artifacts.errors import BadInputError, HtamError
from flows.server import address, free_port, running
from flows.serving import Deployment
from flows.serving import serve as serve_deployments
from flows.supervised import option_words
from pipeline.building import build_problems
from pipeline.settings import (
    Job,
    OptimizeJob,
    RebuildJob,
    TeamSettings,
    TransferJob,
    parameters_of,
    read_settings,
)

if TYPE_CHECKING:
    from optimizer.tasks import Task
    from pipeline.study.spec import Study


def problems(settings: TeamSettings) -> Iterator[str]:
    """What would keep a job of ``settings`` from running here, one line each."""
    from flows.serving import cron_problem

    if not settings.jobs:
        yield "the file names no job"
    for job in settings.jobs:
        kind = type(job).__name__.removesuffix("Job").lower()
        yield from (f"{kind} {job.name}: {problem}" for problem in (*_problems(job), cron_problem(job.cron)) if problem)


def _problems(job: Job) -> Iterator[str]:
    if isinstance(job, RebuildJob):
        yield from _rebuild_problems(job)
    elif isinstance(job, TransferJob):
        yield from _study_problems(job.study)
    else:
        yield from _optimize_problems(job)


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
            words = ["--arm", "feedback", *target.words]  # the study gives the others their memories
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Jobs:
    """Checked settings."""

    path: Path
    settings: TeamSettings

    def lines(self) -> Iterator[str]:
        """One line a job: what it does and when."""
        for job in self.settings.jobs:
            yield f"{type(job).__name__.removesuffix('Job').lower():<10} {job.name:<24} {when(job)}"


def checked(path: Path) -> Jobs:
    """Read a settings file and see whether its jobs could run here.

    Raises:
        BadInputError: the file is wrong, or a job could not run; every problem is in the message.
    """
    settings = read_settings(path)
    found = list(problems(settings))
    if found:
        raise BadInputError(f"{path}: {'; '.join(found)}", "correct it and run htam serve --check again")
    return Jobs(path=path, settings=settings)


def when(job: Job) -> str:
    """Schedule in words."""
    if job.cron:
        return f"cron {job.cron} UTC"
    return f"every {job.every_s:g} s" if job.every_s else "on demand"


def deployments(settings: TeamSettings) -> list[Deployment]:
    """What to serve."""
    return [
        Deployment(name=job.name, flow=flow, parameters=parameters, cron=job.cron, every_s=job.every_s, tags=(flow,))
        for job in settings.jobs
        for flow, parameters in [parameters_of(job, settings.service.work)]
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the Prefect server is; ``port`` is 0 when it is not ours to start."""

    url: str
    port: int
    home: Path


def placed(path: Path) -> Place:
    """Tell Prefect where its server is or will be: it reads that once, when it is first imported."""
    service = read_settings(path).service
    home = Path(service.work) / "prefect"
    home.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("PREFECT_HOME", str(home.absolute()))
    given = service.server or os.environ.get("PREFECT_API_URL", "")
    port = 0 if given else service.port or free_port()
    os.environ["PREFECT_API_URL"] = url = given or address(port)
    return Place(url=url, port=port, home=home)


def serve(jobs: Jobs, place: Place, announce: Callable[[str], Any]) -> None:
    """Serve until interrupted; ends within seconds of SIGINT or SIGTERM and leaves no process behind."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt), _server(place, announce):
        for line in jobs.lines():
            announce(line)
        announce(f"pages and on-demand runs: {place.url.removesuffix('/api')}; stop with Ctrl-C")
        serve_deployments(
            deployments(jobs.settings),
            parallel=jobs.settings.service.parallel,
            alone=place.port > 0,
            notifications=jobs.settings.notify,
        )


@contextmanager
def _server(place: Place, announce: Callable[[str], Any]) -> Iterator[None]:
    if not place.port:
        yield
        return
    announce("starting a Prefect server on loopback")
    with running(place.home, port=place.port):
        yield

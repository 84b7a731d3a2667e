"""HTAM from Python: evaluate a candidate, ask a memory, optimize an operator, read a run.

The root packages have generic names and many doors; these are the four that a program of yours needs, with the options
of the commands of the same names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from artifacts.candidate import Language
from artifacts.device import device_spec
from artifacts.measurement import Measurement
from artifacts.memory.shipped import SHIPPED, load_memory
from artifacts.run_events import TaskFinished
from artifacts.trajectory import State
from optimizer.arms import ArmContext, make_arm
from optimizer.evaluation.job import EvaluationSettings
from optimizer.prompting.context import PromptContexts, Target
from optimizer.prompting.request import PromptContext
from optimizer.run.opening import OpenRun, create_run
from optimizer.run.winners import write_winners
from optimizer.selection import SelectionSettings
from optimizer.tasks import Task, load_task
from pipeline.commands.evaluate import evaluated
from pipeline.commands.optimize import command
from pipeline.report.run_view import RunView, read_run
from pipeline.run_request import wanted_manifest

__all__ = ["RunView", "evaluate", "open_run", "optimize", "read_run", "recall"]


def evaluate(
    task: Path, candidate: Path, *, backend: str = "cpu", incumbent: Path | None = None, **settings: Any
) -> Measurement:
    """Build, check and time ``candidate`` in processes of its own.

    Args:
        incumbent: another candidate to time in turns with it.
        settings: fields of :class:`optimizer.evaluation.job.EvaluationSettings`.

    Raises:
        HtamError: ``task`` is none, or there is no device of the backend.
    """
    found, conditions = load_task(task), EvaluationSettings(**settings)
    return evaluated(found.ref.task_id, found.source, candidate, incumbent, backend, conditions)


def recall(task: Path, *, device: str, language: str, memory: str = SHIPPED, store: str = "memories") -> PromptContext:
    """What a memory shows to somebody who begins with ``task`` on ``device``: the parts of a first prompt.

    Raises:
        HtamError: ``task`` is none, or there is no such memory.
    """
    found = load_task(task)
    target = Target(arch=device_spec(device).arch, language=Language(language))
    arm = make_arm("htam", load_memory(store, memory), SelectionSettings())
    state = State(
        family=found.ref.family, arch=target.arch, language=target.language, dtype=found.dtype, size=found.size
    )
    choice = arm.choose(ArmContext(state=state))
    return PromptContexts(arm, target).of_step(found, state, choice, slot="0.0", sample=0)


def optimize(task: Path, run: Path, *, llm: str, options: Sequence[str] = ()) -> TaskFinished:
    """Search one operator as ``htam optimize`` does, or resume; the winner is written below ``run``/best.

    Args:
        options: further ones of ``htam optimize``, as words.

    Raises:
        HtamError: what a user must solve; the run keeps what it has.
    """
    opened = open_run([load_task(task)], run, ["--llm", llm, *options])

    async def advanced() -> TaskFinished:
        try:
            session = opened.session()
            standing = await session.advance()
            if standing.problem is not None:
                raise standing.problem
            write_winners(run, session.searches, opened.manifest)
            return standing.finished[0]
        finally:
            await opened.close()

    return asyncio.run(advanced())


def open_run(tasks: Sequence[Task], run: Path, options: Sequence[str]) -> OpenRun:
    """Make the run directory that ``htam optimize`` would make, or open it.

    Raises:
        HtamError: the options do not go together, or the run has others.
    """
    paths = [task.path for task in tasks]
    read = command.make_context("htam optimize", [*paths, "--run", str(run), *options]).params
    log = create_run(run, wanted_manifest(run, tasks, read), tasks)
    return OpenRun(log, store=read["store"])

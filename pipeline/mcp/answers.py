"""What the tools answer, as records: their fields and types are the schema that clients are given.

Without slots, in which the schema would take the descriptors of the fields for their defaults.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from artifacts.candidate import source_hash
from optimizer.arms import Choice
from optimizer.prompting.request import QUOTE, Advice, PromptContext, move_line, render
from optimizer.prompting.text import clean, facts, shorten
from pipeline.mcp.agent_task import AgentTask, Job

LONGEST_REASON = 4_000
"""Characters of an error that are answered."""


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """A way to change code from states like this one; ``gain`` is times what other changes gained there."""

    id: str
    name: str
    gain: float
    low: float
    high: float
    evidence: str
    when: list[str]
    recipe: str
    template: str
    risks: list[str]


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """A verified kernel; ``source`` is given by the tool ``kernel`` alone, ``speedup`` over eager where it is known."""

    sha256: str
    operator: str
    speedup: float | None
    lines: int
    source: str = ""


@dataclass(frozen=True, kw_only=True)
class Pitfall:
    """A failure like yours and what cured it."""

    failure: str
    cure: str


@dataclass(frozen=True, kw_only=True)
class Recall:
    """What memory has for a task in its present state; ``note`` says why something is missing.

    Attributes:
        rules: what a candidate may do, and how it is built; the same for all tasks of a language.
        experience: lines to read: what gained and what came to nothing on this device, steps from states like this one.
        moves: what was added to kernels built like the best candidate, and what it gained; strategies: broader changes.
        evaluations_left: None for no limit.
    """

    task: str
    family: str
    dtype: str
    device: str
    memory: str
    rules: str
    experience: list[str]
    moves: list[str]
    strategies: list[Strategy]
    reference_kernels: list[Kernel]
    pitfalls: list[Pitfall]
    note: str
    evaluations_left: int | None


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What became of a job.

    Attributes:
        state: ``running`` (ask again with ``job``) or ``done``.
        outcome: ``correct``, ``compile_error``, ``runtime_error``, ``wrong_result``, ``timeout``, ``rejected`` or
            ``infra_error``; empty while it runs and for work that judges no candidate.
        reason: why it failed; ``first_error``: in one line, the compiler's own where it refused.
        speedup: over the fastest baseline of the precision class; ``doubts`` say why to believe it less.
        faster_than_incumbent: by the paired test against ``incumbent`` (a hash); None when they were not told apart.
        best: whether it is the best candidate of the task now.
        facts: what was measured, line by line.
    """

    handle: str
    state: str
    seconds: float
    outcome: str = ""
    reason: str = ""
    first_error: str = ""
    sha256: str = ""
    speedup: float | None = None
    faster_than_incumbent: bool | None = None
    incumbent: str = ""
    best: bool = False
    doubts: list[str] | None = None
    facts: list[str] | None = None
    evaluations_left: int | None = None


@dataclass(frozen=True, kw_only=True)
class TaskStatus:
    """Where one task stands; ``running`` are the handles of jobs under way."""

    task: str
    run: str
    steps: int
    running: list[str]
    best_sha256: str
    best_file: str
    speedup: float | None
    evaluations_left: int | None
    finished: bool


@dataclass(frozen=True, kw_only=True)
class Question:
    """What a run asks; ``state`` is ``open`` (answer ``key`` with ``tell``), ``running`` or ``complete``."""

    run: str
    state: str
    key: str = ""
    prompt: str = ""
    open: int = 0
    report: str = ""


def recalled(task: AgentTask, device: str, choice: Choice, context: PromptContext) -> Recall:
    """The parts of a prompt as an answer."""
    prompt = task.search.run.prompt
    known, kernel, ref = context.device_experience, context.reference_kernel, task.search.task
    lines = [] if known is None else known.text.splitlines()
    lines += [
        f"{recipe.name} gained {2**recipe.gain:.2f}x on {recipe.arch}: {recipe.text}" for recipe in context.elsewhere
    ]
    memory = task.run.manifest.memory
    empty = "this session has no memory: write from the task and its measurements" if not memory else ""
    nothing = not (lines or context.moves or context.strategies or kernel or context.fixes)
    return Recall(
        task=ref.ref.task_id,
        family=ref.ref.family,
        dtype=ref.dtype,
        device=device or task.run.manifest.device,
        memory=memory,
        rules=render("rules", {"language": prompt.language.value, "tf32": prompt.tf32}),
        experience=[clean(line) for line in lines if line],
        moves=[clean(move_line(edge).removeprefix("- ")) for edge in context.moves],
        strategies=[_strategy(advice) for advice in context.strategies],
        reference_kernels=[kernel_of(kernel.operator, round(2**kernel.speed, 3), kernel.source)] if kernel else [],
        pitfalls=[Pitfall(failure=clean(fix.error), cure=clean(fix.cure)) for fix in context.fixes],
        note=empty or choice.gate or ("memory holds nothing for this task and device" if nothing else ""),
        evaluations_left=task.left,
    )


def kernel_of(operator: str, speedup: float | None, source: str, *, whole: bool = False) -> Kernel:
    """A kernel by its hash, ``whole`` with its source."""
    text = clean(source) if whole else ""
    lines = len(source.splitlines())
    return Kernel(sha256=source_hash(source), operator=operator, speedup=speedup, lines=lines, source=text)


def verdict(task: AgentTask, job: Job) -> Verdict:
    """What became of a candidate, or of finishing a task, so far.

    Raises:
        HtamError: it could not be measured.
    """
    seconds = round(time.monotonic() - job.began, 1)
    if not job.work.done():
        return Verdict(handle=job.handle, state="running", seconds=seconds, evaluations_left=task.left)
    job.work.result()
    population = task.search.population
    node = population.node(job.step_id) if job.step_id else population.best
    measured = None if node is None else node.measurement
    if not job.step_id:
        measured = task.search.confirmation.measurement or measured
    if node is None or measured is None:
        return Verdict(handle=job.handle, state="done", seconds=seconds, reason="no candidate is correct")
    incumbent = task.search.node(node.incumbent_id)
    return Verdict(
        handle=job.handle,
        state="done",
        seconds=seconds,
        outcome=measured.outcome.value,
        reason=clean(shorten(measured.error, LONGEST_REASON)),
        first_error=clean(measured.first_error),
        sha256=node.sha256,
        speedup=measured.speedup(),
        faster_than_incumbent=measured.faster_than_incumbent,
        incumbent="" if incumbent is None else incumbent.sha256,
        best=population.best is node,
        doubts=[doubt.text for doubt in measured.doubts],
        facts=[clean(line) for line in facts(measured) if line],
        evaluations_left=task.left,
    )


def status_of(task: AgentTask) -> TaskStatus:
    """Where a task stands."""
    best, log = task.search.population.best, task.run.log
    files = sorted((log.path / "best").glob("*.py"))
    return TaskStatus(
        task=task.search.task_id,
        run=str(log.path),
        steps=task.search.steps_done,
        running=[job.handle for job in task.jobs.values() if not job.work.done()],
        best_sha256="" if best is None else best.sha256,
        best_file=str(files[0]) if files else "",
        speedup=None if best is None else best.measurement.speedup(),
        evaluations_left=task.left,
        finished=task.finished,
    )


def _strategy(advice: Advice) -> Strategy:
    strategy, effect = advice.strategy, advice.strategy.effect
    return Strategy(
        id=strategy.strategy_id,
        name=strategy.name,
        gain=round(2**advice.margin, 3),
        low=round(2 ** (advice.margin - advice.spread), 3),
        high=round(2 ** (advice.margin + advice.spread), 3),
        evidence=f"{advice.effective_n:.1f} operators; {effect.failures} of {effect.n + effect.failures} failed",
        when=[condition.words for condition in strategy.when],
        recipe=clean(strategy.recipe or strategy.intent),
        template=clean(strategy.template),
        risks=[clean(risk.partition(QUOTE)[0]) for risk in strategy.risks],
    )

"""``htam explain``: why a step did what it did, from the log alone."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from artifacts.codec import decode, encode
from artifacts.errors import RunLogError
from artifacts.run_events import LoggedStep
from artifacts.runlog import RunLog
from optimizer.llm.protocol import LlmRequest
from pipeline.progress import outcome
from pipeline.report.charts import microseconds

if TYPE_CHECKING:
    from artifacts.memory.attention import DirectionScore
    from optimizer.search.task_search import Proposal


@click.command(name="explain")
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("step", required=False, default="")
@click.option("--prompt", is_flag=True, help="Show the whole prompt too.")
@click.option("--json", "as_json", is_flag=True, help="Print everything that is logged of the step.")
def command(run: Path, step: str, prompt: bool, as_json: bool) -> None:
    """Show for STEP of RUN the state, every direction with its evidence, the choice, the gate and the result.

    STEP is TASK/INDEX.CANDIDATE or any unambiguous end of it; without it, the steps are listed. Only the log is read.

    \b
    Examples:
      htam explain runs/first
      htam explain runs/first 2.0
      htam explain runs/first row_softmax/1.0 --prompt
    """
    if not step:
        click.echo("\n".join(_steps(run)))
    elif as_json:
        click.echo(json.dumps(explained_data(run, step), indent=1))
    else:
        click.echo(explained(run, step, prompt=prompt))


Events = Mapping[tuple[str, str], Mapping[str, Any]]
LEAST_SHARE = 0.0005
"""Evidence below this would be shown as nothing."""


def explained(path: Path, step: str, *, prompt: bool) -> str:
    """Explanation of one step as text.

    Raises:
        RunLogError: no run, or no such step.
    """
    events, key = _found(path, step)
    return "\n".join(_lines(events, key, prompt))


def explained_data(path: Path, step: str) -> dict[str, Any]:
    """All that is logged of one step, by kind."""
    events, key = _found(path, step)
    kinds = ("choice", "request", "answer", "candidate", "measurement", "step")
    return {"key": key, **{kind: encode(events.get((kind, key))) for kind in kinds}}


def _steps(path: Path) -> Iterator[str]:
    events = _events(path)
    for key in (key for kind, key in events if kind == "choice"):
        step = events.get(("step", key))
        yield f"{key}  {'not complete' if step is None else outcome(step)}"


def _events(path: Path) -> Events:
    return {(event.kind, event.key): event.payload for event in RunLog.open(path).events()}


def _found(path: Path, step: str) -> tuple[Events, str]:
    events = _events(path)
    keys = [key for kind, key in events if kind == "choice"]
    found = [key for key in keys if key == step or key.endswith(f"/{step}")]
    if len(found) != 1:
        which = "several steps end" if found else "no step ends"
        examples = ", ".join((found or keys)[:4])
        raise RunLogError(
            f"{which} in {step!r}", f"name one of them, e.g. {examples}" if examples else "none was begun"
        )
    return events, found[0]


def _lines(events: Events, key: str, prompt: bool) -> Iterator[str]:
    from optimizer.search.task_search import Proposal  # brings the memory along

    plan = decode(Proposal, events["choice", key])
    yield f"step {key}: {plan.mode}" + (f" of step {plan.parent_id}" if plan.parent_id else " from the reference")
    yield "\nstate before it:"
    yield from (f"  {name}: {_value(value)}" for name, value in encode(plan.state).items() if value not in (None, []))
    yield from _choice(plan)
    step = events.get(("step", key))
    if step is None:
        yield "\nthe step is not complete yet"
    else:
        yield from _result(decode(LoggedStep, step))
    request = events.get(("request", key))
    if prompt and request is not None:
        for message in decode(LlmRequest, request).messages:
            yield f"\n----- {message.role} -----\n{message.content}"


def _choice(plan: Proposal) -> Iterator[str]:
    choice = plan.choice
    yield f"\narm {choice.arm}" + (f", gate closed: {choice.gate}" if choice.gate else "")
    chance = "" if choice.probability is None else f" with probability {choice.probability:.3f}"
    if choice.direction:
        drawn = ", drawn at random by the exploration share" if choice.explored else ""
        yield f"chosen direction: {choice.direction}{chance}{drawn}"
    if choice.move:
        yield f"chosen move: {choice.move}{chance}"
    if choice.intent is not None:
        yield f"chosen intent {choice.intent.number} of the model's own list: {choice.intent.text}"
    if choice.asked:
        yield f"asked before it was written: {', '.join(choice.asked)}"
    if choice.instructions:
        yield "told to whoever wrote:\n" + textwrap.indent(choice.instructions, "  ")
    if choice.scores:
        alone = "" if choice.expected is None else f"; any step from this state: {choice.expected:+.2f}"
        yield f"directions (expected log2 gain ± spread, effective transitions, prior{alone}):"
    for score in sorted(choice.scores, key=lambda item: (bool(item.masked), -item.mean)):
        yield from _score(score, score.direction_id == choice.direction)
    for use in choice.strategies:
        figures = f"{use.mean:+.2f} ± {use.spread:.2f}, {use.effective_n:.1f} operators"
        yield f"strategy {use.strategy_id} ({use.name}): {figures}"


def _score(score: DirectionScore, chosen: bool) -> Iterator[str]:
    mark = "*" if chosen else " "
    masked = f"  masked: {score.masked}" if score.masked else ""
    yield (
        f" {mark} {score.direction_id:<32} {score.mean:+.2f} ± {score.spread:.2f}  n {score.effective_n:6.1f}"
        f"  prior {score.prior:+.2f}{masked}"
    )
    for transition, share in score.evidence:
        if abs(share) >= LEAST_SHARE:
            yield f"       {share:+.3f} from {transition}"


def _result(step: LoggedStep) -> Iterator[str]:
    if step.shown:
        yield "\nwhat the prompt showed:"
    yield from (f"  {part}: {', '.join(ids)}" for part, ids in step.shown.items())
    yield f"\nplan of the model: {step.plan or 'none given'}"
    measured = step.measurement
    if measured is None:
        yield f"result: no candidate, {step.error}"
        return
    if measured.timing is None:
        yield f"result: {measured.outcome.value} at {measured.stage}: {measured.error}"
        return
    against = ""
    if measured.incumbent is not None:
        verdict = {True: "faster", False: "not faster", None: "undecided"}[measured.faster_than_incumbent]
        against = f", {verdict} than step {step.incumbent_id} at {microseconds(measured.incumbent.median_us)}"
    yield f"result: correct, {microseconds(measured.timing.median_us)}{against}"
    yield from (f"doubt: {doubt.text}" for doubt in measured.doubts)


def _value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)

"""Questions that come before or after a candidate is written, each for a role: planner, judge, designer, reviewer.

The words are in ``templates/role_<role>.j2``; the answers are read by the arm that asks.
"""

from __future__ import annotations

from collections.abc import Iterator

from optimizer.arms import ArmContext, Intent, Member
from optimizer.llm.protocol import LlmRequest
from optimizer.prompting.request import PromptContext, PromptSettings, render, request_of, variables
from optimizer.prompting.text import brief

MOST_MEMBERS = 24
"""Candidates that a question lists, the latest."""


def build_question(
    role: str, prompt: PromptContext, context: ArmContext, settings: PromptSettings, *, candidate: str = ""
) -> LlmRequest:
    """Return the question for ``role``; equal inputs give an equal request.

    Args:
        prompt: what the prompt of the step may say.
        context: what the arm sees, for the candidates and ideas of the task.
        candidate: source that is to be reviewed; empty when nothing is written yet.
    """
    best = max((one for one in context.members if one.score is not None), key=_score, default=None)
    names = variables(prompt, settings) | {
        "candidate": candidate,
        "counters": "\n".join(_counters(context.member(context.parent))),
        "members": "\n".join(_member(member, best) for member in context.members[-MOST_MEMBERS:]),
        "intents": "\n".join(_intent(intent) for intent in context.intents),
    }
    return request_of(
        settings,
        render("role_system", names),
        render(f"role_{role}", names),
        sample=prompt.sample,
        purpose="question",
        task=prompt.task_id,
        slot=f"{prompt.slot}.{role}",
    )


def _score(member: Member) -> float:
    return member.score or 0.0


def _counters(member: Member | None) -> Iterator[str]:
    if member is not None:
        yield from (f"{name}: {value:.4g}" for name, value in sorted(member.metric.items()))


def _member(member: Member, best: Member | None) -> str:
    origin = "the reference" if member.parent_id is None else f"step {member.parent_id}"
    if member.score is None:
        result = f"{member.measurement.outcome.value} {brief(' '.join(member.measurement.error.split()), 200)}"
    else:
        result = f"{2**member.score:.2f}x the reference"
        result += "" if member.gain is None else f", {2**member.gain:.2f}x what it was timed against"
    mark = ", the best so far" if member is best else ""
    plan = brief(" ".join(member.plan.split()), 200) or "no plan given"
    return f"step {member.step_id} from {origin}: {result}{mark}. {plan}"


def _intent(intent: Intent) -> str:
    """One idea of the list, with what became of it."""
    parts = [
        f"closed: {intent.closed}" if intent.closed else "open",
        f"priority {intent.priority:g}, difficulty {intent.difficulty}",
        f"{intent.tries} tries, {intent.fruitless} in vain",
        "" if intent.under is None else f"under {intent.under}",
        _prediction(intent),
    ]
    return f"{intent.number}. [{'; '.join(part for part in parts if part)}] {intent.text}"


def _prediction(intent: Intent) -> str:
    """What was predicted, what was measured, and whether the one held the other."""
    measured = None if intent.gain is None else 2**intent.gain
    told = "" if measured is None else f"measured {measured:.2f}x"
    if intent.low is None or intent.high is None:
        return told
    predicted = f"predicted {intent.low:.2f}x to {intent.high:.2f}x"
    if measured is None:
        return predicted
    place = "above" if measured > intent.high else "below" if measured < intent.low else "inside"
    return f"{predicted}, {told}: {place}"

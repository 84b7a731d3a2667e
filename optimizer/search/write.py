"""Write: from a proposal to a candidate, by asking the model and reading its answer."""

from __future__ import annotations

from dataclasses import replace

from artifacts.errors import BadAnswerError
from optimizer.arms import ArmContext
from optimizer.arms.intents import json_of
from optimizer.llm.protocol import LlmAnswer, LlmRequest
from optimizer.prompting.answer import ParsedAnswer, parse_answer
from optimizer.prompting.context import Parent
from optimizer.prompting.request import EDITS, PromptContext, Tried, build_answer_repair, build_request
from optimizer.prompting.roles import build_question
from optimizer.search.effects import all_of
from optimizer.search.population import Node
from optimizer.search.task_search import Attempt, Proposal, TaskSearch

_Written = tuple[ParsedAnswer, LlmAnswer]


async def write(search: TaskSearch, proposal: Proposal) -> Attempt:
    """What came of a proposal, not measured yet; without a source, and saying why, if no answer had a new one."""
    context = prompt_context(search, proposal)
    attempt = Attempt(proposal=proposal, shown=context.shown(search.run.prompt.limits.items))
    request = build_request(context, search.run.prompt)
    try:
        parsed, answer = await _ask(search, proposal, request)
    except BadAnswerError as problem:
        return replace(attempt, error=str(problem))
    parsed, answer = await _reviewed(search, proposal, context, request, (parsed, answer))
    attempt = _recorded(search, attempt, parsed, answer)
    twin = next((node for node in search.population.nodes if node.sha256 == attempt.sha256), None)
    if twin is None:
        return attempt
    return Attempt(proposal=proposal, shown=attempt.shown, error=f"the answer repeats step {twin.step_id}")


def prompt_context(search: TaskSearch, proposal: Proposal) -> PromptContext:
    """What the prompt of a proposal may say."""
    step, candidate = map(int, proposal.slot.split("."))
    parent = search.node(proposal.parent_id)
    return search.contexts.of_step(
        search.task,
        proposal.state,
        proposal.choice,
        slot=proposal.slot,
        sample=step * search.run.search.candidates + candidate,
        parent=None if parent is None else Parent(parent.source, parent.plan, parent.measurement),
        tried=() if search.arm.restarts else _tried(search, parent),
    )


async def _ask(search: TaskSearch, proposal: Proposal, request: LlmRequest) -> _Written:
    """Ask, and once more when the answer cannot be used.

    Raises:
        BadAnswerError: the second answer cannot be used either.
    """
    answer = await search.effects.ask(search.key(proposal.slot), request)
    try:
        return parse_answer(answer, _anchored(search, proposal)), answer
    except BadAnswerError as problem:
        again = build_answer_repair(request, answer.text, str(problem), search.run.prompt)
    answer = await search.effects.ask(search.key(f"{proposal.slot}/again"), again)
    return parse_answer(answer, _anchored(search, proposal)), answer


def _anchored(search: TaskSearch, proposal: Proposal) -> str:
    """Source that the edits of an answer are anchored in; empty where a whole file is asked for."""
    parent = search.node(proposal.parent_id) if search.run.prompt.answers == EDITS else None
    return "" if parent is None else parent.source


async def _reviewed(
    search: TaskSearch, proposal: Proposal, prompt: PromptContext, request: LlmRequest, written: _Written
) -> _Written:
    """What was written, or what its author makes of the objections that the arm's reviewers have."""
    parsed, answer = written
    context = ArmContext(state=proposal.state, mode=proposal.mode, parent=proposal.parent_id or "")

    async def objection(role: str) -> str:
        question = build_question(role, prompt, context, search.run.prompt, candidate=parsed.candidate.source)
        said = await search.effects.ask(search.key(f"{proposal.slot}/{role}"), question)
        verdict = json_of(said.text)
        failed = isinstance(verdict, dict) and str(verdict.get("verdict", "")).lower() == "fail"
        return f"{role}: {verdict.get('reason', 'no reason given')}" if failed else ""

    objections = [found for found in await all_of(map(objection, search.arm.reviews)) if found]
    if not objections:
        return written
    again = build_answer_repair(request, answer.text, "\n".join(objections), search.run.prompt, reviewed=True)
    answer = await search.effects.ask(search.key(f"{proposal.slot}/revised"), again)
    try:
        return parse_answer(answer, _anchored(search, proposal)), answer
    except BadAnswerError:
        return written


def _recorded(search: TaskSearch, attempt: Attempt, parsed: ParsedAnswer, answer: LlmAnswer) -> Attempt:
    source = parsed.candidate.source
    sha256 = search.log.add_candidate(source)
    payload: dict[str, object] = {"sha256": sha256, "plan": parsed.plan, "strategies": list(parsed.strategies)}
    if parsed.edited:
        payload["edited"] = True
    search.log.put("candidate", search.key(attempt.proposal.slot), payload)
    offered = [use.strategy_id for use in attempt.proposal.choice.strategies]
    return replace(
        attempt,
        source=source,
        sha256=sha256,
        words=parsed.plan,
        strategies=tuple(name for name in parsed.strategies if name in offered),
        model=answer.model,
    )


def _tried(search: TaskSearch, parent: Node | None) -> list[Tried]:
    """Earlier steps that a prompt shows; of one to be repaired the intent stands elsewhere."""
    hidden = None if parent is None or parent.correct else parent
    built_in = search.population.lineage(parent)
    return [
        Tried(
            step_id=node.step_id,
            plan=node.plan,
            outcome=node.measurement.outcome,
            gain=search.population.gain(node),
            direction=node.direction,
            error=node.measurement.error,
            kept=node in built_in,
        )
        for node in search.population.nodes
        if node is not hidden
    ]

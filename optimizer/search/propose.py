"""Propose: where the candidates of a step start from, and what the arm chooses for each."""

from __future__ import annotations

from dataclasses import replace

from artifacts.codec import decode, encode
from artifacts.measurement import Bottleneck, Outcome
from artifacts.trajectory import State
from optimizer.arms import ArmContext, Choice, Said
from optimizer.llm.protocol import LlmAnswer
from optimizer.prompting.request import PromptContext
from optimizer.prompting.roles import build_question
from optimizer.prompting.text import clean, shorten
from optimizer.search.population import Node, Population
from optimizer.search.task_search import Proposal, TaskSearch
from optimizer.search.write import prompt_context


async def propose(search: TaskSearch) -> list[Proposal]:
    """One proposal for each candidate of the coming step; siblings take different directions.

    Raises:
        Suspended, BudgetExceededError, UnavailableError: as :meth:`Effects.ask`, where the arm asks questions.
    """
    count = search.run.search.candidates
    parents = [None] * count if search.arm.restarts else search.population.parents(count)
    proposals: list[Proposal] = []
    taken: set[str] = set()
    for number, parent in enumerate(parents):
        proposal = await _proposal(search, f"{search.steps_done}.{number}", parent, frozenset(taken))
        taken |= {proposal.choice.label} - {""}
        proposals.append(proposal)
    return proposals


def logged(search: TaskSearch, proposal: Proposal) -> Proposal:
    """Log a proposal before anything is made of it, so that a later version of the code resumes with the same."""
    return decode(Proposal, search.log.put("choice", search.key(proposal.slot), encode(proposal)))


def state_before(search: TaskSearch, parent: Node | None) -> State:
    """What selection may look at before the coming step from ``parent``; None is the reference."""
    population, task, target = search.population, search.task, search.run.target
    lineage = population.lineage(parent)
    correct = [node for node in lineage if node.correct]
    score = population.score(correct[-1]) if parent is not None and parent.correct else None
    timing = None if parent is None else parent.measurement.timing
    profile = None if parent is None else parent.measurement.profile
    fraction = None if profile is None else profile.fraction_of_bound
    return State(
        family=task.ref.family,
        arch=target.arch,
        language=target.language,
        dtype=task.dtype,
        size=task.size,
        bottleneck=Bottleneck.UNKNOWN if profile is None else profile.bottleneck,
        fraction_of_bound=None if fraction is None else min(fraction, 1.0),
        log2_speedup=score,
        log2_progress=0.0 if score is None else score - population.score(correct[0]),
        runtime_us=None if timing is None else timing.median_us,
        last_outcome=_last_outcome(population, parent),
        step=search.steps_done,
        stagnation=0 if parent is None or not parent.correct else population.fruitless(parent),
        features=frozenset() if parent is None else parent.features,
        history=tuple(node.direction for node in lineage if node.direction),
    )


async def _proposal(search: TaskSearch, slot: str, parent: Node | None, taken: frozenset[str]) -> Proposal:
    known = search.log.get("choice", search.key(slot))
    if known is not None:
        return _heard_again(search, decode(Proposal, known))
    context = _context(search, slot, parent, taken)
    while (role := search.arm.question(context)) and not context.has_said(role):
        request = build_question(role, _draft(search, slot, context), context, search.run.prompt)
        answer = await search.effects.ask(search.key(f"{slot}/{role}"), request)
        said = (*context.said, Said(role=role, text=answer.text))
        search.intents = search.arm.heard(search.intents, said[-1])
        context = _context(search, slot, parent, taken, said)
    choice = _kept(search, context) if context.mode == "repair" else search.arm.choose(context)
    asked = tuple(said.role for said in context.said)
    told = clean(shorten(search.arm.told(context.said), search.run.prompt.limits.strategy)) or choice.instructions
    return logged(search, _of(search, slot, context, replace(choice, asked=asked, instructions=told)))


def _heard_again(search: TaskSearch, proposal: Proposal) -> Proposal:
    """A proposal from the log, after the answers that came before it."""
    for role in proposal.choice.asked:
        answer = search.log.get("answer", search.key(f"{proposal.slot}/{role}"))
        if answer is not None:
            said = Said(role=role, text=decode(LlmAnswer, answer).text)
            search.intents = search.arm.heard(search.intents, said)
    return proposal


def _context(
    search: TaskSearch, slot: str, parent: Node | None, taken: frozenset[str], said: tuple[Said, ...] = ()
) -> ArmContext:
    """What the arm may look at, from the candidate where it starts."""
    population = search.population
    context = ArmContext(
        state=state_before(search, parent),
        mode="first" if parent is None else "optimize" if parent.correct else "repair",
        parent="" if parent is None else parent.step_id,
        members=population.members(),
        overlay=search.overlay,
        seed=f"{search.run.seed}/{search.key(slot)}",
        taken=taken | population.exhausted(parent),
        intents=search.intents,
        said=said,
    )
    wanted = search.arm.start(context) if context.mode == "optimize" else context.parent
    if wanted == context.parent:
        return context
    start = population.node(wanted)
    return replace(context, parent=wanted, state=state_before(search, start), taken=taken | population.exhausted(start))


def _of(search: TaskSearch, slot: str, context: ArmContext, choice: Choice) -> Proposal:
    incumbent = search.population.incumbent(search.node(context.parent or None))
    return Proposal(
        slot=slot,
        mode=context.mode,
        parent_id=context.parent or None,
        incumbent_id=None if incumbent is None else incumbent.step_id,
        state=context.state,
        choice=choice,
    )


def _draft(search: TaskSearch, slot: str, context: ArmContext) -> PromptContext:
    """What a question that comes before the choice may show."""
    return prompt_context(search, _of(search, slot, context, Choice(arm=search.arm.name)))


def _kept(search: TaskSearch, context: ArmContext) -> Choice:
    """A repair keeps the direction and intent of what it repairs."""
    parent = search.population.node(context.parent)
    kept = "repair: the intent is kept"
    return Choice(arm=search.arm.name, direction=parent.direction, intent=parent.intent, gate=kept)


def _last_outcome(population: Population, parent: Node | None) -> Outcome | None:
    tries = population.children(parent) or ([] if parent is None else [parent])
    return tries[-1].measurement.outcome if tries else None

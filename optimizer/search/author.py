"""From a situation to a candidate: ask the model, read its answer, keep what it wrote."""

from __future__ import annotations

from artifacts.errors import BadAnswerError
from optimizer.llm.answer import ParsedAnswer, parse_answer
from optimizer.llm.intents import parse_intents
from optimizer.llm.prompt import PromptSettings, Situation, build_answer_repair, build_request
from optimizer.llm.protocol import LlmAnswer, LlmRequest
from optimizer.search.gateway import Gateway
from optimizer.search.journal import Journal
from optimizer.search.plan import Attempted, Plan


class Author:
    """Writes candidates by asking a model.

    Args:
        plans: answers also edit the model's own list of intents.
    """

    def __init__(self, settings: PromptSettings, journal: Journal, gateway: Gateway, *, plans: bool) -> None:
        self._settings = settings
        self._journal = journal
        self._gateway = gateway
        self._plans = plans

    async def write(self, key: str, slot: str, plan: Plan, situation: Situation) -> Attempted:
        """Return what came of a plan, not measured yet; without a source, and saying why, if no answer had one."""
        try:
            parsed, answer = await self._answered(key, build_request(situation, self._settings))
        except BadAnswerError as problem:
            return Attempted(plan=plan, slot=slot, error=str(problem))
        return self._recorded(key, slot, plan, parsed, answer)

    async def _answered(self, key: str, request: LlmRequest) -> tuple[ParsedAnswer, LlmAnswer]:
        """Ask, and once more when the answer cannot be used.

        Raises:
            BadAnswerError: the second answer cannot be used either.
        """
        answer = await self._gateway.ask(key, request)
        try:
            return parse_answer(answer), answer
        except BadAnswerError as problem:
            again = build_answer_repair(request, answer.text, str(problem), self._settings.limits)
        answer = await self._gateway.ask(f"{key}/again", again)
        return parse_answer(answer), answer

    def _recorded(self, key: str, slot: str, plan: Plan, parsed: ParsedAnswer, answer: LlmAnswer) -> Attempted:
        source = parsed.candidate.source
        sha256 = self._journal.log.add_candidate(source)
        offered = [use.strategy_id for use in plan.choice.strategies]
        claimed = tuple(name for name in parsed.strategies if name in offered)
        payload = {"sha256": sha256, "plan": parsed.plan, "strategies": list(parsed.strategies)}
        self._journal.put("candidate", key, payload)
        return Attempted(
            plan=plan,
            slot=slot,
            source=source,
            sha256=sha256,
            words=parsed.plan,
            strategies=claimed,
            model=answer.model,
            edits=parse_intents(answer.text) if self._plans else (),
        )

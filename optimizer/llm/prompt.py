"""From the situation of a search to the request that a model gets; the words are in ``prompts/*.j2``."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from typing import TYPE_CHECKING

from artifacts.candidate import Language
from artifacts.measurement import Measurement
from artifacts.memory.records import Direction, Strategy
from artifacts.outcome import Outcome
from optimizer.llm.facts import facts
from optimizer.llm.fence import brief, fenced, shorten
from optimizer.llm.protocol import LlmRequest, Message

if TYPE_CHECKING:
    import jinja2

QUOTE = ", most often: "
"""What comes after it in a risk is the log of somebody else's build."""

LANGUAGES = (Language.CUDA, Language.TRITON, Language.CPP)
"""Languages that a candidate can be asked for; each has its ``contract_*.j2``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextLimits:
    """Characters of each kind of data that a prompt holds at most; ``items`` limits the lists."""

    source: int = 60_000
    facts: int = 3_000
    error: int = 6_000
    text: int = 2_000
    strategy: int = 4_000
    record: int = 6_000
    tried: int = 4_000
    items: int = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSettings:
    """What is the same for all requests of a run.

    Attributes:
        model, temperature, max_tokens: see :class:`optimizer.llm.protocol.LlmRequest`.
        language: what kernels are to be written in.
        device: in words, e.g. ``NVIDIA H200 (sm_90)``.
        tunables: ask for declared constants that a program searches afterwards.
    """

    model: str
    language: Language
    device: str
    temperature: float | None = None
    max_tokens: int = 16384
    tunables: bool = False
    limits: TextLimits = field(default_factory=TextLimits)

    def __post_init__(self) -> None:
        if self.language not in LANGUAGES:
            raise ValueError(f"no contract for language {self.language.value!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """A strategy with what memory expects of it here beyond any other step, in log2(parent time / child time)."""

    strategy: Strategy
    lead: float
    spread: float
    effective_n: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """Something tried before on this task.

    Attributes:
        gain: log2(parent time / child time) when it was correct.
        kept: it is built into the candidate that is shown.
    """

    plan: str
    outcome: Outcome
    gain: float | None = None
    direction: str = ""
    error: str = ""
    kept: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Fix:
    """An earlier failure of the same class and what cured it."""

    error: str
    cure: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Exemplar:
    """A verified kernel to learn from.

    Attributes:
        operator: for which it was written; ``speed`` is log2(eager time / its time) there.
        reference: what it computes; empty where nobody knows.
    """

    operator: str
    speed: float
    source: str
    reference: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """All that a prompt may speak of; what is empty is left out.

    No parent asks for a first implementation, a parent that failed for a repair, a correct one for
    one optimization in ``direction``; without a direction the model picks it from the measurement.

    Attributes:
        task_id, slot, sample: labels, see :class:`optimizer.llm.protocol.LlmRequest`.
        parent_source: candidate to start from, with its ``measurement``; empty and None for none.
        intent: what a failed parent was meant to do (its plan).
        strategies: best first.
        record: what memory knows of the device at hand, for when it has no direction to give; as it is to be read.
        exemplar: a kernel that was verified on the device at hand, for an operator like this one.
        notes: what gained on operators of the same kind elsewhere; best first.
        tried: oldest first; the latest are kept when there are many.
        fixes: most similar first, for repairs.
        planning: ask for edits of the model's own list of ``intents`` (one a line), of which ``intent_now`` is to be
            implemented.
    """

    task_id: str
    task_source: str
    slot: str = ""
    sample: int = 0
    parent_source: str = ""
    measurement: Measurement | None = None
    intent: str = ""
    direction: Direction | None = None
    strategies: tuple[Advice, ...] = ()
    record: str = ""
    exemplar: Exemplar | None = None
    notes: tuple[str, ...] = ()
    tried: tuple[Attempt, ...] = ()
    fixes: tuple[Fix, ...] = ()
    planning: bool = False
    intents: tuple[str, ...] = ()
    intent_now: str = ""

    def __post_init__(self) -> None:
        if bool(self.parent_source) != (self.measurement is not None):
            raise ValueError("parent_source and measurement come together")

    @property
    def purpose(self) -> str:
        """``first``, ``repair`` or ``optimize``."""
        if self.measurement is None:
            return "first"
        return "optimize" if self.measurement.outcome is Outcome.CORRECT else "repair"


def build_request(situation: Situation, settings: PromptSettings) -> LlmRequest:
    """Return the request for the next candidate; equal inputs give an equal request.

    The stable parts come first (rules, then task), so that endpoints with a prefix cache can use it.
    """
    purpose = situation.purpose
    system = _render("system", {"language": settings.language.value})
    user = _render(purpose, _variables(situation, settings))
    return LlmRequest(
        model=settings.model,
        messages=(Message(role="system", content=system), Message(role="user", content=user)),
        temperature=settings.temperature,
        max_tokens=settings.max_tokens,
        sample=situation.sample,
        purpose=purpose,
        task=situation.task_id,
        slot=situation.slot,
    )


def build_answer_repair(request: LlmRequest, text: str, problem: str, limits: TextLimits | None = None) -> LlmRequest:
    """Return the one turn that asks for a usable answer after ``text`` could not be used.

    Args:
        request: the request that was answered.
        text: the answer.
        problem: why it could not be used, e.g. the message of a ``BadAnswerError``.
        limits: as in the settings of the run.
    """
    limits = limits or TextLimits()
    said = shorten(text, limits.source) if text.strip() else "(no answer)"
    question = _render("answer_repair", {"problem": problem, "limits": limits})
    turns = (Message(role="assistant", content=said), Message(role="user", content=question))
    slot = f"{request.slot}.answer" if request.slot else ""
    return replace(request, messages=(*request.messages, *turns), purpose="answer_repair", slot=slot)


def _variables(situation: Situation, settings: PromptSettings) -> dict[str, object]:
    items = settings.limits.items
    return {
        "device": settings.device,
        "limits": settings.limits,
        "tunables": settings.tunables,
        "task_source": situation.task_source,
        "parent_source": situation.parent_source,
        "facts": "" if situation.measurement is None else "\n".join(facts(situation.measurement)),
        "intent": situation.intent,
        "direction": "" if situation.direction is None else _direction(situation.direction),
        "strategies": [_advice(advice) for advice in situation.strategies[:items]],
        "record": situation.record,
        "exemplar": None if situation.exemplar is None else _exemplar(situation.exemplar),
        "notes": "\n".join(f"- {note}" for note in situation.notes[:items]),
        "tried": "\n".join(_attempt(attempt) for attempt in situation.tried[-items:]),
        "planning": situation.planning,
        "intents": "\n".join(situation.intents),
        "intent_now": situation.intent_now,
        "fixes": [f"failure: {fix.error}\ncure: {fix.cure}" for fix in situation.fixes[:items]],
    }


def _direction(direction: Direction) -> str:
    return f"{direction.name}\n{direction.description}"


def _advice(advice: Advice) -> str:
    """Write one strategy out: id, intent, when, recipe, template, expected effect, risks.

    Of an effect only the lead is told: what any step is expected to gain from here says nothing of the strategy.
    """
    strategy, effect = advice.strategy, advice.strategy.effect
    low, high = advice.lead - advice.spread, advice.lead + advice.spread
    parts = [
        f"id: {strategy.strategy_id}",
        f"name: {strategy.name}",
        f"intent: {strategy.intent}",
        *(f"when: {condition.words}" for condition in strategy.when),
        *([f"recipe: {strategy.recipe}"] if strategy.recipe else []),
        f"record: {_gain(advice.lead)} of what other changes gain (likely {_gain(low)} to {_gain(high)}), from "
        f"evidence worth {advice.effective_n:.1f} steps like this one; "
        f"{effect.failures} of {effect.n + effect.failures} tries failed",
        *(f"risk: {risk.partition(QUOTE)[0]}" for risk in strategy.risks),
    ]
    return "\n".join([*parts, f"template:\n{strategy.template}"] if strategy.template else parts)


def _exemplar(exemplar: Exemplar) -> dict[str, str]:
    speed = f"{_gain(exemplar.speed)} as fast as plain PyTorch"
    operator = f"operator {exemplar.operator}, {speed}"
    return {
        "operator": f"{operator}:\n{exemplar.reference}" if exemplar.reference else operator,
        "kernel": exemplar.source,
    }


def _gain(log2: float) -> str:
    return f"{2**log2:.2f}x"


def _attempt(attempt: Attempt) -> str:
    if attempt.gain is not None:
        result = f"{_gain(attempt.gain)} as fast as what it changed"
    else:
        result = f"{attempt.outcome.value} {brief(' '.join(attempt.error.split()), 200)}".strip()
    direction = f"[{attempt.direction}] " if attempt.direction else ""
    place = "" if not attempt.kept else ", and it is part of this candidate"
    return f"- {direction}{brief(' '.join(attempt.plan.split()), 300) or 'no plan given'} -> {result}{place}"


def _render(name: str, variables: Mapping[str, object]) -> str:
    text = _environment().get_template(f"{name}.j2").render(variables)
    lines = [line.rstrip() for line in text.split("\n")]
    return "\n".join(lines).strip() + "\n"


@functools.cache
def _environment() -> jinja2.Environment:
    """Strict templates from the package's own files; data goes through the ``data`` filter."""
    import jinja2

    folder = resources.files("optimizer.llm") / "prompts"
    sources = {file.name: file.read_text(encoding="utf-8") for file in folder.iterdir() if file.name.endswith(".j2")}
    environment = jinja2.Environment(
        loader=jinja2.DictLoader(sources),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,
        keep_trailing_newline=True,
    )
    environment.filters["data"] = fenced
    return environment

"""From what a prompt may say to the request that a model gets; the words are in ``templates/*.j2``."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from typing import TYPE_CHECKING, Any

from artifacts.candidate import Language
from artifacts.features.techniques import ABOUT, Technique
from artifacts.measurement import Measurement, Outcome
from artifacts.memory.records import Direction, Edge, Strategy
from optimizer.llm.protocol import LlmRequest, Message
from optimizer.prompting.device_experience import Evidence
from optimizer.prompting.fixes import Fix
from optimizer.prompting.reference_kernels import ReferenceKernel
from optimizer.prompting.strategies import Recipe
from optimizer.prompting.text import brief, facts, fenced, shorten

if TYPE_CHECKING:
    import jinja2

QUOTE = ", most often: "
"""What comes after it in a risk is the build log of another host."""

LANGUAGES = (Language.CUDA, Language.TRITON, Language.CPP, Language.NUMBA)
"""Languages that a candidate can be asked for; each has its ``contract_*.j2``."""


FILE, EDITS = "file", "edits"
"""What an answer holds: the whole file, or edits of the candidate that it starts from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextLimits:
    """Characters of each kind of data that a prompt holds at most; ``items`` limits the lists."""

    source: int = 60_000
    facts: int = 3_000
    error: int = 6_000
    text: int = 2_000
    strategy: int = 4_000
    device_experience: int = 6_000
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
        tf32, dtype: what candidates are judged in, see :class:`optimizer.evaluation.job.EvaluationSettings`.
        answers: :data:`FILE`, or :data:`EDITS` where there is a candidate to start from.
    """

    model: str
    language: Language
    device: str
    temperature: float | None = None
    max_tokens: int = 16384
    tunables: bool = False
    tf32: bool = False
    dtype: str = ""
    answers: str = FILE
    limits: TextLimits = field(default_factory=TextLimits)

    def __post_init__(self) -> None:
        if self.language not in LANGUAGES:
            raise ValueError(f"no contract for language {self.language.value!r}")
        if self.answers not in (FILE, EDITS):
            raise ValueError(f"answers are {FILE} or {EDITS}, got {self.answers!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """A strategy with the log2 gain that memory expects of it here beyond the no-direction baseline."""

    strategy: Strategy
    margin: float
    spread: float
    effective_n: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A step that was taken before on this task.

    Attributes:
        gain: log2(parent time / child time) when it was correct.
        kept: it is built into the candidate that is shown.
    """

    step_id: str
    plan: str
    outcome: Outcome
    gain: float | None = None
    direction: str = ""
    error: str = ""
    kept: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptContext:
    """All that a prompt may say; what is empty is left out.

    Without a parent the prompt asks for a first implementation, with one that failed for a repair, with a correct one
    for one optimization in ``direction``; without a direction the model picks it from the measurement.

    Attributes:
        task_id, slot, sample: labels, see :class:`optimizer.llm.protocol.LlmRequest`.
        parent_source: candidate to start from, with its ``measurement``; empty and None for none.
        intent: what a failed parent was meant to do (its plan).
        strategies: best first.
        moves: edges of moves that gained from this candidate's rung; best first.
        device_experience: shown when memory has no direction to give.
        reference_kernel: verified on the device at hand, for an operator like this one.
        elsewhere: recipes that gained on operators of the same kind on other devices; best first.
        tried: oldest first; the latest are kept when there are many.
        fixes: most similar first, for repairs.
        intent_now: of the task's list of ideas, the one to be implemented.
        instructions: what is to be done, as a question that was asked before or the arm's one move says.
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
    moves: tuple[Edge, ...] = ()
    device_experience: Evidence | None = None
    reference_kernel: ReferenceKernel | None = None
    elsewhere: tuple[Recipe, ...] = ()
    tried: tuple[Tried, ...] = ()
    fixes: tuple[Fix, ...] = ()
    intent_now: str = ""
    instructions: str = ""

    def __post_init__(self) -> None:
        if bool(self.parent_source) != (self.measurement is not None):
            raise ValueError("parent_source and measurement come together")

    @property
    def purpose(self) -> str:
        """``first``, ``repair`` or ``optimize``."""
        if self.measurement is None:
            return "first"
        return "optimize" if self.measurement.outcome is Outcome.CORRECT else "repair"

    def shown(self, items: int) -> dict[str, tuple[str, ...]]:
        """Part of the prompt → ids of what stands in it, for the log; ``items`` as in :class:`TextLimits`."""
        kernel, known = self.reference_kernel, self.device_experience
        parts = {
            "direction": () if self.direction is None else (self.direction.direction_id,),
            "strategies": tuple(advice.strategy.strategy_id for advice in self.strategies[:items]),
            "moves": tuple(f"{edge.move} from {edge.rung}" for edge in self.moves[:items]),
            "device experience": () if known is None else known.sources,
            "reference kernel": () if kernel is None else (kernel.transition_id,),
            "recipes from elsewhere": tuple(recipe.source for recipe in self.elsewhere[:items]),
            "fixes": tuple(fix.source for fix in self.fixes[:items]),
            "tried before": tuple(attempt.step_id for attempt in self.tried[-items:]),
        }
        return {name: ids for name, ids in parts.items() if ids}


def build_request(context: PromptContext, settings: PromptSettings) -> LlmRequest:
    """Return the request for the next candidate; equal inputs give an equal request.

    The stable parts come first (rules, then task), so that endpoints with a prefix cache can use it.
    """
    purpose = context.purpose
    edits = settings.answers == EDITS and purpose != "first"
    system = render("system", {"language": settings.language.value, "tf32": settings.tf32, "edits": edits})
    user = render(purpose, variables(context, settings))
    return request_of(
        settings, system, user, sample=context.sample, purpose=purpose, task=context.task_id, slot=context.slot
    )


def build_simplification(
    task_id: str, task_source: str, source: str, removed: str, slot: str, settings: PromptSettings
) -> LlmRequest:
    """Return the request for ``source`` without one idea, which ``removed`` names."""
    system = render("system", {"language": settings.language.value, "tf32": settings.tf32, "edits": False})
    words = {"device": settings.device, "dtype": settings.dtype, "limits": settings.limits, "task_source": task_source}
    user = render("simplify", words | {"parent_source": source, "removed": removed})
    return request_of(settings, system, user, task=task_id, slot=slot)


def request_of(settings: PromptSettings, system: str, user: str, **labels: Any) -> LlmRequest:
    """The request of two messages to the run's model; ``labels`` are fields of the request."""
    return LlmRequest(
        model=settings.model,
        messages=(Message(role="system", content=system), Message(role="user", content=user)),
        temperature=settings.temperature,
        max_tokens=settings.max_tokens,
        **labels,
    )


def build_answer_repair(
    request: LlmRequest, text: str, problem: str, settings: PromptSettings, *, reviewed: bool = False
) -> LlmRequest:
    """Return the one turn that asks for a usable answer in place of ``text``, or for one without objections.

    Args:
        request: the request that was answered.
        text: the answer.
        problem: why it could not be used, e.g. the message of a ``BadAnswerError``.
        settings: those of the run.
        reviewed: it could be used, and ``problem`` is what was objected to its candidate.
    """
    limits, edits = settings.limits, settings.answers == EDITS and request.purpose != "first"
    said = shorten(text, limits.source) if text.strip() else "(no answer)"
    template, part = ("answer_revised", "revised") if reviewed else ("answer_repair", "answer")
    question = render(template, {"problem": problem, "limits": limits, "edits": edits})
    turns = (Message(role="assistant", content=said), Message(role="user", content=question))
    slot = f"{request.slot}.{part}" if request.slot else ""
    return replace(request, messages=(*request.messages, *turns), purpose="answer_repair", slot=slot)


def variables(context: PromptContext, settings: PromptSettings) -> dict[str, object]:
    """What templates may name."""
    items, kernel = settings.limits.items, context.reference_kernel
    return {
        "device": settings.device,
        "language": settings.language.value,
        "limits": settings.limits,
        "tunables": settings.tunables,
        "dtype": settings.dtype,
        "task_source": context.task_source,
        "parent_source": context.parent_source,
        "facts": "" if context.measurement is None else "\n".join(facts(context.measurement)),
        "intent": context.intent,
        "direction": "" if context.direction is None else _direction(context.direction),
        "strategies": [_advice(advice) for advice in context.strategies[:items]],
        "moves": "\n".join(move_line(edge) for edge in context.moves[:items]),
        "device_experience": "" if context.device_experience is None else context.device_experience.text,
        "reference_kernel": None if kernel is None else _reference_kernel(kernel),
        "elsewhere": "\n".join(_recipe(recipe) for recipe in context.elsewhere[:items]),
        "tried": "\n".join(_tried(attempt) for attempt in context.tried[-items:]),
        "intent_now": context.intent_now,
        "instructions": context.instructions,
        "fixes": [f"failure: {fix.error}\ncure: {fix.cure}" for fix in context.fixes[:items]],
    }


def _direction(direction: Direction) -> str:
    return f"{direction.name}\n{direction.description}"


def _advice(advice: Advice) -> str:
    """Write one strategy out: id, intent, when, recipe, template, expected effect, risks.

    Of an effect only the margin is said: what any step is expected to gain from here says nothing of the strategy.
    """
    strategy, effect = advice.strategy, advice.strategy.effect
    low, high = advice.margin - advice.spread, advice.margin + advice.spread
    parts = [
        f"id: {strategy.strategy_id}",
        f"name: {strategy.name}",
        f"intent: {strategy.intent}",
        *(f"when: {condition.words}" for condition in strategy.when),
        *([f"recipe: {strategy.recipe}"] if strategy.recipe else []),
        f"record: {_gain(advice.margin)} of what other changes gain (likely {_gain(low)} to {_gain(high)}), from "
        f"evidence worth {advice.effective_n:.1f} operators; "
        f"{effect.failures} of {effect.n + effect.failures} tries failed",
        *(f"risk: {risk.partition(QUOTE)[0]}" for risk in strategy.risks),
    ]
    return "\n".join([*parts, f"template:\n{strategy.template}"] if strategy.template else parts)


def move_line(edge: Edge) -> str:
    """A move as an instruction with what it did, where, and how it failed."""
    effect, failed = edge.effect, sum(int(kind.split()[0]) for kind in edge.failures)
    where = [text for text in (edge.family, edge.bound and f"bound by {edge.bound}", edge.arch) if text]
    known = f"{_gain(effect.mean)} ({_gain(effect.low)} to {_gain(effect.high)}) over {effect.tasks} operators"
    parts = [
        f"- {ABOUT[Technique(edge.move[1:])].instruction}",
        f"From {edge.rung.replace('_', ' ')}{', ' if where else ''}{', '.join(where)}: it gained {known}, "
        f"{failed} of {edge.attempts} tries failed.",
        *(f"A failure was mended so: {cure}" for cure in edge.cures[:1]),
    ]
    return " ".join(parts)


def _reference_kernel(kernel: ReferenceKernel) -> dict[str, str]:
    speed = f"{_gain(kernel.speed)} as fast as plain PyTorch"
    operator = f"operator {kernel.operator}, {speed}"
    return {
        "operator": f"{operator}:\n{kernel.reference}" if kernel.reference else operator,
        "kernel": kernel.source,
    }


def _recipe(recipe: Recipe) -> str:
    return f"- {recipe.name} ({_gain(recipe.gain)} on {recipe.family}, {recipe.arch}): {recipe.text}"


def _gain(log2: float) -> str:
    return f"{2**log2:.2f}x"


def _tried(attempt: Tried) -> str:
    if attempt.gain is not None:
        result = f"{_gain(attempt.gain)} as fast as what it changed"
    else:
        result = f"{attempt.outcome.value} {brief(' '.join(attempt.error.split()), 200)}".strip()
    direction = f"[{attempt.direction}] " if attempt.direction else ""
    place = "" if not attempt.kept else ", and it is part of this candidate"
    return f"- {direction}{brief(' '.join(attempt.plan.split()), 300) or 'no plan given'} -> {result}{place}"


def render(name: str, variables: Mapping[str, object]) -> str:
    """The template ``NAME.j2`` with ``variables``, without trailing blanks."""
    text = _environment().get_template(f"{name}.j2").render(variables)
    lines = [line.rstrip() for line in text.split("\n")]
    return "\n".join(lines).strip() + "\n"


@functools.cache
def _environment() -> jinja2.Environment:
    """Strict templates from the package's own files; data goes through the ``data`` filter."""
    import jinja2

    folder = resources.files("optimizer.prompting") / "templates"
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

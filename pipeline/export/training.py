"""Logs as training data: conversations, rewards and preference pairs, one JSON object a line.

A prompt is the log's own where it holds one and memory put nothing into it; else it is rebuilt from task, parent and
measurement. Rows of one operator, however its tasks are spelled, are on one side of the split, and so is whatever
source they share.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from artifacts.candidate import source_hash
from artifacts.codec import decode
from artifacts.measurement import DoubtKind, Measurement, Outcome, Timing
from artifacts.run_events import LoggedStep
from artifacts.runlog import RunLog
from artifacts.task import operator_name
from artifacts.trajectory import Step, Trajectory, TrustFlag, time_ratio
from builder.describe.raw_transitions import weight
from builder.read.collector import LogFile
from builder.read.reading import discover, read
from optimizer.llm.protocol import LlmRequest
from optimizer.prompting.request import LANGUAGES, PromptContext, PromptSettings, build_request

LARGEST = 4.0
"""Log2 of speedups beyond it is cut: they say more of the baseline than of the kernel."""
FAILURE = -5.0
"""Reward of a candidate that failed: below the slowest that is right."""
LEAST_LEAD = 0.1
"""Log2 of the ratio of times from which one sibling is preferred to another."""
TEST_SHARE = 10
"""One operator in so many is for testing."""

Row = dict[str, Any]
Turns = list[dict[str, str]]


@dataclass(frozen=True, slots=True)
class _Example:
    """A step with everything that rows say of it."""

    trajectory: Trajectory
    step: Step
    parent: Step | None
    prompt: Turns
    prompt_from: str
    answer: str
    doubts: tuple[str, ...]
    trust: float

    def row(self, license_id: str) -> Row:
        """What rows of every kind say: where from, how far to believe it, and what came of it."""
        run, step, operator = self.trajectory, self.step, operator_name(self.trajectory.task.task_id)
        return {
            "task": run.task.task_id,
            "operator": operator,
            "family": run.task.family,
            "split": "test" if int(hashlib.sha256(operator.encode()).hexdigest(), 16) % TEST_SHARE == 0 else "train",
            "device": run.device,
            "language": step.language.value,
            "llm": run.llm,
            "source": run.source,
            "license": license_id,
            "format": step.provenance.format,
            "file": step.provenance.file,
            "file_sha256": step.provenance.file_sha256,
            "line": step.provenance.line,
            "outcome": step.outcome.value,
            "speedup": None if self.log2_speedup is None else 2.0**self.log2_speedup,
            "trust": self.trust,
            "flags": sorted(flag.value for flag in step.flags),
            "doubts": list(self.doubts),
            "prompt_from": self.prompt_from,
        }

    @property
    def log2_speedup(self) -> float | None:
        """Log2 of baseline over own time; None when either is not known."""
        own, baseline = self.step.runtime_us, self.step.baseline_us
        return None if own is None or baseline is None else math.log2(baseline / own)

    @property
    def correct(self) -> bool:
        return self.step.outcome is Outcome.CORRECT


def export_rows(
    kind: str, logs: Iterable[Path], *, license_id: str, min_trust: float
) -> tuple[list[Row], Counter[str]]:
    """Rows of one kind of :data:`KINDS`, and reason → examples or rows that were left out for it.

    Args:
        license_id: under which the logs may be used; stands in every row.
        min_trust: least product of the factors of a step's trust flags, 0..1.

    Raises:
        BadInputError: no such path, or no log there.
    """
    rows: list[tuple[Row, frozenset[str]]] = []
    left_out: Counter[str] = Counter()
    for log in discover(logs):
        result = read(log)
        left_out["quarantined when read"] += len(result.quarantined)
        held = _Held.of(log)
        for trajectory in result.trajectories:
            examples = list(_examples(trajectory, held, min_trust, left_out, rebuild=kind == "preferences"))
            reference = {source_hash(trajectory.reference)} if trajectory.reference else set()
            for row, codes in KINDS[kind](examples, license_id):
                rows.append((row, frozenset({*codes, *reference})))
    held_out = {name for row, names in rows if row["split"] == "test" for name in names}
    kept = [row for row, names in rows if row["split"] == "test" or not names & held_out]
    left_out["a source of the test side under another operator"] += len(rows) - len(kept)
    return kept, +left_out


def write_rows(rows: Sequence[Row], path: Path) -> None:
    """Write one JSON object a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=True, allow_nan=False) + "\n" for row in rows)


_Found = Iterator[tuple[Row, set[str]]]


def _sft(examples: Sequence[_Example], license_id: str) -> _Found:
    """Answers that are right, and not slower than what they started from."""
    for example in examples:
        ratio = None if example.parent is None else time_ratio(example.parent, example.step)
        if example.correct and (ratio is None or ratio >= 1.0):
            yield (
                {**example.row(license_id), "messages": [*example.prompt, *_said(example.answer)]},
                {example.step.sha256},
            )


def _rl(examples: Sequence[_Example], license_id: str) -> _Found:
    """Every answer whose worth is known: log2 of the speedup, cut at :data:`LARGEST`, or :data:`FAILURE`."""
    for example in examples:
        reward = example.log2_speedup if example.correct else FAILURE
        if reward is not None:
            values = {"prompt": example.prompt, "completion": _said(example.answer), "error": example.step.error}
            reward = max(-LARGEST, min(LARGEST, reward)) if example.correct else reward
            yield {**example.row(license_id), **values, "reward": reward}, {example.step.sha256}


def _preferences(examples: Sequence[_Example], license_id: str) -> _Found:
    """The best of the answers to one parent against each that failed or is surely slower."""
    siblings: dict[object, list[_Example]] = defaultdict(list)
    for example in examples:
        siblings[example.step.parent_id, example.step.language].append(example)
    for group in siblings.values():
        timed = [example for example in group if example.correct and example.step.runtime_us]
        if not timed:
            continue
        best = min(timed, key=lambda example: example.step.runtime_us or math.inf)
        for other in group:
            lead = _lead(best, other)
            if other is best or (other.correct and (lead is None or lead < LEAST_LEAD)):
                continue
            pair = {"prompt": best.prompt, "chosen": _said(best.answer), "rejected": _said(other.answer)}
            row = {**best.row(license_id), **pair, "margin": lead, "rejected_outcome": other.step.outcome.value}
            yield row, {best.step.sha256, other.step.sha256}


KINDS: Mapping[str, Callable[[Sequence[_Example], str], _Found]] = {
    "sft": _sft,
    "rl": _rl,
    "preferences": _preferences,
}


def _lead(best: _Example, other: _Example) -> float | None:
    """Log2 of how much faster ``best`` is; None where ``other`` has no time."""
    mine, its = best.step, other.step
    if mine.ratio_to_parent is not None and its.ratio_to_parent is not None and its.outcome is Outcome.CORRECT:
        return math.log2(mine.ratio_to_parent / its.ratio_to_parent)
    return None if its.runtime_us is None or mine.runtime_us is None else math.log2(its.runtime_us / mine.runtime_us)


@dataclass(frozen=True, slots=True)
class _Held:
    """What a run of HTAM's own holds beside its steps; empty for other logs."""

    steps: Mapping[str, LoggedStep] = field(default_factory=dict)
    requests: Mapping[str, LlmRequest] = field(default_factory=dict)
    answers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, log: LogFile) -> _Held:
        """Read the events of a run; what reading it refused is refused here alike."""
        if log.format != "htam":
            return cls()
        found: dict[str, dict[str, Any]] = {"step": {}, "request": {}, "answer": {}}
        for event in RunLog.open(log.path).events():
            if event.kind in found:
                found[event.kind][event.key] = event.payload
        return cls(
            {key: decode(LoggedStep, payload) for key, payload in found["step"].items()},
            {key: decode(LlmRequest, payload) for key, payload in found["request"].items()},
            {key: str(payload.get("text", "")) for key, payload in found["answer"].items()},
        )

    def turns(self, key: str) -> tuple[Turns, str] | None:
        """Prompt and answer of a step as they were, the second turn where one was needed; None where they cannot serve.

        Shipped logs leave prompts out, and what memory showed may come from an operator of the other side.
        """
        again = f"{key}/again" if f"{key}/again" in self.answers else key
        request, answer, step = self.requests.get(again), self.answers.get(again), self.steps.get(key)
        if request is None or not answer or step is None or request.messages[0].role != "system":
            return None
        return None if set(step.shown) - {"direction", "tried before"} else (_turns(request), answer)


def _examples(
    trajectory: Trajectory, held: _Held, min_trust: float, left_out: Counter[str], *, rebuild: bool
) -> Iterator[_Example]:
    """The steps of one trajectory that are fit to learn from."""
    known = {step.step_id: step for step in trajectory.steps}
    for step in trajectory.steps:
        key, parent = f"{trajectory.task.task_id}/{step.step_id}", known.get(step.parent_id or "")
        logged = held.steps.get(key)
        doubts = () if logged is None or logged.measurement is None else logged.measurement.doubts
        trust = weight(step.flags)
        why = _unfit(step, trust >= min_trust, any(doubt.kind is DoubtKind.UNSTEADY for doubt in doubts))
        if why:
            left_out[why] += 1
            continue
        own = None if rebuild else held.turns(key)
        prompt, answer = own or (_rebuilt(trajectory, step, parent, held), _answer(step))
        prompt_from = (
            "log" if own else "rebuilt" if prompt else "missing: the log lacks the task, or what the step began with"
        )
        yield _Example(trajectory, step, parent, prompt, prompt_from, answer, tuple(d.text for d in doubts), trust)


def _unfit(step: Step, trusted: bool, unsteady: bool) -> str:
    """Why nothing should be learnt from a step; empty when something can. A failure needs no trust."""
    if TrustFlag.NO_CODE in step.flags or not step.code.strip():
        return "no code"
    if not step.outcome.charged_to_candidate:
        return "the host failed"
    if step.language not in LANGUAGES:
        return "no kernel of its own"
    if step.outcome is Outcome.CORRECT and not trusted:
        return "trusted less than --min-trust"
    return "an unsteady time" if unsteady else ""


def _rebuilt(trajectory: Trajectory, step: Step, parent: Step | None, held: _Held) -> Turns:
    """What a search without memory would have asked; nothing where the log lacks what that takes."""
    measured = None
    if parent is not None:
        logged = held.steps.get(f"{trajectory.task.task_id}/{parent.step_id}")
        measured = logged.measurement if logged else _measured(parent, trajectory.device)
    if not trajectory.reference.strip() or (parent is not None and (measured is None or not parent.code.strip())):
        return []
    context = PromptContext(
        task_id=trajectory.task.task_id,
        task_source=trajectory.reference,
        parent_source=parent.code if parent is not None else "",
        measurement=measured,
        intent=parent.plan if parent is not None else "",
    )
    settings = PromptSettings(model="rebuilt", language=step.language, device=trajectory.device or "not named")
    return _turns(build_request(context, settings))


def _measured(step: Step, device: str) -> Measurement | None:
    """A step's figures as a prompt states them; None for one that is right and was not timed."""
    if step.outcome is not Outcome.CORRECT:
        return Measurement(outcome=step.outcome, stage="log", device=device, error=step.error or "no reason was logged")
    if step.runtime_us is None:
        return None
    times = {"own": step.runtime_us} | ({} if step.baseline_us is None else {"eager": step.baseline_us})
    timed = {name: Timing(median_us=value, low_us=value, high_us=value) for name, value in times.items()}
    return Measurement(outcome=step.outcome, stage="timing", device=device, timing=timed.pop("own"), baselines=timed)


def _turns(request: LlmRequest) -> Turns:
    return [{"role": message.role, "content": message.content} for message in request.messages]


def _said(answer: str) -> Turns:
    return [{"role": "assistant", "content": answer}]


def _answer(step: Step) -> str:
    """The step in the form of an answer."""
    plan = " ".join(step.plan.split()) or "not recorded."
    return f"PLAN: {plan}\nSTRATEGY: none\n```python\n{step.code.strip(chr(10))}\n```\n"

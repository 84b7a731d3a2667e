"""The randomized experiment on moves: what a change does where it was drawn, not chosen.

    python -P benchmarks/moves_experiment.py plan                      # draws; benchmarks/moves_plan.json is committed
    python -P benchmarks/moves_experiment.py requests requests.jsonl   # one prompt a cell, OpenAI-Batch lines
    python -P benchmarks/moves_experiment.py jobs answers.jsonl jobs.jsonl
    python -m optimizer.evaluation.worker jobs.jsonl --out measurements.jsonl         # on the GPU host
    python -P benchmarks/moves_experiment.py log answers.jsonl measurements.jsonl RUN  # a run log that is mined
    python -P benchmarks/moves_experiment.py analyse answers.jsonl measurements.jsonl --write

Parents are the first correct and the fastest kernel of each operator of the shipped H200 runs, from at least eight
families. From each, five moves are drawn without replacement, all that apply with the same probability; the moves
themselves come from the vocabulary of techniques, not from what gained. Parents, moves and the analysis were fixed
before the first answer. The analysis, as it was stated then:

1. Effect of each move by kind of bound: mean log2(parent / child) over operators of steps that were measured, with the
   95 % interval over operators; below three operators no interval. Failed steps count in the failure rate alone.
2. Followed: the share of answers in which the technique is in the child (and was not in the parent).
3. Order among siblings: of pairs of measured children of one parent whose times differ by 2 % or more, the share that a
   model orders rightly which was fitted without the operator: ridge on state; ridge on state and move (main effects and
   move by bound); the latter with moves permuted within a parent (1,000 times). Goal: state and move at least 0.60, the
   interval over operators above 0.5 and above its shuffle.
4. Failure rate by move with its kinds.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "benchmarks")]

import numpy as np  # noqa: E402
from runner import write_results  # noqa: E402
from scipy.special import stdtrit  # noqa: E402
from sklearn.linear_model import Ridge  # noqa: E402

from artifacts.candidate import Language  # noqa: E402
from artifacts.codec import decode, encode  # noqa: E402
from artifacts.errors import BadInputError  # noqa: E402
from artifacts.features.techniques import ABOUT, LADDERS, Technique, ladder_of, rung, techniques  # noqa: E402
from artifacts.measurement import Measurement, Outcome  # noqa: E402
from artifacts.memory.edges import FITS, applicable  # noqa: E402
from artifacts.memory.records import Direction, Effect  # noqa: E402
from artifacts.run_events import LoggedStep, TaskStarted  # noqa: E402
from artifacts.runlog import RunLog  # noqa: E402
from artifacts.statistics import LEAST_TASKS, mean_interval  # noqa: E402
from artifacts.task import operator_name  # noqa: E402
from optimizer.evaluation.job import EvaluationJob, EvaluationSettings  # noqa: E402
from optimizer.llm.files import write_requests  # noqa: E402
from optimizer.llm.protocol import LlmAnswer, LlmRequest  # noqa: E402
from optimizer.prompting.answer import parse_answer  # noqa: E402
from optimizer.prompting.request import PromptContext, PromptSettings, build_request  # noqa: E402
from optimizer.run.exchange import read_received, write_jobs  # noqa: E402

RUNS = tuple(sorted((REPOSITORY / "examples" / "logs").glob("h200-*")))
PLAN = REPOSITORY / "benchmarks" / "moves_plan.json"
SEED = 14
MOVES = 5
PARENTS = 32
LEAST_PARENTS, LEAST_FAMILIES = 24, 8
ARCH = "sm_90"
TIES = math.log2(1.02)
"""Pairs of siblings that differ less than this are not ordered."""
SHUFFLES = 1000
EXCLUDED = frozenset(
    {
        *(Technique.CUDA_GRAPH, Technique.TENSOR_WMMA, Technique.ATOMICS),
        *(Technique.FP8, Technique.TF32, Technique.HALF, Technique.BFLOAT16),
    }
)
"""What the rules of answers forbid, rungs that nobody climbs to on Hopper, and what costs the task's precision."""


@dataclass(frozen=True, slots=True)
class Found:
    """A kernel of a shipped run."""

    run: Path
    started: TaskStarted
    step: LoggedStep

    @property
    def time(self) -> float:
        """Median time in µs, infinite for one that is not correct."""
        measured = self.step.measurement
        correct = measured is not None and measured.outcome is Outcome.CORRECT and measured.timing is not None
        return measured.timing.median_us if correct else math.inf  # type: ignore[union-attr]


def kernels() -> dict[str, list[Found]]:
    """Correct kernels of the shipped H200 runs by operator, in the order of the logs."""
    found: dict[str, list[Found]] = defaultdict(list)
    for path in RUNS:
        started: dict[str, TaskStarted] = {}
        for event in RunLog.open(path).events():
            if event.kind == "task_started":
                item = decode(TaskStarted, event.payload)
                started[item.task.task_id] = item
            elif event.kind == "step":
                step = decode(LoggedStep, event.payload)
                entry = Found(path, started[step.task_id], step)
                if entry.time < math.inf:
                    found[operator_name(step.task_id)].append(entry)
    return found


def allowed(held: frozenset[Technique], family: str) -> list[Technique]:
    """Moves that apply to a kernel with ``held``, by device, operator and ladder alone."""
    return [
        technique
        for technique in sorted(Technique)
        if technique not in EXCLUDED
        and applicable(f"+{technique}", held, ARCH)
        and family in FITS.get(technique, (family,))
    ]


def plan(known: Mapping[str, frozenset[Technique]] | None = None) -> dict[str, Any]:
    """Parents and the moves drawn from each, with the probability of each move to be drawn.

    Args:
        known: techniques of kernels by hash as they were read when a plan was drawn; those of others are read now.

    Raises:
        BadInputError: the logs hold too few parents or families.
    """
    draw = random.Random(SEED)
    pool = []
    for operator, entries in sorted(kernels().items()):
        best = min(entries, key=lambda entry: entry.time)
        pool += [(operator, "early", entries[0])]
        pool += [(operator, "late", best)] if best.step.candidate_sha256 != entries[0].step.candidate_sha256 else []
    draw.shuffle(pool)
    cells, parents, families = [], 0, set()
    for operator, when, entry in _spread(pool):
        sha, family = entry.step.candidate_sha256, entry.started.task.family
        recorded = (known or {}).get(sha)
        held = techniques(RunLog.open(entry.run).candidate(sha)) if recorded is None else recorded
        options = allowed(held, family)
        if len(options) < MOVES or parents == PARENTS:
            continue
        parents += 1
        families.add(family)
        for technique in draw.sample(options, MOVES):
            cells.append(
                {
                    "cell": f"{parents:02}-{technique}",
                    "run": entry.run.name,
                    "task": entry.step.task_id,
                    "step": entry.step.step_id,
                    "operator": operator,
                    "family": family,
                    "when": when,
                    "parent": sha,
                    "parent_us": entry.time,
                    "held": sorted(held),
                    "move": f"+{technique}",
                    "probability": round(MOVES / len(options), 6),
                    "options": len(options),
                }
            )
    if parents < LEAST_PARENTS or len(families) < LEAST_FAMILIES:
        raise BadInputError(f"{parents} parents of {len(families)} families", "the shipped H200 runs hold more")
    return {"seed": SEED, "parents": parents, "families": sorted(families), "cells": cells}


def _spread(pool: Sequence[tuple[str, str, Found]]) -> Iterator[tuple[str, str, Found]]:
    """``pool`` with its families taking turns, so that none fills the plan."""
    by_family: dict[str, list[tuple[str, str, Found]]] = defaultdict(list)
    for item in pool:
        by_family[item[2].started.task.family].append(item)
    while by_family:
        for family in sorted(by_family):
            yield by_family[family].pop(0)
        by_family = defaultdict(list, {family: items for family, items in by_family.items() if items})


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of the plan with its sources and request."""

    row: Mapping[str, Any]
    found: Found
    task_source: str
    parent_source: str

    @property
    def technique(self) -> Technique:
        """What the move adds."""
        return Technique(self.row["move"][1:])

    def request(self, model: str) -> LlmRequest:
        """The prompt: task, parent with its measurements, and the move as an instruction with its condition."""
        about = ABOUT[self.technique]
        condition = (
            "Keep what the change does not touch. Do not make it if it cannot be correct; then say why in the plan."
        )
        direction = Direction(
            direction_id=self.row["move"],
            name=about.meaning,
            description=f"{about.instruction} {condition}",
            effect=Effect(mean=0.0, low=0.0, high=0.0, n=0, tasks=0, failures=0),
        )
        context = PromptContext(
            task_id=self.row["task"],
            task_source=self.task_source,
            slot=self.row["cell"],
            parent_source=self.parent_source,
            measurement=self.found.step.measurement,
            direction=direction,
        )
        return build_request(context, PromptSettings(model=model, language=Language.CUDA, device="NVIDIA H200 (sm_90)"))


def cells(model: str) -> list[tuple[Cell, LlmRequest]]:
    """The cells of the committed plan."""
    rows = json.loads(PLAN.read_text("utf-8"))["cells"]
    entries = {
        (item.run.name, item.step.task_id, item.step.step_id): item for items in kernels().values() for item in items
    }
    found = []
    for row in rows:
        entry = entries[row["run"], row["task"], row["step"]]
        log = RunLog.open(entry.run)
        cell = Cell(row, entry, log.candidate(entry.started.source_sha256), log.candidate(row["parent"]))
        found.append((cell, cell.request(model)))
    return found


def children(answers: Mapping[str, LlmAnswer], model: str) -> list[tuple[Cell, str, str, LlmAnswer | None]]:
    """Cell, source of the child (empty for none), what its author says or why there is none, and the answer."""
    found: list[tuple[Cell, str, str, LlmAnswer | None]] = []
    for cell, request in cells(model):
        answer = answers.get(request.key)
        if answer is None:
            continue
        try:
            parsed = parse_answer(answer, cell.parent_source)
            found.append((cell, parsed.candidate.source, parsed.plan, answer))
        except BadInputError as problem:
            found.append((cell, "", str(problem), answer))
    return found


def jobs(answers: Mapping[str, LlmAnswer], model: str) -> list[EvaluationJob]:
    """One job a usable answer: the child timed in turns with its parent, and no baseline beside the reference."""
    return [
        EvaluationJob(
            job_id=cell.row["cell"],
            task_id=cell.row["task"],
            task_source=cell.task_source,
            candidate_source=source,
            incumbent_source=cell.parent_source,
            backend="cuda",
            seed=int(hashlib.sha256(f"{SEED}{cell.row['cell']}".encode()).hexdigest()[:12], 16),
            settings=EvaluationSettings(baselines=()),
        )
        for cell, source, _, _ in children(answers, model)
        if source
    ]


def gain(measured: Measurement | None) -> float | None:
    """log2(parent / child), both timed in turns; None where either is not known."""
    if measured is None or measured.timing is None or measured.incumbent is None:
        return None
    return math.log2(measured.incumbent.median_us / measured.timing.median_us)


def results(
    answers: Mapping[str, LlmAnswer], measurements: Mapping[str, Measurement], model: str
) -> list[dict[str, Any]]:
    """One row a cell that was answered."""
    rows = []
    for cell, source, _, _ in children(answers, model):
        measured = measurements.get(cell.row["cell"])
        state, child = cell.found.step.measurement, techniques(source) if source else frozenset()
        profile = None if state is None else state.profile
        rows.append(
            {
                **cell.row,
                "outcome": "no_answer" if not source else "missing" if measured is None else measured.outcome.value,
                "gain": gain(measured),
                "followed": cell.technique in child,
                "bound": "unknown" if profile is None else profile.bottleneck.value,
            }
        )
    return rows


def analysis(rows: Sequence[Mapping[str, Any]], shuffles: int = SHUFFLES) -> dict[str, Any]:
    """The four tables that were stated before."""
    ladders = {technique: ladder_of(technique) or "none" for technique in Technique}
    known = [{**row, "ladder": ladders[Technique(row["move"][1:])]} for row in rows if row["outcome"] != "missing"]
    return {
        "cells": len(known),
        "all": _effect(known),
        **{when: _effect(part) for (when,), part in _grouped(known, "when")},
        "effects": {f"{move} [{bound}]": _effect(part) for (move, bound), part in _grouped(known, "move", "bound")},
        "effects_of_ladders": {ladder: _effect(part) for (ladder,), part in _grouped(known, "ladder")},
        "effects_of_moves": {move: _effect(part) for (move,), part in _grouped(known, "move")},
        "followed": {move: _share(part, "followed") for (move,), part in _grouped(known, "move")},
        "failures": {move: dict(Counter(row["outcome"] for row in part)) for (move,), part in _grouped(known, "move")},
        "siblings": _siblings([row for row in known if row["gain"] is not None], shuffles),
    }


def _grouped(rows: Iterable[Mapping[str, Any]], *names: str) -> list[tuple[tuple[str, ...], list[Mapping[str, Any]]]]:
    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[tuple(row[name] for name in names)].append(row)
    return sorted(groups.items())


def _effect(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    gains: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        if row["gain"] is not None:
            gains[row["operator"]].append(row["gain"])
    means = [float(np.mean(values)) for values in gains.values()]
    if len(means) < LEAST_TASKS:
        return {"operators": len(means), "tries": len(rows)}
    found, (least, most) = mean_interval(means), _t_interval(means)
    ratios = {"value": found.value, "low": found.low, "high": found.high, "t_low": least, "t_high": most}
    return {"operators": len(means), "tries": len(rows)} | {name: round(2**each, 4) for name, each in ratios.items()}


def _t_interval(values: Sequence[float]) -> tuple[float, float]:
    """That of Student's t. Resampling, which was fixed beforehand, is too narrow for a handful of operators."""
    half = float(stdtrit(len(values) - 1, 0.975)) * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return float(np.mean(values)) - half, float(np.mean(values)) + half


def _share(rows: Sequence[Mapping[str, Any]], name: str) -> float:
    return round(sum(bool(row[name]) for row in rows) / len(rows), 4)


def _siblings(rows: Sequence[Mapping[str, Any]], shuffles: int) -> dict[str, Any]:
    """Share of ordered pairs of siblings by state, by state and move, and by the latter with moves permuted."""
    if len({row["operator"] for row in rows}) < LEAST_TASKS:
        return {}
    real = _ordered(rows, [row["move"] for row in rows])
    draw = random.Random(SEED)
    mixed = []
    for _ in range(shuffles):
        moves: list[str] = [row["move"] for row in rows]
        for _, places in _places(rows):
            taken = [moves[place] for place in places]
            draw.shuffle(taken)
            for place, move in zip(places, taken, strict=True):
                moves[place] = move
        mixed.append(_pooled(_ordered(rows, moves)))
    shares = [share for share, _ in real.values()]
    found, (least, most) = mean_interval(shares), _t_interval(shares)
    state = _ordered(rows, [""] * len(rows))
    return {
        "pairs": sum(n for _, n in real.values()),
        "state": round(_pooled(state), 4),
        "state_and_move": round(_pooled(real), 4),
        "mean_over_operators": round(found.value, 4),
        "low": round(found.low, 4),
        "high": round(found.high, 4),
        "t_low": round(least, 4),
        "t_high": round(most, 4),
        "shuffled": round(float(np.mean(mixed)), 4),
        "p_shuffled": round((1 + sum(value >= _pooled(real) for value in mixed)) / (1 + shuffles), 4),
    }


def _places(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[int]]]:
    groups: dict[str, list[int]] = defaultdict(list)
    for place, row in enumerate(rows):
        groups[row["parent"]].append(place)
    return sorted(groups.items())


def _ordered(rows: Sequence[Mapping[str, Any]], moves: Sequence[str]) -> dict[str, tuple[float, int]]:
    """Operator → share of its pairs in order and their number; the model never saw the operator. A tie is a half."""
    design = _design(rows, moves)
    gains = np.array([row["gain"] for row in rows])
    operators = np.array([row["operator"] for row in rows])
    found: dict[str, tuple[float, int]] = {}
    for operator in sorted(set(operators.tolist())):
        test = operators == operator
        predicted = Ridge(alpha=5.0).fit(design[~test], gains[~test]).predict(design)
        right, pairs = 0.0, 0
        for _, places in _places(rows):
            inside = [place for place in places if test[place]]
            for i, one in enumerate(inside):
                for other in inside[i + 1 :]:
                    apart, said = gains[one] - gains[other], predicted[one] - predicted[other]
                    if abs(apart) >= TIES:
                        pairs += 1
                        right += 0.5 if abs(said) < 1e-9 else float((apart > 0) == (said > 0))
        if pairs:
            found[operator] = right / pairs, pairs
    return found


def _pooled(shares: Mapping[str, tuple[float, int]]) -> float:
    total = sum(n for _, n in shares.values())
    return sum(share * n for share, n in shares.values()) / total if total else 0.5


def _design(rows: Sequence[Mapping[str, Any]], moves: Sequence[str]) -> np.ndarray[Any, Any]:
    """State (family, when, rungs, held techniques), move, and move by bound, as 0 and 1."""
    names = [
        {
            f"family {row['family']}",
            f"when {row['when']}",
            f"bound {row['bound']}",
            *(f"held {name}" for name in row["held"]),
            *(f"{name} {rung(name, frozenset(map(Technique, row['held'])))}" for name in LADDERS),
            *([f"move {move}", f"move {move} {row['bound']}", f"move {move} {row['family']}"] if move else []),
        }
        for row, move in zip(rows, moves, strict=True)
    ]
    columns = sorted(set().union(*names))
    return np.array([[float(column in present) for column in columns] for present in names])


def write_log(path: Path, answers: Mapping[str, LlmAnswer], measurements: Mapping[str, Measurement], model: str) -> int:
    """A run log of the experiment, which the builder mines like any other; returns its steps.

    The parent of each cell stands in it as step ``P.0``, its measurement from the run that it comes from. Answers that
    were not measured are left out.
    """
    count = 0
    with RunLog.create(path, {"run_id": path.name, "arm": "experiment", "seed": SEED, "plan": PLAN.name}) as log:
        begun: set[str] = set()
        for cell, source, said, answer in children(answers, model):
            measured = measurements.get(cell.row["cell"])
            if source and measured is None:
                continue
            task, parent = cell.row["task"], cell.row["cell"].split("-")[0]
            name = f"{task}#{parent}"
            identity = cell.found.started.task
            if name not in begun:
                begun.add(name)
                sha = log.add_candidate(cell.task_source)
                log.append(
                    "task_started",
                    encode(TaskStarted(task=identity, source_sha256=sha, path=cell.found.started.path)),
                    key=task,
                )
                first = cell.found.step
                log.add_candidate(cell.parent_source)
                log.append("step", encode(_as_root(first, f"{parent}.0")), key=f"{task}/{parent}.0")
            step = LoggedStep(
                task_id=task,
                step_id=cell.row["cell"],
                parent_id=f"{parent}.0",
                index=1,
                mode="optimize",
                candidate_sha256=log.add_candidate(source) if source else "",
                parent_sha256=cell.row["parent"],
                direction=cell.row["move"],
                strategies=(),
                plan=said if source else "",
                state=cell.found.step.state,
                measurement=measured,
                error="" if source else said,
                choice_probability=cell.row["probability"],
                explored=True,
                model="" if answer is None else answer.model,
            )
            log.append("step", encode(step), key=f"{task}/{cell.row['cell']}")
            count += 1
    return count


def _as_root(step: LoggedStep, name: str) -> LoggedStep:
    from dataclasses import replace

    return replace(step, step_id=name, parent_id=None, parent_sha256="", index=0, mode="first", best_id=None)


def main() -> None:
    """Run one stage."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("stage", choices=("plan", "requests", "jobs", "log", "analyse"))
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--model", default="model", help="name of the model that answers; part of a request's key")
    parser.add_argument("--write", action="store_true", help="keep the analysis in benchmarks/results/moves.json")
    options = parser.parse_args()
    if options.stage == "plan":
        if PLAN.exists():
            parser.error(f"{PLAN.name} was drawn and answered; another draw is another experiment: remove it first")
        PLAN.write_text(json.dumps(plan(), indent=1) + "\n", encoding="utf-8")
        print(f"written to {PLAN.name}")
        return
    if options.stage == "requests":
        (out,) = options.files
        print(f"{write_requests(out, [request for _, request in cells(options.model)])} requests written to {out}")
        return
    answers = read_received([options.files[0]]).answers
    if options.stage == "jobs":
        print(f"{write_jobs(options.files[1], jobs(answers, options.model))} jobs written to {options.files[1]}")
        return
    measurements = read_received([options.files[1]]).measurements
    if options.stage == "log":
        print(f"{write_log(options.files[2], answers, measurements, options.model)} steps in {options.files[2]}")
        return
    found = analysis(results(answers, measurements, options.model))
    print(json.dumps(found, indent=1))
    if options.write:
        print(f"written to {write_results('moves', found).name}")


if __name__ == "__main__":
    main()

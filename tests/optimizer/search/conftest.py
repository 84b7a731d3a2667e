"""Fakes for the loop: a model that writes harmless candidates, and an evaluator whose verdicts follow from them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from artifacts.candidate import Language
from artifacts.measurement import Bottleneck, EvidenceLevel, Measurement, Outcome, Profile, Timing
from artifacts.runlog import RunLog
from artifacts.task import TaskRef
from optimizer.arms import Arm, make_arm
from optimizer.evaluation.job import EvaluationJob
from optimizer.llm.budget import Budget
from optimizer.llm.protocol import LlmAnswer, LlmRequest
from optimizer.prompting.context import Target
from optimizer.prompting.request import PromptSettings
from optimizer.search.effects import EffectLog
from optimizer.search.measure import EvaluationQueue
from optimizer.search.session import Session
from optimizer.search.settings import SearchSettings
from optimizer.search.task_search import RunSettings
from optimizer.selection import SelectionSettings
from optimizer.tasks import Task
from optimizer.tuning import TuningSettings

REFERENCE = """import torch

class Model(torch.nn.Module):
    pass

def get_inputs(): return []

def get_init_inputs(): return []
"""


def digits(text: str) -> int:
    return int(hashlib.sha256(text.encode()).hexdigest()[:8], 16)


class FakeModel:
    """Answers every request with a file of its own; one in eight answers holds no code."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def complete(self, request: LlmRequest) -> LlmAnswer:
        self.asked.append(request.key)
        if request.purpose != "answer_repair" and digits(request.key) % 8 == 0:
            return LlmAnswer(text="I would rather not.", model="fake")
        code = f"import torch\nTAG = {request.key!r}\n\nclass ModelNew(torch.nn.Module):\n    pass"
        return LlmAnswer(text=f"PLAN: try {request.key[:6]}\n```python\n{code}\n```", model="fake", prompt_tokens=10)

    async def close(self) -> None:
        pass


def measure(job: EvaluationJob) -> Measurement:
    """Verdict from the source alone: one in four fails, times between 10 and 110 microseconds."""
    number = digits(job.candidate_source)
    if number % 4 == 0:
        return Measurement(outcome=Outcome.COMPILE_ERROR, stage="build", device="cpu", error="no such operator")
    time = 10.0 + number % 100
    incumbent = 10.0 + digits(job.incumbent_source) % 100 if job.incumbent_source else None
    return Measurement(
        outcome=Outcome.CORRECT,
        stage="timing",
        device="cpu",
        timing=_timing(time),
        baselines={"eager_fp32": _timing(100.0)},
        incumbent=None if incumbent is None else _timing(incumbent),
        faster_than_incumbent=None if incumbent is None else time < incumbent,
        profile=Profile(
            bottleneck=Bottleneck.MEMORY, evidence=EvidenceLevel.COUNTED, bound_us=5.0, fraction_of_bound=5 / time
        ),
    )


def _timing(median: float) -> Timing:
    return Timing(median_us=median, low_us=median * 0.99, high_us=median * 1.01)


class FakeEvaluator:
    """Keeps the evaluator's contract without building anything."""

    def __init__(self) -> None:
        self.measured: list[str] = []

    def evaluate(self, jobs: Iterable[EvaluationJob]) -> Iterator[tuple[str, Measurement]]:
        for job in jobs:
            self.measured.append(job.job_id)
            yield job.job_id, measure(job)

    def close(self) -> None:
        pass


def reference_runs() -> Measurement:
    return Measurement(outcome=Outcome.CORRECT, stage="task", device="cpu", timing=_timing(100.0))


def make_task(name: str) -> Task:
    ref = TaskRef(task_id=f"test/-/{name}", suite="test", family="softmax")
    return Task(ref=ref, source=f"# {name}\n{REFERENCE}", path=f"{name}.py", dtype="float32", size="small")


class Run:
    """One run directory that can be sat down to again and again."""

    def __init__(self, path: Path, names: Iterable[str], settings: SearchSettings, arm: Arm) -> None:
        self.path = path
        self.tasks = [make_task(name) for name in names]
        self.settings = settings
        self.arm = arm
        self.tuning: TuningSettings | None = None
        self.model = FakeModel()
        self.evaluator = FakeEvaluator()

    def evaluate(self, jobs: Iterable[EvaluationJob]) -> Iterator[tuple[str, Measurement]]:
        """Every reference runs; candidates go to ``evaluator``."""
        waiting = list(jobs)
        yield from ((job.job_id, reference_runs()) for job in waiting if job.reference_only)
        yield from self.evaluator.evaluate([job for job in waiting if not job.reference_only])

    def close(self) -> None:
        self.evaluator.close()

    def effect_log(self) -> EffectLog:
        is_run = RunLog.is_run(self.path)
        return EffectLog(RunLog.open(self.path) if is_run else RunLog.create(self.path, {"run": "test"}))

    def session(self, log: EffectLog, *, files: bool = False, budget: Budget | None = None) -> Session:
        run = RunSettings(
            run="test",
            seed=1,
            backend="cpu",
            target=Target(arch="cpu", language=Language.CPP),
            search=self.settings,
            prompt=PromptSettings(model="fake", language=Language.CPP, device="cpu"),
            tuning=self.tuning,
        )
        llm, queue = (None, None) if files else (self.model, EvaluationQueue(self))
        return Session(self.tasks, self.arm, run, log, llm=llm, evaluations=queue, budget=budget)


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Run]:
    def make(
        name: str = "run", *, tasks: int = 2, settings: SearchSettings | None = None, arm: str | Arm = "feedback"
    ) -> Run:
        chosen = make_arm(arm, None, SelectionSettings()) if isinstance(arm, str) else arm
        names = [f"task_{number}" for number in range(tasks)]
        return Run(tmp_path / name, names, settings or SearchSettings(steps=4, candidates=2), chosen)

    return make

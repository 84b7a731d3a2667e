import xml.etree.ElementTree as ET
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from artifacts.measurement import Bottleneck, EvidenceLevel, GuardFinding, Measurement, Outcome, Profile, Timing
from artifacts.task import TaskRef
from pipeline.report.run_view import Cost, RunView, StepView, TaskView


def timing(median: float) -> Timing:
    return Timing(median_us=median, low_us=median * 0.98, high_us=median * 1.03, samples_us=(median,))


def correct(median: float, eager: float = 800.0) -> Measurement:
    return Measurement(
        outcome=Outcome.CORRECT,
        stage="timing",
        device="cpu",
        timing=timing(median),
        baselines={"eager_fp32": timing(eager), "compile": timing(eager * 0.7)},
        profile=Profile(
            bottleneck=Bottleneck.MEMORY,
            evidence=EvidenceLevel.COUNTED,
            bound_us=110.0,
            fraction_of_bound=110.0 / median,
            findings=("moves 3 times the bytes it must",),
        ),
        checks=("3 hidden seeds", "inputs unmodified", "fresh addresses"),
        build_s=4.2,
        gpu_s=0.6,
        notes=("timed on a shared machine",),
    )


def failed(outcome: Outcome, error: str) -> Measurement:
    finding = GuardFinding(rule="no-fallback", message="calls the reference <Model>", line=12)
    return Measurement(outcome=outcome, stage="build", device="cpu", error=error, findings=(finding,), build_s=3.0)


def step(number: int, name: str, parent: str, measurement: Measurement, direction: str = "") -> StepView:
    return StepView(
        step=number,
        sha256=name * 16,
        parent=parent * 16,
        mode="first" if not parent else "optimize",
        direction=direction,
        strategies=("vectorised loads",) if direction else (),
        plan="Read four floats at once, keep the row in registers & reduce with <shuffles>.",
        probability=0.42 if direction else None,
        gate="",
        measurement=measurement,
        best=name == "aa06",
    )


def task(name: str, family: str, level: int) -> TaskView:
    steps = (
        step(0, "aa01", "", correct(900.0)),
        step(0, "aa02", "", failed(Outcome.COMPILE_ERROR, "error: expected ';' before '}'")),
        step(1, "aa03", "aa01", correct(620.0), "memory access"),
        step(1, "aa04", "aa01", failed(Outcome.WRONG_RESULT, "max error 0.3 at [0, 5]"), "data reuse"),
        step(2, "aa05", "aa03", correct(700.0), "parallel mapping"),
        step(2, "aa06", "aa03", correct(310.0), "fusion"),
        step(3, "aa07", "aa06", failed(Outcome.REJECTED, "returns the cached result"), "parameter tuning"),
        step(3, "aa08", "aa06", correct(330.0), "memory access"),
    )
    return TaskView(
        ref=TaskRef(task_id=name, suite="examples", family=family, level=level), status="finished", steps=steps
    )


@pytest.fixture
def run_view() -> RunView:
    broken = TaskView(
        ref=TaskRef(task_id="examples/2/hard", suite="examples", family="fusion", level=2),
        status="budget used up",
        steps=(step(0, "bb01", "", failed(Outcome.TIMEOUT, "build took longer than 300 s")),),
    )
    tasks = (task("examples/1/softmax", "softmax", 1), task("examples/1/rms_norm", "normalization", 1), broken)
    return RunView(
        run_id="demo-run",
        path=Path("runs/demo"),
        arm="htam",
        llm="replay:demo.jsonl",
        device="cpu",
        memory="demo@0123456789abcdef",
        facts={"steps": "4", "candidates per step": "2"},
        tasks=tasks,
        cost=Cost(calls=17, recorded=17, prompt_tokens=23456, completion_tokens=9876, build_s=31.0, gpu_s=4.2),
    )


@pytest.fixture
def measured() -> Callable[[float], Measurement]:
    return correct


class Tree(HTMLParser):
    """A page as elements that can be asked with paths."""

    def __init__(self) -> None:
        super().__init__()
        self.builder = ET.TreeBuilder()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.builder.start(tag, {name: value or "" for name, value in attrs})
        if tag in ("meta", "br", "wbr", "input"):
            self.builder.end(tag)

    def handle_endtag(self, tag: str) -> None:
        self.builder.end(tag)

    def handle_data(self, data: str) -> None:
        self.builder.data(data)


@pytest.fixture
def tree() -> Callable[[str], ET.Element]:
    def parsed(text: str) -> ET.Element:
        reader = Tree()
        reader.feed(text[text.index("<html") :].rstrip())
        reader.close()
        return reader.builder.close()

    return parsed

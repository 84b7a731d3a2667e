from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from artifacts.candidate import Language
from artifacts.codec import encode
from artifacts.errors import RunLogError
from artifacts.measurement import Measurement
from artifacts.run_events import LoggedStep, TaskFinished, TaskStarted
from artifacts.runlog import RunLog
from artifacts.task import TaskRef
from artifacts.trajectory import State
from pipeline.report.run_page import run_page
from pipeline.report.run_view import read_run

TASK = TaskRef(task_id="examples/1/softmax", suite="examples", family="softmax", level=1)


def logged(step_id: str, parent: str, measurement: Measurement | None, best: str = "") -> LoggedStep:
    return LoggedStep(
        task_id=TASK.task_id,
        step_id=step_id,
        parent_id=parent or None,
        index=int(step_id.split(".")[0]),
        mode="optimize" if parent else "first",
        candidate_sha256=step_id * 20 if measurement else "",
        parent_sha256=parent * 20,
        direction="d1" if parent else "",
        strategies=(),
        plan="reuse the row",
        state=State(family="softmax", arch="cpu", language=Language.CPP),
        measurement=measurement,
        best_id=best or step_id,
        error="" if measurement else "the answer holds no code block",
    )


@pytest.fixture
def run(tmp_path: Path, measured: Callable[[float], Measurement]) -> Path:
    with RunLog.create(
        tmp_path / "run", {"run_id": "r1", "arm": "htam", "llm": "replay:x", "memory": "demo@12"}
    ) as log:
        start = TaskStarted(task=TASK, source_sha256="0" * 64, path="softmax.py")
        log.append("task_started", encode(start), key=TASK.task_id)
        for number in range(3):
            answer = {"prompt_tokens": 100, "completion_tokens": 10, "cost_usd": 0.25, "seconds": 2.0, "recorded": True}
            log.append("answer", answer, key=f"k{number}")
        for step in (
            logged("0.0", "", measured(700.0)),
            logged("1.0", "0.0", measured(350.0)),
            logged("2.0", "1.0", None, best="1.0"),
        ):
            if step.measurement is not None:
                log.append("measurement", encode(step.measurement), key=f"{TASK.task_id}/{step.step_id}")
            log.append("step", encode(step), key=f"{TASK.task_id}/{step.step_id}")
        log.append("note", {"text": "timed on a busy machine"})
    return tmp_path / "run"


def test_a_run_that_was_cut_short_shows_the_best_candidate_of_its_last_step(run: Path) -> None:
    task = read_run(run).tasks[0]
    assert task.status == "not finished"
    assert task.speedup("eager_fp32") == pytest.approx(800.0 / 350.0)


def test_a_finished_task_shows_the_winner_that_the_search_named(run: Path) -> None:
    end = TaskFinished(task_id=TASK.task_id, reason="steps used", steps=3, best_step="0.0")
    with RunLog.open(run) as log:
        log.append("task_finished", encode(end), key=TASK.task_id)
    task = read_run(run).tasks[0]
    assert task.final
    assert task.final.step == 0


def test_cost_is_summed_over_answers_and_measurements(run: Path) -> None:
    cost = asdict(read_run(run).cost)
    assert (cost["calls"], cost["recorded"], cost["usd"], cost["prompt_tokens"]) == (3, 3, 0.75, 300)
    assert cost["build_s"] == 8.4


def test_an_answer_without_code_is_listed_with_its_reason(run: Path) -> None:
    last = read_run(run).tasks[0].steps[-1]
    assert (last.measurement.stage, last.measurement.error) == ("answer", "the answer holds no code block")


def test_directions_are_shown_under_their_names(run: Path) -> None:
    assert read_run(run, {"d1": "data reuse"}).tasks[0].steps[1].direction == "data reuse"


def test_notes_of_the_run_are_shown(run: Path) -> None:
    assert read_run(run).notes == ("timed on a busy machine",)


def test_a_folder_that_is_no_run_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(RunLogError, match=r"no manifest\.json"):
        read_run(tmp_path)


def test_a_step_without_direction_shows_the_intent_and_the_gate_of_its_choice(run: Path) -> None:
    intent = {"number": 2, "text": "fuse the bias into the product"}
    with RunLog.open(run) as log:
        log.append("choice", {"choice": {"gate": "nothing stands out", "intent": intent}}, key=f"{TASK.task_id}/0.0")
    first = read_run(run).tasks[0].steps[0]
    assert (first.direction, first.gate) == ("2. fuse the bias into the product", "nothing stands out")


def test_a_confirmed_winner_is_shown_with_its_second_measurement(
    run: Path, measured: Callable[[float], Measurement]
) -> None:
    end = TaskFinished(
        task_id=TASK.task_id,
        reason="steps used",
        steps=3,
        best_step="1.0",
        confirmed=measured(400.0),
        refuted={"2.0": "wrong_result when measured again"},
    )
    with RunLog.open(run) as log:
        log.append("task_finished", encode(end), key=TASK.task_id)
    task = read_run(run).tasks[0]
    assert task.speedup("eager_fp32") == pytest.approx(800.0 / 400.0)
    assert task.refuted == ("step 2.0: wrong_result when measured again",)
    page = run_page(read_run(run))
    assert "Measured again after the search" in page
    assert "failed when it was measured again" in page


def test_a_task_that_takes_more_steps_is_not_finished_until_it_has(run: Path) -> None:
    done = TaskFinished(task_id=TASK.task_id, reason="all steps used", steps=3, best_step="1.0")
    for kind, payload, status in (
        ("task_finished", encode(done), "all steps used"),
        ("steps_changed", {"steps": 5, "before": 3}, "not finished"),
        ("task_finished", encode(done), "all steps used"),
    ):
        with RunLog.open(run) as log:
            log.append(kind, payload, key=TASK.task_id if kind == "task_finished" else "")
        assert read_run(run).tasks[0].status == status

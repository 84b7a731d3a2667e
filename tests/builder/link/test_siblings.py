from dataclasses import replace

import pytest

from artifacts.candidate import Language
from artifacts.measurement import Outcome
from artifacts.task import TaskRef
from artifacts.trajectory import Provenance, Step, Trajectory, TrustFlag
from builder.describe.raw_transitions import raw_transitions
from builder.describe.steps import describe

READ = Provenance(format="x", importer_version=1, file="f", file_sha256="0" * 64)


def step(name: str, parent: str | None, code: str) -> Step:
    return Step(
        step_id=name,
        parent_id=parent,
        index=0 if parent is None else 1,
        code=code,
        language=Language.TRITON,
        outcome=Outcome.CORRECT,
        provenance=READ,
        runtime_us=10.0,
    )


def run(name: str, start: str = "x = 1\n", **changed: str) -> Trajectory:
    return Trajectory(
        trajectory_id=name,
        source=changed.get("source", "log"),
        task=TaskRef(task_id=changed.get("task", "s/1"), suite="s", family="matmul"),
        device=changed.get("device", "h100"),
        llm="",
        steps=(step("root", None, start), step("next", "root", f"{start}y = '{name}'\n")),
    )


def siblings(trajectory: Trajectory) -> str:
    return next(iter(raw_transitions(trajectory, describe(trajectory)))).transition.siblings


def test_children_of_the_same_code_are_siblings_in_whatever_trajectory() -> None:
    assert siblings(run("a")) == siblings(run("b"))


@pytest.mark.parametrize("changed", [{"source": "other"}, {"task": "s/2"}, {"device": "a100"}, {"start": "x = 2\n"}])
def test_another_source_task_device_or_code_is_another_parent(changed: dict[str, str]) -> None:
    assert siblings(run("a")) != siblings(run("b", **changed))


def test_steps_without_code_share_no_parent() -> None:
    bare = [
        replace(made, steps=tuple(replace(item, flags=frozenset({TrustFlag.NO_CODE})) for item in made.steps))
        for made in (run("a"), run("b"))
    ]
    assert siblings(bare[0]) != siblings(bare[1])

import dataclasses
import xml.etree.ElementTree as ET
from collections.abc import Callable

import pytest

from artifacts.measurement import Measurement
from pipeline.report import page
from pipeline.report.compare_page import Arm, compare_page, contest
from pipeline.report.figures import summarise
from pipeline.report.run_view import RunView

Parse = Callable[[str], ET.Element]


def test_two_arms_are_compared_in_pairs_over_their_tasks(run_view: RunView) -> None:
    weaker = dataclasses.replace(run_view, arm="feedback", run_id="other", tasks=run_view.tasks[1:])
    text = compare_page([run_view, weaker])
    assert "htam against feedback" in text
    assert "not run" in text
    assert not page.OUTSIDE.search(text)


def test_runs_of_the_same_arm_are_told_apart_by_their_ids(run_view: RunView) -> None:
    assert "htam (second)" in compare_page([run_view, dataclasses.replace(run_view, run_id="second")])


def test_what_is_unfinished_or_doubted_is_left_out_of_pairs_and_said(run_view: RunView, tree: Parse) -> None:
    unfinished = dataclasses.replace(run_view.tasks[0], finished=False)
    other = dataclasses.replace(run_view, arm="feedback", tasks=(unfinished, *run_view.tasks[1:]))
    arms = [Arm(name=run.arm, run=run, summary=summarise([])) for run in (run_view, other)]
    found = contest(*arms)
    assert found.left_out == {"examples/1/softmax": "unfinished"}
    assert found.found
    assert found.found.tasks == 2
    page = tree(compare_page([run_view, other]))
    cells = page.findall(".//section[@id='tasks']//tbody/tr[2]/td")
    tags = [[tag.text for tag in cell.findall("span")] for cell in cells[1:]]
    assert tags == [["unconfirmed"], ["unfinished", "unconfirmed"]]


def test_a_winner_that_was_measured_again_meets_one_that_was_not_by_the_figures_of_the_search(
    run_view: RunView, measured: Callable[[float], Measurement]
) -> None:
    again = dataclasses.replace(run_view.tasks[0], confirmed=measured(620.0))
    runs = [dataclasses.replace(run_view, tasks=(task,)) for task in (again, run_view.tasks[0])]
    found = contest(*(Arm(name="", run=run, summary=summarise([])) for run in runs))
    assert found.searched == ("examples/1/softmax",)
    assert found.found
    assert found.left_out == {}
    assert found.found.ratio == pytest.approx(1.0)

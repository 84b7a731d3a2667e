import dataclasses
import html
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest

from artifacts.measurement import Doubt, DoubtKind, Measurement, Outcome
from pipeline.report import page
from pipeline.report.charts import Chart, fast_p_chart
from pipeline.report.run_page import difference, run_page, scale_of, speed_over_steps, way
from pipeline.report.run_view import RunView, TaskView, read_run

ROOT = Path(__file__).parents[2]
Parse = Callable[[str], ET.Element]


class Balance(HTMLParser):
    """Counts tags that are opened and not closed, or closed and not opened."""

    VOID = ("meta", "br", "wbr", "input", "link", "img", "hr")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.ids: list[str] = []
        self.targets: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.ids += [value for value in [values.get("id")] if value]
        self.targets += [link[1:] for link in [values.get("href") or ""] if link.startswith("#")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)


def drawn(run: RunView) -> Chart:
    chart = speed_over_steps(run.tasks[0], scale_of(run))
    assert chart
    return chart


def parsed(text: str) -> Balance:
    balance = Balance()
    balance.feed(text)
    balance.close()
    return balance


def test_the_page_is_well_formed_and_its_links_lead_somewhere(run_view: RunView) -> None:
    balance = parsed(run_page(run_view))
    assert (balance.open, balance.wrong) == ([], [])
    assert len(balance.ids) == len(set(balance.ids))
    assert set(balance.targets) <= set(balance.ids)


def test_the_page_loads_nothing_from_elsewhere(run_view: RunView) -> None:
    assert not page.OUTSIDE.search(run_page(run_view))


def test_text_of_models_and_logs_is_escaped(run_view: RunView) -> None:
    text = run_page(run_view)
    assert "<shuffles>" not in text
    assert html.escape("<shuffles>") in text


@pytest.mark.parametrize(
    "said", ["Recorded answers.", "1.88×", "2 / 3", "returns the cached result", "build took longer"]
)
def test_the_page_says_what_a_colleague_asks_first(run_view: RunView, said: str) -> None:
    assert said in run_page(run_view)


def test_a_run_without_any_step_still_has_a_page(run_view: RunView) -> None:
    assert "No candidate of this run has been timed yet." in run_page(dataclasses.replace(run_view, tasks=()))


def test_the_way_leads_from_the_first_step_to_the_final_candidate(run_view: RunView) -> None:
    assert way(run_view.tasks[0]) == ["first", "memory access", "fusion"]


def test_a_task_that_was_never_timed_has_no_speed_chart(run_view: RunView) -> None:
    assert speed_over_steps(run_view.tasks[2], scale_of(run_view)) is None


def test_no_two_candidates_of_a_task_share_a_place(run_view: RunView) -> None:
    chart = drawn(run_view)
    places = [(dot.x, dot.y) for dot in chart.dots]
    assert len(places) == len(set(places))


WAITED = Doubt(kind=DoubtKind.UNSTEADY, text="the candidate took 1 to 800 us")


def changed(run: RunView, **fields: object) -> RunView:
    """The run with its first task changed."""
    return dataclasses.replace(run, tasks=(dataclasses.replace(run.tasks[0], **fields), *run.tasks[1:]))  # type: ignore[arg-type]


def remeasured(task: TaskView, **fields: object) -> TaskView:
    """The task with another measurement of its final candidate."""
    steps = [
        dataclasses.replace(step, measurement=dataclasses.replace(step.measurement, **fields)) if step.best else step  # type: ignore[arg-type]
        for step in task.steps
    ]
    return dataclasses.replace(task, steps=tuple(steps))


def row_of(page: ET.Element, task: str) -> ET.Element:
    rows = page.findall(".//section[@id='result']//tbody/tr")
    return next(row for row in rows if text_of(row).startswith(task))


def text_of(element: ET.Element) -> str:
    return " ".join("".join(element.itertext()).split())


def test_a_ratio_that_is_not_to_be_believed_is_not_green_and_in_no_figure(run_view: RunView, tree: Parse) -> None:
    task = remeasured(run_view.tasks[0], doubts=(WAITED,))
    run = changed(run_view, steps=task.steps)
    page = tree(run_page(run))
    row = row_of(page, "examples/1/softmax")
    assert "1.81×unsteady" in text_of(row)
    assert row.findall(".//*[@class='good']") == []
    assert row_of(page, "examples/1/rms_norm").findall(".//*[@class='good']") != []
    hero = page.find(".//article[@id='examples-1-softmax']//div[@class='hero']")
    assert hero is not None
    assert [text_of(item) for item in hero.findall(".//li[@class='bad']")] == [f"Unsteady: {WAITED.text}."]
    assert list(run.speedups()) == ["examples/1/rms_norm", "examples/2/hard"]
    assert "Left out of every figure" in text_of(page)


@pytest.mark.parametrize(
    ("fields", "mark"), [({"finished": False}, "unfinished"), ({"confirmed": None}, "unconfirmed")]
)
def test_unfinished_and_unconfirmed_tasks_bear_a_mark_beside_their_ratio(
    run_view: RunView, tree: Parse, fields: dict[str, object], mark: str
) -> None:
    again = run_view.tasks[0].searched
    run = changed(run_view, **{"confirmed": again} | fields)
    row = row_of(tree(run_page(run)), "examples/1/softmax")
    assert [text_of(tag) for tag in row.findall("td[2]/span")] == [mark]
    sure = changed(run_view, confirmed=again)
    assert row_of(tree(run_page(sure)), "examples/1/softmax").findall("td[2]/span") == []


def test_a_task_whose_reference_fails_is_not_called_unfinished(run_view: RunView, tree: Parse) -> None:
    run = changed(run_view, finished=False, status="cannot be evaluated: RuntimeError: no memory", steps=())
    page = tree(run_page(run))
    row = row_of(page, "examples/1/softmax")
    assert [text_of(tag) for tag in row.findall("td[2]/span[2]")] == ["cannot be evaluated"]
    assert "examples/1/softmax" not in run.speedups()


def test_the_page_of_one_task_begins_with_the_result_and_how_to_use_it(
    run_view: RunView, tree: Parse, tmp_path: Path
) -> None:
    task = dataclasses.replace(
        run_view.tasks[0],
        first_source="x = 1\ny = 2\n",
        source="x = 1\ny = 3\n",
        file=tmp_path / "best" / "softmax.py",
    )
    first, *_ = tree(run_page(dataclasses.replace(run_view, tasks=(task,)))).findall(".//main/section")
    assert first.get("id") == "result"
    assert text_of(first).startswith("Result 560 µscompile, the fastest baseline → 310 µsthe best kernel 1.81×")
    use, code, changes = first.findall(".//pre")
    assert len((use.text or "").splitlines()) == 3
    assert f'"{tmp_path}/best"' in (use.text or "")
    assert code.text == task.source
    assert [span.get("class") for span in changes] == ["place", "", "removed", "added"]
    assert text_of(changes).endswith("x = 1 -y = 2 +y = 3")


def test_the_three_lines_load_the_kernel_that_a_run_wrote(tmp_path: Path) -> None:
    from optimizer.run.winners import LOADER

    (tmp_path / "used_softmax.py").write_text(f"class ModelNew:\n    width = 3\n{LOADER}")
    space: dict[str, object] = {"init_args": [], "model": None}
    exec(f'import sys; sys.path.insert(0, "{tmp_path}")\nfrom used_softmax import load\nfast = load(*init_args)', space)
    assert space["fast"].width == 3  # type: ignore[attr-defined]


def test_a_shipped_run_shows_code_and_what_changed_since_the_first_correct_candidate() -> None:
    tasks = {task.ref.task_id: task for task in read_run(ROOT / "examples" / "logs" / "cpu-first").tasks}
    assert all("class ModelNew" in task.source for task in tasks.values())
    assert difference(tasks["cpu/-/row_softmax"]) == []  # its first candidate won
    assert {"added", "removed"} <= {kind for kind, _ in difference(tasks["cpu/-/rms_norm"])}


def test_a_step_that_failed_shows_the_first_error_of_its_compiler(run_view: RunView, tree: Parse) -> None:
    said = "In file included from a.h:1:\nown.cpp:7:3: error: expected ';' before '}' token\nmore"
    broken = Measurement(outcome=Outcome.COMPILE_ERROR, stage="build", device="cpu", error=said)
    steps = (dataclasses.replace(run_view.tasks[0].steps[1], measurement=broken), *run_view.tasks[0].steps)
    page = tree(run_page(changed(run_view, steps=steps)))
    (line,) = page.findall(".//tr[@id='examples-1-softmax-0']/td[5]/code")
    assert text_of(line).startswith("own.cpp:7:3: error: expected ';'")


def test_failures_stand_in_a_strip_of_their_own(run_view: RunView) -> None:
    chart = drawn(run_view)
    failed = {dot.y for dot in chart.dots if dot.kind == "failed"}
    others = [dot.y for dot in chart.dots if dot.kind != "failed"]
    assert chart.strip is not None
    assert failed == {chart.strip}
    assert chart.strip - 9 > max([*others, *(y for line in chart.lines for _, y in line.points)])


def test_all_charts_of_a_page_have_one_scale(run_view: RunView) -> None:
    slow = remeasured(run_view.tasks[0], timing=dataclasses.replace(run_view.tasks[0].steps[0].measurement.timing))  # type: ignore[type-var]
    run = dataclasses.replace(run_view, tasks=(slow, *run_view.tasks[1:]))
    charts = [speed_over_steps(task, scale_of(run)) for task in run.tasks[:2]]
    assert charts[0]
    assert charts[1]
    assert (charts[0].x_ticks, charts[0].y_ticks) == (charts[1].x_ticks, charts[1].y_ticks)


def test_a_fast_p_curve_has_steps_at_the_speedups_and_no_slopes() -> None:
    (line,) = fast_p_chart({"a": [0.8, 1.5, 3.0, None]}).lines
    assert all(a[0] == b[0] or a[1] == b[1] for a, b in pairwise(line.points))
    assert len({y for _, y in line.points}) == 4  # 3 of 4 tasks, then 2, 1 and none


def test_labels_of_a_chart_end_on_it(run_view: RunView) -> None:
    chart = drawn(run_view)
    assert chart.width <= 400
    assert max(chart.right + 6 + 6.3 * len(line.name) for line in chart.lines) <= chart.width


def test_the_speedup_is_the_second_column_of_every_table_that_has_one(run_view: RunView, tree: Parse) -> None:
    heads = [[text_of(cell) for cell in head] for head in tree(run_page(run_view)).findall(".//thead/tr")]
    second = [head[1] for head in heads if {"speedup", "over all"} & set(head)]
    assert second == ["speedup"] * 4 + ["over all"]


def test_one_of_a_kind_is_not_said_in_the_plural(run_view: RunView) -> None:
    cost = dataclasses.replace(run_view.cost, calls=1, recorded=1)
    text = run_page(dataclasses.replace(run_view, tasks=run_view.tasks[:1], cost=cost))
    assert re.findall(r"\b1 (?:tasks|checks|calls|lines|model answers|tokens)\b", text) == []

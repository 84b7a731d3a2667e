import dataclasses
import html
from html.parser import HTMLParser

import pytest

from pipeline.report import page
from pipeline.report.run_charts import fast_p_curves, lineage, speed_over_steps
from pipeline.report.run_page import run_page, way
from pipeline.report.run_view import RunView


class Balance(HTMLParser):
    """Counts tags that are opened and not closed, or closed and not opened."""

    VOID = ("meta", "br", "input", "link", "img", "hr")

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
    assert speed_over_steps(run_view.tasks[2]) is None


def test_no_two_candidates_of_a_lineage_share_a_place(run_view: RunView) -> None:
    tree = lineage(run_view.tasks[0])
    assert tree
    places = [(node.x, node.y) for node in tree.nodes]
    assert len(places) == len(set(places))


def test_every_baseline_has_its_fast_p_curve(run_view: RunView) -> None:
    chart = fast_p_curves(run_view)
    assert chart
    assert [line.name for line in chart.lines] == ["vs eager", "vs compile"]

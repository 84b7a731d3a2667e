import importlib.util
import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pytest

from artifacts.memory.htg import Memory
from artifacts.trajectory import Quarantined
from pipeline.report import page
from pipeline.report.charts import bar
from pipeline.report.memory_page import largest_node, least_steps, memory_page, nodes, stated
from pipeline.report.memory_view import view


def module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mined", Path(__file__).with_name("mined.py"))
    assert spec
    assert spec.loader
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@pytest.fixture(scope="module")
def memory() -> Memory:
    made: Memory = module().memory()
    return made


@pytest.fixture(scope="module")
def text(memory: Memory) -> str:
    return memory_page(memory, [Quarantined(file="a.jsonl", line=3, reason="not JSON")])


def test_the_page_loads_nothing_from_elsewhere(text: str) -> None:
    assert not page.OUTSIDE.search(text)


def test_texts_of_logs_are_escaped_in_markup_and_script(text: str) -> None:
    assert "<shuffles>" not in text
    assert "<to the inner loop>" not in text


def test_every_strategy_is_on_the_page(memory: Memory, text: str) -> None:
    assert [item.name for item in memory.strategies if item.name not in text] == []


def test_edges_account_for_every_measured_step_with_a_direction(memory: Memory) -> None:
    shown = view(memory)
    assert sum(edge.n for edge in shown.edges) == shown.measured


def test_worked_examples_hold_the_largest_gain_of_their_strategy(memory: Memory) -> None:
    shown = view(memory)
    for strategy in memory.strategies:
        rewards = [item.reward for item in memory.rows_of(strategy.strategy_id) if item.reward is not None]
        gains = [item.reward for item in shown.examples[strategy.strategy_id] if item.reward is not None]
        assert max(gains) == max(rewards)


def test_quarantined_records_are_grouped_by_reason_with_a_place(text: str) -> None:
    assert "not JSON" in text
    assert "a.jsonl:3" in text


def test_directions_do_not_overlap_on_the_circle(memory: Memory) -> None:
    places = [(node.x, node.y) for node in nodes(view(memory))]
    assert len(set(places)) == len(places)


def test_the_opened_graph_is_thinned_until_it_can_be_read() -> None:
    assert least_steps(view(module().memory(transitions=1500))) > 1


def test_bars_stay_inside_their_frame(memory: Memory) -> None:
    for strategy in memory.strategies:
        effect = strategy.effect
        drawn = bar(effect.low, effect.mean, effect.high, 0.1)
        assert 0.0 <= float(drawn["low"]) <= 150.0
        assert 0.0 <= float(drawn["mean"]) <= 150.0


def test_a_thousand_strategies_make_a_page_of_a_few_megabytes() -> None:
    assert len(memory_page(module().memory(1000, 4000))) < 4_000_000


def test_the_arrows_into_a_direction_hold_all_its_measured_steps(memory: Memory) -> None:
    shown = view(memory)
    for direction in shown.directions:
        assert sum(edge.n for edge in shown.edges if edge.target == direction.direction_id) == direction.effect.n


@pytest.mark.parametrize("count", [21, 60, 110])
def test_labels_of_many_directions_stand_like_spokes_and_cover_no_other(memory: Memory, count: int) -> None:
    shown = view(memory)
    several = tuple(
        replace(shown.directions[0], direction_id=f"d{n}", name=f"direction {n} " * 5) for n in range(count)
    )
    placed = [node for node in nodes(replace(shown, directions=several)) if node.spoke]
    assert len(placed) == count
    for one, other in pairwise(placed):
        assert math.dist((one.label_x, one.label_y), (other.label_x, other.label_y)) > 13
        assert math.dist((one.x, one.y), (other.x, other.y)) >= 2 * 0.99 * largest_node(count)


@pytest.mark.parametrize("count", range(2, 21))
def test_no_two_labels_of_a_circle_are_centred_side_by_side(memory: Memory, count: int) -> None:
    shown = view(memory)
    several = tuple(replace(shown.directions[0], direction_id=f"d{n}", name=f"direction {n}") for n in range(count))
    around = nodes(replace(shown, directions=several))[1:]
    centred = [node for node in around if node.anchor == "middle"]
    for one, other in pairwise(sorted(centred, key=lambda node: node.label_y)):
        assert other.label_y - one.label_y > 100


def test_the_page_says_how_many_strategies_know_when_they_gain_and_fail(memory: Memory, text: str) -> None:
    gain, fail = stated(memory.strategies)
    assert f"{gain} of {len(memory.strategies)} strategies say when they gain and {fail} how they fail" in text

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from artifacts.memory.diff import diff
from artifacts.memory.export import export_lines, solution_lines
from artifacts.memory.htg import Memory
from artifacts.memory.records import Transition

Build = Callable[..., Memory]


def relabel(transitions: list[Transition], name: Callable[[Transition], str]) -> list[Transition]:
    return [replace(item, direction_id=name(item), strategy_id=f"{name(item)}.0") for item in transitions]


def test_a_memory_does_not_differ_from_itself(memory: Memory) -> None:
    found = diff(memory, memory)
    assert found.transitions_added == found.transitions_removed == 0
    for level in (found.directions, found.strategies):
        assert not any((level.appeared, level.vanished, level.split, level.merged, level.renamed, level.moved))


def test_a_split_and_a_merge_are_seen_as_such(memory: Memory, transitions: list[Transition], build: Build) -> None:
    halves = relabel(
        transitions,
        lambda t: f"{t.direction_id}{int(t.transition_id[-1]) % 2}" if t.direction_id == "fusion" else t.direction_id,
    )
    split = diff(memory, build(halves)).directions
    assert split.split == (("fusion", ("fusion0", "fusion1")),)
    assert not split.merged
    merged = diff(build(halves), memory).directions
    assert merged.merged == (("fusion", ("fusion0", "fusion1")),)
    assert not merged.split


def test_a_new_name_is_a_renaming(memory: Memory, transitions: list[Transition], build: Build) -> None:
    renamed = relabel(transitions, lambda item: item.direction_id.replace("tuning", "parameters"))
    found = diff(memory, build(renamed)).directions
    assert found.renamed == (("tuning", "parameters"),)
    assert not found.appeared
    assert not found.vanished


def test_new_experience_appears(memory: Memory, transitions: list[Transition], build: Build) -> None:
    without = build([item for item in transitions if item.direction_id != "fusion"])
    found = diff(without, memory)
    assert found.directions.appeared == ("fusion",)
    assert found.transitions_added == sum(item.direction_id == "fusion" for item in transitions)
    assert diff(memory, without).directions.vanished == ("fusion",)


def test_an_effect_that_left_its_interval_has_moved(
    memory: Memory, transitions: list[Transition], build: Build
) -> None:
    shifted = [
        replace(item, reward=item.reward + 2.0) if item.direction_id == "tuning" and item.reward is not None else item
        for item in transitions
    ]
    moved = diff(memory, build(shifted)).directions.moved
    assert [item.identity for item in moved] == ["tuning"]
    assert moved[0].after - moved[0].before == pytest.approx(2.0, rel=0.05)


def test_every_exported_line_is_json_of_a_known_kind(memory: Memory) -> None:
    kinds = [json.loads(line)["kind"] for line in export_lines(memory)]
    assert kinds == ["manifest", *["direction"] * 3, *["strategy"] * 3, *["transition"] * 300]


def test_exported_traces_are_the_measured_transitions(memory: Memory, transitions: list[Transition]) -> None:
    traces = [json.loads(line) for line in solution_lines(memory)]
    assert len(traces) == sum(item.reward is not None for item in transitions)
    assert all(trace["status"] == "correct" and trace["latency_ms"] > 0 for trace in traces)


def test_rows_that_changed_under_their_ids_are_counted_by_what_changed(
    memory: Memory, transitions: list[Transition], build: Build
) -> None:
    first = min(transitions, key=lambda item: item.transition_id)
    others = [
        replace(item, siblings="alone", state=replace(item.state, step=item.state.step + 1)) if item is first else item
        for item in transitions
    ]
    found = diff(memory, build(others))
    assert (found.transitions_added, found.transitions_removed, found.transitions_changed) == (0, 0, 1)
    assert dict(found.fields_changed).keys() >= {"siblings", "state"}
    assert dict(found.fields_changed)["siblings"] == 1


def test_an_effect_that_stayed_in_its_interval_has_shifted(
    memory: Memory, transitions: list[Transition], build: Build
) -> None:
    nudged = [
        replace(item, reward=item.reward + 0.01) if item.direction_id == "tuning" and item.reward is not None else item
        for item in transitions
    ]
    found = diff(memory, build(nudged)).directions
    assert not found.moved
    assert [item.identity for item in found.shifted] == ["tuning"]


def test_other_settings_and_texts_are_named(memory: Memory) -> None:
    strategies = tuple(replace(item, intent="otherwise") for item in memory.strategies)
    made = replace(memory.manifest, settings={"refine": "a model"})
    found = diff(memory, replace(memory, manifest=made, strategies=strategies))
    assert found.made_otherwise == ("settings",)
    assert {names for _, names in found.strategies.edited} == {("intent",)}

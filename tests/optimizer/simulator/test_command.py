import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from artifacts.errors import BadInputError
from artifacts.memory.htg import Memory
from artifacts.memory.store import MemoryStore
from optimizer.selection import SelectionSettings
from optimizer.simulator.world import WorldSettings
from pipeline.commands.simulate import command


@pytest.fixture
def store(memory_with: Callable[..., Memory], tmp_path: Path) -> str:
    MemoryStore(str(tmp_path / "store")).publish(memory_with(1.0, count=200))
    return str(tmp_path / "store")


def simulate(store: str, *words: str) -> Result:
    return CliRunner().invoke(command, ["--memory", "test", "--store", store, "--runs", "1", "--steps", "2", *words])


def test_a_table_names_every_arm(store: str) -> None:
    result = simulate(store, "--arm", "feedback", "--arm", "htam")
    assert result.exit_code == 0, result.output
    assert "20 tasks, 200 transitions, 40 simulated runs" in result.output
    assert [line.split()[0] for line in result.output.splitlines()[2:]] == ["feedback", "htam"]


def test_json_holds_intervals_and_what_was_followed(store: str) -> None:
    found = json.loads(simulate(store, "--arm", "feedback", "--arm", "htam", "--json").stdout)
    htam = found["arms"][1]
    assert htam["difference"]["low"] <= htam["difference"]["value"] <= htam["difference"]["high"]
    assert 0 < htam["followed"] <= 1


def test_an_unknown_arm_is_one_clear_error(store: str) -> None:
    result = simulate(store, "--arm", "nobody")
    assert isinstance(result.exception, BadInputError)
    assert "nobody" in str(result.exception)


def test_a_value_out_of_range_is_refused_with_its_option(store: str) -> None:
    result = simulate(store, "--folds", "1")
    assert result.exit_code != 0
    assert "folds" in f"{result.output} {result.exception}"


def test_defaults_are_those_of_the_optimizer() -> None:
    told = {parameter.name: parameter.default for parameter in command.params}
    own = SelectionSettings()
    assert (told["explore"], told["optimism"], told["lead"]) == (own.explore, own.optimism, own.least_lead)
    assert told["foreign"] == WorldSettings().foreign


def test_a_gate_that_nothing_passes_leaves_feedback_alone(store: str) -> None:
    found = json.loads(
        simulate(store, "--arm", "feedback", "--arm", "htam", "--lead", "1000", "--explore", "0", "--json").stdout
    )
    assert found["arms"][1]["directed"] == 0
    assert found["arms"][1]["by_step"] == found["arms"][0]["by_step"]

"""``htam memory replay`` on a made-up memory."""

import importlib.util
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from artifacts.memory.store import MemoryStore
from builder.build import BuildSettings, build
from pipeline.commands.memory_replay import command


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    spec = importlib.util.spec_from_file_location("mined", Path(__file__).with_name("mined.py"))
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    url = str(tmp_path_factory.mktemp("store"))
    MemoryStore(url).publish(module.memory(transitions=200))
    return url


def test_every_figure_comes_out_as_json(store: str) -> None:
    result = CliRunner().invoke(command, ["mined", "--store", store, "--json"], catch_exceptions=False)
    report = json.loads(result.output)
    assert [level["level"] for level in report["levels"]] == ["direction", "strategy"]
    rankers = {item["ranker"] for item in report["levels"][0]["figures"]}
    assert {"htam", "no direction", "popularity", "nearest neighbours", "permuted memory"} <= rankers


def test_logs_are_read_with_the_encoder_of_the_memory_also_where_that_is_none(tmp_path: Path) -> None:
    logs = Path(__file__).parents[2] / "examples" / "lineage"
    memory = build([logs], BuildSettings(name="own", model="hashing", replay=False)).memory
    MemoryStore(str(tmp_path / "store")).publish(memory)
    words = ["own", "--store", str(tmp_path / "store"), "--test-logs", str(logs), "--work", str(tmp_path / "work")]
    result = CliRunner().invoke(command, words, catch_exceptions=False)
    assert "no decision point" in result.output


def test_the_text_says_what_is_beaten_and_what_could_not_be_told(store: str) -> None:
    result = CliRunner().invoke(command, ["mined", "--store", store], catch_exceptions=False)
    assert "surely beaten:" in result.output
    assert "could not be distinguished from chance" in result.output

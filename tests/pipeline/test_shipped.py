"""The memory that travels with the package: whole, of the shipped logs, and used where it knows the device."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from artifacts.memory.shipped import SHIPPED, STORE, load_memory, steps_on
from artifacts.memory.store import MemoryStore
from builder.read.reading import discover, log_digest
from pipeline.cli import cli

ROOT = Path(__file__).parents[2]
TASK = str(ROOT / "examples/tasks/cuda/row_softmax.py")
LARGEST = 3_000_000
"""Bytes that every installation downloads for it."""


def optimize(run: Path, *words: str) -> Result:
    base = ["optimize", TASK, "--llm", "files", "--evaluator", "files", "--backend", "cuda", "--run", str(run)]
    return CliRunner().invoke(cli, [*base, *words])


def manifest(run: Path) -> dict[str, object]:
    read: dict[str, object] = json.loads((run / "manifest.json").read_text())
    return read


def test_it_is_whole_alone_and_small() -> None:
    store = MemoryStore(str(STORE))
    version = store.verify(SHIPPED)
    assert store.versions(SHIPPED) == (version.version,)
    assert sum(path.stat().st_size for path in STORE.rglob("*") if path.is_file()) < LARGEST


def test_it_was_built_from_the_logs_that_the_project_ships() -> None:
    shipped = {log_digest(log) for log in discover([ROOT / "examples/logs", ROOT / "examples/lineage"])}
    assert {item.sha256 for item in load_memory("", SHIPPED).manifest.inputs} == shipped, "run make memory"


@pytest.mark.parametrize(("arch", "language"), [("sm_90", "cuda"), ("cpu", "cpp")])
def test_it_knows_the_devices_that_its_card_names(arch: str, language: str) -> None:
    assert steps_on(load_memory("", SHIPPED), arch, language) > 0


@pytest.mark.parametrize("device", ["h100", "NVIDIA H200"])
def test_a_run_on_a_device_that_it_knows_uses_it_and_says_so(device: str, tmp_path: Path) -> None:
    begun = optimize(tmp_path / "run", "--device", device)
    reference = load_memory("", SHIPPED).reference
    assert begun.exit_code == 0
    assert f"memory {reference}: " in begun.output
    assert (manifest(tmp_path / "run")["memory"], manifest(tmp_path / "run")["arm"]) == (reference, "htam")
    assert optimize(tmp_path / "run", "--device", device).exit_code == 0  # resumes with what it began with
    assert not list(STORE.rglob("pins*"))


@pytest.mark.parametrize("words", [("--device", "a100"), ("--device", "h200", "--memory", "none")])
def test_without_it_a_run_goes_by_measurements_alone(words: tuple[str, ...], tmp_path: Path) -> None:
    assert optimize(tmp_path / "run", *words).exit_code == 0
    assert (manifest(tmp_path / "run")["memory"], manifest(tmp_path / "run")["arm"]) == ("", "feedback")
    assert optimize(tmp_path / "run", *words).exit_code == 0


def test_its_card_says_what_it_is_from_and_what_was_not_shown() -> None:
    card = CliRunner().invoke(cli, ["memory", "show", SHIPPED]).output
    assert "Not shown:" in card
    assert "cuda on sm_90" in card

"""``htam evaluate``: common mistakes are one clear line."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from artifacts.errors import BadInputError, BadTaskError, UnavailableError
from pipeline.commands.evaluate import command

TASK = "class Model: ...\ndef get_inputs(): ...\n"


def problem(*arguments: str) -> BaseException | None:
    return CliRunner().invoke(command, arguments).exception


@pytest.fixture
def task(tmp_path: Path) -> Path:
    path = tmp_path / "task.py"
    path.write_text(TASK, encoding="utf-8")
    return path


def test_a_task_without_model_is_named(tmp_path: Path) -> None:
    path = tmp_path / "nothing.py"
    path.write_text("x = 1\n", encoding="utf-8")
    found = problem(str(path), str(path))
    assert isinstance(found, BadTaskError)
    assert "nothing.py does not define Model and get_inputs" in str(found)


def test_a_task_that_is_no_python_is_named(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("def (", encoding="utf-8")
    assert isinstance(problem(str(path), str(path)), BadTaskError)


def test_missing_files_are_named(task: Path) -> None:
    assert isinstance(problem(str(task.parent / "none.py"), str(task)), BadInputError)
    assert "candidate" in str(problem(str(task), str(task.parent / "none.py")))


def test_a_binary_file_is_no_candidate(task: Path) -> None:
    path = task.parent / "binary.py"
    path.write_bytes(b"\xff\xfe\x00")
    assert "UTF-8" in str(problem(str(task), str(path)))


def test_cuda_without_a_device_says_so(task: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("optimizer.evaluation.worker.devices.shutil.which", lambda name: None)
    assert isinstance(problem(str(task), str(task), "--backend", "cuda"), UnavailableError)

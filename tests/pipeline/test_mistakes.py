"""What goes wrong outside the program is one line and an exit code; what goes wrong inside keeps its traceback."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from artifacts.errors import UnavailableError
from optimizer.evaluation.deploy_file import try_in_file
from pipeline.cli import main

TASK = Path(__file__).parents[2] / "examples/tasks/cpu/row_softmax.py"
OPTIMIZE = ("optimize", str(TASK), "--llm", "files", "--arm", "feedback")


def htam(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    assert isinstance(ended.value.code, int)
    return ended.value.code


def one_line(captured: pytest.CaptureFixture[str]) -> str:
    lines = [line for line in captured.readouterr().err.splitlines() if line]
    assert len(lines) == 1
    assert lines[0].startswith("htam: ")
    return lines[0]


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """``htam doctor`` raises what the test asks for."""

    def fail() -> None:
        raise request.param

    monkeypatch.setattr("pipeline.commands.doctor.command", click.Command("doctor", callback=fail))


@pytest.mark.parametrize("broken", [KeyboardInterrupt()], indirect=True)
@pytest.mark.usefixtures("broken")
def test_ctrl_c_is_one_line_and_exit_code_130(capsys: pytest.CaptureFixture[str]) -> None:
    assert htam("doctor") == 130
    assert one_line(capsys) == "htam: interrupted"


@pytest.mark.parametrize("broken", [PermissionError(errno.EACCES, "Permission denied", "/some/file")], indirect=True)
@pytest.mark.usefixtures("broken")
def test_what_the_system_refuses_names_the_file_and_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert htam("doctor") == 1
    assert one_line(capsys) == "htam: /some/file: Permission denied; correct its rights, or name another path"


@pytest.mark.parametrize("broken", [OSError(errno.EBADF, "Bad file descriptor"), ValueError("a bug")], indirect=True)
@pytest.mark.usefixtures("broken")
def test_a_bug_keeps_its_traceback() -> None:
    with pytest.raises((OSError, ValueError)):
        main(["doctor"])


def test_a_run_below_a_file_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert htam(*OPTIMIZE, "--run", str(tmp_path / "file/run")) == 1
    assert "Not a directory" in one_line(capsys)


def test_requests_cannot_replace_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert htam(*OPTIMIZE, "--run", str(tmp_path / "run")) == 0
    capsys.readouterr()
    assert htam("ask", str(tmp_path / "run"), "--requests", str(tmp_path)) == 1
    assert str(tmp_path) in one_line(capsys)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--steps", "0"),
        ("--candidates", "-1"),
        ("--explore", "2"),
        ("--workers", "0"),
        ("--concurrency", "0"),
        ("--max-tokens", "0"),
        ("--temperature", "-1"),
        ("--budget-usd", "0"),
        ("--seed", "-1"),
    ],
)
def test_a_value_out_of_range_names_its_option(
    tmp_path: Path, option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert htam(*OPTIMIZE, "--run", str(tmp_path / "run"), option, value) == 2
    error = capsys.readouterr().err
    assert option in error
    assert value in error
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--arm", "best"), "unknown arm 'best'; one of: htam"),
        (("--language", "triton"), "candidates in triton do not run on --backend cpu"),
        (("--prices", "/no/prices.toml"), "cannot read the price file /no/prices.toml"),
    ],
)
def test_settings_that_cannot_be_are_refused_before_the_run_begins(
    tmp_path: Path, words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert htam(*OPTIMIZE, "--run", str(tmp_path / "run"), *words) == 1
    assert said in one_line(capsys)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("logs", "name", "store", "said"),
    [
        ("none", "team", "store", "no logs at"),
        (".", "Not A Name", "store", "memory name 'Not A Name' is not allowed"),
        (".", "team", "file", "is a file"),
    ],
)
def test_a_build_that_cannot_end_well_does_not_begin(
    tmp_path: Path, logs: str, name: str, store: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    places = ("--store", str(tmp_path / store), "--work", str(tmp_path / "work"))
    assert htam("memory", "build", "--logs", str(tmp_path / logs), "--name", name, *places) == 1
    assert said in one_line(capsys)
    assert not (tmp_path / "work").exists()


def test_a_run_without_a_key_is_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    words = ("optimize", str(TASK), "--llm", "openai:m", "--arm", "feedback", "--run", str(tmp_path / "run"))
    assert htam(*words) == 1
    assert "OPENAI_API_KEY is not set" in one_line(capsys)
    assert not (tmp_path / "run").exists()


def test_a_run_without_a_device_is_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("optimizer.evaluation.worker.devices.nvidia_devices", tuple)
    words = ("--backend", "cuda", "--device", "h200", "--run", str(tmp_path / "run"))
    assert htam(*OPTIMIZE, *words) == 1
    assert "no CUDA device on this host" in one_line(capsys)
    assert not (tmp_path / "run").exists()


def test_a_file_is_no_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert htam("memory", "list", "--store", str(tmp_path / "file")) == 1
    assert "is a file; give a folder" in one_line(capsys)


def test_the_demo_removes_only_what_a_demo_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    assert htam("demo", "--home", str(tmp_path)) == 1
    assert "holds what no demo made" in one_line(capsys)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_a_path_that_is_no_run_is_not_taken_for_a_memory(capsys: pytest.CaptureFixture[str]) -> None:
    assert htam("report", "runs/none") == 1
    assert "runs/none is no run directory" in one_line(capsys)


def test_characters_that_the_encoding_lacks_are_escaped() -> None:
    command = [sys.executable, "-P", "-m", "pipeline", "report", "--help"]
    asked = subprocess.run(
        command, env=os.environ | {"PYTHONIOENCODING": "latin-1"}, capture_output=True, text=True, check=False
    )
    assert asked.returncode == 0
    assert "RUN\\u2026|MEMORY" in asked.stdout


def test_a_device_that_torch_cannot_use_is_said() -> None:
    with pytest.raises(UnavailableError, match="device 'gpu9' cannot be used"):
        try_in_file(TASK, {}, "gpu9", 1)


def test_a_command_that_is_almost_named_is_suggested(capsys: pytest.CaptureFixture[str]) -> None:
    assert htam("optimise") == 2
    assert "No such command 'optimise'. Did you mean 'optimize'?" in capsys.readouterr().err
    assert htam("zzz") == 2
    assert "Did you mean" not in capsys.readouterr().err

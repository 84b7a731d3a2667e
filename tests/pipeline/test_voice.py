"""Long commands are never silent, unless they are told to be."""

import re
import time

import click
import pytest
from click.testing import CliRunner

from pipeline import voice
from pipeline.voice import counted, doing, long_command, say


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(voice, "BEAT_S", 0.1)


@click.command()
@long_command("working")
def command() -> None:
    say("begun")
    with doing("building row_softmax"):
        time.sleep(0.5)
    click.echo("result")


def test_a_silent_command_says_what_it_does_and_for_how_long() -> None:
    begin = time.monotonic()
    done = CliRunner().invoke(command)
    most = (time.monotonic() - begin) / voice.BEAT_S
    assert done.stdout == "result\n"
    first, *beats = done.stderr.splitlines()
    assert first == "begun"
    assert 1 <= len(beats) <= most
    assert all(re.fullmatch(r"building row_softmax \(\d+ s\)", beat) for beat in beats)


def test_quiet_leaves_the_result_alone_and_ends_with_the_command() -> None:
    done = CliRunner().invoke(command, ["--quiet"])
    assert (done.stdout, done.stderr) == ("result\n", "")
    assert "begun" in CliRunner().invoke(command).stderr


def test_a_line_that_is_empty_is_not_said(capsys: pytest.CaptureFixture[str]) -> None:
    with doing(lambda: ""):
        time.sleep(0.3)
    assert capsys.readouterr().err == ""


def test_a_number_stands_with_the_right_form_of_its_noun() -> None:
    assert [counted(number, "step") for number in (0, 1, 2, 1200)] == ["0 steps", "1 step", "2 steps", "1,200 steps"]

"""Long commands are never silent, unless they are told to be."""

import re
import threading

import click
import pytest
from click.testing import CliRunner

from pipeline import voice
from pipeline.voice import counted, doing, long_command, say

PATIENCE_S = 300


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(voice, "BEAT_S", 0.1)


class Asked:
    """What is being done, in the given words; knows how often it was asked."""

    def __init__(self, words: str) -> None:
        self.words = words
        self.times = threading.Semaphore(0)

    def __call__(self) -> str:
        self.times.release()
        return self.words


@click.command()
@long_command("working")
def command() -> None:
    say("begun")
    with doing(asked := Asked("building")):
        for _ in range(3):  # what was said the first two times is written
            assert asked.times.acquire(timeout=PATIENCE_S)
    click.echo("result")


def test_a_silent_command_says_again_and_again_what_it_does() -> None:
    done = CliRunner().invoke(command)
    assert done.stdout == "result\n"
    said = done.stderr.splitlines()
    assert "begun" in said
    assert said.count("building") >= 2


def test_words_get_the_seconds_since_they_began(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    heard = threading.Event()
    monkeypatch.setattr(click, "echo", lambda line, err: (said.append(line), heard.set()))
    with doing("building row_softmax"):
        assert heard.wait(PATIENCE_S)
    assert re.fullmatch(r"building row_softmax \(\d+ s\)", said[0])


def test_quiet_leaves_the_result_alone_and_ends_with_the_command() -> None:
    done = CliRunner().invoke(command, ["--quiet"])
    assert (done.stdout, done.stderr) == ("result\n", "")
    assert "begun" in CliRunner().invoke(command).stderr


def test_a_line_that_is_empty_is_not_said(capsys: pytest.CaptureFixture[str]) -> None:
    with doing(asked := Asked("")):
        assert asked.times.acquire(timeout=PATIENCE_S)
    assert capsys.readouterr().err == ""


def test_a_number_stands_with_the_right_form_of_its_noun() -> None:
    assert [counted(number, "step") for number in (0, 1, 2, 1200)] == ["0 steps", "1 step", "2 steps", "1,200 steps"]

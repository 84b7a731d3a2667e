"""The demo is what a user would type; it is played as a whole by hand (`make demo`), its parts are read here."""

from pathlib import Path

import click
import pytest

from pipeline.cli import cli
from pipeline.demo import Part, parts

PARTS = list(parts(Path("home")))


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.title)
def test_each_part_is_a_command_line_that_the_commands_take(part: Part) -> None:
    command: click.Command = cli
    words = list(part.words)
    while isinstance(command, click.Group):
        found = command.get_command(click.Context(command), words.pop(0))
        assert found is not None
        command = found
    assert command.make_context(command.name, words).params


def test_everything_that_the_demo_reads_is_shipped() -> None:
    shipped = Path(__file__).parents[2] / "examples"
    named = [word.removeprefix("replay:") for part in PARTS for word in part.words if str(shipped) in word]
    assert len(named) > 3
    assert [name for name in named if not Path(name).exists()] == []

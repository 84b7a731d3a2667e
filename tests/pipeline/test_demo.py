"""The demo is what a user would type; it is played as a whole by hand (`make demo`), its parts are read here."""

from pathlib import Path

import click
import pytest

from artifacts.memory.shipped import SHIPPED, load_memory
from pipeline.cli import cli
from pipeline.commands.demo import Part, from_memory, parts

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


def test_the_story_names_what_the_memory_showed() -> None:
    memory = load_memory("", SHIPPED)
    step = memory.table.slice(0, 1).to_pylist()[0]
    (line,) = from_memory({"reference kernel": [step["transition_id"]]}, memory)
    assert line.endswith(f"the verified kernel of {step['task_id'].rpartition('/')[2]}")
    assert list(from_memory({}, memory)) == []

"""``htam.toml``: the options that a project always gives."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from artifacts.errors import BadInputError
from pipeline.cli import COMMANDS, cli
from pipeline.project import KEYS, UNTOUCHED, project_file, project_settings

TASK = """import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=1)

def get_inputs():
    return [torch.rand(16, 64)]

def get_init_inputs():
    return []
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project folder with a task; the command runs in a folder below it."""
    (tmp_path / "task.py").write_text(TASK)
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    return tmp_path


def htam(*words: object) -> Result:
    return CliRunner().invoke(cli, [str(word) for word in words])


def manifest(folder: Path) -> str:
    return (folder / "below" / "run" / "manifest.json").read_text()


def test_a_file_above_gives_the_options_and_the_command_line_wins(project: Path) -> None:
    (project / "htam.toml").write_text(
        'llm = "files"\nevaluator = "files"\narm = "feedback"\nbackend = "cuda"\ndevice = "h200"\nmemory = "team"\n'
    )
    assert htam("optimize", "../task.py", "--run", "run", "--device", "h100").exit_code == 0
    assert '"backend": "cuda"' in manifest(project)
    assert '"device": "h100"' in manifest(project)
    assert '"memory": ""' in manifest(project)  # this arm has none


def test_a_run_that_resumes_keeps_its_own_steps_and_store(project: Path) -> None:
    words = ("optimize", "../task.py", "--run", "run", "--llm", "files", "--evaluator", "files", "--arm", "feedback")
    assert htam(*words, "--steps", 2).exit_code == 0
    (project / "htam.toml").write_text('steps = 9\nstore = "elsewhere"\n')
    assert htam(*words).exit_code == 0
    assert htam("optimize", "--run", "run").exit_code == 0
    assert "steps_changed" not in (project / "below" / "run" / "events.jsonl").read_text()


def test_paths_begin_at_the_file_and_reach_the_commands_of_a_group(project: Path) -> None:
    (project / "htam.toml").write_text('store = "memories"\n')
    result = htam("memory", "list", "none")
    assert str(project / "memories") in f"{result.output}{result.exception}"


def test_doctor_shows_the_file_and_its_values(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pipeline.commands import doctor

    (project / "htam.toml").write_text('store = "memories"\nllm = "openai:gpt"\n')
    found = doctor.project()
    assert found.text == f"{project / 'htam.toml'}: store = {project / 'memories'}, llm = openai:gpt"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("stor = 'x'", "unknown key 'stor'; did you mean 'store'?"),
        ("colour = 'x'", "unknown key 'colour'; it may have store"),
        ("steps = '6'", "steps is '6'; give a whole number"),
        ("llm = 6", "llm is 6; give a text"),
        ("llm = ", "is no TOML"),
    ],
)
def test_what_the_file_cannot_say_is_one_clear_error(project: Path, text: str, said: str) -> None:
    (project / "htam.toml").write_text(text)
    found = project_file()
    assert found == project / "htam.toml"
    with pytest.raises(BadInputError) as wrong:
        project_settings(found)
    assert said in str(wrong.value)
    assert said in str(htam("optimize", "../task.py", "--run", "run").exception)


def test_every_key_is_an_option_of_optimize_and_every_exception_a_command() -> None:
    from pipeline.commands.optimize import command

    assert set(KEYS) <= {parameter.name for parameter in command.params}
    assert set(UNTOUCHED) <= set(COMMANDS)

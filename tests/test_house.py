"""The house keeps its own rules: layers, wheel, start-up time and documents that say what the code does."""

import ast
import json
import re
import shlex
import shutil
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import click
import pytest

from pipeline.cli import COMMANDS, cli
from pipeline.reference import help_of, walk

ROOT = Path(__file__).parents[1]
ROOMS = ("pipeline", "flows", "builder", "optimizer", "artifacts")
FOR_TYPES = "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n"
HEAVY = ("torch", "prefect", "faiss", "sentence_transformers", "openai", "optuna", "tree_sitter", "pyarrow")
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES += sorted((ROOT / "examples").rglob("*.md"))


def copy_of_the_house(folder: Path) -> Path:
    for room in ROOMS:
        shutil.copytree(ROOT / room, folder / room, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    tool = Path(sys.executable).parent / "lint-imports"
    return subprocess.run([tool, "--no-cache"], cwd=folder, capture_output=True, text=True, check=False)


def test_each_broken_layer_is_reported(tmp_path: Path) -> None:
    house = copy_of_the_house(tmp_path)
    (house / "builder/wrong.py").write_text("import optimizer\nimport prefect\n")
    (house / "artifacts/wrong.py").write_text("import flows\nimport torch\n")
    (house / "pipeline/wrong.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import prefect\n"
    )
    answer = lint_imports(house)
    assert answer.returncode == 1
    for broken in (
        "builder is not allowed to import optimizer",
        "artifacts is not allowed to import flows",
        "builder.wrong -> prefect",
        "artifacts.wrong -> torch",
        "pipeline.wrong -> prefect",
    ):
        assert broken in answer.stdout


def imports_between(house: Path) -> dict[str, set[str]]:
    """Module → modules of ours that it imports anywhere: at its top, inside functions or under TYPE_CHECKING."""
    files = {
        ".".join(path.relative_to(house).with_suffix("").parts).removesuffix(".__init__"): path
        for room in ROOMS
        for path in (house / room).rglob("*.py")
    }
    found: dict[str, set[str]] = {}
    for name, path in files.items():
        named: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                named |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                inner = {f"{node.module}.{alias.name}" for alias in node.names}
                named |= (inner & files.keys()) or {str(node.module)}
        found[name] = (named & files.keys()) - {name}
    return found


def cycle_in(graph: dict[str, set[str]]) -> tuple[str, ...]:
    """Nodes that import each other in a circle; empty when nobody does."""
    try:
        tuple(TopologicalSorter(graph).static_order())
    except CycleError as circle:
        return tuple(circle.args[1])
    return ()


def test_no_modules_import_each_other_in_a_circle(tmp_path: Path) -> None:
    assert cycle_in(imports_between(ROOT)) == ()
    house = copy_of_the_house(tmp_path)
    (house / "artifacts/left.py").write_text(
        "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    import artifacts.right\n"
    )
    (house / "artifacts/right.py").write_text("def late() -> None:\n    from artifacts import left\n")
    assert {"artifacts.left", "artifacts.right"} == set(cycle_in(imports_between(house)))


def loaded_by(code: str) -> list[str]:
    tail = f"import sys, json; print(json.dumps([m for m in {HEAVY!r} if m in sys.modules]))"
    answer = subprocess.run([sys.executable, "-c", f"{code}\n{tail}"], capture_output=True, text=True, check=True)
    loaded: list[str] = json.loads(answer.stdout.splitlines()[-1])
    return loaded


def test_help_loads_nothing_heavy() -> None:
    assert loaded_by("from pipeline.cli import cli; cli.main(['--help'], standalone_mode=False)") == []


def test_the_help_of_every_command_loads_nothing_heavy() -> None:
    assert loaded_by("from pipeline.reference import reference; reference()") == []


def test_every_listed_command_exists_with_help_and_an_example() -> None:
    bare = []
    for words, command in walk(cli, ("htam",)):
        if len(words) > 1 and not isinstance(command, click.Group):
            text = help_of(words, command)
            if "htam " not in text.split("Usage:", 1)[1].split("\n", 1)[1]:
                bare.append(" ".join(words))
    assert not bare, f"no example in the help of: {', '.join(bare)}"


def test_the_command_reference_is_up_to_date() -> None:
    # A process of its own: click remembers the help option of a command that was called on its own before.
    command = [sys.executable, "-P", "-m", "pipeline.reference"]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert (ROOT / "docs/reference/cli.md").read_text() == made, "run: make docs"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_documents_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)", page.read_text())
    local = [target for target in targets if "://" not in target and not target.startswith("mailto:")]
    assert [target for target in local if not (page.parent / target).exists()] == []


def commands_in(page: Path) -> list[str]:
    text = page.read_text().replace("\\\n", " ")
    blocks = "\n".join(re.findall(r"```(?:sh|bash|console)\n(.*?)```", text, flags=re.S))
    lines = (line.strip().removeprefix("$ ").removeprefix(".venv/bin/") for line in blocks.splitlines())
    return [line for line in lines if line.startswith("htam ")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_documented_command_line_uses_options_and_arguments_that_exist(page: Path) -> None:
    wrong = []
    for line in commands_in(page):
        problem = unknown_part(shlex.split(line.split(" > ")[0], comments=True)[1:])
        if problem:
            wrong.append(f"{line}: {problem}")
    assert wrong == []


def unknown_part(words: list[str]) -> str:
    command: click.Command = cli
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        child = command.get_command(click.Context(command), words[0])
        if child is None:
            return f"no command {words[0]}"
        command, words = child, words[1:]
    try:
        _, left, _ = command.make_parser(click.Context(command)).parse_args(list(words))
    except click.UsageError as wrong:
        return wrong.format_message()
    return f"{left} is too much" if left else ""


def test_the_architecture_page_names_every_room() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    assert [room for room in ROOMS if f"`{room}/`" not in text] == []


def test_the_changelog_opens_with_the_version_of_the_package() -> None:
    version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), flags=re.M)
    assert version
    assert f"## {version.group(1)}" in (ROOT / "CHANGELOG.md").read_text()


def test_ci_runs_exactly_make_test() -> None:
    lines = [
        line for line in (ROOT / ".ci/run").read_text().splitlines() if line and not line.startswith(("#", "set", "cd"))
    ]
    assert lines == ["make test"]


def test_the_commands_are_listed_in_alphabetical_order() -> None:
    assert list(COMMANDS) == sorted(COMMANDS)


def test_the_examples_stay_small_enough_for_a_clone() -> None:
    size = sum(path.stat().st_size for path in (ROOT / "examples").rglob("*") if path.is_file())
    assert size <= 8 << 20, "pack finished runs: htam logs pack RUN"

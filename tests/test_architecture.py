"""docs/architecture.md is true: its walks are calls that the code makes, its answers are places that exist."""

from __future__ import annotations

import ast
import functools
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/architecture.md").read_text()
WALKS = ("A step", "A build", "A report")
QUESTIONS = ("the order of directions", "a guard rule", "what a prompt shows", "a chart", "an importer")
MOST_FILES = 45
"""Through which a step is followed."""

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True)
class Stop:
    """One line of a walk: a function, reached by a call, or from another process by a message."""

    path: str
    name: str
    message: bool = False

    def __str__(self) -> str:
        return f"{self.path}: {self.name}"


def section(title: str, page: str = PAGE) -> str:
    found = re.search(rf"^### {re.escape(title)}\n(.*?)(?=^##|\Z)", page, flags=re.M | re.S)
    assert found, f"architecture.md has no section {title!r}"
    return found[1]


def walk(title: str) -> list[Stop]:
    lines = re.findall(r"^\d+\. (⇢ )?`([\w/.]+\.py)`: (.+)$", section(title), flags=re.M)
    return [
        Stop(path, name, bool(arrow) and number == 0)
        for arrow, path, names in lines
        for number, name in enumerate(re.findall(r"`([\w.]+)`", names))
    ]


@functools.cache
def functions(path: str) -> dict[str, Function]:
    """Every function, method and class of a file by its qualified name."""
    found: dict[str, Function] = {}

    def collect(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, Function):
                found[f"{prefix}{child.name}"] = child
                collect(child, f"{prefix}{child.name}.")
            else:
                collect(child, prefix)

    collect(ast.parse((ROOT / path).read_text()), "")
    return found


def names_in(function: Function) -> set[str]:
    """Names and attributes that a function uses; defaults and decorators are not its doing."""
    nodes = [node for part in function.body for node in ast.walk(part)]
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    names |= {alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names}
    return names | {node.attr for node in nodes if isinstance(node, ast.Attribute)}


def keys_in(function: Function) -> set[str]:
    """Words that a function sends or reads: its string constants without documentation."""
    nodes = [node for part in function.body for node in ast.walk(part)]
    return {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def problems(stops: list[Stop]) -> list[str]:
    """What a walk says that the code does not do."""
    found = []
    for place, stop in enumerate(stops):
        if not (ROOT / stop.path).is_file() or stop.name not in functions(stop.path):
            found.append(f"{stop} does not exist")
            continue
        before = [functions(each.path)[each.name] for each in stops[:place] if each.name in functions(each.path)]
        own = functions(stop.path)[stop.name]
        last = stop.name.removesuffix(".__init__").rpartition(".")[2]
        if stop.message:
            if not any(keys_in(own) & keys_in(each) for each in before[-3:]):
                found.append(f"{stop} shares no message with what comes before it")
        elif place and not any(last in names_in(each) for each in before):
            found.append(f"{stop} is not called from what comes before it")
    return found


@pytest.mark.parametrize("title", WALKS)
def test_every_stop_of_a_walk_is_called_from_an_earlier_one(title: str) -> None:
    stops = walk(title)
    assert len(stops) > 8, "the list was not understood"
    assert problems(stops) == []


def test_a_walk_that_is_not_true_is_found() -> None:
    stops = walk("A step")
    moved = [*stops[:3], Stop(stops[3].path, "no_such_function"), *stops[4:]]
    assert problems(moved)[0] == f"{moved[3]} does not exist"
    assert problems([stops[0], stops[-1]]) == [f"{stops[-1]} is not called from what comes before it"]
    stray = Stop("pipeline/commands/doctor.py", "examine", message=True)
    assert problems([stops[0], stray]) == [f"{stray} shares no message with what comes before it"]


def test_a_step_is_followed_through_few_files() -> None:
    assert len({stop.path for stop in walk("A step")}) <= MOST_FILES


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_of_a_newcomer_has_one_answer(question: str) -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith(f"| {question} |")]
    assert len(rows) == 1
    places = re.findall(r"`([\w/.]+\.\w+)`(?:, `(\w+)`)?", rows[0])
    assert len(places) == 1, f"one place, not {places}"
    path, name = places[0]
    assert (ROOT / path).is_file()
    assert name, "the answer names what to change there"
    text = (ROOT / path).read_text()
    assert name in functions(path) or re.search(rf"^{name}\b.*=", text, flags=re.M), f"{path} has no {name}"

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from artifacts.errors import BadTaskError
from optimizer.tasks import load_task, load_tasks
from optimizer.tasks.source import shown_source

TASK = """import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=1)

def get_inputs():
    return [torch.rand(16, 64)]

def get_init_inputs():
    return []
"""


def write(path: Path, text: str = TASK) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


HIDDEN_SETS = """
@functools.cache
def get_hidden_input_sets():
    rows = 4711
    return [[torch.rand(rows, 64)]]
"""


def test_hidden_input_settings_are_cut_out_of_what_a_prompt_shows() -> None:
    assert shown_source(TASK + HIDDEN_SETS + "\nLAST = 1\n") == TASK + "\n\nLAST = 1\n"
    assert shown_source(TASK) == TASK


def test_a_plain_file_is_a_task_of_its_folder(tmp_path: Path) -> None:
    task = load_task(write(tmp_path / "mine" / "row_softmax.py"))
    assert (task.ref.task_id, task.ref.family) == ("mine/-/row_softmax", "softmax")
    assert (task.dtype, task.size) == ("float32", "tiny")


def test_a_kernelbench_checkout_gives_its_levels_in_order(tmp_path: Path) -> None:
    write(tmp_path / "KernelBench" / "level2" / "3_Fused.py", "# 2\n" + TASK)
    for number, name in ((10, "Mean"), (9, "Tall_skinny"), (23, "Softmax")):
        write(tmp_path / "KernelBench" / "level1" / f"{number}_{name}.py", f"# {number}\n{TASK}")
    found = [Path(task.path).name for task in load_tasks([tmp_path])]
    assert found == ["9_Tall_skinny.py", "10_Mean.py", "23_Softmax.py", "3_Fused.py"]


def test_a_kernelbench_task_has_the_identity_that_logs_give_it(tmp_path: Path) -> None:
    task = load_task(write(tmp_path / "level1" / "23_Softmax.py"))
    assert task.ref.task_id == "kernelbench/1/23_softmax"


def test_the_same_task_named_twice_counts_once(tmp_path: Path) -> None:
    path = write(tmp_path / "t" / "a.py")
    assert len(load_tasks([path, path.parent])) == 1


def test_two_tasks_with_one_identity_are_refused(tmp_path: Path) -> None:
    one, other = write(tmp_path / "x" / "t" / "a.py"), write(tmp_path / "y" / "t" / "a.py", "# other\n" + TASK)
    with pytest.raises(BadTaskError, match="one id t/-/a"):
        load_tasks([one, other])


@pytest.mark.parametrize("name", ["Model", "get_inputs", "get_init_inputs"])
def test_what_is_missing_is_named(name: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.py", TASK.replace(name, "Other"))
    with pytest.raises(BadTaskError, match=f"does not define {name}"):
        load_task(path)


def test_a_syntax_error_is_one_line_with_its_place(tmp_path: Path) -> None:
    path = write(tmp_path / "a.py", "import torch\ndef get_inputs(:\n")
    with pytest.raises(BadTaskError, match="line 2 is not Python"):
        load_task(path)


def test_a_task_is_never_run_when_it_is_loaded(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    load_task(write(tmp_path / "a.py", TASK + f"\nopen({str(mark)!r}, 'w')\n"))
    assert not mark.exists()


@pytest.mark.parametrize("given_path", ["missing.py", "empty"])
def test_a_path_without_a_task_is_refused(given_path: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadTaskError, match=given_path):
        load_tasks([tmp_path / given_path])


@settings(deadline=None, max_examples=50)
@given(text=st.text(max_size=200))
def test_no_text_breaks_the_loader(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("t") / "a.py"
    path.write_text(text, encoding="utf-8", errors="replace")
    with pytest.raises(BadTaskError):
        load_task(path)


def test_dtype_and_size_of_every_shipped_task_are_known() -> None:
    folders = sorted((Path(__file__).parents[3] / "examples" / "tasks").iterdir())
    found = load_tasks(folders)
    assert len(found) > 30
    assert {task.ref.task_id for task in found if "unknown" in (task.dtype, task.size)} == set()

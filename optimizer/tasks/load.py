"""From paths to tasks: a plain file, a folder of files, a KernelBench checkout or a robust-kbench task folder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from artifacts.errors import BadTaskError
from artifacts.task import kernelbench_task, named_task
from artifacts.task_bytes import task_bytes
from optimizer.tasks.robust_kbench import is_robust_kbench, robust_kbench_tasks
from optimizer.tasks.source import Task, check_task


def load_task(path: Path) -> Task:
    """Read one task.

    Raises:
        BadTaskError: it cannot be read or lacks something a task needs.
    """
    tasks = load_tasks([path])
    if len(tasks) != 1:
        raise BadTaskError(f"{path} holds {len(tasks)} tasks", "name one task file")
    return tasks[0]


def load_tasks(paths: Iterable[Path]) -> tuple[Task, ...]:
    """Read all tasks below ``paths`` in a stable order; the same task named twice counts once.

    Raises:
        BadTaskError: a path holds no task, or two different tasks have the same id.
    """
    found: dict[str, Task] = {}
    for path in paths:
        for task in _tasks_at(path):
            known = found.setdefault(task.ref.task_id, task)
            if known.source != task.source:
                raise BadTaskError(
                    f"{known.path} and {task.path} are different tasks with the one id {task.ref.task_id}",
                    "rename one of them",
                )
    if not found:
        raise BadTaskError("no task was given", "name task files or folders")
    return tuple(found.values())


def _tasks_at(path: Path) -> Iterator[Task]:
    if path.is_file():
        yield _read(path)
        return
    if not path.is_dir():
        raise BadTaskError(f"{path} does not exist", "name a task file, a folder of tasks or a KernelBench checkout")
    folders = [folder for folder in (path, *sorted(path.iterdir())) if is_robust_kbench(folder)]
    if folders:
        for folder in folders:
            yield from robust_kbench_tasks(folder)
        return
    files = _files_of(path)
    if not files:
        raise BadTaskError(f"{path} holds no task file", "name a folder with .py files or a KernelBench checkout")
    for file in files:
        yield _read(file)


def _files_of(folder: Path) -> list[Path]:
    """Task files in a folder: of ``level1`` to ``level3`` in a KernelBench checkout, else its own files."""
    for root in (folder / "KernelBench", folder):
        levels = [root / f"level{number}" for number in (1, 2, 3) if (root / f"level{number}").is_dir()]
        if levels:
            return [file for level in levels for file in _python_files(level)]
    return _python_files(folder)


def _python_files(folder: Path) -> list[Path]:
    names = [file for file in folder.glob("*.py") if not file.name.startswith(("_", "."))]
    return sorted(names, key=lambda file: (_leading_number(file.name), file.name))


def _leading_number(name: str) -> int:
    head = name.split("_", 1)[0]
    return int(head) if head.isdecimal() else 1_000_000


def _read(file: Path) -> Task:
    try:
        source = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise BadTaskError(f"{file} cannot be read: {problem}", "check the path") from problem
    check_task(source, str(file))
    level = file.parent.name.removeprefix("level")
    if file.parent.name.startswith("level") and level.isdecimal():
        ref = kernelbench_task(int(level), file.name)
    else:
        ref = named_task(file.parent.resolve().name, file.stem, source=source)
    moved = task_bytes(ref, source)
    if moved is None:
        return Task(ref=ref, source=source, path=str(file))
    return Task(ref=ref, source=source, path=str(file), dtype=moved.dtype, size=moved.size)

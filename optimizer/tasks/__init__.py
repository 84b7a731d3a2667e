"""Room for tasks: reading task files, KernelBench checkouts and robust-kbench tasks without running them."""

from optimizer.tasks.load import load_task, load_tasks
from optimizer.tasks.source import Task

__all__ = ["Task", "load_task", "load_tasks"]

"""robust-kbench task folders, rewritten in the form of a KernelBench task.

A folder holds ``func_forward.py`` (``Model``, ``get_inputs`` with keyword arguments) and ``config_forward.json``, and
may hold ``config_backward.json``. The first single setting becomes ``get_inputs``; the other input settings become
``get_input_sets``. The backward pass is a task of its own: its ``Model`` returns the gradients of the float inputs and
parameters.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from artifacts.errors import BadTaskError
from artifacts.task import named_task
from artifacts.task_bytes import task_bytes
from optimizer.tasks.source import Task, parse_task, top_level_names

SUITE = "robust_kbench"
FORWARD = """

# --- the setting that is optimized, written by HTAM ---
import inspect as _inspect

_operator, _draw_inputs = Model, get_inputs


def get_inputs():
    return _draw_inputs(**{inputs!r})


def get_init_inputs():
    bound = _inspect.signature(_operator.__init__).bind(None, **{init!r})
    bound.apply_defaults()
    return list(bound.args[1:])
"""
MORE = """

def get_input_sets():
    return [lambda setting=setting: _draw_inputs(**setting) for setting in {others!r}]
"""
BACKWARD = """

_draw_forward_inputs, _draw_forward_sets = get_inputs, get_input_sets


class Model(torch.nn.Module):
    # Gradients of the forward pass; the last input is the gradient of its output.

    def __init__(self, *args):
        super().__init__()
        self.forward_pass = _operator(*args)

    def forward(self, *inputs):
        *given, gradient = inputs
        with torch.enable_grad():
            leaves = [x.detach().requires_grad_() if x.is_floating_point() else x for x in given]
            wanted = [x for x in leaves if x.requires_grad] + list(self.forward_pass.parameters())
            return torch.autograd.grad(self.forward_pass(*leaves), wanted, gradient)


def get_inputs(draw=_draw_forward_inputs):
    given = draw()
    with torch.no_grad():
        return [*given, torch.randn_like(_operator(*get_init_inputs())(*given))]


def get_input_sets():
    return [lambda draw=draw: get_inputs(draw) for draw in _draw_forward_sets()]
"""


def is_robust_kbench(folder: Path) -> bool:
    """Whether ``folder`` is one robust-kbench task."""
    return (folder / "config_forward.json").is_file() and (folder / "func_forward.py").is_file()


def robust_kbench_tasks(folder: Path) -> Iterator[Task]:
    """Yield the forward task and, where it is configured, the backward task of a folder.

    Raises:
        BadTaskError: a file cannot be read or lacks something.
    """
    file = folder / "func_forward.py"
    try:
        source = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise BadTaskError(f"{file} cannot be read: {problem}", "check the checkout") from problem
    missing = [name for name in ("Model", "get_inputs") if name not in top_level_names(parse_task(source, str(file)))]
    if missing:
        raise BadTaskError(f"{file} does not define {' and '.join(missing)}", "check the checkout")
    yield _task(folder, folder.name, source + _settings(folder / "config_forward.json"), source)
    backward = folder / "config_backward.json"
    if backward.is_file():
        # The name Model is that of the gradients afterwards: the operator must not look itself up by it.
        text = re.sub(r"\bsuper\(\s*Model\s*,\s*self\s*\)", "super()", source)
        text += _settings(backward) + BACKWARD
        yield _task(folder, f"{folder.name}_backward", text, source)


def _task(folder: Path, name: str, text: str, source: str) -> Task:
    ref = named_task(SUITE, name, source=source)
    moved = task_bytes(ref, text)
    if moved is None:
        return Task(ref=ref, source=text, path=str(folder))
    return Task(ref=ref, source=text, path=str(folder), dtype=moved.dtype, size=moved.size)


def _settings(path: Path) -> str:
    """Code that fixes the settings of ``path``."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        shared = _first(config, "single_shared_configs")
        init, inputs = ({**_first(config, f"single_{kind}_configs"), **shared} for kind in ("init", "input"))
        others = [{**item, **shared} for item in config.get("multi_input_configs", ())]
    except (OSError, ValueError, TypeError, AttributeError) as problem:
        raise BadTaskError(f"{path} cannot be used: {problem}", "check the checkout") from problem
    text = FORWARD.replace("{init!r}", repr(init)).replace("{inputs!r}", repr(inputs))
    return text + MORE.replace("{others!r}", repr([item for item in others if item != inputs]))


def _first(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    settings = config.get(name) or [{}]
    return dict(settings[0])

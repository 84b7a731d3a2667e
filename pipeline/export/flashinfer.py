"""A run's winners as definitions and solutions of flashinfer-bench (its schema of version 0.1)."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from artifacts.candidate import Language
from artifacts.features.extract import detect_language
from pipeline.export.winners import Winner, Winners, new_folder

DTYPES = frozenset({"float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "bool"})
"""Types of tensors that a definition can name and a task can have."""

_RUN = '''

_ARGUMENTS = {arguments}
_MADE = []


def run({inputs}):
    """The operator; its weights are inputs, so that every solution is given the same."""
    import torch

    given = ({inputs},)
    if not _MADE:
        _MADE.append({model}(*_ARGUMENTS))
    device = next(item.device for item in given if isinstance(item, torch.Tensor))
    module = _MADE[0].to(device)
    module.load_state_dict(dict(zip({weights}, given[{count}:])), assign=True)
    with torch.no_grad():
        return module(*given[:{count}])
'''


class NotExpressible(Exception):  # noqa: N818 - it is a property of a task
    """A definition cannot say what the task is."""


def write_solutions(winners: Winners, out: Path) -> tuple[tuple[Path, ...], dict[str, str]]:
    """Write ``definitions/FAMILY/NAME.json`` and ``solutions/FAMILY/NAME/SOLUTION.json``.

    The tasks' own Python is run on tensors without memory to learn shapes.

    Returns:
        The files, and task id → why it has none.

    Raises:
        BadInputError: ``out`` holds something.
    """
    new_folder(out)
    written, left_out = [], dict(winners.left_out)
    for winner in winners.kernels:
        try:
            definition = definition_of(winner)
        except NotExpressible as problem:
            left_out[winner.task.task_id] = str(problem)
            continue
        solution = solution_of(winner, winners, definition)
        places = {
            f"definitions/{winner.task.family}/{winner.name}.json": definition,
            f"solutions/{winner.task.family}/{winner.name}/{solution['name']}.json": solution,
        }
        for place, record in places.items():
            path = out / place
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
            written.append(path)
    return tuple(written), left_out


def definition_of(winner: Winner) -> dict[str, Any]:
    """The task as a definition; every axis is constant, because the kernel was checked for these shapes alone.

    Raises:
        NotExpressible: shapes, types or arguments that the schema has no word for.
    """
    task = _Shapes.of(winner.reference)
    inputs = {**task.inputs, **task.weights}
    outputs = {f"output_{index}" if index else "output": value for index, value in enumerate(task.outputs)}
    specs = {name: _spec(value, name) for name, value in (*inputs.items(), *outputs.items())}
    sizes = sorted({size for value in (*inputs.values(), *outputs.values()) for size in getattr(value, "shape", ())})
    return {
        "name": winner.name,
        "op_type": winner.task.family,
        "axes": {f"n{size}": {"type": "const", "value": size} for size in sizes},
        "inputs": {name: specs[name] for name in inputs},
        "outputs": {name: specs[name] for name in outputs},
        "reference": winner.reference + task.run("Model"),
        "tags": [f"suite:{winner.task.suite}", "status:verified"],
        "description": f"Task {winner.task.task_id} as HTAM measured it; weights are inputs.",
    }


def solution_of(winner: Winner, winners: Winners, definition: Mapping[str, Any]) -> dict[str, Any]:
    """The winner as a solution of ``definition``; figures and doubts are its description."""
    task = _Shapes.of(winner.reference)
    language = "triton" if detect_language(winner.code) is Language.TRITON else "python"
    return {
        "name": f"{winner.name}_{winner.sha256[:12]}",
        "definition": definition["name"],
        "author": f"htam/{winner.model or winners.run.model}",
        "spec": {
            "language": language,
            "target_hardware": [winner.backend, winner.measured.device],
            "entry_point": "main.py::run",
            "dependencies": ["torch"],
            "destination_passing_style": False,
        },
        "sources": [{"path": "main.py", "content": winner.text + task.run("ModelNew")}],
        "description": "; ".join(winner.facts),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shapes:
    """What a task takes and gives, on tensors without memory.

    Attributes:
        arguments: of the constructor; ``weights``: input name → parameter or buffer named ``states`` in that order.
    """

    arguments: tuple[Any, ...]
    inputs: Mapping[str, Any]
    weights: Mapping[str, Any]
    states: tuple[str, ...]
    outputs: tuple[Any, ...]

    @classmethod
    def of(cls, source: str) -> _Shapes:
        """Run the task of ``source``.

        Raises:
            NotExpressible: it does not run without memory, or has arguments that cannot be written down.
        """
        import torch

        module = ModuleType("exported_task")
        exec(compile(source, "<task>", "exec"), module.__dict__)
        try:
            with torch.device("meta"), torch.no_grad():
                arguments = tuple(getattr(module, "get_init_inputs", tuple)())
                model, inputs = module.Model(*arguments), list(module.get_inputs())
                output = model(*inputs)
        except (RuntimeError, TypeError, ValueError, NotImplementedError) as problem:
            raise NotExpressible(f"its shapes cannot be found: {str(problem).splitlines()[0]}") from problem
        if not _plain(arguments):
            raise NotExpressible("arguments of its constructor cannot be written down")
        names = list(inspect.signature(model.forward).parameters)[: len(inputs)]
        if len(names) < len(inputs):
            names = [f"input_{index}" for index in range(len(inputs))]
        state = model.state_dict()
        return cls(
            arguments=arguments,
            inputs=dict(zip(names, inputs, strict=True)),
            weights={f"weight_{name.replace('.', '_')}": value for name, value in state.items()},
            states=tuple(state),
            outputs=tuple(output) if isinstance(output, (tuple, list)) else (output,),
        )

    def run(self, model: str) -> str:
        """Python that defines ``run`` for the class ``model``."""
        names = ", ".join([*self.inputs, *self.weights])
        return _RUN.format(
            arguments=repr(self.arguments), inputs=names, model=model, weights=repr(self.states), count=len(self.inputs)
        )


def _plain(value: object) -> bool:
    """Whether ``repr`` of a value is Python that makes it again."""
    if isinstance(value, (tuple, list)):
        return all(map(_plain, value))
    return value is None or isinstance(value, (bool, int, str)) or (isinstance(value, float) and math.isfinite(value))


def _spec(value: Any, name: str) -> dict[str, Any]:
    """A tensor's axes and type; a number is a tensor without a shape.

    Raises:
        NotExpressible: neither a tensor of a known type nor a number.
    """
    scalars = {bool: "bool", int: "int64", float: "float32"}
    if type(value) in scalars:
        return {"shape": None, "dtype": scalars[type(value)]}
    dtype = str(getattr(value, "dtype", type(value).__name__)).removeprefix("torch.")
    if dtype not in DTYPES:
        raise NotExpressible(f"{name} is a {dtype}, for which the schema has no word")
    return {"shape": [f"n{size}" for size in value.shape], "dtype": dtype}

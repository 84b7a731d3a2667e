from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from artifacts.errors import BadTaskError
from optimizer.tasks import Task, load_tasks

SOURCE = """import torch
from torch import nn


def forward_fn(x, w, eps=1e-6):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * w


class Model(nn.Module):
    def __init__(self, num_features, eps=1e-6):
        super().__init__()
        self.w = nn.Parameter(torch.ones(num_features))
        self.eps = eps

    def forward(self, x, fn=forward_fn):
        return fn(x, self.w, self.eps)


def get_inputs(batch_size=2, num_features=8):
    return [torch.randn(batch_size, num_features)]
"""
CONFIG = {
    "single_input_configs": [{"batch_size": 4}],
    "multi_input_configs": [{"batch_size": 4}, {"batch_size": 7}],
    "single_init_configs": [{"eps": 0.5}],
    "single_shared_configs": [{"num_features": 16}],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "rmsnorm"
    path.mkdir()
    (path / "func_forward.py").write_text(SOURCE)
    (path / "config_forward.json").write_text(json.dumps(CONFIG))
    return path


def ran(task: Task) -> Any:
    module = ModuleType("task")
    exec(compile(task.source, "task.py", "exec"), module.__dict__)
    return module


def test_a_folder_becomes_a_task_with_its_first_setting(folder: Path) -> None:
    (task,) = load_tasks([folder])
    module = ran(task)
    assert (task.ref.task_id, task.ref.family) == ("robust_kbench/-/rmsnorm", "normalization")
    assert module.get_init_inputs() == [16, 0.5]
    assert module.get_inputs()[0].shape == (4, 16)
    assert module.Model(*module.get_init_inputs())(*module.get_inputs()).shape == (4, 16)


def test_the_other_input_settings_become_input_sets(folder: Path) -> None:
    (other,) = ran(load_tasks([folder])[0]).get_input_sets()
    assert other()[0].shape == (7, 16)


def test_a_checkout_gives_all_its_tasks(folder: Path) -> None:
    assert [task.ref.task_id for task in load_tasks([folder.parent])] == ["robust_kbench/-/rmsnorm"]


@pytest.mark.parametrize("parent", ["super()", "super(Model, self)"])
def test_the_backward_pass_is_a_task_whose_model_gives_the_gradients(folder: Path, parent: str) -> None:
    (folder / "func_forward.py").write_text(SOURCE.replace("super()", parent))
    (folder / "config_backward.json").write_text(json.dumps(CONFIG))
    _, task = load_tasks([folder])
    module = ran(task)
    x, gradient = module.get_inputs()
    model = module.Model(*module.get_init_inputs())
    of_input, of_weight = model(x, gradient)
    leaf = x.clone().requires_grad_()
    model.forward_pass(leaf).backward(gradient)
    assert task.ref.task_id == "robust_kbench/-/rmsnorm_backward"
    assert torch.equal(of_input, leaf.grad)
    assert torch.equal(of_weight, model.forward_pass.w.grad)
    (other,) = module.get_input_sets()
    assert [tuple(part.shape) for part in other()] == [(7, 16), (7, 16)]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("config_forward.json", "{", "config_forward.json cannot be used"),
        ("config_forward.json", "[]", "config_forward.json cannot be used"),
        ("func_forward.py", "x = 1", "does not define Model and get_inputs"),
        ("func_forward.py", "def", "line 1 is not Python"),
    ],
)
def test_what_is_wrong_in_a_folder_is_one_line(name: str, text: str, said: str, folder: Path) -> None:
    (folder / name).write_text(text)
    with pytest.raises(BadTaskError, match=said):
        load_tasks([folder])

"""A tiny operator and recorded answers that fail at once, so that a round of the soak is seconds of real work."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from artifacts.codec import encode
from optimizer.llm.cassette import Entry
from optimizer.llm.protocol import LlmAnswer

TASK = '''"""Rectifier."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x)


def get_inputs():
    return [torch.randn(64, 64)]


def get_init_inputs():
    return []
'''

WRONG = """PLAN: {plan}.
STRATEGY: none
```python
import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

ext = load_inline(
    name="soak_relu",
    cpp_sources="#include <torch/types.h>\\ntorch::Tensor own(torch::Tensor x) {{ return x {operation}; }}",
    functions=["own"],
)


class ModelNew(nn.Module):
    def forward(self, x):
        return ext.own(x)
```
"""
OPERATIONS = (("0.0", "Double it", "* 2.0"), ("1.0", "Subtract one", "- 1.0"))


def write_quick(folder: Path) -> tuple[Path, Path]:
    """Write the task and a recording of one wrong answer a step; returns their paths."""
    folder.mkdir()
    task, cassette = folder / "rectifier.py", folder / "quick.jsonl"
    task.write_text(TASK, encoding="utf-8")
    lines = []
    for slot, plan, operation in OPERATIONS:
        entry = Entry(
            key=hashlib.sha256(slot.encode()).hexdigest(),
            model="files",
            purpose="first",
            task=f"{folder.name}/-/rectifier",
            slot=slot,
            sample=0,
            messages=(),
            answer=LlmAnswer(text=WRONG.format(plan=plan, operation=operation), model="files"),
        )
        lines.append(json.dumps(encode(entry)) + "\n")
    cassette.write_text("".join(lines), encoding="utf-8")
    return task, cassette

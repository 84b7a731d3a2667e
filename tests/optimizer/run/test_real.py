"""One run in earnest: an answer is built, checked and timed on this machine, and its winner is used."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from artifacts.codec import decode
from artifacts.run_events import LoggedStep
from artifacts.runlog import RunLog
from pipeline.cli import cli

TASK = '''"""Square and shift."""
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return x * x + 1


def get_inputs():
    return [torch.randn(64, 1024)]


def get_init_inputs():
    return []
'''
CANDIDATE = '''import torch
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <torch/types.h>
torch::Tensor square_shift(torch::Tensor x) {
  auto in = x.contiguous();
  auto out = torch::empty_like(in);
  const float* a = in.data_ptr<float>();
  float* b = out.data_ptr<float>();
  #pragma omp parallel for simd
  for (int64_t i = 0; i < in.numel(); ++i) b[i] = a[i] * a[i] + 1.0f;
  return out;
}
"""
ops = load_inline(name="square_shift", cpp_sources=SOURCE, functions=["square_shift"],
                  extra_cflags=["-O2", "-fopenmp"], extra_ldflags=["-fopenmp"])


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return ops.square_shift(x)
'''


@pytest.mark.timeout(1800)
@pytest.mark.xdist_group("evaluator")
def test_an_answer_becomes_a_verified_winner_beside_a_task_that_cannot_be_evaluated(tmp_path: Path) -> None:
    run, requests, answers = tmp_path / "run", tmp_path / "requests.jsonl", tmp_path / "answers.jsonl"
    task = tmp_path / "mine" / "square_shift.py"
    task.parent.mkdir()
    task.write_text(TASK)

    broken = task.with_name("broken.py")
    broken.write_text(TASK.replace("x * x + 1", "x @ x"))

    def types(*words: object, code: int = 0) -> Result:
        result = CliRunner().invoke(cli, [str(word) for word in words])
        assert result.exit_code == code, (result.output, result.exception)
        return result

    types("optimize", task, broken, "--arm", "feedback", "--llm", "files", "--steps", 1, "--run", run)
    types("ask", run, "--requests", requests)
    (request,) = map(json.loads, requests.read_text().splitlines())
    text = f"PLAN: one pass\n```python\n{CANDIDATE}```"
    answers.write_text(json.dumps({"custom_id": request["custom_id"], "text": text}) + "\n")
    result = types("tell", run, answers, code=1)  # the one task is done, the other could not be evaluated
    assert "mine/-/broken: cannot be evaluated, task fails: RuntimeError: mat1 and mat2" in str(result.exception)
    (step,) = (decode(LoggedStep, event.payload) for event in RunLog.open(run).events() if event.kind == "step")
    assert step.measurement is not None
    assert step.measurement.timing is not None, step.measurement
    assert step.measurement.speedup() is not None
    assert "load(" in (run / "best" / "mine_square_shift.py").read_text()

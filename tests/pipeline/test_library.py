"""The page on the library does what it says."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "library.md"
TASK = """import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)

def get_inputs():
    return [torch.randn(64, 64)]

def get_init_inputs():
    return []
"""
KERNEL = Path(__file__).with_name("relu_rows.py").read_text()


def test_every_piece_of_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("relu.py").write_text(TASK)
    Path("kernel.py").write_text(KERNEL)
    Path("answer.md").write_text(f"PLAN: one loop\n```python\n{KERNEL}\n```\n")
    pieces = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    assert len(pieces) == 4
    said = []
    for piece in pieces:
        assert len([line for line in piece.splitlines() if line.strip()]) <= 10
        exec(compile(piece, PAGE.name, "exec"), {})
        said.append(capsys.readouterr().out)
    evaluated, recalled, optimized, read = said
    assert evaluated.startswith("correct")
    assert "eager_fp32" in evaluated
    assert "nothing is known" not in recalled
    assert "all steps used" in optimized
    assert "0 first correct one loop" in read

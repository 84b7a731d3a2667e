"""What the commands say of arms."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from optimizer.arms.registry import ARMS, SOURCES
from pipeline.commands.explain import explained
from pipeline.commands.optimize import command

RECORDED = Path(__file__).parents[1] / "optimizer/run/arm_runs/plan-code-debug"


def test_every_arm_is_listed_with_what_it_does_and_where_it_is_from() -> None:
    result = CliRunner().invoke(command, ["--arm", "help"])
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert [line.split()[0] for line in lines] == list(ARMS)
    assert all(line.endswith(f"({source})") for line, source in zip(lines, SOURCES.values(), strict=True))


def test_an_explanation_shows_who_was_asked_and_what_the_writer_was_told() -> None:
    text = explained(RECORDED, "1.0", prompt=False)
    assert "asked before it was written: plan" in text
    assert "ANCHOR: #include <cstdint>" in text

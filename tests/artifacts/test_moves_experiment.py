"""The analysis of the randomized experiment finds what was put into its data, and nothing where nothing was."""

import importlib.util
import json
import random
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from artifacts.features.techniques import Technique

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def experiment() -> ModuleType:
    spec = importlib.util.spec_from_file_location("moves_experiment", ROOT / "benchmarks" / "moves_experiment.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["moves_experiment"] = module
    spec.loader.exec_module(module)
    return module


def cells(effect: float) -> list[dict[str, Any]]:
    """24 parents with five moves each, of which one gains ``effect`` more than the others."""
    draw = random.Random(3)
    return [
        {
            "operator": f"operator{parent}",
            "family": "matmul" if parent % 2 else "softmax",
            "parent": f"{parent:064x}",
            "when": "early",
            "held": ["register_tile"],
            "bound": "memory",
            "move": f"+{move}",
            "followed": True,
            "outcome": "correct",
            "gain": draw.gauss(effect if move == "pipeline" else 0.0, 0.2),
        }
        for parent in range(24)
        for move in ("pipeline", "prefetch", "cluster", "bank_layout", "persistent")
    ]


def test_a_move_that_gains_is_found_and_orders_siblings(experiment: ModuleType) -> None:
    found = experiment.analysis(cells(1.0), shuffles=20)
    assert found["effects_of_moves"]["+pipeline"]["low"] > 1.5
    assert found["effects_of_moves"]["+cluster"]["high"] < 1.3
    assert found["siblings"]["state_and_move"] > 0.6
    assert found["siblings"]["low"] > 0.5
    assert found["siblings"]["state"] == pytest.approx(0.5)


def test_moves_without_effect_order_nothing(experiment: ModuleType) -> None:
    siblings = experiment.analysis(cells(0.0), shuffles=20)["siblings"]
    assert abs(siblings["state_and_move"] - 0.5) < 0.12
    assert siblings["p_shuffled"] > 0.02


def test_failures_count_in_their_rate_alone(experiment: ModuleType) -> None:
    rows = [
        row | ({"outcome": "wrong_result", "gain": None} if row["move"] == "+cluster" else {}) for row in cells(0.0)
    ]
    found = experiment.analysis(rows, shuffles=1)
    assert found["failures"]["+cluster"] == {"wrong_result": 24}
    assert found["effects_of_moves"]["+cluster"] == {"operators": 0, "tries": 24}


def test_the_committed_plan_is_the_one_that_is_drawn(experiment: ModuleType) -> None:
    committed = json.loads(experiment.PLAN.read_text("utf-8"))
    # the rules that read techniques have changed since: the draw is from what they read then
    known = {cell["parent"]: frozenset(map(Technique, cell["held"])) for cell in committed["cells"]}
    drawn = json.loads(json.dumps(experiment.plan(known)))
    assert drawn == committed
    assert drawn["parents"] >= 24
    assert len(drawn["families"]) >= 8
    assert all(0 < cell["probability"] <= 1 for cell in drawn["cells"])

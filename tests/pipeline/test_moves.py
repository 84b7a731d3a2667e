"""The moves of a memory on a terminal."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from artifacts.errors import BadInputError
from artifacts.memory.htg import Memory
from artifacts.memory.manifest import Manifest
from artifacts.memory.records import Edge, Effect
from artifacts.memory.schemas import TRANSITIONS
from pipeline.memory_text import moves

KERNEL = "__global__ void gemm(const float* a, float* c) { float acc[8][8]; }"
EDGE = Edge(
    move="+tensor_mma",
    rung="register_tile",
    arch="sm_90",
    bound="",
    family="",
    effect=Effect(mean=1.0, low=0.5, high=1.5, n=9, tasks=5, failures=0),
    attempts=10,
    operators=5,
    sources=1,
)


def memory(*edges: Edge) -> Memory:
    empty = TRANSITIONS.empty_table()
    return Memory(manifest=Manifest(name="m"), directions=(), strategies=(), table=empty, edges=edges)


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    path = tmp_path / "square_matmul.cu"
    path.write_text(KERNEL)
    return path


def test_a_move_is_shown_with_its_record(kernel: Path) -> None:
    text = moves(memory(EDGE), kernel, "sm_90", "", as_json=False)
    assert "register_tile" in text.splitlines()[0]
    assert "+tensor_mma" in text
    assert "2.00× (1.41–2.83), 5 operators, 10 tries [sm_90]" in text


def test_the_same_for_a_program(kernel: Path) -> None:
    found = json.loads(moves(memory(EDGE), kernel, "sm_90", "", as_json=True))
    assert found["techniques"] == ["register_tile"]
    assert [edge["move"] for edge in found["moves"]] == ["+tensor_mma"]


def test_it_says_plainly_where_there_is_no_record(kernel: Path) -> None:
    few = replace(EDGE, effect=replace(EDGE.effect, tasks=2))
    assert "no record of a move from here" in moves(memory(few), kernel, "sm_90", "", as_json=False)


def test_a_device_or_bound_that_is_not_known_is_a_mistake(kernel: Path) -> None:
    with pytest.raises(BadInputError, match="no moves on 'sm_70'"):
        moves(memory(EDGE), kernel, "sm_70", "", as_json=False)
    with pytest.raises(BadInputError, match="no bound is called 'speed'"):
        moves(memory(EDGE), kernel, "sm_90", "speed", as_json=False)

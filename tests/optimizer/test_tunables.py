import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from optimizer.tuning import declared, with_setting

SOURCE = """import torch

BLOCK = 256  # threads
TILE = 16
TUNABLES = {"BLOCK": [256, 64, 128], "TILE": (16, 8)}
CODE = f"constexpr int block = {BLOCK}; // BLOCK = 256"

class ModelNew(torch.nn.Module):
    def forward(self, x):
        BLOCK = 1
        return x
"""


def test_the_declaration_is_read_without_running_the_code() -> None:
    found = declared(SOURCE)
    assert found is not None
    assert found.values == {"BLOCK": (256, 64, 128), "TILE": (16, 8)}
    assert found.assigned == {"BLOCK": 256, "TILE": 16}
    assert found.combinations == len(list(found.settings())) == 6


def test_a_setting_changes_the_constants_and_nothing_else() -> None:
    changed = with_setting(SOURCE, {"BLOCK": 64, "TILE": 8})
    assert changed == SOURCE.replace("BLOCK = 256  #", "BLOCK = 64  #").replace("TILE = 16\n", "TILE = 8\n")


def test_a_candidate_without_a_declaration_has_none() -> None:
    assert declared("class ModelNew:\n    pass\n") is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("[256, 64, 128]", "[64, 128]"),
        ("[256, 64, 128]", "range(3)"),
        ("[256, 64, 128]", "[256, 64.0]"),
        ("[256, 64, 128]", "[256, True]"),
        ("[256, 64, 128]", "[]"),
        ("[256, 64, 128]", "[1, 2, 3, 4, 5, 6, 256]"),
        ('"BLOCK"', '"BLOCK SIZE"'),
        ('"BLOCK"', "3"),
        ("BLOCK = 256  # threads", "BLOCK = 2 * 128"),
        ("BLOCK = 256  # threads", "BLOCK = 256\nBLOCK = 64"),
        ("BLOCK = 256  # threads", "pass"),
        ('{"BLOCK": [256, 64, 128], "TILE": (16, 8)}', "{}"),
        ('{"BLOCK": [256, 64, 128], "TILE": (16, 8)}', "{[1]: [2]}"),
        ('{"BLOCK": [256, 64, 128], "TILE": (16, 8)}', "[1]"),
    ],
)
def test_a_declaration_that_cannot_be_used_is_none(old: str, new: str) -> None:
    assert old in SOURCE
    assert declared(SOURCE.replace(old, new, 1)) is None


@given(st.integers(1, 10**6), st.sampled_from(["é = 1; BLOCK = 7", "BLOCK=7;x='ü'", "BLOCK = (7)", "BLOCK = 0x07"]))
def test_any_way_of_writing_the_constant_can_be_set(value: int, line: str) -> None:
    source = f"{line}\nTUNABLES = {{'BLOCK': [7, {value}]}}\n"
    changed = with_setting(source, {"BLOCK": value})
    names: dict[str, object] = {}
    for node in ast.parse(changed).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            names[node.targets[0].id] = ast.literal_eval(node.value)
    assert names["BLOCK"] == value

"""What is read from a syntax tree is what is in it."""

import ast
from collections import Counter
from pathlib import Path

import pytest

from artifacts.features.python_facts import read_tree

ROOT = Path(__file__).resolve().parents[3]
RARE = """
global_value = 1
def outer(a, *, b: torch.int8 = tl.zero, c, **kwargs: x.y) -> r.s:
    global global_value
    match a.b:
        case C.D(e=F.g, h="i") | {"j": k.l, **rest}: pass
        case [m, *n] if o.p: pass
    async def inner():
        async with q.r as s.t, u() as v: await w.x(y=z.a, **b.c)
    return {**d.e, f.g: h.i} if f"{j.k!r:>{l.m}}" else [n.o for p in q.r() if not s.t]
"""
SOURCES = [RARE, *(path.read_text("utf-8") for path in sorted((ROOT / "artifacts").rglob("*.py")))]


@pytest.mark.parametrize("source", SOURCES, ids=range(len(SOURCES)))
def test_nothing_of_a_source_is_passed_over(source: str) -> None:
    tree = ast.parse(source)
    facts, nodes = read_tree(tree), [node for top in tree.body for node in ast.walk(top)]
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    texts = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    assert facts.names.total() == sum(isinstance(node, ast.Attribute) for node in nodes)
    assert facts.keywords == Counter(word.arg for call in calls for word in call.keywords if word.arg)
    assert facts.launches == sum(isinstance(call.func, ast.Subscript) for call in calls)
    assert sorted(facts.literals) == sorted(texts)

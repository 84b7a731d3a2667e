from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.describe.glossary import find_terms, normalise, terms
from builder.read.trust import sure_text


@pytest.mark.parametrize(
    ("text", "term"),
    [
        ("stage tiles in smem", "shared_memory"),
        ("use LDG.128 and float4", "vectorized_access"),
        ("issue cp.async copies", "async_copy"),
        ("reduce with __shfl_down_sync", "warp_shuffle"),
        ("call wgmma", "tensor_cores"),
        ("hide latency with double-buffering", "double_buffering"),
        ("add __launch_bounds__", "launch_bounds"),
        ("使用共享内存分块", "shared_memory"),
        ("使用共享内存分块", "tiling"),
        ("循环展开", "unroll"),
        ("双缓冲预取", "double_buffering"),
        ("减少寄存器压力", "register_pressure"),
    ],
)
def test_a_wording_is_found_as_its_term(text: str, term: str) -> None:
    assert term in find_terms(text)


def test_case_does_not_matter() -> None:
    assert find_terms("USE SHARED MEMORY").keys() == find_terms("use shared memory").keys()


def test_names_are_unique_and_phrases_speak() -> None:
    names = [term.name for term in terms()]
    assert len(names) == len(set(names))
    assert all(term.phrase for term in terms())


def test_a_chinese_text_becomes_english_for_the_encoder() -> None:
    assert normalise("使用共享内存") == "shared memory"


def test_a_text_without_terms_stays() -> None:
    assert normalise("hello there") == "hello there"


@given(st.text(max_size=200))
def test_offsets_lie_inside_the_text(text: str) -> None:
    assert all(0 <= start < len(text) for starts in find_terms(text).values() for start in starts)


WORDINGS = [wording for term in terms() for wording in term.wordings]
VOCABULARY = sorted({word for wording in WORDINGS for word in re.findall(r"[a-z0-9_]+|[\u3400-\u9fff]+", wording)})


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(VOCABULARY) | st.text(max_size=4), max_size=25), st.sampled_from([" ", "-", "_", ""]))
def test_sparing_patterns_finds_what_all_of_them_find(words: list[str], between: str) -> None:
    text = between.join(words).lower()
    every = {term.name: re.compile("|".join(term.wordings)) for term in terms()}
    wanted = {name: tuple(match.start() for match in pattern.finditer(text)) for name, pattern in every.items()}
    if all(len(letter.lower()) == 1 and letter == letter.lower() for letter in text):
        assert find_terms(text) == {name: starts for name, starts in wanted.items() if starts}


@pytest.mark.parametrize(
    ("pattern", "sure"),
    [
        (r"\bshared[- ]mem(?:ory)?\b", "shared"),
        (r"\bhid(?:e|es|ing) (?:memory |the )*latenc\w+", "latenc"),
        (r"\b(?:half|int)[248]\b", ""),
        (r"colou?r", "colo"),
        (r"one|two", ""),
        (r"cuda\.graph\s*\(", ".graph"),
        (r"data_ptr\(\)\s*(?:==|!=)", "data_ptr()"),
        (r"(?:a(?:b(?:c)))?d{0,2}ef", "ef"),
    ],
)
def test_text_that_a_pattern_cannot_do_without(pattern: str, sure: str) -> None:
    assert sure_text(pattern) == sure

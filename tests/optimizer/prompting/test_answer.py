import pytest
from hypothesis import given
from hypothesis import strategies as st

from artifacts.candidate import normalise_source
from artifacts.errors import BadAnswerError
from optimizer.llm.protocol import LlmAnswer
from optimizer.prompting.answer import MAX_STATEMENT_CHARS, ParsedAnswer, parse_answer

CODE = "import torch\n\n\nclass ModelNew(torch.nn.Module):\n    pass\n"


def parse(text: str, finish: str = "stop") -> ParsedAnswer:
    return parse_answer(LlmAnswer(text=text, model="m", finish=finish))


def block(code: str = CODE, language: str = "python", fence: str = "```") -> str:
    return f"{fence}{language}\n{code}{fence}\n"


@pytest.mark.parametrize("language", ["python", "py", "Python", "python3", ""])
@pytest.mark.parametrize("fence", ["```", "````", "~~~"])
def test_one_block_that_defines_model_new_is_the_candidate(language: str, fence: str) -> None:
    assert parse("Here it is.\n" + block(language=language, fence=fence)).candidate.source == CODE


def test_other_blocks_beside_the_candidate_do_not_matter() -> None:
    text = block("nvcc x.cu\n", "bash") + block("x = 1\n") + block() + block("__global__ void k();\n", "cuda")
    assert parse(text).candidate.source == CODE


def test_the_same_block_twice_is_one_candidate() -> None:
    assert parse(block() + "and again\n" + block()).candidate.source == CODE


def test_thinking_aloud_before_the_answer_is_left_out() -> None:
    draft = block("class ModelNew:\n    draft = True\n")
    assert parse(f"<think>\n{draft}\n</think>\n{block()}").candidate.source == CODE


def test_a_file_without_fences_is_accepted() -> None:
    assert parse(CODE).candidate.source == CODE


def test_fences_inside_a_longer_fence_are_code() -> None:
    code = 'DOC = """\n```\nnot the end\n```\n"""\n' + CODE
    assert parse(block(code, fence="````")).candidate.source == normalise_source(code)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        ("I would use shared memory.", "no code block"),
        (block("class Model:\n    pass\n"), "no python block defines class ModelNew"),
        (block("__global__ void k();\n", "cuda"), "blocks found: cuda"),
        (block() + block(CODE.replace("pass", "x = 1")), "2 different blocks"),
        (block("class ModelNew:\n    def forward(self:\n"), "syntax error in line 2"),
        (block("def make():\n    pass\n'''\nclass ModelNew:\n'''\n"), "at top level"),
        (block(CODE + "\0\n"), "Python cannot read the code|syntax error"),
        ("```python\n" + CODE, "not closed"),
        (block("class ModelNew:\n    x = " + "(" * 5000 + ")" * 5000 + "\n"), "cannot read|syntax error"),
        (block(CODE + "#" * 500_000 + "\n"), "characters"),
    ],
)
def test_an_answer_without_one_usable_candidate_says_what_is_wrong(text: str, reason: str) -> None:
    with pytest.raises(BadAnswerError, match=reason):
        parse(text)


def test_an_answer_cut_at_the_token_limit_says_so() -> None:
    with pytest.raises(BadAnswerError, match="cut at the token limit"):
        parse("```python\nclass ModelNew:\n    pass\n", finish="length")


def test_a_refusal_is_told_with_its_words() -> None:
    with pytest.raises(BadAnswerError, match="cannot help"):
        parse_answer(LlmAnswer(text="", model="m", finish="refusal", notes=("refusal: I cannot help with that.",)))


@pytest.mark.parametrize(
    "prose",
    [
        "PLAN: load four floats at once\n  so that fewer requests are made.\n\nMore words.\n",
        "**PLAN:** load four floats at once so that fewer requests are made.\n",
        "## Plan: load four floats at once so that fewer requests are made.\nSTRATEGY: none\n",
        "PLAN:\n\nload four floats at once so that fewer requests are made.\n\n",
    ],
)
def test_the_plan_is_read_in_the_ways_models_write_it(prose: str) -> None:
    parsed = parse(prose + block())
    assert parsed.plan == "load four floats at once so that fewer requests are made."
    assert parsed.strategies == ()


def test_strategies_are_read_as_a_list() -> None:
    parsed = parse("PLAN: x\nSTRATEGY: `s-1`, **s-2**; s-1.\n" + block())
    assert parsed.strategies == ("s-1", "s-2")


def test_a_plan_inside_the_code_is_code() -> None:
    assert parse(block(CODE + "# PLAN: not this\n")).plan == ""


def test_a_long_plan_is_cut() -> None:
    assert len(parse("PLAN: " + "x" * 10_000 + "\n" + block()).plan) == MAX_STATEMENT_CHARS


@given(st.text(alphabet=st.sampled_from("`~\n pPLAN:classModelNew()python\0é\r"), max_size=200))
def test_no_text_makes_parsing_fail_in_another_way(text: str) -> None:
    try:
        parse(text)
    except BadAnswerError as problem:
        assert problem.what  # noqa: PT017 - either outcome is fine, a third one is not

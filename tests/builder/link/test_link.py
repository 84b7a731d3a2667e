import re
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from artifacts.memory.records import Direction
from artifacts.trajectory import TrustFlag
from builder.cluster.record import NOTHING_YET, Labels
from builder.describe.evidence import reason
from builder.describe.fragment import LARGEST, MOST_CHARACTERS, MOST_LINES, added_fragment, outlines
from builder.describe.plan import whole_sentences
from builder.describe.raw_transitions import WEIGHTS, weight
from builder.link.assemble import histories
from builder.link.risks import Failure, risks

REPOSITORY = Path(__file__).resolve().parents[3]


def test_every_flag_has_a_weight_and_the_documented_one() -> None:
    assert set(WEIGHTS) == set(TrustFlag)
    page = (REPOSITORY / "docs" / "reference" / "logs.md").read_text(encoding="utf-8")
    for flag, factor in WEIGHTS.items():
        assert f"| `{flag.value}` | {factor:g} |" in page


@given(st.frozensets(st.sampled_from(TrustFlag)), st.sampled_from(TrustFlag))
def test_a_further_flag_never_raises_trust(flags: frozenset[TrustFlag], more: TrustFlag) -> None:
    assert 0.0 <= weight(flags | {more}) <= weight(flags) <= 1.0


def test_a_fragment_is_what_the_child_added() -> None:
    parent = "a = 1\nb = 2\nc = 3\n"
    assert added_fragment(parent, "a = 1\nb = 2\nnew = 4\nnewer = 5\nc = 3\n") == "new = 4\nnewer = 5"
    assert added_fragment(parent, parent) == ""
    assert added_fragment(parent, "") == ""


def test_neighbouring_changes_are_shown_in_their_place() -> None:
    assert added_fragment("a = 0\nkept()\nz = 0\n", "a = 1\nkept()\nb = 2\nz = 0\n") == "a = 1\nkept()\nb = 2"


def test_a_fragment_is_short_whatever_the_child_holds() -> None:
    long = "\n".join(f"line_{number} = 'of a long rewrite'" for number in range(500))
    found = added_fragment("a\n", long)
    assert 0 < len(found) <= MOST_CHARACTERS
    assert len(found.splitlines()) <= MOST_LINES
    assert added_fragment("x" * LARGEST, "y") == ""


KERNEL = """
__global__ void scale(
    const float* x,
    float* y,
    int n) {
    // a brace in a comment {
    #pragma unroll
    for (int i = 0; i < n; ++i) {
        if (i % 2) {
            y[i] = x[i];
        } else {
            y[i] = 2.0f * x[i];
        }
    }
}
"""


def host(kernel: str) -> str:
    return f'import torch\nSOURCE = """{kernel}"""\n\n\nclass ModelNew(torch.nn.Module):\n    pass\n'


@pytest.mark.parametrize("wrap", [host, str.strip])
def test_a_fragment_of_a_kernel_is_a_whole_statement_or_nothing(wrap: Callable[[str], str]) -> None:
    lines = KERNEL.splitlines(keepends=True)
    loop = textwrap.dedent("".join(lines[6:14])).strip()

    def without(start: int, end: int) -> str:
        return wrap("".join([*lines[:start], *lines[end:]]))

    child = wrap(KERNEL)
    assert added_fragment(without(6, 14), child) == loop  # with the pragma that belongs to it
    comment = lines[5].strip()
    assert added_fragment(without(3, 14), child) == f"{comment}\n{loop}"  # not the end of the parameter list
    assert added_fragment(without(2, 5), child) == ""  # parameters alone say nothing
    assert added_fragment(without(7, 9), child) == ""  # nor do heads of blocks
    assert added_fragment(without(1, 15), child).startswith("__global__ void scale(")


def test_a_fragment_of_python_is_whole_siblings() -> None:
    child = "def f(x):\n    y = g(\n        x,\n    )\n    if y:\n        return 1\n    else:\n        return y\n"
    assert added_fragment("def f(x):\n    y = g(\n", child) == "if y:\n    return 1\nelse:\n    return y"
    assert added_fragment("def f(x):\n    y = g(\n    )\n    if y:\n        return 1\n", child) == "return y"


def test_a_fragment_does_not_begin_in_the_middle_of_a_choice() -> None:
    child = "if x:\n    a = 1\nelif y: b = 2\nelse:\n    c = 3\n    d = 4\n"
    assert added_fragment("if x:\n    a = 1\n", child) == "c = 3\nd = 4"
    assert added_fragment("if x:\n", child) == "c = 3\nd = 4"
    chain = "if x:\n    a = 0\n" + "".join(f"elif x == {number}:\n    a = {number}\n" for number in range(900))
    assert added_fragment("", chain).startswith("a = ")


@given(st.text(alphabet="ab(){};\n \"'#:/*\\", max_size=200))
def test_whole_pieces_of_any_text_close_what_they_open(text: str) -> None:
    kernel = f"__global__ void k() {{ }}\n{text.replace('#', '').replace('/', '').replace('*', '')}"
    lines = re.sub(r"\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", "", kernel).split("\n")
    for outline in outlines(kernel):
        for start, end in outline.blocks(0, len(lines), 50):
            piece = "".join(lines[start:end])
            assert piece.count("{") == piece.count("}")


def test_a_recipe_ends_where_a_sentence_does() -> None:
    assert whole_sentences("Use tiles, e.g. of 64. The child before used loads that were") == "Use tiles, e.g. of 64."
    assert whole_sentences("Raise it to 1.5 times the size") == "Raise it to 1.5 times the size"
    assert whole_sentences("Use float4. Then (if it fits) unroll.) ") == "Use float4. Then (if it fits) unroll.)"
    assert whole_sentences("\u5c55\u5f00\u5faa\u73af\u3002\u7136") == "\u5c55\u5f00\u5faa\u73af\u3002"


def failure(number: int, outcome: str, kind: str = "undefined_name", error: str = "x is undefined") -> Failure:
    return Failure(transition_id=f"t{number}", outcome=outcome, error_class=kind, error=error)


def test_failures_of_one_kind_become_a_rule_with_its_evidence() -> None:
    found = risks(
        [failure(1, "compile_error"), failure(2, "compile_error"), failure(3, "timeout", "deadlock_or_timeout")], 9
    )
    assert len(found) == 1
    assert found[0].words.startswith("You cannot")
    assert "2 of 9 attempts" in found[0].words
    assert "x is undefined" in found[0].words
    assert found[0].evidence == ("t1", "t2")


def test_infrastructure_errors_teach_nothing() -> None:
    assert risks([failure(1, "infra_error"), failure(2, "infra_error")], 2) == ()


def test_a_history_follows_the_lineage_and_leaves_noise_out() -> None:
    identities = ["c", "a", "b", "other"]
    previous = ["b", "root", "a", ""]
    assert histories(identities, previous, ["z", "x", "", "y"]) == ["x", "", "x", ""]


@given(st.integers(1, 40), st.randoms(use_true_random=False))
def test_a_history_is_as_long_as_the_way(length: int, rng: object) -> None:
    order = list(range(length))
    rng.shuffle(order)  # type: ignore[attr-defined]
    found = histories([str(i) for i in order], [str(i - 1) for i in order], [f"d{i}" for i in order])
    for place, number in enumerate(order):
        assert found[place].split() == [f"d{i}" for i in range(number)]


def test_labels_name_what_they_use() -> None:
    with pytest.raises(ValueError, match="not named"):
        Labels(
            direction_ids=["x"],
            strategy_ids=[""],
            directions=(Direction(direction_id="y", name="y", description="", effect=NOTHING_YET),),
            strategies=(),
        )


def test_a_rule_quotes_the_complaint_and_not_the_command() -> None:
    log = "[1/2] nvcc -c /build/gpu/kernel.cu\n/build/gpu/kernel.cu(3): error: identifier x is undefined\n1 file failed"
    why = reason(log, 200)
    assert why == "kernel.cu(3): error: identifier x is undefined"
    (found,) = risks([failure(number, "compile_error", error=why) for number in (1, 2)], 2)
    assert found.words.endswith(f"most often: {why}")


def test_a_bare_verdict_is_not_quoted() -> None:
    verdicts = [failure(number, "wrong_result", "numerical_mismatch", "Kernel failed.") for number in (1, 2)]
    (found,) = risks(verdicts, 2)
    assert "most often" not in found.words


def test_failures_of_many_kinds_become_one_rule() -> None:
    (found,) = risks([failure(1, "compile_error", "link_error"), failure(2, "runtime_error", "out_of_memory")], 5)
    assert "2 of 5 attempts" in found.words
    assert found.evidence == ("t1", "t2")


@given(st.text(max_size=400), st.integers(1, 200))
def test_a_reason_is_one_line_of_bounded_length(error: str, longest: int) -> None:
    found = reason(error, longest)
    assert len(found) <= longest
    assert len(found.splitlines()) <= 1

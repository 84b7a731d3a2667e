import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from artifacts.errors import BadInputError
from optimizer.llm.files import answer_of, write_requests
from optimizer.llm.protocol import LlmRequest, Message
from optimizer.run.exchange import Received, read_received


def request(text: str = "q", sample: int = 0) -> LlmRequest:
    return LlmRequest(model="m", messages=(Message(role="user", content=text),), sample=sample, temperature=0.5)


def output(key: str, text: str, **more: object) -> dict[str, object]:
    body = {"model": "m-1", "choices": [{"message": {"content": text}, "finish_reason": "stop"}]}
    body["usage"] = {"prompt_tokens": 5, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 2}}
    return {"id": "r", "custom_id": key, "response": {"status_code": 200, "body": body}, "error": None} | more


def read(folder: Path, *lines: object) -> Received:
    """What a file of records, or of lines as they are, holds."""
    path = folder / "answers.jsonl"
    path.write_bytes(b"\n".join(line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines))
    return read_received([path])


def test_requests_leave_as_batch_lines_each_once(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "ask.jsonl"
    assert write_requests(path, [request("a"), request("b"), request("a")]) == 2
    written = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["custom_id"] for line in written] == [request("a").key, request("b").key]
    assert written[0]["body"] == {
        "model": "m",
        "messages": [{"role": "user", "content": "a"}],
        "max_tokens": request().max_tokens,
        "temperature": 0.5,
    }
    assert list(path.parent.iterdir()) == [path]


def test_answers_come_back_by_key_with_their_tokens() -> None:
    key, answer = answer_of(output("k", "code"))
    assert key == "k"
    assert (answer.text, answer.model) == ("code", "m-1")
    assert (answer.prompt_tokens, answer.completion_tokens, answer.cached_tokens) == (5, 7, 2)


def test_a_short_form_serves_answers_written_by_hand() -> None:
    _, answer = answer_of({"custom_id": "k", "text": "code", "model": "somebody"})
    assert (answer.text, answer.model, answer.cost_usd) == ("code", "somebody", None)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"custom_id": "k", "resp', "not JSON"),
        (b"[1]", "expected an object"),
        (b"{}", "custom_id is missing"),
        (b'{"custom_id": 3}', "custom_id is missing"),
        (b'{"custom_id": "k"}', "neither response nor text"),
        (b'{"custom_id": "k", "error": {"code": "x", "message": "expired"}}', "expired"),
        (b'{"custom_id": "k", "response": {"status_code": 429, "body": {"error": {"message": "slow"}}}}', "429: slow"),
        (b'{"custom_id": "k", "response": {"status_code": 200, "body": {"choices": []}}}', "no choice"),
        (
            b'{"custom_id": "k", "response": {"status_code": 200, "body": {"choices": [{"message": {"content": 3}}]}}}',
            "not",
        ),
        (b'{"custom_id": "k", "response": {"status_code": 200, "body": null}}', "answered 200"),
    ],
)
def test_a_bad_line_is_reported_and_the_others_are_read(line: bytes, reason: str, tmp_path: Path) -> None:
    found = read(tmp_path, output("a", "1"), line, b"", output("b", "2"))
    assert set(found.answers) == {"a", "b"}
    (problem,) = found.problems
    assert "answers.jsonl:2: " in problem
    assert reason in problem


def test_a_second_answer_to_one_request_is_reported_and_the_first_stays(tmp_path: Path) -> None:
    found = read(tmp_path, output("k", "one"), output("k", "two"))
    assert found.answers["k"].text == "one"
    assert "second answer" in found.problems[0]


def test_a_missing_file_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"none\.jsonl"):
        read_received([tmp_path / "none.jsonl"])


FIELDS = ["custom_id", "text", "response", "status_code", "body", "choices", "message", "content", "usage", "error"]

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=4),
    max_leaves=20,
)


@given(record=json_values)
def test_any_json_is_an_answer_or_a_problem(record: object, tmp_path_factory: pytest.TempPathFactory) -> None:
    found = read(tmp_path_factory.getbasetemp(), {"custom_id": ""}, record)
    assert len(found.answers) + len(found.problems) == 2


@given(content=st.binary(max_size=60))
def test_any_bytes_are_problems_and_nothing_worse(content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    assert read(tmp_path_factory.getbasetemp(), {"custom_id": ""}, content).answers == {}

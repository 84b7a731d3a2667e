import asyncio
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from artifacts.errors import BadInputError, UnavailableError
from optimizer.llm.cassette import Cassette, RecordingClient, ReplayClient
from optimizer.llm.protocol import LlmAnswer, LlmRequest, Message

ANSWER = LlmAnswer(text="hello \u2028 \ud800 \n", model="m-1", prompt_tokens=3, completion_tokens=2, cost_usd=0.5)


def request(text: str = "q", **labels: str) -> LlmRequest:
    return LlmRequest(model="m", messages=(Message(role="user", content=text),), **labels)  # type: ignore[arg-type]


class Counting:
    """Answers after a moment and counts how often it was asked; fails while ``broken``."""

    def __init__(self) -> None:
        self.asked = 0
        self.closed = False
        self.broken = False

    async def complete(self, request: LlmRequest) -> LlmAnswer:
        self.asked += 1
        await asyncio.sleep(0.01)
        if self.broken:
            raise UnavailableError("out of order")
        return LlmAnswer(text=request.messages[0].content, model="m")

    async def close(self) -> None:
        self.closed = True


def test_what_is_recorded_comes_back_in_another_process(tmp_path: Path) -> None:
    with closing(Cassette(tmp_path / "c.jsonl", writable=True)) as cassette:
        cassette.append(request(), ANSWER)
    answer = Cassette(tmp_path / "c.jsonl").find(request().key)
    assert answer is not None
    assert (answer.text, answer.cost_usd, answer.recorded) == (ANSWER.text, 0.5, True)


def test_labels_do_not_change_what_a_request_is() -> None:
    assert request(task="a", slot="1", purpose="first").key == request(task="b", slot="2", purpose="repair").key
    assert request("a").key != request("b").key


@given(st.integers(min_value=0))
def test_a_cassette_cut_anywhere_keeps_all_whole_lines_and_goes_on(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    path = tmp_path_factory.mktemp("cassette") / "c.jsonl"
    with closing(Cassette(path, writable=True)) as cassette:
        for number in range(3):
            cassette.append(request(str(number)), ANSWER)
    content = path.read_bytes()
    kept = cut % (len(content) + 1)
    path.write_bytes(content[:kept])
    with closing(Cassette(path, writable=True)) as cassette:
        assert len(cassette.entries) == content[:kept].count(b"\n")
        cassette.append(request("after"), ANSWER)
    assert Cassette(path).find(request("after").key) is not None


def test_only_one_process_records_to_a_file(tmp_path: Path) -> None:
    path = tmp_path / "c.jsonl"
    with closing(Cassette(path, writable=True)), pytest.raises(BadInputError, match="another process writes"):
        Cassette(path, writable=True)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"no json\n", "line 1 is not JSON"),
        (b"[]\n", "no JSON object"),
        (b'{"schema": 99}\n', "schema 99"),
        (b'{"schema": 1}\n', "line 1"),
        (b"\xff\xfe\n", "line 1"),
    ],
)
def test_a_file_that_is_no_cassette_is_named_with_its_line(tmp_path: Path, content: bytes, named: str) -> None:
    path = tmp_path / "c.jsonl"
    path.write_bytes(content)
    with pytest.raises(BadInputError, match=named):
        Cassette(path)
    with pytest.raises(BadInputError, match=named):
        Cassette(path, writable=True)
    assert path.read_bytes() == content


def test_a_missing_cassette_is_an_error_for_reading(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"cannot read .*none"):
        Cassette(tmp_path / "none.jsonl")


def test_a_full_disk_loses_no_earlier_entry_and_leaves_no_half_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "c.jsonl"

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with closing(Cassette(path, writable=True)) as cassette:
        cassette.append(request("1"), ANSWER)
        monkeypatch.setattr("os.fsync", full)
        with pytest.raises(UnavailableError, match="No space left"):
            cassette.append(request("2"), ANSWER)
        monkeypatch.undo()
        cassette.append(request("3"), ANSWER)
    keys = [entry.key for entry in Cassette(path).entries]
    assert keys == [request("1").key, request("3").key]


def test_the_same_question_at_the_same_time_is_asked_once(tmp_path: Path) -> None:
    inner = Counting()

    async def twenty_times() -> list[LlmAnswer]:
        client = RecordingClient(inner, Cassette(tmp_path / "c.jsonl", writable=True))
        answers = await asyncio.gather(*(client.complete(request()) for _ in range(20)))
        answers.append(await client.complete(request()))
        await client.close()
        return answers

    answers = asyncio.run(twenty_times())
    assert inner.asked == 1
    assert inner.closed
    assert [answer.recorded for answer in answers] == [False] * 20 + [True]


def test_a_failure_is_not_recorded_and_may_be_asked_again(tmp_path: Path) -> None:
    inner = Counting()

    async def twice() -> LlmAnswer:
        client = RecordingClient(inner, Cassette(tmp_path / "c.jsonl", writable=True))
        inner.broken = True
        with pytest.raises(UnavailableError):
            await client.complete(request())
        inner.broken = False
        answer = await client.complete(request())
        await client.close()
        return answer

    assert asyncio.run(twice()).text == "q"


def test_an_answer_under_way_is_kept_when_its_caller_gives_up(tmp_path: Path) -> None:
    async def give_up() -> None:
        client = RecordingClient(Counting(), Cassette(tmp_path / "c.jsonl", writable=True))
        task = asyncio.create_task(client.complete(request()))
        await asyncio.sleep(0)
        task.cancel()
        await client.close()

    asyncio.run(give_up())
    assert Cassette(tmp_path / "c.jsonl").find(request().key) is not None


def replay(path: Path, asked: LlmRequest) -> LlmAnswer:
    return asyncio.run(ReplayClient(Cassette(path)).complete(asked))


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    with closing(Cassette(tmp_path / "c.jsonl", writable=True)) as cassette:
        cassette.append(request("time: 12 us", task="t/1", slot="0.0", purpose="optimize"), ANSWER)
    return tmp_path / "c.jsonl"


def test_a_replay_miss_says_what_was_recorded(recorded: Path) -> None:
    with pytest.raises(UnavailableError, match=r"for t/2 at 0\.0: it knows t/1"):
        replay(recorded, request("time: 12 us.", task="t/2", slot="0.0", purpose="optimize"))
    with pytest.raises(UnavailableError, match=r"of this task it holds 0\.0"):
        replay(recorded, request("time: 13 us", task="t/1", slot="1.0", purpose="optimize"))


def test_another_wording_gets_the_answer_of_its_place_once_and_says_so(recorded: Path) -> None:
    async def twice() -> LlmAnswer:
        client = ReplayClient(Cassette(recorded))
        answer = await client.complete(request("time: 13 us", task="t/1", slot="0.0"))
        with pytest.raises(UnavailableError):
            await client.complete(request("time: 14 us", task="t/1", slot="0.0"))
        return answer

    answer = asyncio.run(twice())
    assert answer.text == ANSWER.text
    assert "another wording" in answer.notes[0]


def test_an_empty_cassette_says_that_it_is_empty(tmp_path: Path) -> None:
    (tmp_path / "c.jsonl").write_bytes(b"")
    with pytest.raises(UnavailableError, match="it is empty"):
        replay(tmp_path / "c.jsonl", request())

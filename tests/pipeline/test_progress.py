from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import pytest

from artifacts.codec import encode
from artifacts.measurement import Measurement, Outcome, Timing, unsteady_times
from artifacts.runlog import Event
from optimizer.llm.openai_client import Retry
from optimizer.llm.protocol import LlmRequest, Message
from pipeline.progress import Progress, outcome


def measured(eager: Timing) -> dict[str, Any]:
    own = Timing(median_us=50.0, low_us=50.0, high_us=50.0)
    correct = Measurement(
        outcome=Outcome.CORRECT,
        stage="timing",
        device="cpu",
        timing=own,
        baselines={"eager_fp32": eager},
        doubts=unsteady_times({"eager_fp32": eager}),
    )
    return dict(encode(correct))


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Waits for a line after a silence, of which there is one every tenth of a second; seconds in it are an N."""
    lines: list[str] = []
    monkeypatch.setattr("pipeline.voice.BEAT_S", 0.1)
    monkeypatch.setattr("click.echo", lambda line, err: lines.append(re.sub(r"\(\d+ s\)", "(N s)", line)))

    def wait(line: str) -> None:
        end = time.monotonic() + 300
        while line not in lines:
            assert time.monotonic() < end, lines
            time.sleep(0.01)

    return wait


TIMED = measured(Timing(median_us=100.0, low_us=100.0, high_us=100.0))
SHAKEN = measured(Timing(median_us=100.0, low_us=100.0, high_us=100.0, samples_us=(1.0, 100.0, 120.0)))
FAILED = encode(
    Measurement(outcome=Outcome.COMPILE_ERROR, stage="build", device="cpu", error="no operator\nsecond line")
)


def step(measurement: dict[str, Any] | None, error: str = "") -> Event:
    payload = {"mode": "first", "index": 0, "measurement": measurement, "error": error}
    return Event(seq=0, time=0.0, kind="step", key="suite/-/a/0.0", payload=payload)


@pytest.mark.parametrize(
    ("event", "said"),
    [
        (step(TIMED), "correct, 50 µs, 2.00x eager_fp32"),
        (step(SHAKEN), "correct, 50 µs, 2.00x eager_fp32 (unsteady: believe it less)"),
        (step(FAILED), "compile_error: no operator"),
        (step(None, "the answer is empty"), "no candidate: the answer is empty"),
    ],
)
def test_a_step_is_said_in_one_line(event: Event, said: str) -> None:
    assert outcome(event.payload) == said


def test_without_a_terminal_each_step_is_a_line_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(("suite/-/a",), 2) as progress:
        progress(step(TIMED))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "suite/-/a/0.0  first     correct, 50 µs, 2.00x eager_fp32\n"


def test_what_an_earlier_session_did_counts_and_is_not_said_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    candidate = Event(seq=1, time=0.0, kind="candidate", key="suite/-/b/0.0", payload={})
    progress = Progress(("suite/-/a", "suite/-/b"), 2)
    progress.recall([step(TIMED), candidate])
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with progress:
        progress.say("stopping")
    shown = capsys.readouterr().err
    assert all(words in shown for words in ("stopping", "1 of 4 steps", "2.00x", "measuring"))


def test_a_winner_that_is_measured_again_is_said_too(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(("suite/-/a",), 2) as progress:
        progress(Event(seq=0, time=0.0, kind="measurement", key="suite/-/a/1.0/confirm", payload=TIMED))
    assert capsys.readouterr().err == "suite/-/a/1.0  measured again  correct, 50 µs, 2.00x eager_fp32\n"


def test_while_winners_are_measured_again_a_silence_names_them(said: Callable[[str], None]) -> None:
    with Progress(("suite/-/a",), 1, confirm=True) as progress:
        progress(step(TIMED))
        said("measuring again the winner of a (N s)")


def retry() -> Retry:
    request = LlmRequest(model="m", messages=(Message(role="user", content="?"),), task="suite/-/a", slot="1.0")
    return Retry(request=request, reason="status 503", wait_s=12.3, attempt=3, attempts=8)


def test_without_a_terminal_a_retry_is_a_line_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress(("suite/-/a",), 2) as progress:
        progress.retrying(retry())
    assert capsys.readouterr().err == "suite/-/a/1.0  status 503; asked again in 12 s, attempt 3 of 8\n"


def test_on_a_terminal_the_row_of_the_task_says_why_it_waits(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "120")
    with Progress(("suite/-/a", "suite/-/b"), 2) as progress:
        progress.retrying(retry())
    assert "status 503; asked again in 12 s, attempt 3 of 8" in capsys.readouterr().err


def test_on_a_terminal_a_table_shows_every_task(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with Progress(("suite/-/a", "suite/-/b"), 2) as progress:
        progress(step(TIMED))
    shown = capsys.readouterr().err
    assert "suite/-/b" in shown
    assert "2.00x" in shown


def test_a_candidate_that_only_looked_faster_shows_its_paired_result() -> None:
    samples = [100.0, 102.0, 98.0, 100.0, 101.0, 99.0, 100.0, 100.0] * 5
    own = Timing(median_us=100.0, low_us=99.0, high_us=101.0, samples_us=tuple(samples))
    other = Timing(median_us=99.0, low_us=98.0, high_us=100.0, samples_us=tuple(0.99 * each for each in samples))
    lost = Measurement(
        outcome=Outcome.CORRECT, stage="timing", device="cpu", timing=own, incumbent=other, faster_than_incumbent=False
    )
    payload = {"measurement": encode(lost), "error": "", "state": {"runtime_us": 110.0}}
    assert outcome(payload) == "correct, 100 µs; looked 1.10x, paired 0.99x [0.99, 0.99]: the incumbent stays"
    assert outcome({**payload, "state": {"runtime_us": 90.0}}) == "correct, 100 µs"


def test_what_a_task_waits_for_is_said_after_a_silence(said: Callable[[str], None]) -> None:
    with Progress(("suite/-/a", "suite/-/b"), 2) as progress:
        progress(Event(seq=0, time=0.0, kind="candidate", key="suite/-/a/0.0"))
        progress(Event(seq=1, time=0.0, kind="task_started", key="suite/-/b"))
        said("building and measuring a (N s); running the reference of b (N s)")
        progress(Event(seq=2, time=0.0, kind="request", key="suite/-/b/0.0"))
        said("building and measuring a (N s); waiting for an answer for b (N s)")
        progress(Event(seq=3, time=0.0, kind="candidate", key="suite/-/b/0.0"))
        said("building and measuring a (N s), b (N s)")

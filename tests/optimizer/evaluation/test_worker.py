"""The worker: jobs in, results out, nothing lost when it is killed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from artifacts.codec import encode
from artifacts.errors import BadInputError
from artifacts.measurement import Measurement, Outcome, Timing
from optimizer.evaluation.job import EvaluationJob
from optimizer.evaluation.worker.__main__ import main
from optimizer.evaluation.worker.job_files import finished_jobs, read_jobs, write_results
from optimizer.run.exchange import Received, read_received


def job(name: str) -> EvaluationJob:
    return EvaluationJob(job_id=name, task_id="t", task_source="a", candidate_source="b", backend="cpu", seed=1)


def measurement() -> Measurement:
    timing = Timing(median_us=2.0, low_us=1.0, high_us=3.0, samples_us=(1.0, 2.0, 3.0))
    return Measurement(outcome=Outcome.CORRECT, stage="timing", device="cpu", timing=timing)


def test_results_are_there_as_soon_as_they_are_known(tmp_path: Path) -> None:
    out = tmp_path / "results.jsonl"

    def results() -> object:
        yield "a", measurement()
        assert set(finished_jobs(out)) == {"a"}
        yield "b", measurement()

    assert write_results(out, results()) == 2  # type: ignore[arg-type]
    assert set(finished_jobs(out)) == {"a", "b"}


@pytest.mark.parametrize("cut", [1, 20, 200])
def test_a_torn_last_line_is_cut_off_and_nothing_else(tmp_path: Path, cut: int) -> None:
    out = tmp_path / "results.jsonl"
    write_results(out, iter([("a", measurement()), ("b", measurement())]))
    whole = out.read_bytes()
    out.write_bytes(whole[:-cut])
    assert set(finished_jobs(out)) == {"a"}
    assert out.read_bytes() == whole[: whole.index(b"\n") + 1]


def test_a_line_that_cannot_be_read_costs_no_result_after_it(tmp_path: Path) -> None:
    out = tmp_path / "results.jsonl"
    write_results(out, iter([("a", measurement()), ("b", measurement())]))
    first, second = out.read_bytes().splitlines(keepends=True)
    out.write_bytes(first + b'{"job_id": "of another version", "measurement": {}}\n' + second)
    before = out.read_bytes()
    assert set(finished_jobs(out)) == {"a", "b"}
    assert out.read_bytes() == before


def test_finished_jobs_are_not_run_again(tmp_path: Path) -> None:
    jobs, out = tmp_path / "jobs.jsonl", tmp_path / "results.jsonl"
    jobs.write_text(json.dumps(encode(job("a"))) + "\n", encoding="utf-8")
    write_results(out, iter([("a", measurement())]))
    before = out.read_bytes()
    assert main([str(jobs), "--out", str(out)]) == 0
    assert out.read_bytes() == before


def test_a_worker_without_jobs_says_so_and_leaves_results_that_a_run_can_be_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs, out = tmp_path / "jobs.jsonl", tmp_path / "results.jsonl"
    jobs.touch()
    assert main([str(jobs), "--out", str(out)]) == 0
    assert "nothing to do, 0 jobs in" in capsys.readouterr().err
    assert read_received([out]) == Received(answers={}, measurements={})


@pytest.mark.parametrize("line", ["no json", "{}", '{"job_id": 1}', "[]"])
def test_a_line_that_is_no_job_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "jobs.jsonl"
    path.write_text(json.dumps(encode(job("a"))) + "\n" + line + "\n", encoding="utf-8")
    with pytest.raises(BadInputError, match=r"jobs\.jsonl:2"):
        read_jobs(path)


def test_a_missing_file_is_one_line_and_exit_code_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "none"), "--out", str(tmp_path / "out")]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_cuda_jobs_without_a_device_say_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("optimizer.evaluation.worker.devices.shutil.which", lambda name: None)
    path = tmp_path / "jobs.jsonl"
    cuda = EvaluationJob(job_id="a", task_id="t", task_source="a", candidate_source="b", backend="cuda", seed=1)
    path.write_text(json.dumps(encode(cuda)) + "\n", encoding="utf-8")
    assert main([str(path), "--out", str(tmp_path / "out")]) == 1
    assert "no CUDA device" in capsys.readouterr().err

"""What every importer must do, on a log of every format."""

import gzip
import json
import shutil
from pathlib import Path

import pytest

from artifacts.errors import BadInputError
from artifacts.measurement import Outcome
from artifacts.runlog import RunLog
from artifacts.trajectory import TrustFlag
from builder.read.fields import Fields
from builder.read.inspection import figures, inspect_logs
from builder.read.reading import IMPORTERS, discover, read
from builder.read.verdict import failure_outcome, kernelbench_verdict

EXAMPLES = Path(__file__).parents[3] / "examples"
REAL_LOGS = Path(__file__).parents[4] / "shared" / "data" / "logs"


def test_every_importer_has_a_sample_and_a_name_of_its_own(samples):
    names = [importer.name for importer in IMPORTERS]
    assert sorted(names) == sorted(set(names)) == sorted(samples)


def test_a_log_is_found_by_its_content(sample, tmp_path):
    path = sample.write(tmp_path / "given")
    (found,) = discover([path])
    assert found.format == sample.format


def test_a_log_is_found_under_any_file_name(samples, tmp_path):
    for name in ("ssnti1111", "kernelbench-agentic", "mlsys26", "cuda-l1", "kernelbenchx", "cuda-engineer"):
        path = samples[name].write(tmp_path / name)
        renamed = path.rename(tmp_path / f"{name}.dat")
        assert [log.format for log in discover([renamed])] == [name]


def test_every_record_becomes_a_step_or_is_quarantined(sample, tmp_path):
    (log,) = discover([sample.write(tmp_path / "given")])
    result = read(log)
    assert (result.records, result.steps, result.derived) == (sample.records, sample.steps, sample.derived)
    assert len(result.quarantined) == sample.quarantined
    assert result.records + result.derived == result.steps + len(result.quarantined)


def test_transitions_are_counted_as_they_were_measured(sample, tmp_path):
    (log,) = discover([sample.write(tmp_path / "given")])
    total = figures([read(log)])
    assert (total.measured, total.fixes, total.failures) == (sample.measured, sample.fixes, sample.failures)


def test_every_step_says_where_it_was_read(sample, tmp_path):
    (log,) = discover([sample.write(tmp_path / "given")])
    result = read(log)
    for trajectory in result.trajectories:
        assert {step.provenance.file for step in trajectory.steps} == {log.name}
        assert {step.provenance.file_sha256 for step in trajectory.steps} == {result.digest}
        assert {step.provenance.format for step in trajectory.steps} == {sample.format}


def test_quarantine_gives_file_and_reason(every_format):
    for entry in (entry for log in discover([every_format]) for entry in read(log).quarantined):
        assert entry.file
        assert entry.reason


def test_reading_depends_on_the_content_alone(sample, tmp_path):
    first = read(discover([sample.write(tmp_path / "one")])[0])
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    (log,) = discover([tmp_path / "two"])
    second = read(log)
    assert first.digest == second.digest
    assert [each.trajectory_id for each in first.trajectories] == [each.trajectory_id for each in second.trajectories]


def test_the_softmax_task_is_one_task_in_every_format_that_names_it(every_format):
    tasks = {
        file.format: {trajectory.task.task_id for trajectory in file.trajectories}
        for file in map(read, discover([every_format]))
    }
    for name in (
        "ssnti1111",
        "kernelbench-agentic",
        "cuda-l1",
        "cuda-engineer",
        "cudaforge",
        "kernelmem",
        "kernelagent",
    ):
        assert "kernelbench/1/23_softmax" in tasks[name]


def test_a_log_given_twice_is_read_once(samples, tmp_path):
    samples["mlsys26"].write(tmp_path / "one")
    samples["mlsys26"].write(tmp_path / "two")
    found = inspect_logs([tmp_path])
    assert found["total"]["files"] == 1
    assert {"file": "two/steps.jsonl", "reason": "same content as one/steps.jsonl"} in found["ignored"]


def test_chinese_text_is_kept(samples, tmp_path):
    (log,) = discover([samples["ssnti1111"].write(tmp_path)])
    (trajectory,) = read(log).trajectories
    assert trajectory.steps[1].plan == "把数据放进共享内存"
    assert "新内核不正确" in {step.error for step in trajectory.steps}


def test_a_round_starts_from_the_best_success_so_far(samples, tmp_path):
    (log,) = discover([samples["ssnti1111"].write(tmp_path)])
    (trajectory,) = read(log).trajectories
    assert {step.step_id: step.parent_id for step in trajectory.steps} == {
        "0": None,
        "1": "0",
        "2": "1",
        "3": "1",
        "5": "1",
    }
    assert trajectory.steps[0].baseline_us == 11000.0


def test_a_turn_carries_out_the_directive_of_the_turn_before(samples, tmp_path):
    (log,) = discover([samples["kernelbench-agentic"].write(tmp_path)])
    (trajectory,) = read(log).trajectories
    assert [step.plan for step in trajectory.steps] == ["fuse the passes", "check the bounds", "use warp shuffles"]
    assert trajectory.steps[0].outcome is Outcome.RUNTIME_ERROR
    assert "def get_init_inputs" in trajectory.reference


def test_a_beam_round_belongs_to_the_kernel_with_its_profile(samples, tmp_path):
    (log,) = discover([samples["kernelagent"].write(tmp_path)])
    (trajectory,) = read(log).trajectories
    parents = {step.step_id: step.parent_id for step in trajectory.steps}
    assert parents == {"input": None, "round_1": "input", "round_2": "round_1", "round_3": "round_1"}


def test_kernelmem_takes_parents_plans_and_device_from_its_rounds(samples, tmp_path):
    (log,) = discover([samples["kernelmem"].write(tmp_path)])
    (trajectory,) = read(log).trajectories
    assert {step.step_id: step.parent_id for step in trajectory.steps} == {
        "kernel_1": None,
        "kernel_2": "kernel_1",
        "kernel_3": "kernel_1",
    }
    assert "method_2" in trajectory.steps[-1].plan
    assert trajectory.device == "H100"


def test_a_lineage_is_read_from_the_simplest_version_to_the_experts(samples, tmp_path):
    (log,) = discover([samples["lineage"].write(tmp_path)])
    result = read(log)
    (trajectory,) = result.trajectories
    found = [(step.step_id, step.parent_id, step.plan, step.index) for step in trajectory.steps]
    assert found == [
        ("naive", None, "", 1),
        ("scalar", "naive", "one pass with a running maximum", 2),
        ("expert", "scalar", "load four floats at once", 3),
    ]
    assert "simplified twice" in result.quarantined[0].reason


def test_the_shipped_lineage_holds_four_gains():
    (result,) = (read(log) for log in discover([EXAMPLES / "lineage"]))
    total = figures([result])
    assert (total.records, total.steps, total.measured, total.gains, total.quarantined) == (5, 5, 4, 4, 0)
    assert {step.language.value for trajectory in result.trajectories for step in trajectory.steps} == {"cpp"}


def test_an_own_run_keeps_its_choice_and_its_reference(samples, tmp_path):
    (log,) = discover([samples["htam"].write(tmp_path)])
    (trajectory,) = read(log).trajectories
    step = trajectory.steps[1]
    assert (step.direction, step.choice_probability, step.runtime_us) == ("memory access", 0.25, 30.0)
    assert step.state is not None
    assert "class Model" in trajectory.reference


def test_a_packed_run_reads_like_the_plain_one(samples, tmp_path):
    path = samples["htam"].write(tmp_path)
    plain = [(step.step_id, step.sha256) for found in read(*discover([path])).trajectories for step in found.steps]
    RunLog.open(path).pack()
    packed = [(step.step_id, step.sha256) for found in read(*discover([path])).trajectories for step in found.steps]
    assert packed == plain


def test_a_log_keeps_its_digest_when_its_candidates_are_packed(samples, tmp_path):
    path = samples["htam"].write(tmp_path)
    (path / "events.jsonl.gz").write_bytes(gzip.compress((path / "events.jsonl").read_bytes()))
    (path / "events.jsonl").unlink()
    plain = read(*discover([path]))
    RunLog.open(path).pack()
    packed = read(*discover([path]))
    assert not (path / "candidates").exists()
    assert packed.trajectories == plain.trajectories  # whose ids and provenance hold the digest


def test_a_run_cut_in_the_middle_of_a_line_reads_as_far_as_it_got(samples, tmp_path):
    path = samples["htam"].write(tmp_path)
    events = path / "events.jsonl"
    events.write_bytes(events.read_bytes()[:-200])
    (log,) = discover([path])
    assert read(log).steps == 2


def test_a_parquet_archive_reads_like_its_csv(samples, tmp_path):
    import pyarrow.csv
    import pyarrow.parquet

    path = samples["cuda-engineer"].write(tmp_path)
    options = pyarrow.csv.ParseOptions(newlines_in_values=True)
    pyarrow.parquet.write_table(pyarrow.csv.read_csv(path, parse_options=options), tmp_path / "archive.parquet")
    results = [read(log) for log in discover([path, tmp_path / "archive.parquet"])]
    codes = [[step.sha256 for trajectory in result.trajectories for step in trajectory.steps] for result in results]
    assert codes[0] == codes[1]
    assert len(codes[0]) == 3


def test_the_string_none_is_no_code(samples, tmp_path):
    (log,) = discover([samples["cuda-l1"].write(tmp_path)])
    flagged = [
        step for trajectory in read(log).trajectories for step in trajectory.steps if TrustFlag.NO_CODE in step.flags
    ]
    assert [step.code for step in flagged] == ["None"]


@pytest.mark.skipif(not REAL_LOGS.is_dir(), reason="the public logs are not on this machine")
def test_the_public_logs_read_whole_and_agree_with_their_readme():
    total = figures(map(read, discover([REAL_LOGS])))
    assert total.records == 3623
    assert total.records + total.derived == total.steps + total.quarantined
    # five of its times are below what the device's memory allows (their README names them): no measurement
    assert total.measured == 2051
    assert (total.fixes, total.failures, total.quarantined) == (49, 763, 229)


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        ("Compilation failed: worker 2: the account's spend limit is reached", Outcome.INFRA_ERROR),
        ("OSError: [Errno 28] No space left on device", Outcome.INFRA_ERROR),
        ("Compilation failed: expected ';'", Outcome.COMPILE_ERROR),
        ("nvcc timed out", Outcome.TIMEOUT),
        ("a grid beyond the device's limit", Outcome.COMPILE_ERROR),
    ],
)
def test_what_the_infrastructure_did_is_not_charged_to_the_candidate(text, outcome):
    assert failure_outcome(text, compiled=False) is outcome


@pytest.mark.parametrize(
    "metadata",
    [
        {"cuda_error": "CUDA Error: an illegal memory access was encountered", "cuda_error_name": "AcceleratorError"},
        {"gpu_error": "AcceleratorError", "error_message": "CUDA error: unspecified launch failure"},
    ],
)
def test_what_died_on_the_device_did_compile_whatever_the_harness_calls_it(metadata):
    found = kernelbench_verdict(Fields({"compiled": False, "correctness": False, "metadata": metadata}))
    assert found.outcome is Outcome.RUNTIME_ERROR
    assert next(text for name, text in metadata.items() if not name.endswith(("_name", "gpu_error"))) in found.error


def test_a_checkpoint_keeps_what_the_evaluator_said_as_json_in_a_text(samples, tmp_path):
    path = samples["openevolve"].write(tmp_path)
    program = path / "checkpoint_2" / "programs" / "c.json"
    told = json.dumps({"stderr": "CompilationError: at 3:4: invalid syntax"})
    changed = json.loads(program.read_text()) | {"metrics": {"error": 0.0}, "artifacts_json": told}
    program.write_text(json.dumps(changed))
    (trajectory,) = read(*discover([path])).trajectories
    (failed,) = [step for step in trajectory.steps if step.outcome is not Outcome.CORRECT]
    assert (failed.outcome, failed.error) == (Outcome.COMPILE_ERROR, "CompilationError: at 3:4: invalid syntax")


def test_an_inbox_without_logs_is_no_mistake_where_that_is_said(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing to see here", encoding="utf-8")
    assert discover([tmp_path], allow_empty=True) == ()
    with pytest.raises(BadInputError, match="no log of a known format"):
        discover([tmp_path])


def test_an_inbox_that_does_not_exist_is_a_mistake_even_where_an_empty_one_is_none(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="no such file"):
        discover([tmp_path / "typo"], allow_empty=True)


@pytest.mark.parametrize("kind", ["unsteady", "rough"])
def test_a_doubt_about_a_timing_is_a_flag_of_its_step(samples, tmp_path, kind):
    (log,) = discover([samples["htam"].write(tmp_path)])
    events = log.path / "events.jsonl"
    lines = [json.loads(line) for line in events.read_text().splitlines()]
    timed = next(
        line["payload"] for line in lines if line["kind"] == "step" and line["payload"]["measurement"]["timing"]
    )
    timed["measurement"]["doubts"] = [{"kind": kind, "text": "took 1 to 90 us"}]
    events.write_text("".join(json.dumps(line) + "\n" for line in lines))
    steps = [step for trajectory in read(log).trajectories for step in trajectory.steps]
    assert [step.step_id for step in steps if TrustFlag(kind) in step.flags] == [timed["step_id"]]


def test_plain_steps_keep_the_name_of_their_source(samples, tmp_path):
    (trajectory,) = read(*discover([samples["steps"].write(tmp_path)])).trajectories
    assert (trajectory.source, trajectory.task.task_id, trajectory.device) == (
        "team",
        "kernelbench/1/23_softmax",
        "H100",
    )


def test_programs_of_skydiscover_have_their_code_under_solution(samples, tmp_path):
    path = samples["openevolve"].write(tmp_path)
    before = read(*discover([path]))
    for program in path.rglob("programs/*.json"):
        changed = json.loads(program.read_text())
        if "code" in changed:
            program.write_text(json.dumps(changed | {"solution": changed.pop("code")} | {"code": None}))
    after = read(*discover([path]))
    assert after.steps == before.steps > 0
    assert [entry.reason for entry in after.quarantined] == [entry.reason for entry in before.quarantined]

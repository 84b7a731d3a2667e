"""What a coding agent's session gives, and what it does not."""

import json
from pathlib import Path

import pytest

from artifacts.measurement import Outcome
from builder.read.collector import LogResult
from builder.read.reading import discover, read

KERNEL = '__global__ void {}(float* x) {{ x[threadIdx.x] = 1.0f; }}\n#include "a.h"\n'
CHECK = "python check.py"
SHAPE = "shape={} variant=solution tflops=1.0 gbps=1.0 ms={}\n"


def write(name: str, path: str = "/repo/gemm/kernel.cu") -> tuple[str, dict[str, str], str]:
    return "Write", {"file_path": path, "content": KERNEL.format(name)}, "File written"


def bash(command: str, answer: str) -> tuple[str, dict[str, str], str]:
    return "Bash", {"command": command}, answer


def session(folder: Path, *deeds: tuple[str, dict[str, str], str], task: str = "Make it fast.") -> LogResult:
    lines = [{"type": "user", "message": {"role": "user", "content": task}}]
    for number, (name, given, answer) in enumerate(deeds):
        call = {"type": "tool_use", "id": f"t{number}", "name": name, "input": given}
        back = {"type": "tool_result", "tool_use_id": f"t{number}", "content": [{"type": "text", "text": answer}]}
        said = {"type": "text", "text": f"Idea {number}."}
        lines.append({"type": "assistant", "message": {"role": "assistant", "model": "m", "content": [said, call]}})
        lines.append({"type": "user", "message": {"role": "user", "content": [back]}})
    path = folder / "session.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    (log,) = discover([path])
    return read(log)


def outcomes(result: LogResult) -> list[tuple[str, float | None]]:
    return [(step.outcome.value, step.runtime_us) for item in result.trajectories for step in item.steps]


def reasons(result: LogResult) -> list[str]:
    return [entry.reason for entry in result.quarantined]


def test_edits_between_two_runs_are_one_step_with_the_plans_of_both(tmp_path):
    result = session(tmp_path, write("a"), bash(CHECK, "PASS"), write("b"), write("c"), bash(CHECK, "PASS"))
    first, second = result.trajectories[0].steps
    assert (second.parent_id, second.code, second.plan) == (first.step_id, KERNEL.format("c"), "Idea 2.\nIdea 3.")


def test_the_task_is_the_folder_of_the_kernel(tmp_path):
    result = session(tmp_path, write("a"), bash(CHECK, "PASS"))
    assert result.trajectories[0].task.task_id == "local/-/gemm"


@pytest.mark.parametrize(
    "command",
    [
        "cat results.log",
        "echo PASS",
        "python -c 'print(1)'",
        "python mine.py",
        "python kernel.cu.py",
        "ncu python check.py",
        "python check.py > log; cat log",
        "python check.py | grep shape=0",
        "python check.py | tee check.py",
    ],
)
def test_what_no_harness_alone_has_printed_is_no_verdict(tmp_path, command):
    kernel, own = "/repo/gemm/kernel.cu.py", ("Write", {"file_path": "/repo/gemm/mine.py", "content": "print()"}, "")
    result = session(tmp_path, own, write("a", kernel), bash(command, "PASS"))
    assert not outcomes(result)
    assert reasons(result) == ["no version of the kernel was run by a harness that the agent did not write"]


def test_a_harness_that_the_agent_rewrote_counts_no_more(tmp_path):
    rewritten = bash("sed -i s/1e-4/1e9/ check.py", "")
    result = session(tmp_path, write("a"), bash(CHECK, "PASS"), rewritten, write("b"), bash(CHECK, "PASS"))
    assert len(outcomes(result)) == 1


@pytest.mark.parametrize(
    "command", ["git stash", "cp best.cu kernel.cu", "cat > kernel.cu << 'E'\nx\nE", "rm kernel.cu"]
)
def test_a_kernel_that_a_command_changed_is_not_guessed(tmp_path, command):
    result = session(tmp_path, write("a"), bash(CHECK, "PASS"), bash(command, ""), bash(CHECK, "PASS"))
    assert (len(outcomes(result)), len(reasons(result))) == (1, 1)


def test_a_copy_of_the_kernel_leaves_it_as_it_was(tmp_path):
    result = session(tmp_path, write("a"), bash("cp kernel.cu best.cu", ""), bash(CHECK, "PASS"))
    assert outcomes(result) == [("correct", None)]


def test_an_edit_that_was_refused_changes_nothing_and_one_that_fits_twice_leaves_nothing_known(tmp_path):
    twice = ("Edit", {"file_path": "/repo/gemm/kernel.cu", "old_string": "x", "new_string": "y"}, "ok")
    result = session(tmp_path, write("a"), twice, bash(CHECK, "PASS"))
    assert reasons(result) == ["a command changed the kernel file: what was measured is not known"]


@pytest.mark.parametrize(
    ("printed", "outcome", "time_us"),
    [
        (f"PASS\n{SHAPE.format(0, 0.1)}{SHAPE.format(1, 0.4)}peak_fraction: 0.4", "correct", 200),
        (f"PASS\n{SHAPE.format(1, 0.4)}peak_fraction: 0.4", "correct", None),
        ("[Eval] compiled=True correctness=True metadata={'n': 1} runtime=0.25 runtime_stats={}", "correct", 250),
        ("compiled=True correctness=False metadata={} runtime=-1.0", "wrong_result", None),
        ("PASS\nElapsed time: 31.2 s\ntotal time: 900 ms", "correct", None),
        ("correctness: PASS\nlatency_us: 12.5\nspeedup: 2.0", "correct", 12.5),
        ("FAIL: forbidden op used: torch.matmul", "rejected", None),
        ("torch.AcceleratorError: CUDA error: misaligned\nCompile with `TORCH_USE_CUDA_DSA`", "runtime_error", None),
        ('File "/w/kernel.cu", line 3, in f\nOutOfResources: shared memory', "runtime_error", None),
        ("RuntimeError: Error building extension 'k': nvcc failed", "compile_error", None),
    ],
)
def test_verdicts_and_times_are_read_as_harnesses_print_them(tmp_path, printed, outcome, time_us):
    ((found, time),) = outcomes(session(tmp_path, write("a"), bash(CHECK, printed)))
    assert (found, time) == (outcome, pytest.approx(time_us) if time_us else None)


@pytest.mark.parametrize(
    "printed",
    [
        "latency: 0.5 ms",
        "done",
        "PASS\nFAIL: shape 3",
        "PASS\nlatency: 0.5 ms\nlatency: 5 ms",
        "AttributeError: 'NoneType' object has no attribute 'items'",
    ],
)
def test_what_leaves_a_doubt_is_quarantined(tmp_path, printed):
    result = session(tmp_path, write("a"), bash(CHECK, printed))
    assert (outcomes(result), len(reasons(result))) == ([], 1)


def test_repeated_timings_of_one_version_give_their_median(tmp_path):
    runs = [bash("python bench.py", f"latency: {time} ms") for time in (0.5, 0.52, 0.51)]
    result = session(tmp_path, write("a"), bash(CHECK, "PASS"), *runs)
    assert outcomes(result) == [(Outcome.CORRECT.value, pytest.approx(510.0))]


def test_of_several_kernels_the_one_counts_that_the_task_names(tmp_path):
    deeds = write("a", "/w/scratch.cu"), write("b"), bash(CHECK, "PASS")
    assert len(outcomes(session(tmp_path, *deeds, task="Your kernel goes in kernel.cu."))) == 1
    assert reasons(session(tmp_path, *deeds)) == ["2 files with kernels were written: which one counts is not known"]


def test_a_kernel_that_includes_what_the_agent_wrote_beside_it_is_not_whole(tmp_path):
    result = session(tmp_path, write("b"), write("a", "/w/a.h"), bash(CHECK, "PASS"), task="Write kernel.cu.")
    assert reasons(result) == ["the kernel needs other files that the agent wrote: its code is not whole"]


def test_what_follows_a_line_that_cannot_be_read_is_not_built_on_what_came_before(tmp_path):
    result = session(tmp_path, write("a"), bash(CHECK, "PASS"), bash(CHECK, "PASS"))
    path = tmp_path / "session.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:5], "{broken", *lines[5:]]))
    (log,) = discover([path])
    assert (len(outcomes(result)), len(reasons(read(log)))) == (1, 2)

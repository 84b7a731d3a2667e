"""One small log of every format, written for these tests, with what reading it must give."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from artifacts.candidate import Language
from artifacts.codec import encode
from artifacts.measurement import Measurement, Outcome, Timing
from artifacts.run_events import LoggedStep, TaskStarted
from artifacts.runlog import RunLog
from artifacts.task import kernelbench_task
from artifacts.trajectory import State

REFERENCE = """import torch
import torch.nn as nn

class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=1)

rows, columns = 1024, 1024

def get_inputs():
    return [torch.rand(rows, columns)]

def get_init_inputs():
    return []
"""


def kernel(name: str) -> str:
    """A CUDA candidate; ``name`` makes sources differ."""
    return f'''import torch
from torch.utils.cpp_extension import load_inline

SOURCE = """
__global__ void {name}(const float* x, float* y, int n) {{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] * 2.0f;
}}
"""

class ModelNew(torch.nn.Module):
    def forward(self, x):
        return load_inline(name="{name}", cuda_sources=[SOURCE]).run(x)
'''


def triton_kernel(name: str) -> str:
    """A Triton candidate; ``name`` makes sources differ."""
    return f"""import torch
import triton
import triton.language as tl

@triton.jit
def {name}(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + offsets, tl.load(x_ptr + offsets, mask=offsets < n), mask=offsets < n)
"""


def dump(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")


def dump_lines(path: Path, values: list[object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(value, ensure_ascii=False) + "\n" for value in values), encoding="utf-8")


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def ssnti1111(root: Path) -> Path:
    def entry(
        number: int, status: str, time: float | None, code: str, goal: str = "把数据放进共享内存"
    ) -> dict[str, object]:
        metrics = {"DRAMThroughput": 40.0 + number}
        return {
            "round": number,
            "goal": goal,
            "status": status,
            "time_ms": time,
            "ptxas_metrics": {"registers_used": 32.0},
            "all_ncu_metrics": metrics if number % 2 else repr(metrics),
            "selected_ncu_metrics": [],
            "details": "新内核不正确" if "Correctness" in status else "",
            "code": code,
        }

    path = root / "histories" / "0a1b2c3d4e__23_Softmax_optimization_history.json"
    dump(
        path,
        [
            entry(0, "Success", 12.0, kernel("naive"), "Baseline"),
            entry(1, "Success (New Best)", 9.0, kernel("tiled")),
            entry(2, "Failed (Correctness)", None, kernel("wrong")),
            entry(3, "Failed (Performance Regression)", 10.0, kernel("slower")),
            entry(4, "Failed (Coder)", None, ""),
            entry(5, "Success (New Best)", 8.0, kernel("unrolled")),
        ],
    )
    dump(
        root / "baselines" / "ffee01__23_Softmax_pytorch_baseline.json",
        {"problem_name": "23_Softmax", "pytorch_baseline_ms": 11.0},
    )
    return path


def kernelbench_agentic(root: Path) -> Path:
    def turn(correct: bool, code: str, runtime: float, directive: str) -> dict[str, object]:
        metadata = {"hardware": "Tesla V100-SXM2-32GB", "correctness_trials": "(5 / 5)"}
        if not correct:
            metadata |= {"runtime_error": "illegal memory access", "runtime_error_name": "CUDAError"}
        return {
            "prompt_kind": "refine",
            "extracted_code": code,
            "eval": {
                "compiled": True,
                "correctness": correct,
                "metadata": metadata,
                "runtime": runtime,
                "runtime_stats": {"mean": runtime} if correct else {},
                "ref_runtime": 4.0,
            },
            "diagnosis": {"directive": directive, "fixes": "1. check bounds"},
        }

    problem = {
        "problem_name": "23_Softmax.py",
        "base_prompt": f"Optimize this:\n\n{REFERENCE}\nAnswer with code.",
        "analysis": {"strategy": "fuse the passes"},
        "turns": [
            turn(False, kernel("first"), -1.0, "check the bounds"),
            turn(True, kernel("second"), 5.0, "use warp shuffles"),
            turn(True, kernel("third"), 2.5, "stop"),
        ],
        "final_eval": {"metadata": {"hardware": "Tesla V100-SXM2-32GB"}},
        "extracted_code": "",
    }
    bare = {"problem_name": "19_ReLU.py", "extracted_code": kernel("unjudged"), "prompt": REFERENCE}
    path = root / "gen_results.json"
    dump(path, {"meta": {"method": "agentic", "model": "some-model"}, "levels": {"1": {"23": problem, "19": bare}}})
    return path


def mlsys26(root: Path) -> Path:
    def line(
        step: int, parent: int | None, correct: bool, runtime: float | None, code: str, error: str | None
    ) -> object:
        return {
            "suite": "Contest",
            "level": None,
            "task_id": "moe_block",
            "device": "B200",
            "traj_id": "moe/iter1",
            "step": step,
            "parent_step": parent,
            "code": code,
            "strategy": "split the experts",
            "compiled": error is None or "compile" not in error.lower(),
            "correct": correct,
            "runtime_us": runtime,
            "baseline_us": 900.0 if runtime else None,
            "baseline_kind": "python reference",
            "error": error,
            "profiler": {"ncu_rows": 1},
        }

    path = root / "steps.jsonl"
    dump_lines(
        path,
        [
            line(0, None, True, 300.0, triton_kernel("root"), None),
            line(1, 0, False, None, triton_kernel("broken"), "Compile error: invalid syntax"),
            line(2, 0, True, 200.0, triton_kernel("better"), None),
            line(3, 2, False, None, triton_kernel("wrong"), "Validation failed: INCORRECT_NUMERICAL"),
            line(4, 1, True, 250.0, triton_kernel("repaired"), None),
            line(5, 0, False, None, '{"name": "definition"}', None),
        ],
    )
    return path


def cuda_l1(root: Path) -> Path:
    def row(task: int, code: str | None, score: float | None) -> dict[str, object]:
        return {
            "level_id": 1,
            "task_id": task,
            "ref_code": REFERENCE,
            "custom_code": code,
            "score_default": score,
            "score_cudnn": 1.5,
            "score_cuda_graph": None,
        }

    path = root / "a100.json"
    dump_lines(path, [row(23, kernel("winner"), 1.8), row(19, "None", 2.0), row(20, None, None)])
    return path


def kernelbenchx(root: Path) -> Path:
    def side(ok: bool, runtime: float | None, error: str) -> dict[str, object]:
        speedup = 1.1 if runtime else None
        return {"call_ok": ok, "exe_ok": ok, "perf_ok": ok, "runtime_ms": runtime, "speedup": speedup, "error": error}

    def pair(start: int, before: dict[str, object], after: dict[str, object]) -> dict[str, object]:
        return {
            "task_id": "Math/softmax.py",
            "transition": f"round_{start}_to_round_{start + 1}",
            "from_round": f"round_{start}",
            "to_round": f"round_{start + 1}",
            "before": before,
            "after": after,
            "before_code": triton_kernel(f"round_{start}"),
            "after_code": triton_kernel(f"round_{start + 1}"),
        }

    path = root / "all_records.jsonl"
    failed, slow, fast = side(False, None, "CompilationError: bad"), side(True, 2.0, ""), side(True, 1.5, "")
    dump_lines(path, [pair(0, failed, slow), pair(1, slow, fast)])
    return path


def evolution_trace(root: Path) -> Path:
    def row(parent: str, child: str, before: float, after: float | None) -> dict[str, object]:
        return {
            "iteration": 1,
            "parent_id": parent,
            "child_id": child,
            "parent_metrics": {"runtime_ms": before},
            "child_metrics": {"runtime_ms": after, "correct": 1.0}
            if after
            else {"correct": 0.0, "error": "outputs are not close"},
            "parent_code": triton_kernel(parent),
            "child_code": triton_kernel(child),
            "child_changes_description": "larger tiles",
        }

    path = root / "softmax" / "evolution_trace.jsonl.gz"
    path.parent.mkdir(parents=True)
    rows = [row("a", "b", 4.0, 3.0), row("b", "c", 3.0, None), row("b", "d", 3.0, 2.0)]
    path.write_bytes(gzip.compress("".join(json.dumps(item) + "\n" for item in rows).encode(), mtime=0))
    return path


def cuda_engineer(root: Path) -> Path:
    path = root / "archive.csv"
    names = ("Op_Name", "Level_ID", "Task_ID", "Kernel_Name", "CUDA_Code", "PyTorch_Code_Module", "Correct")
    names += ("CUDA_Runtime", "PyTorch_Native_Runtime", "Error", "NCU_Profile")
    profile = repr({"metrics": {"Registers Per Thread": {"avg_value": 32.0, "unit": "register"}}, "rules": {}})
    rows = (
        ("softmax", 1, 23, "tiled", kernel("tiled"), REFERENCE, "True", 0.5, 1.0, "", profile),
        (
            "softmax",
            1,
            23,
            "broken",
            kernel("broken"),
            REFERENCE,
            "False",
            "",
            1.0,
            "error: nvcc failed to compile",
            "",
        ),
        ("softmax", 1, 23, "empty", "", REFERENCE, "False", "", 1.0, "no code", ""),
    )
    root.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows((names, *rows))
    return path


def kernelbench_run(root: Path) -> Path:
    def sample(number: int, correct: bool, runtime: float) -> dict[str, object]:
        metadata = {"hardware": "NVIDIA H100", "correctness_trials": "(1 / 1)"}
        return {
            "sample_id": number,
            "compiled": True,
            "correctness": correct,
            "metadata": metadata
            if correct
            else metadata | {"correctness_issue": "Output mismatch", "max_difference": ["3.0"]},
            "runtime": runtime,
            "runtime_stats": {"mean": runtime},
        }

    dump(
        root / "eval_results.json", {"23": [sample(0, True, 1.0), sample(1, False, -1.0)], "7": [sample(0, True, 1.0)]}
    )
    for name in ("1_problem_23_sample_0", "1_problem_23_sample_1", "1_problem_9_sample_0"):
        put(root / f"level_{name}_kernel.py", kernel(f"k{name}"))
    dump(root / "baseline_time_torch.json", {"level1": {"23_Softmax.py": {"mean": 2.0, "std": 0.1}}})
    return root


def cudaforge(root: Path) -> Path:
    return _task_folder(root / "20260101_run" / "23_Softmax")


def kernelmem(root: Path) -> Path:
    folder = _task_folder(root / "20260102_run" / "23_Softmax")
    rounds = (("kernel_1", "kernel_2", "optimization_strategy"), ("kernel_1", "kernel_3", "optimization_strategy"))
    for number, (parent, child, field) in enumerate(rounds, start=1):
        strategy = {"bottleneck": "DRAM", "method_name": f"method_{number}", "modification plan": "vector loads"}
        record = {
            "round": number,
            "parent_kernel_name": parent,
            "test_kernel": f"/elsewhere/{child}.py",
            field: strategy,
        }
        dump(folder / "code" / parent / f"opt_round_{number:03d}.json", record)
    header, units, values = (
        ["ID", "device__attribute_display_name", "sm__throughput.pct"],
        ["", "", "%"],
        ["0", "H100", "41.5"],
    )
    page = "==METRICS_START:k==\n" + "".join(
        ",".join(f'"{item}"' for item in row) + "\n" for row in (header, units, values)
    )
    put(folder / "profile" / "kernel_1_ncu.csv", page)
    return folder


def _task_folder(folder: Path) -> Path:
    for number in (1, 2, 3):
        put(folder / "code" / f"kernel_{number}.py", kernel(f"forge_{number}"))

    def passed(number: int, latency: float) -> dict[str, object]:
        return {
            "reference_file": "KernelBench/level1/23_Softmax.py",
            "candidate_file": f"/elsewhere/../../code/kernel_{number}.py",
            "test_latency_ms": {"avg": latency},
            "ref_latency_ms": {"avg": 2.0},
            "seed": 100,
            "runnable": True,
            "phase": "seed",
        }

    failed = {"runnable": False, "phase": "opt", "error_type": "ValueError", "message": "Outputs are not close"}
    for number, record in enumerate((passed(1, 3.0), failed, passed(3, 2.5))):
        dump(folder / "evaluation" / f"eval_{number:04d}.json", record)
    reply = 'Here:\n{"bottleneck": "DRAM", "modification plan": "use float4 loads"}'
    put(folder / "evaluation" / "llm_io" / "1_optimization_strategy_reply.txt", reply)
    return folder


def kernelagent(root: Path) -> Path:
    folder = root / "artifacts" / "23_Softmax"
    put(folder / "input_kernel.py", triton_kernel("input"))
    put(folder / "problem.py", REFERENCE)

    def profile(scale: float) -> dict[str, object]:
        return {"metrics": {"k": {f"counter_{item}": scale * (item + 1) for item in range(8)}}, "metadata": {}}

    befores, afters, times = (1.0, 2.0, 2.0), (2.0, 3.0, 4.0), (6.0, 7.0, 5.0)
    for number, (before, after, time) in enumerate(zip(befores, afters, times, strict=True), start=1):
        place = folder / "optimization_trace" / f"round_{number}"
        put(place / "kernel.py", triton_kernel(f"round_{number}"))
        dump(place / "benchmark_results.json", {"dtype": "torch.float32", "kernels": {"k": {"time_ms": time}}})
        dump(place / "strategy.json", [{"summary": "low occupancy", "recommended_fixes": [{"fix": "smaller tiles"}]}])
        dump(place / "input_ncu_metrics.json", profile(before))
        dump(place / "optimized_ncu_metrics.json", profile(after))
    return folder


def kernelagent_database(root: Path) -> Path:
    def program(identity: str, parent: str | None, time: float | None) -> dict[str, object]:
        return {
            "program_id": identity,
            "kernel_code": triton_kernel(identity),
            "metrics": {"time_ms": time},
            "problem_id": "level1/23_Softmax.py",
            "parent_id": parent,
            "generation": 0 if parent is None else 1,
        }

    path = root / "program_database.json"
    dump(path, {"programs": [program("a", None, 3.0), program("b", "a", 2.0), program("c", "a", float("inf"))]})
    return path


def openevolve(root: Path) -> Path:
    def program(identity: str, parent: str | None, metrics: dict[str, object], found: int) -> dict[str, object]:
        return {
            "id": identity,
            "code": triton_kernel(identity),
            "language": "python",
            "parent_id": parent,
            "generation": found,
            "iteration_found": found,
            "metrics": metrics,
            "changes_description": "larger blocks",
        }

    a = program("a", None, {"runtime_us": 50.0, "correctness": 1.0}, 0)
    b = program("b", "a", {"runtime_us": 40.0, "correctness": 1.0, "speedup": 2.0}, 1)
    c = program("c", "a", {"correctness": 0.0, "error": "outputs are not close"}, 2)
    d = program("d", "b", {"combined_score": 0.3}, 3)
    for checkpoint, programs in ((1, (a, b)), (2, (a, b, c, d))):
        folder = root / "softmax_run" / "checkpoints" / f"checkpoint_{checkpoint}"
        dump(folder / "metadata.json", {"islands": [], "last_iteration": checkpoint})
        for item in programs:
            dump(folder / "programs" / f"{item['id']}.json", item)
    return root / "softmax_run" / "checkpoints"


def flashinfer(root: Path) -> Path:
    def trace(solution: str, status: str, times: tuple[float, float] | None = None) -> object:
        figures = times and {"latency_ms": times[0], "reference_latency_ms": times[1], "speedup_factor": 0.0}
        return {
            "definition": "softmax_n1024",
            "workload": {"axes": {"rows": 7}, "inputs": {}, "uuid": "u"},
            "solution": solution,
            "evaluation": {
                "status": status,
                "environment": {"hardware": "NVIDIA_H100", "libs": {}},
                "timestamp": "2026-03-17T14:21:51",
                "log": "" if times else "kernel.cu(3): error: expected a ;",
                "correctness": {} if times else None,
                "performance": figures,
            },
        }

    def solution(name: str) -> object:
        sources = [{"path": "kernel.cu", "content": "__global__ void softmax() {}"}]
        spec = {"language": "cuda", "target_hardware": ["H100"], "entry_point": "kernel.cu::run"}
        about = {"name": name, "definition": "softmax_n1024", "author": "somebody", "description": "one pass"}
        return about | {"spec": spec, "sources": sources}

    folder = root / "flashinfer_trace"
    about = {"name": "softmax_n1024", "op_type": "softmax", "reference": REFERENCE}
    dump(folder / "definitions" / "softmax" / "softmax_n1024.json", about)
    for name in ("quick", "broken", "unmeasured"):
        dump(folder / "solutions" / "somebody" / "softmax" / "softmax_n1024" / f"{name}.json", solution(name))
    dump_lines(
        folder / "traces" / "softmax" / "softmax_n1024.jsonl",
        [
            trace("quick", "PASSED", (0.02, 0.04)),
            trace("quick", "PASSED", (0.02, 0.16)),
            trace("broken", "COMPILE_ERROR"),
            {"definition": "softmax_n1024", "workload": {"uuid": "u"}, "solution": None, "evaluation": None},
        ],
    )
    return folder


def lineage(root: Path) -> Path:
    put(root / "expert" / "lineage.toml", LINEAGE)
    for name in ("expert", "scalar", "naive"):
        put(root / "expert" / f"{name}.py", kernel(name))
    put(root / "expert" / "reference.py", REFERENCE)
    return root / "expert"


LINEAGE = """
device = "NVIDIA H200"
baseline_us = 100.0

[task]
suite = "kernelbench"
level = 1
name = "23_Softmax"
reference = "reference.py"

[[version]]
name = "expert"
file = "expert.py"
correct = true
runtime_us = 40.0

[[version]]
name = "scalar"
simplifies = "expert"
removed = "load four floats at once"
file = "scalar.py"
correct = true
runtime_us = 60.0

[[version]]
name = "naive"
simplifies = "scalar"
removed = "one pass with a running maximum"
file = "naive.py"
correct = true
runtime_us = 120.0

[[version]]
name = "other"
simplifies = "expert"
removed = "unrolled loop"
file = "naive.py"
correct = true
runtime_us = 50.0
"""


def native(root: Path) -> Path:
    task = kernelbench_task(1, "23_Softmax")
    with RunLog.create(root / "run7", {"tasks": [task.task_id]}) as log:
        reference = log.add_candidate(REFERENCE)
        log.append("task_started", encode(TaskStarted(task=task, source_sha256=reference, path="softmax.py")), key="t")
        first, second = log.add_candidate(kernel("first")), log.add_candidate(kernel("second"))
        log.append("step", encode(_logged("0.0", None, first, "", _measured(40.0))), key="a")
        log.append("step", encode(_logged("1.0", "0.0", second, first, _measured(30.0))), key="b")
        log.append("step", encode(_logged("1.1", "0.0", "", first, None)), key="c")
        log.append("note", {"text": "nothing to read"})
    return root / "run7"


def _measured(time: float) -> Measurement:
    def timing(value: float) -> Timing:
        return Timing(median_us=value, low_us=value, high_us=value)

    return Measurement(
        outcome=Outcome.CORRECT,
        stage="timing",
        device="NVIDIA H200",
        timing=timing(time),
        baselines={"eager_fp32": timing(60.0)},
    )


def _logged(step: str, parent: str | None, sha256: str, parent_sha256: str, measured: Measurement | None) -> LoggedStep:
    return LoggedStep(
        task_id="kernelbench/1/23_softmax",
        step_id=step,
        parent_id=parent,
        index=int(step[0]),
        mode="optimize",
        candidate_sha256=sha256,
        parent_sha256=parent_sha256,
        direction="memory access",
        strategies=("s1",),
        plan="vector loads",
        state=State(family="softmax", arch="sm_90", language=Language.CUDA),
        measurement=measured,
        error="" if measured else "no code block",
        choice_probability=0.25,
    )


@dataclass(frozen=True)
class Sample:
    """A log of one format with the figures that reading it must give."""

    format: str
    write: Callable[[Path], Path]
    records: int
    steps: int
    derived: int
    quarantined: int
    measured: int
    fixes: int
    failures: int


def steps(root: Path) -> Path:
    def line(name: str, parent: str | None, outcome: str, time: float | None, **more: object) -> object:
        plain = {"source": "team", "task": "23_Softmax", "id": name, "parent": parent, "outcome": outcome}
        return plain | {"code": kernel(name), "time_us": time, "device": "H100", "plan": "tile rows"} | more

    path = root / "plain.jsonl"
    dump_lines(
        path,
        [
            line("a", None, "correct", 90.0),
            line("b", "a", "correct", 60.0),
            line("c", "b", "compile_error", None, error="expected a ;"),
            line("d", "c", "correct", 50.0),
            line("e", "b", "correct", 40.0, code=""),
        ],
    )
    return path


def session(root: Path) -> Path:
    """Five versions of a kernel: two that pass, one that fails between them, one more, and one that sed changed."""
    code = triton_kernel("first")
    messages = [("user", [{"type": "text", "text": "Write a faster softmax to kernel.py, check it with check.py."}])]
    told: list[tuple[str, dict[str, object], str]] = [
        ("Write", {"file_path": "/repo/23_Softmax/kernel.py", "content": code}, "File created"),
        ("Bash", {"command": "uv run python check.py 2>&1 | tail -3 && python bench.py"}, "PASS\nlatency: 0.050 ms"),
        ("Edit", {"old_string": "first", "new_string": "second", "replace_all": True}, "updated"),
        ("Bash", {"command": "python check.py"}, "FAIL: output mismatch, max 0.5"),
        ("Edit", {"old_string": "second", "new_string": "third", "replace_all": True}, "updated"),
        ("Bash", {"command": "python check.py; python bench.py"}, "PASS\nlatency: 0.020 ms"),
        ("Edit", {"old_string": "third", "new_string": "fourth", "replace_all": True}, "updated"),
        ("Bash", {"command": "cd /work && python check.py && python bench.py"}, "PASS\nlatency: 0.016 ms"),
        ("Bash", {"command": "sed -i s/fourth/fifth/ kernel.py"}, ""),
        ("Bash", {"command": "python check.py && python bench.py"}, "PASS\nlatency: 0.010 ms"),
    ]
    for number, (name, given, answer) in enumerate(told):
        given.setdefault("file_path", "/repo/23_Softmax/kernel.py")
        call = {"type": "tool_use", "id": str(number), "name": name, "input": given}
        messages.append(("assistant", [{"type": "text", "text": f"Use idea {number} now."}, call]))
        messages.append(("user", [{"type": "tool_result", "tool_use_id": str(number), "content": answer}]))
    lines = [
        {"type": role, "sessionId": "a1", "message": {"role": role, "content": content}} for role, content in messages
    ]
    path = root / "session.jsonl"
    put(path, "\n".join(map(json.dumps, lines)))
    return path


SAMPLES = (
    Sample("agent-session", session, 5, 4, 0, 1, 1, 1, 1),
    Sample("steps", steps, 5, 4, 0, 1, 1, 1, 1),
    Sample("ssnti1111", ssnti1111, 6, 5, 0, 1, 3, 0, 1),
    Sample("kernelbench-agentic", kernelbench_agentic, 4, 3, 0, 1, 1, 1, 0),
    Sample("mlsys26", mlsys26, 6, 5, 0, 1, 1, 1, 2),
    Sample("cuda-l1", cuda_l1, 3, 4, 2, 1, 1, 0, 0),
    Sample("kernelbenchx", kernelbenchx, 2, 3, 1, 0, 1, 1, 0),
    Sample("evolution-trace", evolution_trace, 3, 4, 1, 0, 2, 0, 1),
    Sample("cuda-engineer", cuda_engineer, 3, 3, 1, 1, 1, 0, 1),
    Sample("kernelbench-run", kernelbench_run, 4, 2, 0, 2, 0, 0, 0),
    Sample("cudaforge", cudaforge, 3, 3, 0, 0, 0, 1, 1),
    Sample("kernelmem", kernelmem, 3, 3, 0, 0, 1, 0, 1),
    Sample("kernelagent", kernelagent, 3, 4, 1, 0, 2, 0, 0),
    Sample("kernelagent-database", kernelagent_database, 3, 2, 0, 1, 1, 0, 0),
    Sample("openevolve", openevolve, 4, 3, 0, 1, 1, 0, 1),
    Sample("flashinfer-trace", flashinfer, 3, 3, 1, 1, 1, 0, 1),
    Sample("lineage", lineage, 4, 3, 0, 1, 2, 0, 0),
    Sample("htam", native, 3, 2, 0, 1, 1, 0, 0),
)


@pytest.fixture(params=SAMPLES, ids=lambda sample: sample.format)
def sample(request: pytest.FixtureRequest) -> Sample:
    """A log of each format in turn."""
    return request.param


@pytest.fixture
def samples() -> dict[str, Sample]:
    """All samples by format."""
    return {each.format: each for each in SAMPLES}


@pytest.fixture
def every_format(tmp_path: Path) -> Path:
    """A directory with a log of every format, each in a folder of its own."""
    for each in SAMPLES:
        each.write(tmp_path / "logs" / each.format)
    return tmp_path / "logs"

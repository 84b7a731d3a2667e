"""Counters in a measurement: asked for, kept, refused; the verdict never changes."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from artifacts.measurement import Bottleneck, EvidenceLevel, Measurement, Outcome, Profile, Timing
from optimizer.evaluation.build.cache import BuildCache, Entry
from optimizer.evaluation.build.request import BuildRequest, SourceFile
from optimizer.evaluation.job import EvaluationJob, EvaluationSettings
from optimizer.evaluation.verify.counters import KernelCounters, NoCountersError
from optimizer.evaluation.worker import profiler as ncu
from optimizer.evaluation.worker.devices import Device
from optimizer.evaluation.worker.profiler import CachedBuilder, Profiler, ProfilerUnavailableError, ncu_command, run_ncu

GPU = Device(backend="cuda", index=0, name="some GPU", key="gpu-1")
JOB = EvaluationJob(
    job_id="1",
    task_id="relu",
    task_source="class Model: ...",
    candidate_source="class ModelNew: ...",
    backend="cuda",
    seed=123456789,
    settings=EvaluationSettings(profile=True),
)
MEASURED = Measurement(
    outcome=Outcome.CORRECT,
    stage="timing",
    device="some GPU",
    timing=Timing(median_us=100.0, low_us=99.0, high_us=101.0),
    profile=Profile(bottleneck=Bottleneck.COMPUTE, evidence=EvidenceLevel.COUNTED),
)
KERNELS = (KernelCounters(name="rows", own=True, values={"duration_ns": 90_000.0, "dram_percent": 85.0}),)


class Profiled:
    """Plays the profiler: remembers what it was asked, answers or raises."""

    def __init__(self, answer: tuple[KernelCounters, ...] | Exception) -> None:
        self.answer = answer
        self.specs: list[dict[str, object]] = []

    def __call__(
        self, target: Sequence[str], environment: Mapping[str, str], timeout_s: float
    ) -> tuple[KernelCounters, ...]:
        self.specs.append(json.loads(Path(target[-1]).read_text(encoding="utf-8")))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def test_counters_replace_the_counted_bottleneck(tmp_path: Path) -> None:
    found = Profiler(tmp_path, Profiled(KERNELS)).annotate(MEASURED, JOB, GPU)
    assert found.profile is not None
    assert (found.profile.bottleneck, found.profile.evidence) == (Bottleneck.MEMORY, EvidenceLevel.COUNTERS)
    assert dataclasses.replace(found, profile=MEASURED.profile) == MEASURED


@pytest.mark.parametrize(
    "problem", [NoCountersError("no table"), ProfilerUnavailableError("not permitted"), OSError("no space")]
)
def test_what_can_not_be_counted_leaves_the_measurement_and_a_note(tmp_path: Path, problem: Exception) -> None:
    found = Profiler(tmp_path, Profiled(problem)).annotate(MEASURED, JOB, GPU)
    assert dataclasses.replace(found, notes=()) == MEASURED
    assert str(problem) in found.notes[0]


def test_nobody_profiles_unasked_nor_what_is_not_correct(tmp_path: Path) -> None:
    runner = Profiled(KERNELS)
    profiler = Profiler(tmp_path, runner)
    unasked = dataclasses.replace(JOB, settings=EvaluationSettings())
    wrong = Measurement(outcome=Outcome.WRONG_RESULT, stage="correctness", device="some GPU", error="differs")
    assert profiler.annotate(MEASURED, unasked, GPU) is MEASURED
    assert profiler.annotate(wrong, JOB, GPU) is wrong
    assert runner.specs == []


def test_the_same_source_is_profiled_once_also_by_another_worker(tmp_path: Path) -> None:
    first, second = Profiled(KERNELS), Profiled(KERNELS)
    expected = Profiler(tmp_path, first).annotate(MEASURED, JOB, GPU)
    assert Profiler(tmp_path, second).annotate(MEASURED, JOB, GPU) == expected
    assert (len(first.specs), len(second.specs)) == (1, 0)


def test_another_source_another_task_and_another_device_are_profiled_again(tmp_path: Path) -> None:
    runner = Profiled(KERNELS)
    profiler = Profiler(tmp_path, runner)
    profiler.annotate(MEASURED, JOB, GPU)
    profiler.annotate(MEASURED, dataclasses.replace(JOB, candidate_source="class ModelNew: pass"), GPU)
    profiler.annotate(MEASURED, dataclasses.replace(JOB, task_source="class Model: pass"), GPU)
    profiler.annotate(MEASURED, JOB, dataclasses.replace(GPU, name="another GPU"))
    assert len(runner.specs) == 4


def test_a_torn_profile_in_the_cache_is_measured_again(tmp_path: Path) -> None:
    Profiler(tmp_path, Profiled(KERNELS)).annotate(MEASURED, JOB, GPU)
    (kept,) = (tmp_path / "profiles").iterdir()
    kept.write_text(kept.read_text(encoding="utf-8")[:20], encoding="utf-8")
    runner = Profiled(KERNELS)
    Profiler(tmp_path, runner).annotate(MEASURED, JOB, GPU)
    assert len(runner.specs) == 1


def test_a_host_that_refuses_counters_is_asked_once_and_a_failed_candidate_does_not_count(tmp_path: Path) -> None:
    refusing, failing = Profiled(ProfilerUnavailableError("not permitted")), Profiled(NoCountersError("no table"))
    for runner, asked in ((refusing, 1), (failing, 2)):
        profiler = Profiler(tmp_path, runner)
        for _ in range(2):
            assert profiler.annotate(MEASURED, JOB, GPU).notes
        assert len(runner.specs) == asked


def test_the_profiled_process_does_not_learn_the_secret_seed(tmp_path: Path) -> None:
    runner = Profiled(KERNELS)
    Profiler(tmp_path, runner).annotate(MEASURED, JOB, GPU)
    assert str(JOB.seed) not in json.dumps(runner.specs)


def test_a_cpu_candidate_keeps_its_counted_profile(tmp_path: Path) -> None:
    runner = Profiled(KERNELS)
    cpu = Device(backend="cpu", index=0, name="cpu", key="cpu")
    found = Profiler(tmp_path, runner).annotate(MEASURED, dataclasses.replace(JOB, backend="cpu"), cpu)
    assert "CUDA" in found.notes[0]
    assert runner.specs == []


def test_clocks_are_left_as_they_are() -> None:
    command = ncu_command("ncu", Path("log"), ["python"])
    assert command[command.index("--clock-control") + 1] == "none"
    assert command[-1] == "python"


def script(tmp_path: Path, text: str) -> str:
    """A stand-in for ncu: a program that finds its log file as ``log``."""
    path = tmp_path / "ncu"
    head = f"#!{sys.executable}\nimport sys, time\nlog = open(sys.argv[sys.argv.index('--log-file') + 1], 'w')\n"
    path.write_text(head + text, encoding="utf-8")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("text", "limit_s", "kind", "words"),
    [
        ("log.write('==ERROR== ERR_NVGPUCTRPERM - no permission')", 600.0, ProfilerUnavailableError, "no permission"),
        ("log.write('==ERROR== The application returned an error code (9).')", 600.0, NoCountersError, "error code"),
        ("time.sleep(600)", 1.0, NoCountersError, "more than 1 s"),
    ],
)
def test_how_a_profiler_fails_is_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, limit_s: float, kind: type[Exception], words: str
) -> None:
    monkeypatch.setattr(ncu, "find_ncu", lambda: script(tmp_path, text))
    with pytest.raises(kind, match=words):
        run_ncu(["python"], {}, limit_s)


def test_a_host_without_the_profiler_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ncu, "_USUAL", ())
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_HOME", raising=False)
    with pytest.raises(ProfilerUnavailableError, match="not installed"):
        run_ncu(["python"], {}, 1.0)


def test_the_cached_builder_finds_what_was_built_and_compiles_nothing(tmp_path: Path) -> None:
    cache = BuildCache(tmp_path / "cache")
    request = BuildRequest(name="ext", files=(SourceFile(name="main.cpp", text="int x;"),))
    builder = CachedBuilder(cache, "toolchain")
    assert builder.build(request).library == ""
    library = tmp_path / "ext.so"
    library.write_bytes(b"machine code")
    with cache.lock(request.key("toolchain")):
        cache.publish(request.key("toolchain"), Entry(name="ext", library="ext.so", route="split"), library)
    assert Path(builder.build(request).library).read_bytes() == b"machine code"
    assert CachedBuilder(cache, "another toolchain").build(request).library == ""

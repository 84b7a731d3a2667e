"""Baselines: the reference in every run, the others once, kept as pairs and told on the run's own scale."""

from __future__ import annotations

import os
import sys
import time
import types
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from artifacts.measurement import Precision, Timing
from optimizer.evaluation.job import EvaluationJob, EvaluationSettings
from optimizer.evaluation.sandbox.clock import Call, CpuClock
from optimizer.evaluation.verify import baselines
from optimizer.evaluation.verify.baselines import (
    Baselines,
    BaselineStore,
    BaselineUnavailableError,
    DeadlineError,
    Pair,
    baselines_of,
    deadline,
    store_for,
)
from optimizer.evaluation.verify.timing import TimingSettings


def flat(time_us: float) -> Timing:
    return Timing(median_us=time_us, low_us=time_us, high_us=time_us)


PAIR = Pair(baseline=flat(50.0), reference=flat(100.0))


class Switches:
    """A clock that does each call and takes one microsecond, two where TF32 is allowed to products."""

    def __init__(self) -> None:
        self.seen: list[tuple[bool, bool]] = []

    def measure(self, prepares: Sequence[Callable[[], Call]]) -> list[float]:
        for prepare in prepares:
            prepare()()
            self.seen.append((torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32))
        return [2.0 if matmul else 1.0 for matmul, _ in self.seen[-len(prepares) :]]


def made(folder: Path, clock: CpuClock | Switches, *, precision: Precision = Precision.STRICT) -> Baselines:
    return Baselines(
        torch.nn.ReLU(),
        [torch.randn(8)],
        backend="cpu",
        precision=precision,
        tf32=precision is Precision.TF32,
        clock=clock,
        timing=TimingSettings(min_samples=4, max_samples=4, warmup_s=0.0),
        store=BaselineStore(folder, ["task"]),
    )


@pytest.mark.parametrize(
    ("precision", "tf32"), [(Precision.STRICT, False), (Precision.TF32, True), (Precision.BFLOAT16, False)]
)
def test_the_reference_is_timed_under_the_switches_of_its_class(
    tmp_path: Path, precision: Precision, tf32: bool
) -> None:
    clock = Switches()
    before = torch.backends.cudnn.allow_tf32
    made(tmp_path, clock, precision=precision).reference()
    assert {matmul for matmul, _ in clock.seen} == {tf32}
    assert torch.backends.cudnn.allow_tf32 is before


def test_each_eager_baseline_has_its_own_switches_call_by_call(tmp_path: Path) -> None:
    clock = Switches()
    found, notes = made(tmp_path, clock).others(("eager", "eager_tf32"), flat(1.0))
    assert notes == ()
    assert set(clock.seen) == {(False, True), (True, True), (False, False)}
    assert (found["eager"].median_us, found["eager_tf32"].median_us) == (1.0, 2.0)


def test_a_baseline_is_timed_once_and_told_on_the_scale_of_each_run(tmp_path: Path) -> None:
    first, second = Switches(), Switches()
    assert made(tmp_path, first).others(("eager_tf32",), flat(10.0))[0]["eager_tf32"].median_us == 20.0
    assert made(tmp_path, second).others(("eager_tf32",), flat(30.0))[0]["eager_tf32"].median_us == 60.0
    assert first.seen
    assert not second.seen


def test_a_damaged_file_is_measured_again(tmp_path: Path) -> None:
    made(tmp_path, Switches()).others(("eager",), flat(10.0))
    for path in tmp_path.iterdir():
        path.write_text('{"pair": {"baseline"', encoding="utf-8")
    clock = Switches()
    assert set(made(tmp_path, clock).others(("eager",), flat(10.0))[0]) == {"eager"}
    assert clock.seen


def test_a_baseline_that_cannot_be_had_is_a_note_and_not_an_error(tmp_path: Path) -> None:
    found, notes = made(tmp_path, Switches()).others(("cuda_graph", "eager"), flat(1.0))
    assert set(found) == {"eager"}
    assert notes == ("baseline cuda_graph: needs a CUDA device",)
    _, notes = made(tmp_path, Switches(), precision=Precision.FLOAT16).others(("eager_fp32",), flat(1.0))
    assert notes == ("baseline eager_fp32: is for float32, not for float16",)


def test_what_cannot_be_had_is_not_tried_again_for_an_hour(tmp_path: Path) -> None:
    store = BaselineStore(tmp_path, [1])
    store.keep("compile", None, "torch.compile: no compiler")
    with pytest.raises(BaselineUnavailableError, match="no compiler"):
        store.find("compile")
    (path,) = tmp_path.iterdir()
    os.utime(path, (time.time() - 4000.0,) * 2)
    assert store.find("compile") is None


def test_a_crowded_device_is_no_reason_for_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def crowded(self: Baselines) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(Baselines, "_compiled", crowded)
    _, notes = made(tmp_path, Switches()).others(("compile",), flat(1.0))
    assert notes == ("baseline compile: no room on the device beside the candidate",)
    assert not list(tmp_path.iterdir())


def test_an_unsteady_pair_is_used_and_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shaken = Timing(median_us=100.0, low_us=90.0, high_us=110.0, samples_us=(1.0, 100.0, 110.0))
    monkeypatch.setattr(Baselines, "_paired", lambda *_: Pair(baseline=flat(50.0), reference=shaken))
    assert made(tmp_path, Switches()).others(("eager",), flat(10.0))[0]["eager"].median_us == 5.0
    assert not list(tmp_path.iterdir())


def test_whatever_a_task_is_timed_by_makes_another_entry(tmp_path: Path) -> None:
    job = EvaluationJob(
        job_id="j", task_id="t", task_source="class Model: ...", candidate_source="", backend="cpu", seed=1
    )
    others = [{"task_source": "class Model: pass"}]
    others += [{"settings": EvaluationSettings(precision="tf32")}, {"settings": EvaluationSettings(dtype="float16")}]
    store_for(job, tmp_path).keep("compile", PAIR)
    assert store_for(job, tmp_path).find("compile") == PAIR
    assert store_for(job, tmp_path).find("cuda_graph") is None
    for changes in others:
        changed = {name: getattr(job, name) for name in job.__slots__} | changes
        assert store_for(EvaluationJob(**changed), tmp_path).find("compile") is None


@pytest.mark.parametrize(
    ("backend", "wanted", "precision", "names"),
    [
        ("cpu", None, Precision.STRICT, ()),
        ("cuda", None, Precision.STRICT, ("eager", "compile", "cuda_graph")),
        ("cuda", None, Precision.TF32, ("eager", "eager_fp32", "compile", "cuda_graph")),
        ("cuda", None, Precision.BFLOAT16, ("compile", "cuda_graph")),
        ("cuda", (), Precision.STRICT, ()),
        ("cuda", ("eager_fp32", "compile"), Precision.STRICT, ("compile",)),
    ],
)
def test_unasked_a_device_times_what_tells_the_fastest_of_the_class(
    backend: str, wanted: tuple[str, ...] | None, precision: Precision, names: tuple[str, ...]
) -> None:
    job = EvaluationJob(
        job_id="j",
        task_id="t",
        task_source="",
        candidate_source="",
        backend=backend,
        seed=1,
        settings=EvaluationSettings(baselines=wanted),
    )
    assert baselines_of(job, precision) == names


def test_a_slow_reference_is_called_less_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[TimingSettings] = []
    compare = baselines.compare

    def counted(*arguments: object) -> object:
        asked.append(arguments[3])  # type: ignore[arg-type]
        return compare(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(baselines, "compare", counted)
    slow = Baselines(
        torch.nn.ReLU(),
        [torch.randn(8)],
        backend="cpu",
        precision=Precision.STRICT,
        tf32=False,
        clock=Switches(),
        timing=TimingSettings(min_samples=20, max_samples=20, warmup_s=0.0),
        store=BaselineStore(tmp_path, []),
    )
    for reference, calls in ((flat(10.0), 20), (flat(1e6), 4)):
        slow.others(("eager" if calls == 20 else "eager_tf32",), reference)
        assert asked[-1].min_samples == calls


def test_time_is_up_even_for_who_catches_everything() -> None:
    def stubborn() -> None:
        while True:
            try:
                time.sleep(10.0)
            except Exception:  # noqa: BLE001 - as compilers do
                continue

    with pytest.raises(DeadlineError), deadline(0.05):
        stubborn()


@pytest.mark.filterwarnings("ignore")  # the compiler warns of itself
def test_the_device_is_left_to_others_while_a_baseline_compiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = types.SimpleNamespace(compile_fx=lambda graph, examples: graph.forward)  # the real one takes 20 s
    monkeypatch.setitem(sys.modules, "torch._inductor.compile_fx", generator)
    left: list[str] = []

    class Aside:
        def __enter__(self) -> None:
            left.append("left")

        def __exit__(self, *_: object) -> None:
            left.append("back")

    compiled = Baselines(
        torch.nn.ReLU(),
        [torch.randn(8)],
        backend="cpu",
        precision=Precision.STRICT,
        tf32=False,
        clock=CpuClock(flush_bytes=1 << 16),
        timing=TimingSettings(min_samples=4, max_samples=4, warmup_s=0.0),
        store=BaselineStore(tmp_path, []),
        aside=Aside,
    )
    found, notes = compiled.others(("compile",), flat(10.0))
    assert (set(found), notes, left) == ({"compile"}, (), ["left", "back"])

"""What metrics that users name as they like tell of a candidate."""

import pytest

from artifacts.measurement import Outcome
from builder.read.fields import BadRecordError, Fields
from builder.read.verdict import failure_outcome, metrics_verdict


@pytest.mark.parametrize(
    ("metrics", "runtime_us"),
    [
        ({"runtime_ms": 2.0, "correctness": 1.0}, 2000.0),
        ({"combined_score": 107.0, "geomean_us": 512.5}, 512.5),
        ({"latency_in_ms": 2.0}, 2000.0),
        ({"compile_time_ms": 900.0, "kernel_time_ms": 2.0}, 2000.0),
        ({"eval_time_s": 30.0, "mean_ms": 2.0}, 2000.0),
        ({"mean_ms": 3.0, "runtime_us": 5.0}, 5.0),
        ({"baseline_time_us": 9.0, "time_us": 5.0}, 5.0),
        ({"runtime_us": 5.0, "error": 1e-6}, 5.0),
        ({"correctness": 1.0, "speedup": 2.0, "std_ms": 1.0}, None),
    ],
)
def test_the_time_of_the_candidate_is_found_among_other_figures(metrics, runtime_us):
    found = metrics_verdict(Fields(metrics))
    assert (found.outcome, found.runtime_us) == (Outcome.CORRECT, runtime_us)


@pytest.mark.parametrize(
    ("metrics", "artifacts", "outcome"),
    [
        ({"error": 0.0}, {"stderr": "CompilationError: at 3:4: invalid syntax"}, Outcome.COMPILE_ERROR),
        ({"error": 0.0, "timeout": True}, {"error_type": "timeout"}, Outcome.TIMEOUT),
        ({"error": 0.0, "timeout": True}, {}, Outcome.TIMEOUT),
        ({"correctness": 0.4, "runtime_ms": 1.0}, {}, Outcome.WRONG_RESULT),
        ({"score": 0.0, "error": "outputs are not close"}, {}, Outcome.WRONG_RESULT),
    ],
)
def test_what_is_left_beside_the_metrics_says_how_a_candidate_failed(metrics, artifacts, outcome):
    found = metrics_verdict(Fields(metrics), artifacts)
    assert (found.outcome, found.runtime_us) == (outcome, None)


@pytest.mark.parametrize("metrics", [{}, {"combined_score": 0.3, "gflops": 12.0}, {"build_time_s": 3.0}])
def test_metrics_without_verdict_and_time_are_refused(metrics):
    with pytest.raises(BadRecordError, match="neither a verdict nor a time"):
        metrics_verdict(Fields(metrics))


def test_advice_that_comes_with_every_cuda_error_names_no_compiler() -> None:
    told = "CUDA error: an illegal memory access\nCompile with `TORCH_USE_CUDA_DSA` to enable assertions"
    assert failure_outcome(told) is Outcome.RUNTIME_ERROR

"""What all rooms' tests share: properties are about results, never about the speed or the state of the machine."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from optimizer.evaluation.worker.local import LocalEvaluator

settings.register_profile("any-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any-machine")

# A shell's background job (``make test &``) ignores Ctrl-C, and so would every command that a test interrupts.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def evaluator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalEvaluator]:
    """One for all tests of the group that bears its name: it starts, measures ceilings and compiles headers once.

    Its processes have one thread each: several that wait for each other on a busy machine take six times the processor
    time for the small tensors of tests.
    """
    from optimizer.evaluation.worker.local import LocalEvaluator, LocalSettings

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        local = LocalEvaluator(2, LocalSettings(cache=tmp_path_factory.getbasetemp().parent / "evaluator-builds"))
    yield local
    local.close()

"""What all rooms' tests share: properties are about results, never about the speed or the state of the machine."""

from __future__ import annotations

import multiprocessing.util
import os
import signal
import tempfile
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

# Threads that wait for each other on a busy machine take six times the processor time for the small tensors of tests.
os.environ["OMP_NUM_THREADS"] = "1"


@pytest.fixture(scope="session", autouse=True)
def own_locks_and_builds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nobody waits for the device locks of the user's other work or of other test processes, which time nothing.

    All test processes share one build cache, which is not the user's.
    """
    builds = tmp_path_factory.getbasetemp().parent / "builds"
    multiprocessing.util.get_temp_dir()  # elsewhere: it is removed at exit, after the folder
    with (
        tempfile.TemporaryDirectory(prefix="htam-", ignore_cleanup_errors=True) as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("HTAM_BUILD_CACHE", str(builds))
        patch.setenv("TMPDIR", folder)  # a short one, as the addresses of sockets are
        patch.setattr(tempfile, "tempdir", folder)
        yield


@pytest.fixture(scope="session", autouse=True)
def quick_disk() -> Iterator[None]:
    """Tests end processes, never the machine: ten thousand synced lines would take minutes on a slow disk.

    Whether what must be synced is synced is asked where ``os.fsync`` is watched.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session")
def evaluator() -> Iterator[LocalEvaluator]:
    """One for all tests of the group that bears its name: it starts, measures ceilings and compiles headers once."""
    from optimizer.evaluation.worker.local import LocalEvaluator

    local = LocalEvaluator(2)
    yield local
    local.close()

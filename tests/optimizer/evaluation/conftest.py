"""What several modules start once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from optimizer.evaluation.worker.processes import ForkServer


@pytest.fixture(scope="session")
def fork_server() -> Iterator[ForkServer]:
    """One that has imported torch, for all that fork from it."""
    server = ForkServer()
    yield server
    server.close()

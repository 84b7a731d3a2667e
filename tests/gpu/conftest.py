"""Tests of this folder need a CUDA device: ``pytest -m gpu tests/gpu`` on a host that has one."""

from __future__ import annotations

import pytest

from optimizer.evaluation.worker.devices import nvidia_devices


@pytest.fixture(autouse=True, scope="session")
def _device() -> None:
    if not nvidia_devices():
        pytest.skip("no CUDA device")

"""Memory of a CUDA device that two processes map: ``pytest -m gpu tests/gpu/test_device_memory.py``."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest
import torch

from optimizer.evaluation.sandbox.device_memory import DeviceMemory

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300), pytest.mark.xdist_group("gpu")]
OTHER = r"""
import socket, sys
import torch
from optimizer.evaluation.sandbox.device_memory import DeviceMemory
line = socket.socket(fileno=int(sys.argv[1]))
size, fds, _, _ = socket.recv_fds(line, 100, 1)
torch.zeros(1, device="cuda")
shared = DeviceMemory(fds[0], int(size))
line.send(b"%d\n" % int(shared.memory.sum()))
shared.memory.fill_(2)
torch.cuda.synchronize()
shared.close()
line.send(b"!")
"""


def test_what_one_process_writes_the_other_reads() -> None:
    shared = DeviceMemory.of_size(5 << 20)
    assert shared.size >= 5 << 20
    shared.memory.fill_(1)
    torch.cuda.synchronize()
    mine, theirs = socket.socketpair()
    fd = theirs.fileno()
    other = subprocess.Popen([sys.executable, "-c", OTHER, str(fd)], pass_fds=[fd], env={**os.environ})
    theirs.close()
    socket.send_fds(mine, [str(shared.size).encode()], [shared.fd])
    with mine, mine.makefile("rb") as said:
        assert int(said.readline()) == shared.size
        assert said.read(1) == b"!"
    assert other.wait() == 0
    assert int(shared.memory[:9].sum()) == 18
    shared.close()


def test_closed_memory_is_free_again() -> None:
    torch.zeros(1, device="cuda")
    before = torch.cuda.mem_get_info()[0]
    shared = DeviceMemory.of_size(1 << 30)
    assert torch.cuda.mem_get_info()[0] <= before - (1 << 30)
    shared.close()
    assert torch.cuda.mem_get_info()[0] >= before - (64 << 20)

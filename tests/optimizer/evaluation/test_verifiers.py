"""A verifier that serves several jobs: clean between them, or another one."""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import pytest
import torch

from optimizer.evaluation.sandbox.channel import Channel
from optimizer.evaluation.verify import main as verifier_main
from optimizer.evaluation.verify.main import StateReset
from optimizer.evaluation.verify.task_module import MODULE_NAME
from optimizer.evaluation.worker.devices import Device
from optimizer.evaluation.worker.verifier_process import VerifierProcess, Verifiers

DEVICE, OTHER = (Device(backend="cuda", index=index, name="d", key=f"GPU-{index}") for index in range(2))


class Child:
    """A process that is none; remembers its end."""

    def __init__(self, end: Channel) -> None:
        self.end = end
        self.killed = False

    def kill(self) -> None:
        self.killed = True

    def wait(self, timeout_s: float) -> int:
        return 0


class Server:
    """Hands out children and keeps the other end of their channels."""

    def __init__(self) -> None:
        self.children: list[Child] = []

    def spawn(self, entry: str, spec: Mapping[str, Any], fds: Sequence[int]) -> Child:
        self.children.append(Child(Channel(socket.socket(fileno=os.dup(fds[0])))))
        return self.children[-1]


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    for child in server.children:
        child.end.close()


@pytest.fixture
def verifiers(server: Server) -> Iterator[Verifiers]:
    verifiers = Verifiers(cast(Any, server))
    yield verifiers
    verifiers.close()


def serve(verifiers: Verifiers, server: Server, *, clean: bool, device: Device = DEVICE) -> VerifierProcess:
    with verifiers.verifier(device) as verifier:
        verifier.served = True
    next(child for child in server.children if child is cast(Any, verifier.child)).end.send({"clean": clean})
    return verifier


def test_a_clean_judge_serves_again(verifiers: Verifiers, server: Server) -> None:
    first = serve(verifiers, server, clean=True)
    assert serve(verifiers, server, clean=True) is first


def test_one_that_is_not_clean_is_replaced(verifiers: Verifiers, server: Server) -> None:
    first = serve(verifiers, server, clean=False)
    assert serve(verifiers, server, clean=True) is not first
    assert server.children[0].killed


def test_one_that_ended_is_replaced(verifiers: Verifiers, server: Server) -> None:
    with verifiers.verifier(DEVICE) as first:
        first.served = True
    server.children[0].end.shutdown()
    with verifiers.verifier(DEVICE) as second:
        assert second is not first
    assert server.children[0].killed


def test_one_without_a_verdict_never_serves_again(verifiers: Verifiers, server: Server) -> None:
    with verifiers.verifier(DEVICE) as first:
        pass
    assert server.children[0].killed
    with verifiers.verifier(DEVICE) as second:
        assert second is not first


def test_each_device_has_its_own(verifiers: Verifiers, server: Server) -> None:
    first = serve(verifiers, server, clean=True)
    assert serve(verifiers, server, clean=True, device=OTHER) is not first


def test_dismissed_judges_end(verifiers: Verifiers, server: Server) -> None:
    serve(verifiers, server, clean=True)
    verifiers.dismiss(OTHER)
    assert not server.children[0].killed
    verifiers.dismiss(DEVICE)
    assert server.children[0].killed


@pytest.fixture
def state_reset() -> StateReset:
    state_reset = StateReset("cpu")
    state_reset.take()
    return state_reset


def test_what_a_task_changes_is_put_back(state_reset: StateReset) -> None:
    sys.modules[MODULE_NAME] = sys
    torch.set_default_dtype(torch.float64)
    torch.backends.cudnn.allow_tf32 = not torch.backends.cudnn.allow_tf32
    os.environ["LEFT_BEHIND"] = "1"
    torch.manual_seed(77)
    before = (torch.float32, not torch.backends.cudnn.allow_tf32)
    assert state_reset.wipe()
    assert (torch.get_default_dtype(), torch.backends.cudnn.allow_tf32) == before
    assert "LEFT_BEHIND" not in os.environ
    assert MODULE_NAME not in sys.modules


def test_random_numbers_go_on_where_they_were_before_the_job(state_reset: StateReset) -> None:
    state_reset.wipe()
    first = torch.rand(3)
    state_reset.wipe()
    assert torch.equal(torch.rand(3), first)


def test_who_compiled_a_baseline_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch._dynamo", raising=False)
    state_reset = StateReset("cpu")
    state_reset.take()
    assert state_reset.wipe()
    monkeypatch.setitem(sys.modules, "torch._dynamo", sys)
    assert not state_reset.wipe()


def test_a_thread_that_stays_ends_the_judge(state_reset: StateReset) -> None:
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        assert not state_reset.wipe()
    finally:
        done.set()
        thread.join()


def test_a_judge_does_not_serve_for_ever(state_reset: StateReset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifier_main, "_MOST_JOBS", 3)  # a wipe looks at every object of this process
    assert [state_reset.wipe() for _ in range(3)] == [True, True, False]

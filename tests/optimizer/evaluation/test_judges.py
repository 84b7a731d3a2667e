"""A judge that serves several jobs: clean between them, or another one."""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import pytest
import torch

from optimizer.evaluation.hosts import Device
from optimizer.evaluation.job import EvaluationJob, EvaluationSettings
from optimizer.evaluation.judge import slate as judge_slate
from optimizer.evaluation.judge.slate import Slate
from optimizer.evaluation.judge.task_module import MODULE_NAME
from optimizer.evaluation.judges import JudgeProcess, Judges
from optimizer.evaluation.process.channel import Channel

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
def judges(server: Server) -> Iterator[Judges]:
    judges = Judges(cast(Any, server))
    yield judges
    judges.close()


def serve(judges: Judges, server: Server, *, clean: bool, device: Device = DEVICE) -> JudgeProcess:
    with judges.judge(device) as judge:
        judge.served = True
    next(child for child in server.children if child is cast(Any, judge.child)).end.send({"clean": clean})
    return judge


def test_a_clean_judge_serves_again(judges: Judges, server: Server) -> None:
    first = serve(judges, server, clean=True)
    assert serve(judges, server, clean=True) is first


def test_one_that_is_not_clean_is_replaced(judges: Judges, server: Server) -> None:
    first = serve(judges, server, clean=False)
    assert serve(judges, server, clean=True) is not first
    assert server.children[0].killed


def test_one_that_ended_is_replaced(judges: Judges, server: Server) -> None:
    with judges.judge(DEVICE) as first:
        first.served = True
    server.children[0].end.shutdown()
    with judges.judge(DEVICE) as second:
        assert second is not first
    assert server.children[0].killed


def test_one_without_a_verdict_never_serves_again(judges: Judges, server: Server) -> None:
    with judges.judge(DEVICE) as first:
        pass
    assert server.children[0].killed
    with judges.judge(DEVICE) as second:
        assert second is not first


def test_each_device_has_its_own(judges: Judges, server: Server) -> None:
    first = serve(judges, server, clean=True)
    assert serve(judges, server, clean=True, device=OTHER) is not first


def test_dismissed_judges_end(judges: Judges, server: Server) -> None:
    serve(judges, server, clean=True)
    judges.dismiss(OTHER)
    assert not server.children[0].killed
    judges.dismiss(DEVICE)
    assert server.children[0].killed


def job(*baselines: str) -> EvaluationJob:
    settings = EvaluationSettings(baselines=baselines)
    return EvaluationJob(
        job_id="j", task_id="t", task_source="", candidate_source="", backend="cpu", seed=1, settings=settings
    )


@pytest.fixture
def slate() -> Slate:
    slate = Slate("cpu")
    slate.take()
    return slate


def test_what_a_task_changes_is_put_back(slate: Slate) -> None:
    sys.modules[MODULE_NAME] = sys
    torch.set_default_dtype(torch.float64)
    torch.backends.cudnn.allow_tf32 = not torch.backends.cudnn.allow_tf32
    os.environ["LEFT_BEHIND"] = "1"
    torch.manual_seed(77)
    before = (torch.float32, not torch.backends.cudnn.allow_tf32)
    assert slate.wipe(job())
    assert (torch.get_default_dtype(), torch.backends.cudnn.allow_tf32) == before
    assert "LEFT_BEHIND" not in os.environ
    assert MODULE_NAME not in sys.modules


def test_random_numbers_go_on_where_they_were_before_the_job(slate: Slate) -> None:
    slate.wipe(job())
    first = torch.rand(3)
    slate.wipe(job())
    assert torch.equal(torch.rand(3), first)


def test_who_compiled_a_baseline_is_not_asked_again(slate: Slate) -> None:
    assert slate.wipe(job("eager"))
    assert not slate.wipe(job("eager", "compile"))


def test_a_thread_that_stays_ends_the_judge(slate: Slate) -> None:
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        assert not slate.wipe(job())
    finally:
        done.set()
        thread.join()


def test_a_judge_does_not_serve_for_ever(slate: Slate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge_slate, "_MOST_JOBS", 3)  # a wipe looks at every object of this process
    assert [slate.wipe(job()) for _ in range(3)] == [True, True, False]

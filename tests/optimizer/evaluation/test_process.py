"""Channels, buffers and the fork server."""

from __future__ import annotations

import json
import os
import resource
import socket
from collections.abc import Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from optimizer.evaluation.sandbox import transport
from optimizer.evaluation.sandbox.channel import Channel, ChannelClosedError, ChannelTimeoutError, channel_pair
from optimizer.evaluation.sandbox.digest import digests
from optimizer.evaluation.sandbox.main import answer
from optimizer.evaluation.sandbox.shared_buffers import SharedBuffer, SharedBufferError, Stream, parts_of
from optimizer.evaluation.sandbox.transport import SandboxEnd, VerifierEnd
from optimizer.evaluation.sandbox.values import join, split
from optimizer.evaluation.worker.processes import ForkServer


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    ours, theirs = channel_pair()
    other = Channel(theirs)
    yield ours, other
    ours.close()
    other.close()


def test_messages_and_descriptors_arrive_together(ends: tuple[Channel, Channel]) -> None:
    read_end, write_end = os.pipe()
    ends[0].send({"a": [1, "ü"]}, [write_end])
    message, (received,) = ends[1].receive(10)
    os.write(received, b"x")
    assert (message, os.read(read_end, 1)) == ({"a": [1, "ü"]}, b"x")
    for fd in (read_end, write_end, received):
        os.close(fd)


def test_silence_is_a_timeout_and_hanging_up_is_the_end(ends: tuple[Channel, Channel]) -> None:
    with pytest.raises(ChannelTimeoutError):
        ends[1].receive(0.05)
    ends[0].close()
    with pytest.raises(ChannelClosedError):
        ends[1].receive(10)


@pytest.mark.parametrize("frame", [b"garbage!", (5).to_bytes(8, "big") + b"nojso", (1 << 60).to_bytes(8, "big")])
def test_what_is_no_frame_ends_the_conversation(frame: bytes) -> None:
    left, right = socket.socketpair()
    with left, right:
        left.sendall(frame)
        left.shutdown(socket.SHUT_WR)
        with pytest.raises(ChannelClosedError):
            Channel(right).receive(10)


class Pair:
    """Both ends, joined by a link that answers at once; what a request says goes through JSON as it does in life."""

    def __init__(self, most_bytes: int) -> None:
        self.verifier = VerifierEnd("cpu", most_bytes)
        self.sandbox = SandboxEnd("cpu")
        self.values: Any = None
        self._answers: list[dict[str, Any]] = []

    def post(self, message: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
        message = json.loads(json.dumps(message))
        self.sandbox.use(message, fds)
        if message["do"] == "put":
            self.sandbox.put(message)
        elif message["do"] == "pull":
            self.sandbox.pull(message)
        else:
            self.values = self.sandbox.unpack(message["values"])
        self._answers.append({})

    def answered(self) -> dict[str, Any]:
        return self._answers.pop(0)

    def carried(self, values: object) -> Any:
        self.verifier.send({"do": "call"}, values, self)
        self.answered()
        return self.values

    def replied(self, tensors: list[torch.Tensor], limit: int = 1 << 30) -> list[Any]:
        return self.verifier.read(json.loads(json.dumps(self.sandbox.offer(tensors))), limit, self)


@pytest.fixture(params=[64 << 20, 2 << 20])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """With room for everything, and with so little that large values travel in pieces."""
    ends = Pair(request.param)
    yield ends
    ends.verifier.close()


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(0, 5), min_size=0, max_size=3),
    st.sampled_from([torch.float32, torch.float16, torch.int64, torch.bool, torch.bfloat16, torch.uint8]),
    st.integers(1, 4),
)
def test_a_stream_gives_back_what_was_written(shape: list[int], dtype: torch.dtype, pieces: int) -> None:
    tensor = torch.randint(0, 2, shape).to(dtype)
    there = Stream.of([tensor, tensor.flatten()])
    here = Stream.to_fill(parts_of(there.entries(), 1 << 20), "cpu")
    memory = torch.zeros(there.size + 1, dtype=torch.uint8)
    step = max(there.size // 64 // pieces, 1) * 64
    for start in range(0, there.size, step):
        there.write(memory, start, min(start + step, there.size))
        here.read(memory, start, min(start + step, there.size))
    first, second = here.tensors()
    assert torch.equal(first, tensor)
    assert torch.equal(second, tensor.flatten())
    assert first.dtype == dtype


def test_values_travel_with_their_structure(pair: Pair) -> None:
    back = pair.carried([torch.ones(2), {"a": (1, torch.zeros(3, dtype=torch.int64))}, None, "text"])
    assert back[1]["a"][0] == 1
    assert torch.equal(back[1]["a"][1], torch.zeros(3, dtype=torch.int64))
    assert back[2:] == [None, "text"]


def test_values_without_tensors_travel_too(pair: Pair) -> None:
    assert pair.carried([1, "two"]) == [1, "two"]


@pytest.mark.parametrize("size", [3, 3_000_001])
def test_dense_layouts_survive_and_others_become_contiguous(pair: Pair, size: int) -> None:
    tensor = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    first, second, third = pair.carried([tensor, torch.arange(size), tensor[:, ::2]])
    assert first.stride() == tensor.stride()
    assert torch.equal(first, tensor)
    assert torch.equal(second, torch.arange(size))
    assert torch.equal(third, tensor[:, ::2])


def test_replies_come_back_whatever_their_size(pair: Pair) -> None:
    for size in (3, 3_000_000, 5):
        pair.carried([torch.zeros(4)])
        outputs = pair.replied([torch.arange(size), torch.zeros(0), torch.ones(2)])
        assert torch.equal(outputs[0], torch.arange(size))
        assert [list(tensor.shape) for tensor in outputs[1:]] == [[0], [2]]


def test_what_was_read_stays_when_the_other_side_writes_again(pair: Pair) -> None:
    pair.carried([torch.zeros(4)])
    (first,) = pair.replied([torch.full((4,), 1.0)])
    pair.replied([torch.full((4,), 9.0)])
    pair.carried([torch.full((4,), 7.0)])
    assert first.tolist() == [1.0] * 4


def test_values_sent_before_stay_when_more_are_sent(pair: Pair) -> None:
    kept = pair.carried([torch.full((4,), 1.0)])[0]
    pair.carried([torch.full((4_000_000,), 2.0)])
    pair.carried([torch.full((4,), 3.0)])
    assert kept.tolist() == [1.0] * 4


@pytest.mark.parametrize(
    "change",
    [{"dtype": "load"}, {"shape": [1 << 40]}, {"shape": "x"}, {"stride": [1, 1]}, {"offset": -1}, {"offset": 1 << 40}],
)
def test_a_reply_that_lies_is_refused(pair: Pair, change: dict[str, object]) -> None:
    pair.carried([torch.zeros(4)])
    entries = pair.sandbox.offer([torch.ones(4)])
    with pytest.raises(SharedBufferError):
        pair.verifier.read([{**entries[0], **change}], 1 << 30, pair)
    with pytest.raises(SharedBufferError, match="more than"):
        pair.verifier.read(entries, 3, pair)


def test_an_output_larger_than_any_file_may_be_travels_all_the_same() -> None:
    """The limit on a sandbox's files is no limit on honest outputs: their memory was made by the verifier."""
    pair = Pair(4 << 20)
    pair.carried([torch.zeros(1 << 20)])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 10, hard))
    try:
        (found,) = pair.replied([torch.arange(1 << 20)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert torch.equal(found, torch.arange(1 << 20))
    pair.verifier.close()


def test_digests_tell_any_change_of_bits_and_nothing_else() -> None:
    given = [torch.randn(5, 7), torch.zeros(3), torch.tensor([float("nan"), 1.0]), torch.arange(5, dtype=torch.int8)]
    known = digests(given, 123)
    assert digests([tensor.clone() for tensor in given], 123) == known
    for index, change in enumerate([lambda t: t.t_(), lambda t: t.neg_(), lambda t: t.fill_(1.0), lambda t: t.add_(1)]):
        changed = [tensor.clone() for tensor in given]
        change(changed[index])
        found = digests(changed, 123)
        assert [one == other for one, other in zip(found, known, strict=True)] == [at != index for at in range(4)]
    assert digests(given, 124) != known


def test_nobody_can_change_the_size_of_a_window() -> None:
    window = SharedBuffer.of_size(100, pinned=False)
    for size in (0, window.size * 2):
        with pytest.raises(PermissionError):
            os.ftruncate(window.fd, size)
    window.close()


def test_memory_that_a_sandbox_cannot_map_says_nothing_about_the_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(fd: int, size: int) -> None:
        os.close(fd)
        raise OSError("cuMemMap failed with 801")

    monkeypatch.setattr(transport, "DeviceMemory", refused)
    fd = os.memfd_create("allocation")
    message = {"do": "call", "buffer": {"device": True, "size": 8}}
    session: Any = SimpleNamespace(source="", handle=SandboxEnd("cuda").use)
    reply = answer(session, message, [fd])
    os.close(fd)
    assert reply["error"] == "infra_error"
    assert "cuMemMap failed with 801" in reply["text"]


def test_split_and_join_are_inverse() -> None:
    values = (torch.ones(1), [torch.zeros(1)], 3)
    template, tensors = split(values)
    assert len(tensors) == 2
    assert join(template, tensors)[1][0] is tensors[1]


def test_the_fork_server_has_one_thread_so_that_its_forks_are_safe(fork_server: ForkServer) -> None:
    fork_server.wait_ready()
    assert len(os.listdir(f"/proc/{fork_server.pid}/task")) == 1  # noqa: PTH208 - numbers of threads, not paths

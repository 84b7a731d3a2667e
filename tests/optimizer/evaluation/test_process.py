"""Channels, slabs and the fork server."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from optimizer.evaluation.process.channel import Channel, ChannelClosedError, ChannelTimeoutError, channel_pair
from optimizer.evaluation.process.slab import SlabError, read_slab, write_slab
from optimizer.evaluation.process.spawn import ForkServer
from optimizer.evaluation.process.transport import (
    Receiver,
    Sender,
    SlabReceiver,
    SlabSender,
    WindowReceiver,
    WindowSender,
)
from optimizer.evaluation.process.values import join, split
from optimizer.evaluation.process.window import Window


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


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(0, 5), min_size=0, max_size=3),
    st.sampled_from([torch.float32, torch.float16, torch.int64, torch.bool, torch.bfloat16, torch.uint8]),
)
def test_a_slab_gives_back_what_was_written(shape: list[int], dtype: torch.dtype) -> None:
    tensor = torch.randint(0, 2, shape).to(dtype)
    fd, entries = write_slab([tensor, tensor.flatten()])
    first, second = read_slab(fd, entries, 1 << 20)
    os.close(fd)
    assert torch.equal(first, tensor)
    assert torch.equal(second, tensor.flatten())
    assert first.dtype == dtype


def test_dense_layouts_survive() -> None:
    tensor = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    fd, entries = write_slab([tensor, tensor[:, ::2]])
    first, second = read_slab(fd, entries, 1 << 20)
    os.close(fd)
    assert first.stride() == tensor.stride()
    assert torch.equal(second, tensor[:, ::2])


@pytest.mark.parametrize(
    "change",
    [{"dtype": "load"}, {"shape": [1 << 40]}, {"shape": "x"}, {"stride": [1, 1]}, {"offset": -1}, {"offset": 1 << 30}],
)
def test_a_slab_that_lies_is_refused(change: dict[str, object]) -> None:
    fd, entries = write_slab([torch.ones(4)])
    with pytest.raises(SlabError):
        read_slab(fd, [{**entries[0], **change}], 1 << 20)
    os.close(fd)


Pair = tuple[Sender, Receiver]


@pytest.fixture(params=["slab", "window"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    ends = (SlabSender(), SlabReceiver()) if request.param == "slab" else (WindowSender("cpu"), WindowReceiver("cpu"))
    yield ends
    ends[0].close()


def carried(pair: Pair, values: object) -> Any:
    with pair[0].packed(values) as (message, fds):
        return pair[1].unpack(json.loads(json.dumps(message)), fds)


def replied(pair: Pair, tensors: list[torch.Tensor], inputs: list[torch.Tensor]) -> tuple[list[Any], list[Any]]:
    reply, fds = pair[1].deliver(tensors, inputs)
    both = pair[0].read(reply, fds, "tensors", 1 << 30), pair[0].read(reply, fds, "inputs", 1 << 30)
    for fd in fds:
        os.close(fd)
    return both


def test_values_travel_with_their_structure(pair: Pair) -> None:
    back = carried(pair, [torch.ones(2), {"a": (1, torch.zeros(3, dtype=torch.int64))}, None, "text"])
    assert back[1]["a"][0] == 1
    assert torch.equal(back[1]["a"][1], torch.zeros(3, dtype=torch.int64))
    assert back[2:] == [None, "text"]


def test_values_without_tensors_travel_too(pair: Pair) -> None:
    assert carried(pair, [1, "two"]) == [1, "two"]


def test_replies_come_back_in_two_lists_whatever_their_size(pair: Pair) -> None:
    for size in (3, 3_000_000, 5):
        carried(pair, [torch.zeros(4)])
        outputs, inputs = replied(pair, [torch.full((size,), 2.0)], [torch.ones(2), torch.zeros(0)])
        assert outputs[0].shape == (size,)
        assert float(outputs[0].mean()) == 2.0
        assert [list(tensor.shape) for tensor in inputs] == [[2], [0]]


def test_what_was_read_stays_when_the_other_side_writes_again(pair: Pair) -> None:
    carried(pair, [torch.zeros(4)])
    (first,), _ = replied(pair, [torch.full((4,), 1.0)], [])
    replied(pair, [torch.full((4,), 9.0)], [])
    carried(pair, [torch.full((4,), 7.0)])
    assert first.tolist() == [1.0] * 4


def test_values_sent_before_stay_when_more_are_sent(pair: Pair) -> None:
    kept = carried(pair, [torch.full((4,), 1.0)])[0]
    carried(pair, [torch.full((4_000_000,), 2.0)])
    carried(pair, [torch.full((4,), 3.0)])
    assert kept.tolist() == [1.0] * 4


@pytest.mark.parametrize(
    "change", [{"dtype": "load"}, {"shape": [1 << 40]}, {"stride": [1, 1]}, {"offset": -1}, {"offset": 1 << 30}]
)
def test_a_reply_that_lies_is_refused(pair: Pair, change: dict[str, object]) -> None:
    carried(pair, [torch.zeros(4)])
    reply, fds = pair[1].deliver([torch.ones(4)], [])
    with pytest.raises(SlabError):
        pair[0].read({**reply, "tensors": [{**reply["tensors"][0], **change}]}, fds, "tensors", 1 << 30)
    with pytest.raises(SlabError, match="more than"):
        pair[0].read(reply, fds, "tensors", 3)
    for fd in fds:
        os.close(fd)


def test_nobody_can_change_the_size_of_a_window() -> None:
    window = Window.of_size(100, pinned=False)
    for size in (0, window.size * 2):
        with pytest.raises(PermissionError):
            os.ftruncate(window.fd, size)
    window.close()


def test_split_and_join_are_inverse() -> None:
    values = (torch.ones(1), [torch.zeros(1)], 3)
    template, tensors = split(values)
    assert len(tensors) == 2
    assert join(template, tensors)[1][0] is tensors[1]


def test_the_fork_server_has_one_thread_so_that_its_forks_are_safe() -> None:
    server = ForkServer()
    try:
        server.wait_ready()
        assert len(os.listdir(f"/proc/{server.pid}/task")) == 1  # noqa: PTH208 - numbers of threads, not paths
    finally:
        server.close()

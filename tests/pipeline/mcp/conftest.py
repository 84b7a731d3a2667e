"""A real client of the ``mcp`` package, a real ``htam mcp`` over stdio, a real evaluation on the CPU."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import start_blocking_portal
from mcp import Client, StdioServerParameters

REPOSITORY = Path(__file__).parents[3]
TASK = """import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)

def get_inputs():
    return [torch.randn(64, 64)]

def get_init_inputs():
    return []
"""
KERNEL = Path(__file__).parents[1].joinpath("relu_rows.py").read_text()


class Agent:
    """One client and its server."""

    def __init__(self, portal: Any, client: Client) -> None:
        self._portal = portal
        self.client = client

    def call(self, tool: str, **arguments: Any) -> Any:
        """The structured answer of a tool; with an error, its text raises."""
        result = self._portal.call(lambda: self.client.call_tool(tool, arguments))
        if result.is_error:
            raise RuntimeError(result.content[0].text)
        answer = result.structured_content
        return answer["result"] if set(answer) == {"result"} else answer

    def refusal(self, tool: str, **arguments: Any) -> str:
        """What a tool refuses with."""
        with pytest.raises(RuntimeError) as refused:
            self.call(tool, **arguments)
        return str(refused.value)

    def judged(self, tool: str = "evaluate", **arguments: Any) -> Any:
        """The verdict on a candidate, waited for."""
        verdict = self.call(tool, **arguments)
        while verdict["state"] == "running":
            verdict = self.call("job", handle=verdict["handle"], wait_s=30)
        return verdict

    def read(self, uri: str) -> str:
        """Text of a resource."""
        return str(self._portal.call(lambda: self.client.read_resource(uri)).contents[0].text)


def server(root: Path, *words: str) -> StdioServerParameters:
    """How a client starts ``htam mcp``."""
    kept = ("HOME", "HTAM_BUILD_CACHE", "OMP_NUM_THREADS", "TMPDIR")
    environment = {"PYTHONPATH": str(REPOSITORY)} | {name: os.environ[name] for name in kept if name in os.environ}
    arguments = ["-P", "-m", "pipeline", "mcp", "--root", str(root), "--baseline", "eager_fp32", *words]
    return StdioServerParameters(command=sys.executable, args=arguments, env=environment)


@contextlib.contextmanager
def agent(root: Path, *words: str) -> Iterator[Agent]:
    """A connected client."""
    with start_blocking_portal() as portal:
        client = Client(server(root, *words))
        with portal.wrap_async_context_manager(client):
            yield Agent(portal, client)


@pytest.fixture(scope="module")
def connect() -> Callable[..., contextlib.AbstractContextManager[Agent]]:
    return agent


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as an agent works in it: two tasks, one kernel."""
    folder = tmp_path_factory.mktemp("root")
    for name in ("first", "second"):
        (folder / f"{name}.py").write_text(TASK)
    (folder / "kernel.py").write_text(KERNEL)
    return folder

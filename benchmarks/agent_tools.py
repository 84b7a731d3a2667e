"""Tools of ``htam mcp`` for an agent that has a shell only: ``python agent_tools.py SESSION TOOL [JSON]``.

SESSION is a folder that :mod:`agent_study` made. Each call starts the server, which takes up the session's run where it
was, and ends it: nothing stays between calls. What evaluate and finish begin is waited for. One JSON object is printed.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mcp import Client, StdioServerParameters

WAITING = ("evaluate", "finish", "job")


def server_of(session: Path) -> StdioServerParameters:
    """How the server of a session is started; the plan lies outside what the agent is shown."""
    session = session.resolve()
    study = session.parents[1]
    entry = json.loads((study / "plan.json").read_text(encoding="utf-8"))["sessions"][session.name]
    words = ["--root", str(session), "--run", str(study / "runs" / session.name), *entry["words"]]
    return StdioServerParameters(
        command=sys.executable, args=["-P", "-m", "pipeline", "mcp", *words], env=dict(os.environ), cwd=study
    )


@contextlib.contextmanager
def alone(session: Path) -> Iterator[None]:
    """Nobody else of the study uses a tool meanwhile: sessions share a machine, and one of them may measure."""
    with (session.resolve().parents[1] / "measuring").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


async def called(session: Path, tool: str, arguments: dict[str, Any]) -> tuple[bool, Any]:
    """Whether a tool worked, and its answer."""
    with alone(session):
        async with Client(server_of(session)) as client:
            if tool == "tools":
                listed = (await client.list_tools()).tools
                return True, {one.name: {"does": one.description, "arguments": one.input_schema} for one in listed}
            result = await client.call_tool(tool, arguments)
            while not result.is_error and tool in WAITING and result.structured_content["state"] == "running":
                result = await client.call_tool("job", {"handle": result.structured_content["handle"], "wait_s": 50})
        said = [part.text for part in result.content if part.type == "text"]
        return not result.is_error, said[0] if result.is_error else result.structured_content


def main() -> int:
    """Call one tool."""
    if len(sys.argv) not in (3, 4):
        print(__doc__)
        return 2
    arguments = json.loads(sys.argv[3]) if len(sys.argv) == 4 else {}
    worked, answer = asyncio.run(called(Path(sys.argv[1]), sys.argv[2], arguments))
    print(json.dumps(answer if worked else {"error": answer}, indent=1, ensure_ascii=False))
    return 0 if worked else 1


if __name__ == "__main__":
    sys.exit(main())

"""Which layers of the sandbox hold on this host: enter it in a throw-away process and try each door."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from optimizer.evaluation.sandbox.enter import Policy, enter


def write_outside() -> None:
    """Create a file beside the scratch folder."""
    with tempfile.TemporaryFile(dir=tempfile.gettempdir()):
        pass


def use_network() -> None:
    """Send a datagram to another host's address (reserved for documentation)."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
        end.sendto(b"x", ("192.0.2.1", 9))


def start_program() -> None:
    """Start another program."""
    subprocess.run(["/bin/true"], check=True, capture_output=True)


def read_parent() -> None:
    """Read the memory of the process that started us."""
    with Path(f"/proc/{os.getppid()}/mem").open("rb"):
        pass


def leave_group() -> None:
    """Escape the process group that a time-out kills."""
    os.setsid()


ATTEMPTS: dict[str, Callable[[], None]] = {
    "write outside scratch": write_outside,
    "network": use_network,
    "start a program": start_program,
    "read the parent's memory": read_parent,
    "leave the process group": leave_group,
}


def barred(attempt: Callable[[], None]) -> bool:
    """True when the system refused."""
    try:
        attempt()
    except OSError:
        return True
    return False


def main() -> None:
    """Enter with the scratch folder of the only argument, try, print JSON."""
    layers = enter(Policy(scratch=sys.argv[1], cpu_s=60, memory_bytes=None))
    found = {name: barred(attempt) for name, attempt in ATTEMPTS.items()}
    sys.stdout.write(json.dumps({"layers": layers, "barred": found}) + "\n")


if __name__ == "__main__":
    main()


_TIMEOUT_S = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """What a process inside the sandbox found.

    Attributes:
        layers: what was applied, by name.
        barred: attempt → True when it was refused (write outside scratch, network, start a program,
            read the parent's memory, leave the process group).
    """

    layers: tuple[str, ...]
    barred: Mapping[str, bool]


def features() -> Features:
    """Enter the sandbox in a throw-away process and try what a candidate might try."""
    root = str(Path(__file__).resolve().parents[3])
    with tempfile.TemporaryDirectory() as scratch:
        result = subprocess.run(
            [sys.executable, "-P", "-m", "optimizer.evaluation.sandbox.probe", scratch],
            env={"PYTHONPATH": root, "PATH": os.environ.get("PATH", "")},
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=True,
        )
    found = json.loads(result.stdout)
    return Features(layers=tuple(found["layers"]), barred=dict(found["barred"]))

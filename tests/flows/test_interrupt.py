"""Ctrl-C at a build: a terminal sends it to every process of the group."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
HELD = """
import sys, time
from pathlib import Path
import builder.describe.logs
from pipeline.cli import main

read = builder.describe.logs.read

def held(*given):
    print("reading", file=sys.stderr, flush=True)
    while not Path(sys.argv[1]).exists():
        time.sleep(0.05)
    return read(*given)

builder.describe.logs.read = held
main(sys.argv[2:])
"""


def until(condition: Callable[[], bool], seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_ctrl_c_ends_a_build_in_order_with_one_line(
    runs: Path, tmp_path: Path, used_home: Callable[[Path], None]
) -> None:
    used_home(tmp_path / "work" / "prefect")
    release, said = tmp_path / "release", tmp_path / "said"
    words = ["memory", "build", "--logs", str(runs), "--name", "team", "--model", "hashing", "--runner", "threads"]
    places = ["--store", str(tmp_path / "store"), "--work", str(tmp_path / "work")]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT")}
    with said.open("wb") as stderr:
        build = subprocess.Popen(
            [sys.executable, "-P", "-c", HELD, str(release), *words, *places],
            env=environment | {"PYTHONPATH": str(ROOT)},
            start_new_session=True,
            stderr=stderr,
        )
    try:
        until(lambda: build.poll() is not None or "reading" in said.read_text().splitlines())
        os.killpg(build.pid, signal.SIGINT)
        release.touch()
        until(lambda: build.poll() is not None)
    finally:
        if build.poll() is None:
            os.killpg(build.pid, signal.SIGKILL)
            build.wait()
    assert (build.returncode, "htam: interrupted" in said.read_text().splitlines()) == (130, True), said.read_text()
    assert not (tmp_path / "store").exists()

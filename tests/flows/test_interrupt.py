"""Ctrl-C at a build: a terminal sends it to every process of the group."""

import os
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
HELD = """
import sys, time
from pathlib import Path
import builder.drafting
from pipeline.cli import main

read = builder.drafting.read

def held(*given):
    print("reading", file=sys.stderr, flush=True)
    while not Path(sys.argv[1]).exists():
        time.sleep(0.05)
    return read(*given)

builder.drafting.read = held
main(sys.argv[2:])
"""


def test_ctrl_c_ends_a_build_in_order_with_one_line(runs: Path, tmp_path: Path) -> None:
    release = tmp_path / "release"
    words = ["memory", "build", "--logs", str(runs), "--name", "team", "--model", "hashing"]
    places = ["--store", str(tmp_path / "store"), "--work", str(tmp_path / "work")]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT")}
    with subprocess.Popen(
        [sys.executable, "-P", "-c", HELD, str(release), *words, *places],
        env=environment | {"PYTHONPATH": str(ROOT)},
        start_new_session=True,
        stderr=subprocess.PIPE,
        text=True,
    ) as build:
        assert build.stderr is not None
        assert any(line.strip() == "reading" for line in build.stderr)
        os.killpg(build.pid, signal.SIGINT)
        release.touch()
        said = build.stderr.read()
        assert build.wait(300) == 130
    assert "htam: interrupted" in said.splitlines(), said
    assert not (tmp_path / "store").exists()

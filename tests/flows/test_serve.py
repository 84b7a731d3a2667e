import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from artifacts.memory.store import MemoryStore

SETTINGS = """
[service]
work = "{base}/work"
port = 0

[[rebuild]]
name = "team"
logs = ["{runs}"]
store = "{base}/store"
model = "hashing"
every_s = 5
"""


def processes_that_mention(text: str) -> list[str]:
    """Command lines of the living processes with ``text`` among their words or in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes()
            if int(folder.name) != os.getpid() and text.encode() in words + (folder / "environ").read_bytes():
                found.append(words.replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found


@pytest.mark.timeout(280)
def test_a_served_rebuild_fires_on_schedule_and_leaves_no_process_behind(runs: Path, tmp_path: Path) -> None:
    settings = tmp_path / "team.toml"
    settings.write_text(SETTINGS.format(base=tmp_path, runs=runs))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    command = [sys.executable, "-P", "-m", "pipeline", "serve", str(settings)]
    with (tmp_path / "serve.log").open("wb") as log:
        served = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
        try:
            store = MemoryStore(str(tmp_path / "store"))
            end = time.monotonic() + 200
            while store.tagged("team", "latest") is None and served.poll() is None and time.monotonic() < end:
                time.sleep(0.5)
            assert store.tagged("team", "latest"), (tmp_path / "serve.log").read_text()[-3000:]
            assert processes_that_mention(str(tmp_path))
        finally:
            served.send_signal(signal.SIGINT)
            served.wait(150)  # a run that has just begun is ended first, and two cores may be busy
    assert processes_that_mention(str(tmp_path)) == []

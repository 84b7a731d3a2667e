import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx

from artifacts.memory.store import MemoryStore
from flows.supervised import supervised

SETTINGS = """
[service]
work = "{base}/work"
port = 0

[[rebuild]]
name = "team"
logs = ["{runs}"]
store = "{base}/store"
model = "hashing"
every_s = 10

[[notify]]
on = ["unchanged"]
url = "{chat}"
"""


@contextmanager
def chat_service() -> Iterator[tuple[str, list[Any]]]:
    """Its address, and what it hears."""
    heard: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            heard.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Quiet."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/", heard
        finally:
            server.shutdown()
            thread.join()


def test_a_served_rebuild_fires_on_schedule_tells_of_it_and_its_service_ends_though_the_server_hangs(
    runs: Path,
    tmp_path: Path,
    until: Callable[..., Any],
    processes_that_mention: Callable[[str], dict[int, str]],
    used_home: Callable[[Path], None],
) -> None:
    used_home(tmp_path / "work" / "prefect")
    settings = tmp_path / "team.toml"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    environment |= {"PREFECT_RUNNER_POLL_FREQUENCY": "1"}
    command = [sys.executable, "-P", "-m", "pipeline", "serve", str(settings)]

    def servers() -> list[int]:
        return [pid for pid, words in processes_that_mention(str(tmp_path)).items() if "prefect server start" in words]

    def story() -> str:
        return (tmp_path / "serve.log").read_text()[-3000:]

    with chat_service() as (chat, heard), (tmp_path / "serve.log").open("wb") as log:
        settings.write_text(SETTINGS.format(base=tmp_path, runs=runs, chat=chat))
        with subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True) as served:
            try:
                store = MemoryStore(str(tmp_path / "store"))
                until(lambda: store.tagged("team", "latest") or served.poll() is not None, story)
                assert served.poll() is None, story()
                # Prefect's server tells of scheduled runs fifteen minutes late: it waits for an event that never comes.
                page = re.search(r"on-demand runs: (\S+);", (tmp_path / "serve.log").read_text())
                assert page, story()
                name = f"{page[1]}/api/deployments/name/rebuild-on-new-logs/team"
                # A server whose SQLite file is busy answers 503, which means: ask again.
                known = until(
                    lambda: (answer := httpx.get(name, timeout=600)).is_success and answer.json()["id"], story
                )
                run = {"state": {"type": "SCHEDULED"}, "idempotency_key": "asked for"}
                asked = f"{page[1]}/api/deployments/{known}/create_flow_run"
                until(lambda: httpx.post(asked, json=run, timeout=600).is_success, story)
                until(lambda: heard or served.poll() is not None, story)
                # The schedule may have fired again as well.
                assert {(news["job"], news["state"]) for news in heard} == {("team", "Unchanged")}, story()
                (server,) = until(lambda: len(found := servers()) == 1 and found, story)
                os.kill(server, signal.SIGSTOP)  # Prefect's runner would wait for its answer, for minutes
                served.send_signal(signal.SIGINT)
                until(lambda: served.poll() is not None, story)
            finally:
                served.kill()
    until(lambda: not processes_that_mention(str(tmp_path)), story)


def test_what_does_not_listen_is_killed_with_all_it_started(
    tmp_path: Path, until: Callable[..., Any], processes_that_mention: Callable[[str], dict[int, str]]
) -> None:
    (tmp_path / "stubborn.py").write_text(
        "import signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "subprocess.Popen(['sleep', '6000'], env={'MARK': sys.argv[1]})\n"
        "print('ready', flush=True)\n"
        "time.sleep(6000)\n"
    )
    paths = filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    options: dict[str, Any] = {"env": environment, "stdout": subprocess.PIPE, "text": True}
    with supervised("stubborn", [str(tmp_path)], stop_s=0.2, **options) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        until(lambda: len(processes_that_mention(str(tmp_path))) == 2)
    assert process.returncode == -signal.SIGKILL
    until(lambda: not processes_that_mention(str(tmp_path)))


def test_the_embedded_server_ends_with_a_command_that_is_killed(
    tmp_path: Path, until: Callable[..., Any], processes_that_mention: Callable[[str], dict[int, str]]
) -> None:
    script = (
        "import time\n"
        "from prefect.client.orchestration import get_client\n"
        "from flows.server import embedded_server\n"
        "embedded_server()\n"
        "with get_client(sync_client=True) as client:\n"
        "    client.hello()\n"
        "    time.sleep(6000)\n"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    environment |= {"PREFECT_HOME": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-P", "-c", script], env=environment) as command:
        try:
            until(lambda: command.poll() is not None or len(processes_that_mention(str(tmp_path))) >= 2)
            assert command.poll() is None
        finally:
            command.kill()
    until(lambda: not processes_that_mention(str(tmp_path)))


def test_what_a_service_that_was_killed_left_running_is_set_to_crashed() -> None:
    from prefect.client.orchestration import get_client
    from prefect.states import Running

    from flows.deployments import deployment, settle_lost

    with get_client(sync_client=True) as client:
        runs = {}
        for name in ("ours", "another"):
            known = deployment(name, "transfer", {"study": "s.toml"}).apply()
            runs[name] = client.create_flow_run_from_deployment(known, state=Running()).id  # type: ignore[arg-type]
        assert settle_lost(["ours"]) == 1
        states = {name: client.read_flow_run(run).state for name, run in runs.items()}
    assert {name: state.name for name, state in states.items() if state} == {"ours": "Crashed", "another": "Running"}

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from flows import notice
from flows.notice import Notice, UntoldError


def writer(path: Path) -> tuple[str, ...]:
    """A command that appends its standard input to ``path``."""
    return (sys.executable, "-c", f"import sys; open({str(path)!r}, 'a').write(sys.stdin.read())")


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(notice.VARIABLE, "[]")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "either"),
        ({"url": "http://x", "command": ("y",)}, "either"),
        ({"url": "ftp://x"}, "http"),
        ({"url": "https:///services/x"}, "no host"),
        ({"url": "http://x", "on": ("sometimes",)}, "sometimes"),
    ],
)
def test_a_notice_that_could_reach_nobody_is_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Notice(**given)


def test_who_is_to_be_told_travels_in_the_environment() -> None:
    wanted = [Notice(url="https://chat.example/x", on=("kept",)), Notice(command=("mail", "me"))]
    notice.keep(wanted)
    assert notice.kept() == wanted


def test_a_url_gets_the_news_as_json() -> None:
    heard: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            heard.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Quiet."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.handle_request, daemon=True)
        thread.start()
        Notice(url=f"http://127.0.0.1:{server.server_port}/").send({"text": "it failed"})
        thread.join(600)
    assert heard == [{"text": "it failed"}]


def test_what_is_said_of_a_command_that_failed_holds_none_of_its_arguments() -> None:
    sender = Notice(command=(sys.executable, "-c", "raise SystemExit(3)  # token"))
    with pytest.raises(UntoldError, match="exit code 3"):
        sender.send({"text": "x"})
    assert sender.whom == sys.executable


def test_what_is_said_of_a_chat_service_holds_its_host_alone() -> None:
    class Babbler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.wfile.write(b"busy\n")

    with HTTPServer(("127.0.0.1", 0), Babbler) as server:
        hook = Notice(url=f"http://127.0.0.1:{server.server_port}/services/token")
        thread = threading.Thread(target=server.handle_request, daemon=True)
        thread.start()
        with pytest.raises(UntoldError) as caught:
            hook.send({"text": "x"})
        thread.join(600)
    assert "token" not in f"{caught.value} {hook.whom}"
    assert hook.whom == "127.0.0.1"


def test_a_flow_that_fails_tells_those_who_want_to_know_and_no_others(tmp_path: Path) -> None:
    from flows import engine
    from flows.build_memory import build_memory

    (tmp_path / "notes.txt").write_text("no log")
    unreachable = Notice(command=(str(tmp_path / "no-such-program"),))
    notice.keep(
        [
            unreachable,
            Notice(command=writer(tmp_path / "bad")),
            Notice(command=writer(tmp_path / "good"), on=("completed",)),
        ]
    )
    with pytest.raises(Exception, match="no log"):
        engine.run(build_memory, engine.EngineSettings(), [str(tmp_path)], str(tmp_path / "store"), "team")
    heard = json.loads((tmp_path / "bad").read_text())
    assert (heard["flow"], heard["run"], heard["state"]) == ("build-memory", "team", "Failed")
    assert "no log" in heard["text"]
    assert not (tmp_path / "good").exists()


def test_a_crash_that_others_report_names_the_job_and_not_what_prefect_drew(tmp_path: Path) -> None:
    from prefect.client.schemas.objects import FlowRun
    from prefect.states import Crashed

    from flows.build_memory import rebuild_on_new_logs
    from flows.notify import tell

    notice.keep([Notice(command=writer(tmp_path / "news"))])
    known = FlowRun(flow_id=uuid4(), name="strategic-earthworm", parameters={"name": "team", "logs": []})
    tell(rebuild_on_new_logs, known, Crashed(message="killed"))
    heard = json.loads((tmp_path / "news").read_text())
    assert (heard["run"], heard["text"]) == ("team", "rebuild-on-new-logs team: Crashed. killed")


def test_a_rebuild_says_whether_it_promoted(runs: Path, tmp_path: Path) -> None:
    from flows import engine
    from flows.build_memory import rebuild_on_new_logs

    notice.keep([Notice(command=writer(tmp_path / "news"), on=("promoted", "unchanged"))])
    given = {"store": str(tmp_path / "store"), "name": "team", "work": str(tmp_path / "work"), "model": "hashing"}
    for _ in range(2):
        engine.run(rebuild_on_new_logs, engine.EngineSettings(), logs=[str(runs)], **given)
    heard = [json.loads(line) for line in (tmp_path / "news").read_text().splitlines()]
    assert [item["state"] for item in heard] == ["Promoted", "Unchanged"]
    assert "is latest now" in heard[0]["message"]

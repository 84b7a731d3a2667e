from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from optimizer.evaluation.build.builder import LocalBuilder
from optimizer.evaluation.build.cache import BuildCache, Entry
from optimizer.evaluation.build.command import BuildTimeoutError, ProcessRunner, Stop
from optimizer.evaluation.build.request import Attempt, BuildRequest, SourceFile

SPAWN = multiprocessing.get_context("spawn")


class FakeRoute:
    """Writes a file as library, or refuses; counts its builds in a file that processes share."""

    def __init__(self, name: str, log: Path, *, works: bool = True, seconds: float = 0.0) -> None:
        self.name = name
        self._log = log
        self._works = works
        self._seconds = seconds

    def supports(self, request: BuildRequest) -> bool:
        return True

    def build(self, request: BuildRequest, directory: Path, timeout_s: float, stop: Stop | None = None) -> Attempt:
        with self._log.open("a") as file:
            file.write(f"{self.name}\n")
        time.sleep(self._seconds)
        library = directory / f"{request.name}.so"
        if not self._works:
            return Attempt(library=None, log=f"main.cpp:1: error: {self.name} refuses")
        library.write_text(request.files[0].text)
        return Attempt(library=library, log="")


def _request(text: str = "int x;", name: str = "m") -> BuildRequest:
    return BuildRequest(name=name, files=(SourceFile(name="main.cpp", text=text),))


def _builder(root: Path, *routes: FakeRoute) -> LocalBuilder:
    return LocalBuilder(BuildCache(root), routes, "toolchain")


def test_a_second_build_compiles_nothing(tmp_path: Path) -> None:
    log = tmp_path / "log"
    builder = _builder(tmp_path / "cache", FakeRoute("stock", log))
    first, again = builder.build(_request()), builder.build(_request())
    assert not first.cached
    assert again.cached
    assert Path(again.library).read_text() == "int x;"
    assert log.read_text() == "stock\n"


def test_other_sources_flags_or_compilers_are_other_libraries() -> None:
    base = _request()
    keys = {
        base.key("a"),
        base.key("b"),
        _request("int y;").key("a"),
        _request(name="n").key("a"),
        BuildRequest(name="m", files=base.files, cflags=("-O3",)).key("a"),
    }
    assert len(keys) == 5


def test_a_failed_fast_route_is_counted_and_the_stock_route_decides(tmp_path: Path) -> None:
    log = tmp_path / "log"
    builder = _builder(tmp_path / "cache", FakeRoute("split", log, works=False), FakeRoute("stock", log))
    result = builder.build(_request())
    assert result.route == "stock"
    assert result.library
    assert result.notes() == ("build: fast route failed, stock route decided: split: main.cpp:1: error: split refuses",)


def test_what_no_route_builds_is_a_result_with_the_stock_log_and_is_not_tried_again(tmp_path: Path) -> None:
    log = tmp_path / "log"
    builder = _builder(tmp_path / "cache", FakeRoute("slim", log, works=False), FakeRoute("stock", log, works=False))
    first, again = builder.build(_request()), builder.build(_request())
    assert first.library == again.library == ""
    assert "stock refuses" in again.log
    assert log.read_text() == "slim\nstock\n"


def test_a_request_may_ask_for_the_stock_route_alone(tmp_path: Path) -> None:
    log = tmp_path / "log"
    builder = _builder(tmp_path / "cache", FakeRoute("slim", log), FakeRoute("stock", log))
    result = builder.build(BuildRequest(name="m", files=_request().files, fast=False))
    assert result.route == "stock"


def _build_in_process(root: Path, log: Path, seconds: float) -> None:
    _builder(root, FakeRoute("stock", log, seconds=seconds)).build(_request())


def test_processes_that_want_one_library_build_it_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    others = [SPAWN.Process(target=_build_in_process, args=(tmp_path / "cache", log, 0.5)) for _ in range(3)]
    for other in others:
        other.start()
    for other in others:
        other.join()
    assert [other.exitcode for other in others] == [0, 0, 0]
    assert log.read_text() == "stock\n"


def test_a_builder_killed_at_work_leaves_no_lock_and_no_half_entry(tmp_path: Path) -> None:
    log = tmp_path / "log"
    other = SPAWN.Process(target=_build_in_process, args=(tmp_path / "cache", log, 6000))
    other.start()
    deadline = time.monotonic() + 600
    while not log.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert other.pid is not None
    os.kill(other.pid, signal.SIGKILL)
    other.join()
    result = _builder(tmp_path / "cache", FakeRoute("stock", log)).build(_request())
    assert result.library
    assert not result.cached
    assert BuildCache(tmp_path / "cache").sweep(older_than_s=-1) == 1


@pytest.mark.parametrize("damage", ["truncate", "remove", "garble"])
def test_a_damaged_entry_is_built_again(tmp_path: Path, damage: str) -> None:
    log = tmp_path / "log"
    builder = _builder(tmp_path / "cache", FakeRoute("stock", log))
    library = Path(builder.build(_request()).library)
    if damage == "truncate":
        library.write_text("in")
    elif damage == "remove":
        library.unlink()
    else:
        (library.parent / "entry.json").write_text("{")
    result = builder.build(_request())
    assert not result.cached
    assert Path(result.library).read_text() == "int x;"


def test_an_entry_replaced_under_its_lock_is_the_new_one(tmp_path: Path) -> None:
    cache = BuildCache(tmp_path)
    for route in ("slim", "stock"):
        with cache.lock("ab" * 32):
            cache.publish("ab" * 32, Entry(name="m", library="", route=route))
    found = cache.find("ab" * 32)
    assert found is not None
    assert found[0].route == "stock"


def test_a_compiler_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    with pytest.raises(BuildTimeoutError, match="longer than"):
        ProcessRunner().run(["sh", "-c", "sleep 6000 & sleep 6000"], tmp_path, 0.5)
    deadline = time.monotonic() + 600
    while _at_work_in(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _at_work_in(tmp_path)


def _at_work_in(folder: Path) -> bool:
    """Whether a process runs in the folder; those that wait to be reaped are nowhere."""
    for path in Path("/proc").glob("[0-9]*/cwd"):
        with contextlib.suppress(OSError):
            if path.readlink() == folder:
                return True
    return False


def test_a_compiler_has_limits_on_memory_and_files(tmp_path: Path) -> None:
    program = (
        "import resource, time\n"
        "kinds = (resource.RLIMIT_DATA, resource.RLIMIT_FSIZE)\n"
        "while any(resource.getrlimit(kind)[1] == resource.RLIM_INFINITY for kind in kinds): time.sleep(0.01)\n"
    )
    assert ProcessRunner().run([sys.executable, "-c", program], tmp_path, 120).status == 0


def test_of_a_flood_of_messages_the_ends_are_kept(tmp_path: Path) -> None:
    program = "print('first'); print('x' * 5_000_000); print('last')"
    output = ProcessRunner().run([sys.executable, "-c", program], tmp_path, 120).output
    assert output.startswith("first")
    assert output.endswith("last\n")
    assert len(output) < 3_000_000


def test_secrets_do_not_reach_compilers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-private-value")
    assert "sk-private-value" not in ProcessRunner().run(["env"], tmp_path, 30).output


@pytest.mark.parametrize("flag", ["-fplugin=evil.so", "-wrapper", "@file", "-B/tmp", "--compiler-bindir=/tmp", "-o"])
def test_flags_that_could_run_code_outside_the_sandbox_are_refused(flag: str) -> None:
    with pytest.raises(ValueError, match="not allowed"):
        BuildRequest(name="m", files=_request().files, cflags=(flag,))


@pytest.mark.parametrize(
    "flag",
    ["-O3", "--use_fast_math", "-std=c++17", "-gencode=arch=compute_90,code=sm_90", "-Xptxas=-v", "-lineinfo",
     "--expt-relaxed-constexpr", "-lcublas", "-fopenmp", "-march=native", "-Wl,-rpath,/x", "--ptxas-options=-v"],
)  # fmt: skip
def test_flags_that_candidates_use_are_accepted(flag: str) -> None:
    BuildRequest(name="m", files=_request().files, cflags=(flag,))


@pytest.mark.parametrize("name", ["../x.cpp", "/etc/x.cpp", "a b.cpp", ""])
def test_file_names_stay_inside_the_build_folder(name: str) -> None:
    with pytest.raises(ValueError, match="relative path"):
        SourceFile(name=name, text="")

"""What a user types, and the one line he gets when it is wrong."""

import importlib.util
import json
import shutil
from pathlib import Path

import pytest

from artifacts.errors import UnavailableError
from artifacts.memory.store import MemoryStore
from artifacts.runlog import RunLog
from pipeline.cli import main
from pipeline.report.page import write
from pipeline.report.writing import memory_of

SHAKEN = Path(__file__).parents[1] / "optimizer" / "run" / "arm_runs" / "world-model"
"""A run of a machine that was busy: all of its timings waited."""
TASK = str(Path(__file__).parents[2] / "examples/tasks/cpu/row_softmax.py")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    spec = importlib.util.spec_from_file_location("mined", Path(__file__).with_name("mined.py"))
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    url = str(tmp_path_factory.mktemp("store"))
    memories = MemoryStore(url)
    memories.publish(module.memory(transitions=300))
    memories.promote("mined", memories.tagged("mined", "latest") or "", "first")
    memories.publish(module.memory(transitions=360))
    return url


def htam(*words: str) -> int:
    """Exit code of ``htam WORDS``."""
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    code = ended.value.code
    return code if isinstance(code, int) else 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("memory", "list"), "mined@"),
        (("memory", "show", "mined"), "Fusion (fusion)"),
        (("memory", "show", "mined@first", "fusion"), "fusion.0"),
        (("memory", "show", "mined", "fusion.0"), "transitions:"),
        (("memory", "kernels", "mined"), "× its reference"),
        (("memory", "kernels", "mined", f"{1041:064x}"), "// kernel 41"),
        (("memory", "verify", "mined"), "is whole"),
        (("memory", "diff", "mined@first", "mined"), "60 transitions added, 0 removed"),
        (("memory", "gc", "mined", "--dry-run"), "(tag first)"),
        (("memory", "export", "mined", "--format", "traces"), '"definition"'),
    ],
)
def test_a_memory_answers(store: str, words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert htam(*words, "--store", store) == 0
    assert said in capsys.readouterr().out


def test_versions_without_a_tag_can_be_collected(
    store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(store, tmp_path / "store")
    shutil.rmtree(tmp_path / "store" / "mined" / "tags")
    assert htam("memory", "gc", "mined", "--store", str(tmp_path / "store")) == 0
    told = capsys.readouterr().out
    assert told.count("removed") == 1
    assert told.count("kept") == 1


@pytest.mark.parametrize(
    "words",
    [
        ("list",),
        ("show", "mined"),
        ("show", "mined", "fusion"),
        ("show", "mined", "fusion.0"),
        ("diff", "mined", "mined"),
    ],
)
def test_what_a_program_reads_is_json(store: str, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert htam("memory", *words, "--store", store, "--json") == 0
    assert json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("memory", "show", "nobody"), "holds no memory 'nobody'; memories there: mined"),
        (("memory", "show", "mined@ffffff"), "neither a version nor a tag"),
        (("memory", "show", "mined", "no-such"), "no direction or strategy 'no-such'"),
        (("memory", "kernels", "mined", "ff"), "0 kernels of mined@"),
        (("memory", "kernels", "mined", "0"), "kernels of mined@"),
        (("memory", "promote", "mined", "Not A Tag"), "tag 'Not A Tag' is not allowed"),
        (("report", "nobody"), "holds no memory 'nobody'"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_1(
    store: str, words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert htam(*words, "--store", store) == 1
    error = capsys.readouterr().err
    assert said in error
    assert error.startswith("htam: ")
    assert error.count("\n") == 1


def damaged(store: str, tmp_path: Path, how: str) -> str:
    source = next(Path(store, "mined").glob("*/transitions.parquet")).parent
    copy = tmp_path / "store/mined" / source.name
    copy.mkdir(parents=True)
    for file in source.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    target = copy / "transitions.parquet"
    data = target.read_bytes()
    if how == "missing":
        target.unlink()
    elif how == "truncated":
        target.write_bytes(data[: len(data) // 2])
    elif how == "flipped":
        target.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    else:
        manifest = copy / "manifest.json"
        manifest.write_text(manifest.read_text().replace('"schema_version": ', '"schema_version": 9'))
    return f"mined@{source.name}"


@pytest.mark.parametrize("how", ["missing", "truncated", "flipped", "schema"])
def test_a_damaged_memory_is_one_line(store: str, tmp_path: Path, how: str, capsys: pytest.CaptureFixture[str]) -> None:
    reference = damaged(store, tmp_path, how)
    assert htam("memory", "show", reference, "--store", str(tmp_path / "store")) == 1
    error = capsys.readouterr().err
    assert error.startswith("htam: ")
    assert error.count("\n") == 1
    assert str(tmp_path) in error


def test_the_report_of_a_memory_is_written_where_it_is_wanted(
    store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "page.html"
    assert htam("report", "mined", "--store", store, "--out", str(out)) == 0
    assert capsys.readouterr().out.strip() == str(out)
    assert out.read_text().startswith("<!doctype html>")


def test_a_page_that_cannot_be_written_is_one_line(
    store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert htam("report", "mined", "--store", store, "--out", str(tmp_path / "file/page.html")) == 1
    assert "cannot write" in capsys.readouterr().err


def test_a_run_and_a_memory_cannot_be_compared(store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert htam("report", "mined", str(tmp_path), "--store", store) == 1
    assert "no run directory" in capsys.readouterr().err


def test_a_report_finds_the_memory_where_the_run_found_it(store: str, tmp_path: Path) -> None:
    version = MemoryStore(store).tagged("mined", "latest")
    RunLog.create(tmp_path / "run", {"memory": f"mined@{version}", "store": store}).close()
    found = memory_of(str(tmp_path / "elsewhere"), tmp_path / "run")
    assert found
    assert found.reference == f"mined@{version}"


def test_a_run_whose_memory_is_gone_still_has_a_report(tmp_path: Path) -> None:
    with RunLog.create(tmp_path / "run", {"memory": "mined@0123", "store": str(tmp_path / "gone")}) as log:
        log.append("note", {"text": "begun"})
    assert memory_of(str(tmp_path / "elsewhere"), tmp_path / "run") is None
    assert htam("report", str(tmp_path / "run")) == 0


@pytest.mark.parametrize("others", [(), ("begun",)])
def test_a_run_that_has_not_begun_has_no_report(
    others: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    RunLog.create(tmp_path / "run", {}).close()
    for name in others:
        with RunLog.create(tmp_path / name, {}) as log:
            log.append("note", {"text": "begun"})
    assert htam("report", *(str(tmp_path / name) for name in others), str(tmp_path / "run")) == 1
    assert "run has not begun" in capsys.readouterr().err
    assert not list(tmp_path.rglob("*.html"))


def test_every_command_that_goes_on_with_a_run_finds_its_memory_where_it_is_now(
    store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    began, now, run, told = (str(tmp_path / name) for name in ("began", "now", "run", "told.jsonl"))
    shutil.copytree(store, began)
    Path(told).write_text('{"custom_id": "0", "text": "nobody asked"}\n')
    optimize = ("optimize", TASK, "--llm", "files", "--evaluator", "files", "--device", "cpu", "--run", run)
    optimize += ("--memory", "mined")
    goes_on = {optimize: 0, ("ask", run): 0, ("tell", run, told): 1}
    assert htam(*optimize, "--store", began) == 0
    assert [htam(*words) for words in goes_on] == list(goes_on.values())  # without a word where it began
    Path(began).rename(now)
    for words, code in goes_on.items():
        capsys.readouterr()
        assert htam(*words) == 1
        assert "which is not here; name its place with --store" in capsys.readouterr().err
        assert htam(*words, "--store", now) == code


def test_a_run_keeps_the_version_that_was_latest_when_it_began(store: str, tmp_path: Path) -> None:
    optimize = ("optimize", TASK, "--llm", "files", "--evaluator", "files", "--device", "cpu", "--run")
    optimize += (str(tmp_path / "run"), "--memory", "mined@latest", "--store", str(tmp_path / "store"))
    shutil.copytree(store, tmp_path / "store")
    memories = MemoryStore(str(tmp_path / "store"))
    assert htam(*optimize) == 0
    memories.promote("mined", memories.tagged("mined", "first") or "", "latest")
    assert htam(*optimize) == 0


def test_a_packed_run_has_the_same_report_and_unpacks_to_what_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(SHAKEN, run)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    pages = []
    for words in (("unpack",), ("pack",)):  # the first is no mistake
        assert htam("logs", *words, str(run)) == 0
        assert f"{words[0]}ed: {run}" in capsys.readouterr().out
        assert htam("report", str(run), "--out", str(tmp_path / "page.html")) == 0
        pages.append((tmp_path / "page.html").read_text())
    assert pages[0] == pages[1]
    assert not (run / "candidates").exists()
    assert htam("logs", "unpack", str(run)) == 0
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_a_page_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "page.html").mkdir()
    (tmp_path / "page.html/kept").touch()
    with pytest.raises(UnavailableError):
        write(tmp_path / "page.html", "<p>")
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_without_a_step_explain_lists_those_of_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert htam("explain", str(SHAKEN)) == 0
    first, *_ = capsys.readouterr().out.splitlines()
    assert "/0.0  correct, " in first


def test_a_ratio_that_is_not_to_be_believed_says_so_wherever_a_terminal_shows_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert htam("explain", str(SHAKEN), "0.0") == 0
    assert "doubt: eager_fp32 took 1,274 to 62,775 us" in capsys.readouterr().out
    shutil.copytree(SHAKEN, tmp_path / "run")
    (tmp_path / "nothing.jsonl").touch()
    assert htam("tell", str(tmp_path / "run"), str(tmp_path / "nothing.jsonl")) == 0
    assert "(eager_fp32 took 1,274 to 62,775 us" in capsys.readouterr().out
    (winner,) = (tmp_path / "run" / "best").iterdir()
    assert "# doubt: eager_fp32 took 1,274 to 62,775 us" in winner.read_text()

"""Logs that were damaged or made to do harm: bounded time and memory, nothing raised, nothing lost silently."""

import json
import os
import random
import resource
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from artifacts.errors import BadInputError
from artifacts.runlog import RunLog
from builder.describe.fragment import added_fragment
from builder.describe.logs import describe_log, gather
from builder.read.collector import MOST_REFUSED, LogFile
from builder.read.fields import BadRecordError, Fields, literal
from builder.read.files import MAX_LINE_BYTES, MAX_SOURCE_BYTES, UnreadableError, json_lines, parse_json
from builder.read.reading import discover, importer_for, read, survey
from builder.read.trust import hacks_in

pytestmark = pytest.mark.timeout(300)
"""What must not happen takes minutes, or all memory."""


def reread(format_name: str, path: Path) -> tuple[int, int, list[str]]:
    """(records, steps, reasons) of a log read by the importer of ``format_name`` whatever its content is now."""
    importer = importer_for(format_name)
    result = read(LogFile(path=path, format=format_name, name="log", companions=importer.companions(path)))
    return result.records, result.steps, [entry.reason for entry in result.quarantined]


def files_of(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=True, allow_infinity=True),
    st.text(max_size=20),
    st.sampled_from(["None", "-1", "1e999", "\0", "\ud800", "[" * 300, "../../../etc/passwd", "9" * 400]),
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
)


def mutated(value: object, replacement: object, choose: random.Random) -> object:
    """``value`` with one node, chosen anywhere in the tree, replaced, dropped or doubled."""
    if isinstance(value, dict) and value and choose.random() < 0.85:
        key = choose.choice(sorted(value, key=str))
        if choose.random() < 0.1:
            return {name: item for name, item in value.items() if name != key}
        return {**value, key: mutated(value[key], replacement, choose)}
    if isinstance(value, list) and value and choose.random() < 0.85:
        at = choose.randrange(len(value))
        changed = mutated(value[at], replacement, choose)
        return [*value[:at], changed, *([changed] if choose.random() < 0.2 else []), *value[at + 1 :]]
    return replacement


def damage(path: Path, replacement: object, choose: random.Random) -> None:
    """Change one JSON value of the file; bytes of it when it holds no JSON."""
    text = path.read_bytes()
    try:
        lines = text.decode().splitlines() if path.suffix == ".jsonl" else [text.decode()]
        at = choose.randrange(len(lines))
        lines[at] = json.dumps(mutated(json.loads(lines[at]), replacement, choose))
        path.write_text("\n".join(lines) + "\n", encoding="utf-8", errors="surrogatepass")
    except (ValueError, UnicodeDecodeError):
        at = choose.randrange(len(text) + 1)
        path.write_bytes(text[:at] + choose.randbytes(choose.randrange(9)) + text[at + choose.randrange(40) :])


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(replacement=values, seed=st.integers(0, 2**32), times=st.integers(1, 3))
def test_no_change_of_a_log_makes_an_importer_raise_or_lose_a_record(sample, tmp_path, replacement, seed, times):
    original, copy = tmp_path / "original", tmp_path / "copy"
    place = tmp_path / "place"
    if not place.exists():
        place.write_text(str(sample.write(original).relative_to(original)))
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(original, copy)
    choose, log = random.Random(seed), copy / place.read_text()
    for _ in range(times):
        damage(choose.choice(files_of(log)), replacement, choose)
    records, steps, reasons = reread(sample.format, log)
    assert records <= steps + len(reasons)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=400))
def test_bytes_of_any_kind_are_quarantined_by_every_importer_of_files(tmp_path, data):
    path = tmp_path / "log"
    path.write_bytes(data)
    for name in (
        "ssnti1111",
        "kernelbench-agentic",
        "mlsys26",
        "cuda-l1",
        "kernelbenchx",
        "evolution-trace",
        "cuda-engineer",
    ):
        records, steps, reasons = reread(name, path)
        assert steps == 0
        assert records == len(reasons)


def test_a_line_of_ten_megabytes_is_quarantined_and_the_rest_is_read(samples, tmp_path):
    path = samples["mlsys26"].write(tmp_path)
    good = path.read_bytes()
    path.write_bytes(b'{"traj_id": "' + b"x" * 10_000_000 + b'"}\n' + good)
    records, steps, reasons = reread("mlsys26", path)
    assert (records, steps) == (7, 5)
    assert any(f"more than {MAX_LINE_BYTES}" in reason for reason in reasons)


def test_endless_lines_need_no_memory_for_the_whole_file(tmp_path):
    path = tmp_path / "log.jsonl"
    with path.open("wb") as stream:
        stream.truncate(300_000_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    (only,) = list(json_lines(path))
    assert isinstance(only[1], UnreadableError)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("[" * 200_000, "nested too deeply"),
        ('{"a":' * 100_000, "nested too deeply"),
        ('{"traj_id": "\0"}', "not JSON"),
        ('{"step": ' + "9" * 10_000 + "}", "not JSON"),
        ("[1, 2]", "not an object"),
        ("null", "not an object"),
    ],
)
def test_a_hostile_line_is_quarantined_with_its_reason(samples, tmp_path, line, reason):
    path = samples["mlsys26"].write(tmp_path)
    path.write_text(line + "\n" + path.read_text())
    records, steps, reasons = reread("mlsys26", path)
    assert (records, steps) == (7, 5)
    assert any(reason in found for found in reasons)


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("runtime_us", float("nan"), "runtime_us is nan"),
        ("runtime_us", float("inf"), "runtime_us is inf"),
        ("runtime_us", -3.0, "runtime_us is -3.0, not a positive time"),
        ("runtime_us", 0, "not a positive time"),
        ("runtime_us", "fast", "not a number"),
        ("code", "a\0b", "NUL"),
        ("code", ["a"], "not source code"),
        ("code", "x" * 1_000_001, "characters, more than"),
        ("step", 1.5, "step"),
        ("step", -1, "step has no number"),
        ("correct", "maybe", "neither true nor false"),
        ("traj_id", "", "traj_id is missing"),
    ],
)
def test_a_value_that_cannot_be_is_quarantined_with_its_name(samples, tmp_path, field, value, reason):
    path = samples["mlsys26"].write(tmp_path)
    first, *rest = path.read_text().splitlines()
    path.write_text("\n".join([json.dumps({**json.loads(first), field: value}), *rest]))
    _, _, reasons = reread("mlsys26", path)
    assert any(reason in found for found in reasons)


def test_cycles_in_parent_links_are_quarantined(samples, tmp_path):
    path = samples["mlsys26"].write(tmp_path)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[1]["parent_step"], lines[4]["parent_step"] = 4, 1
    lines[2]["parent_step"] = 2
    path.write_text("\n".join(json.dumps(line) for line in lines))
    records, steps, reasons = reread("mlsys26", path)
    assert records == 6
    assert steps + len(reasons) == 6
    assert sum("form a cycle" in reason for reason in reasons) == 2
    assert any("its own parent" in reason for reason in reasons)


def test_a_step_written_twice_is_quarantined_once(samples, tmp_path):
    path = samples["mlsys26"].write(tmp_path)
    path.write_text(path.read_text() + path.read_text().splitlines()[0] + "\n")
    _, steps, reasons = reread("mlsys26", path)
    assert steps == 5
    assert any("occurs twice" in reason for reason in reasons)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_marked_encodings_are_read(samples, tmp_path, encoding):
    path = samples["ssnti1111"].write(tmp_path)
    path.write_text(path.read_text(encoding="utf-8"), encoding=encoding)
    assert reread("ssnti1111", path)[:2] == (6, 5)


def test_another_encoding_is_quarantined_not_guessed(samples, tmp_path):
    path = samples["ssnti1111"].write(tmp_path)
    path.write_text(path.read_text(encoding="utf-8"), encoding="gb18030")
    _, steps, reasons = reread("ssnti1111", path)
    assert steps == 0
    assert reasons[0].startswith("not UTF-8")


def test_a_path_that_leaves_the_run_is_not_followed(samples, tmp_path):
    secret = tmp_path / "secret.py"
    secret.write_text("password")
    folder = samples["cudaforge"].write(tmp_path / "runs")
    evaluation = folder / "evaluation" / "eval_0000.json"
    record = json.loads(evaluation.read_text()) | {"candidate_file": f"../../../{secret.name}"}
    evaluation.write_text(json.dumps(record))
    (folder / "code" / "kernel_1.py").unlink()
    (folder / "code" / "kernel_1.py").symlink_to(secret)
    importer = importer_for("cudaforge")
    result = read(LogFile(path=folder, format="cudaforge", name="log", companions=importer.companions(folder)))
    assert "password" not in "".join(step.code for trajectory in result.trajectories for step in trajectory.steps)


def test_own_runs_take_candidates_by_hash_only(samples, tmp_path):
    path = samples["htam"].write(tmp_path)
    events = path / "events.jsonl"
    lines = [json.loads(line) for line in events.read_text().splitlines()]
    for line in lines:
        if line["kind"] == "step":
            line["payload"]["candidate_sha256"] = "../manifest"
    events.write_text("".join(json.dumps(line) + "\n" for line in lines))
    _, steps, reasons = reread("htam", path)
    assert steps == 0
    assert len(reasons) == 3


def test_links_pipes_and_deep_directories_are_passed_over_with_a_reason(samples, tmp_path):
    samples["mlsys26"].write(tmp_path / "logs")
    os.mkfifo(tmp_path / "logs" / "pipe.jsonl")
    (tmp_path / "logs" / "loop").symlink_to(tmp_path / "logs")
    deep = tmp_path / "logs" / "/".join("d" * 30)
    deep.mkdir(parents=True)
    (deep / "steps.jsonl").write_text("{}")
    ignored = dict(survey([tmp_path / "logs"])[1])
    assert ignored["pipe.jsonl"] == "not a plain file"
    assert ignored["loop"] == "symbolic link, not followed"
    assert any("nested deeper" in reason for reason in ignored.values())


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000 + "]" * 100_000,
        "-" * 100_000 + "1",
        "{" + "'a':{" * 5_000 + "}" * 5_000 + "}",
        "'" + "x" * 2_000_000 + "'",
        "__import__('os').system('true')",
        "10 ** 10 ** 10",
        "9" * 20_000,
        "[x for x in range(10**9)]",
        "'a' * 10**10",
        "lambda: 1",
    ],
)
def test_literal_bombs_are_refused_at_once(text):
    with pytest.raises(ValueError, match="literal"):
        literal(text)


def test_a_literal_that_is_none_is_read():
    assert literal(" {'a': [1, -2.5, None, True, ('x',)]} ") == {"a": [1, -2.5, None, True, ("x",)]}


@given(values)
def test_fields_refuse_or_return_but_never_raise_anything_else(value):
    record = Fields({"x": value})
    readers = (record.text, record.word, record.code, record.integer, record.number, record.time_us, record.flag)
    for reader in (*readers, record.child, record.items, record.metrics):
        try:
            found = reader("x")
        except BadRecordError:
            continue
        if isinstance(found, str):
            found.encode("utf-8")


@pytest.mark.parametrize(
    "code",
    [
        "/*" * 100_000,
        "except" + ":" * 200_000,
        "cache" * 40_000,
        "self." + "cach" * 40_000,
        "import torch\n" * 15_000,
        "def get_init_inputs()\n" * 9_000,
        "class " * 40_000,
        "torch." * 40_000,
        "(" * 100_000,
        '"""' * 60_000,
        "__global__ void k(float* x) { y = " + "a/" * 100_000 + "a; }",
        "__global__ void k(float* x) { y = " + "(a/" * 60_000 + "a" + ")" * 60_000 + "; }",
        "__global__ void k(float* x) { a" + " < a" * 60_000 + "; }",
        "__global__ void k() { " + "for (int i = 9; i; i >>= 1) " * 9_000 + "; }",
        "__global__ void k() { " * 9_000,
        "__global__ void k() { unsigned " + "a[2], " * 30_000 + "b; }",
        "template<int " * 30_000,
        "__global__ void k() { " + "{" * 200_000,
        "__global__ void k() { ^" + " " * 200_000,
        "__global__ void k() {" + "\n" * 300_000,
        "__global__ void k() {" + ("\n" * 990 + "a") * 100,
        "__global__ void k() {" + "/* " * 120_000,
        "__global__ void k() {" + "/* a\n" * 70_000,
        "import torch\n" + "_" * 300_000,
        "import torch\nx = " + "a[" * 190_000,
        "import torch\nx = f'" + "{a:{b}}" * 40_000 + "'",
        "@triton.jit " * 30_000,
    ],
    ids=lambda code: f"{code[:30]!r} and so on",
)
def test_source_made_to_be_slow_is_read_and_described_or_quarantined(samples, tmp_path, code):
    """Each took minutes or gigabytes once; whoever is slow again runs into the time limit of all tests."""
    path = samples["kernelbench-agentic"].write(tmp_path)
    whole = json.loads(path.read_text())
    problem = whole["levels"]["1"]["23"]
    problem["base_prompt"] = code
    problem["turns"][0]["extracted_code"] = code
    path.write_text(json.dumps(whole))
    described = describe_log(LogFile(path=path, format="kernelbench-agentic", name="log"))
    assert described.table.num_rows + len(described.quarantined) > 0
    hacks_in(code)


def test_a_word_or_a_blank_without_end_is_quarantined(samples, tmp_path):
    path = samples["mlsys26"].write(tmp_path)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[0]["code"], lines[1]["code"] = "x" * 30_000, "import torch" + "\n " * 15_000
    path.write_text("\n".join(json.dumps(line) for line in lines))
    _, _, reasons = reread("mlsys26", path)
    assert sum("letters or blanks in a row" in reason for reason in reasons) == 2


def test_sources_of_equal_lines_are_not_compared():
    assert added_fragment("//\n" * 30_000, "//\n" * 30_000 + "int x = 1;\n") == ""


def test_a_gzip_bomb_is_read_line_by_line(tmp_path):
    import gzip

    path = tmp_path / "evolution_trace.jsonl.gz"
    with gzip.open(path, "wb", compresslevel=9) as stream:
        for _ in range(100):
            stream.write(b" " * 1_000_000)
    records, steps, _ = reread("evolution-trace", path)
    assert (records, steps) == (1, 0)


@pytest.mark.parametrize("row", [b'{"parent_id": "a", "child_id": "b"}\n', b"\n", b"x\n"])
def test_a_small_file_that_unpacks_to_more_than_a_gigabyte_is_left_soon_with_a_reason(tmp_path, row):
    """Bounds rows, bytes and expansion: none of them holds a reader for minutes or fills its memory."""
    import gzip

    path = tmp_path / "evolution_trace.jsonl.gz"
    path.write_bytes(gzip.compress(row * (2**24 // len(row))) * 80)
    assert path.stat().st_size < 6 * 2**20
    records, steps, reasons = reread("evolution-trace", path)
    assert steps == 0
    assert records == len(reasons) <= MOST_REFUSED + 1
    assert "the rest was not" in reasons[-1]


def test_a_truncated_gzip_is_quarantined_where_it_ends(samples, tmp_path):
    path = samples["evolution-trace"].write(tmp_path)
    path.write_bytes(path.read_bytes()[:-20])
    _, _, reasons = reread("evolution-trace", path)
    assert any("cannot be unpacked" in reason for reason in reasons)


def packed_run(samples, tmp_path: Path) -> Path:
    path = samples["htam"].write(tmp_path)
    RunLog.open(path).pack()
    return path


def repacked(path: Path, change: Callable[[str, bytes], bytes | None]) -> None:
    """The candidates of a packed run, with the content that ``change`` gives each; left out where it gives none."""
    with zipfile.ZipFile(path / "candidates.zip") as given:
        members = {name: change(name, given.read(name)) for name in given.namelist()}
    with zipfile.ZipFile(path / "candidates.zip", "w", zipfile.ZIP_DEFLATED) as changed:
        for name, content in members.items():
            if content is not None:
                changed.writestr(name, content)


def test_a_packed_candidate_that_is_missing_or_not_to_be_read_costs_its_step(samples, tmp_path):
    path = packed_run(samples, tmp_path)
    faults = {"first": None, "second": b" " * (MAX_SOURCE_BYTES + 1)}
    repacked(path, lambda name, text: next((faults[word] for word in faults if word.encode() in text), text))
    _, steps, reasons = reread("htam", path)
    assert steps == 0
    assert sum("no member" in reason for reason in reasons) == 1
    assert sum(f"larger than {MAX_SOURCE_BYTES} bytes" in reason for reason in reasons) == 1


def test_candidates_that_unpack_to_far_more_than_they_are_are_left_with_a_reason(samples, tmp_path):
    path = packed_run(samples, tmp_path)
    with zipfile.ZipFile(path / "candidates.zip", "a", zipfile.ZIP_DEFLATED) as bomb:
        for number in range(40):
            bomb.writestr(f"{number:064x}.py", b" " * MAX_SOURCE_BYTES)
    _, steps, reasons = reread("htam", path)
    assert steps == 0
    assert sum("candidates.zip unpacks to more than" in reason for reason in reasons) == 2


def test_candidates_behind_a_link_are_not_read(samples, tmp_path):
    path = packed_run(samples, tmp_path)
    (path / "candidates.zip").rename(tmp_path / "elsewhere.zip")
    (path / "candidates.zip").symlink_to(tmp_path / "elsewhere.zip")
    _, steps, reasons = reread("htam", path)
    assert steps == 0
    assert sum("candidates.zip not a plain file" in reason for reason in reasons) == 2


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.floats(0, 1, exclude_max=True), bits=st.integers(1, 255), cut=st.booleans())
def test_no_damage_to_packed_candidates_makes_the_importer_raise_or_lose_a_record(samples, tmp_path, at, bits, cut):
    shutil.rmtree(tmp_path / "run7", ignore_errors=True)
    path = packed_run(samples, tmp_path)
    whole = (path / "candidates.zip").read_bytes()
    place = int(at * len(whole))
    rest = b"" if cut else bytes([whole[place] ^ bits]) + whole[place + 1 :]
    (path / "candidates.zip").write_bytes(whole[:place] + rest)
    records, steps, reasons = reread("htam", path)
    assert records == 3 == steps + len(reasons)


def test_a_log_that_vanished_or_may_not_be_read_is_quarantined(sample, tmp_path):
    path = sample.write(tmp_path / "log")
    importer = importer_for(sample.format)
    log = LogFile(path=path, format=sample.format, name="log", companions=importer.companions(path))
    for file in files_of(tmp_path / "log"):
        file.unlink()
    result = read(log)
    assert result.steps == 0
    assert len(result.quarantined) == result.records
    assert result.records > 0 or path.is_dir()


def test_a_path_without_a_log_is_one_clear_error(tmp_path):
    (tmp_path / "notes.txt").write_text("no log")
    with pytest.raises(BadInputError, match="no log of a known format"):
        discover([tmp_path])
    with pytest.raises(BadInputError, match="no such file"):
        discover([tmp_path / "missing"])


def test_parse_json_refuses_what_json_loads_would_recurse_on():
    with pytest.raises(UnreadableError, match="nested too deeply"):
        parse_json("[" * 100_000 + "]" * 100_000)


def test_repeats_across_logs_are_flagged_once(samples, tmp_path):
    path = samples["mlsys26"].write(tmp_path / "one")
    copy = tmp_path / "two" / "steps.jsonl"
    copy.parent.mkdir()
    copy.write_text(path.read_text() + "\n\n")
    rows = gather(map(describe_log, discover([tmp_path]))).table.select(["trajectory_id", "flags"]).to_pylist()
    repeated = [row["trajectory_id"] for row in rows if "duplicated" in row["flags"].split()]
    assert len(set(repeated)) == 1
    assert len(repeated) == 2

"""``htam logs`` as a user calls it."""

import json

from click.testing import CliRunner

from builder.read.reading import IMPORTERS
from pipeline.commands.logs import command


def test_inspect_prints_a_line_a_format_and_the_reasons(every_format):
    result = CliRunner().invoke(command, ["inspect", str(every_format)])
    assert result.exit_code == 0
    for importer in IMPORTERS:
        assert f"\n{importer.name} " in result.output
    assert "no candidate" in result.output


def test_inspect_as_json_holds_every_figure(every_format):
    result = CliRunner().invoke(command, ["inspect", str(every_format), "--json"])
    report = json.loads(result.output)
    total = report["total"]
    assert total["records"] + total["derived"] == total["steps"] + total["quarantined"]
    assert total["quarantined"] == len(report["quarantined"])
    assert sum(figures["measured"] for figures in report["formats"].values()) == total["measured"] > 0


def test_inspect_lists_what_it_did_not_read_when_asked(samples, tmp_path):
    samples["mlsys26"].write(tmp_path)
    (tmp_path / "notes.md").write_text("no log")
    result = CliRunner().invoke(command, ["inspect", str(tmp_path), "--all"])
    assert "notes.md: no known log format" in result.output
    assert "steps.jsonl:6: no candidate" in result.output


def test_formats_lists_every_importer():
    result = CliRunner().invoke(command, ["formats"])
    assert [line.split()[0] for line in result.output.splitlines()] == [importer.name for importer in IMPORTERS]


def test_check_says_line_by_line_what_is_missing(tmp_path):
    rows = [
        {"source": "team", "task": "x/relu", "id": 1, "code": "__global__ void k() {}", "outcome": "correct"},
        {"source": "team", "task": "x/relu", "id": 2, "parent": 1, "code": "__global__ void l() {}", "outcome": "fine"},
        {"task": "x/relu", "id": 3, "outcome": "correct", "time_us": 3.0},
    ]
    path = tmp_path / "steps.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + "{broken\n")
    result = CliRunner().invoke(command, ["check", str(path)])
    assert result.exit_code == 1
    said = [line.removeprefix(f"{path}:") for line in result.output.splitlines()]
    assert said[0].startswith("1: no parent in the file")
    assert "no time_us" in said[0]
    assert said[1].startswith("2: not read: outcome is 'fine', none of correct, ")
    assert said[2] == "3: not read: source, code missing; every step needs source, task, id, code, outcome"
    assert said[3].startswith("4: not read: not JSON")
    assert said[4] == "4 lines: 1 step of 1 task, 0 with a parent, 0 of them measured; 3 lines not read"


def test_check_is_content_with_a_good_file(samples, tmp_path):
    path = samples["steps"].write(tmp_path)
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:4]))
    result = CliRunner().invoke(command, ["check", str(path)])
    assert result.exit_code == 0
    assert result.output.endswith("4 steps of 1 task, 3 with a parent, 1 of them measured; 0 lines not read\n")


def test_check_of_a_directory_names_the_command_that_reads_one(tmp_path):
    result = CliRunner().invoke(command, ["check", str(tmp_path)])
    assert result.exit_code == 1
    assert "is a directory" in str(result.exception)
    assert "htam logs inspect" in str(result.exception)


def test_a_table_of_experiments_is_named_and_the_way_on_is_told(samples, tmp_path):
    samples["mlsys26"].write(tmp_path)
    (tmp_path / "results.tsv").write_text("experiment\tlatency_us\tcorrectness\n1\t20.0\tPASS\n")
    result = CliRunner().invoke(command, ["inspect", str(tmp_path), "--all"])
    assert "results.tsv: no known log format, though it has 'correctness'" in result.output
    assert "htam logs check" in result.output

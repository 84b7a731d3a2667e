import functools
import gzip
import json
import math
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from artifacts.errors import BadInputError, RunLogError
from pipeline.commands.export import command
from pipeline.export.flashinfer import write_solutions
from pipeline.export.hf_kernels import write_package
from pipeline.export.training import export_rows, write_rows
from pipeline.export.winners import confirmed_winners

LOGS = Path(__file__).parents[2] / "examples" / "logs"
FIRST, UNCONFIRMED, MIXED = LOGS / "cpu-first", LOGS / "h200-htam", LOGS / "h200-transfer-feedback"


def events_of(run: Path) -> list[dict]:
    """The events of a run whose log is packed."""
    return [json.loads(line) for line in gzip.decompress((run / "events.jsonl.gz").read_bytes()).splitlines()]


def edited(folder: Path, change: Callable[[dict], None]) -> Path:
    """A copy of a run whose ``task_finished`` payloads went through ``change``."""
    run = folder / "run"
    shutil.copytree(FIRST, run)
    events = events_of(run)
    for event in events:
        if event["kind"] == "task_finished":
            change(event["payload"])
    (run / "events.jsonl.gz").unlink()
    (run / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return run


def shake(payload: dict) -> None:
    payload["confirmed"]["doubts"] = [{"kind": "unsteady", "text": "calls waited for a busy core"}]


def forget(payload: dict) -> None:
    if payload["task_id"].endswith("rms_norm"):
        payload["confirmed"] = None


def test_a_run_whose_winners_were_not_measured_again_exports_nothing():
    with pytest.raises(RunLogError, match="no confirmed winner"):
        confirmed_winners(UNCONFIRMED)


def test_a_winner_that_was_not_measured_again_stays_behind_and_the_card_says_so(tmp_path):
    winners = confirmed_winners(edited(tmp_path, forget))
    write_package(winners, tmp_path / "kernels", "three", "mit")

    card = (tmp_path / "kernels/README.md").read_text()
    assert [winner.name for winner in winners.kernels] == ["cpu_row_softmax", "cpu_bias_gelu_residual"]
    assert "`cpu/-/rms_norm`: the winner was not measured again" in card


def test_doubt_travels_into_card_source_and_solution(tmp_path):
    winners = confirmed_winners(edited(tmp_path, shake))
    write_package(winners, tmp_path / "hub", "shaken", "mit")
    write_solutions(winners, tmp_path / "solutions")

    solutions = [json.loads(path.read_text()) for path in (tmp_path / "solutions/solutions").rglob("*.json")]
    sources = sorted((tmp_path / "hub/torch-ext/shaken").glob("cpu_*.py"))
    assert (tmp_path / "hub/README.md").read_text().count("waited for a busy core") == 3
    assert all("waited for a busy core" in path.read_text() for path in sources)
    assert all("waited for a busy core" in solution["description"] for solution in solutions)


def test_a_package_has_the_layout_of_the_kernel_hub(tmp_path):
    write_package(confirmed_winners(FIRST), tmp_path / "row-kernels", "", "apache-2.0")

    build = tomllib.loads((tmp_path / "row-kernels/build.toml").read_text())
    metadata = json.loads((tmp_path / "row-kernels/build/torch-cpu/metadata.json").read_text())
    general = {"name": "row-kernels", "version": 1, "edition": 5, "license": "apache-2.0", "backends": ["cpu"]}
    sources = {path.name: path.read_text() for path in (tmp_path / "row-kernels/torch-ext/row_kernels").iterdir()}
    built = {path.name: path.read_text() for path in (tmp_path / "row-kernels/build/torch-cpu").glob("*.py")}
    assert build == {"general": general, "torch-noarch": {}}
    assert metadata["backend"] == {"type": "cpu"}
    assert metadata["name"] == "row-kernels"
    assert sources == built
    assert set(sources) == {
        "__init__.py",
        *(f"cpu_{name}.py" for name in ("rms_norm", "row_softmax", "bias_gelu_residual")),
    }


def test_a_folder_that_holds_something_is_not_written_into(tmp_path):
    (tmp_path / "mine.txt").write_text("kept")
    with pytest.raises(BadInputError, match="is not empty"):
        write_package(confirmed_winners(FIRST), tmp_path, "kernels", "mit")


def test_a_name_that_the_hub_refuses_is_refused(tmp_path):
    with pytest.raises(BadInputError, match="no name for a kernel"):
        write_package(confirmed_winners(FIRST), tmp_path / "out", "9_Kernels", "mit")


def test_definitions_and_solutions_hold_what_the_schema_requires(tmp_path):
    result = CliRunner().invoke(command, ["flashinfer", str(FIRST), "--out", str(tmp_path / "set")])
    assert result.exit_code == 0, result.output

    definition = json.loads((tmp_path / "set/definitions/normalization/cpu_rms_norm.json").read_text())
    (path,) = (tmp_path / "set/solutions/normalization/cpu_rms_norm").iterdir()
    solution = json.loads(path.read_text())
    assert definition["inputs"] == {
        "x": {"shape": ["n2048", "n2048"], "dtype": "float32"},
        "weight_scale": {"shape": ["n2048"], "dtype": "float32"},
    }
    assert definition["outputs"] == {"output": {"shape": ["n2048", "n2048"], "dtype": "float32"}}
    assert definition["axes"] == {"n2048": {"type": "const", "value": 2048}}
    assert definition["op_type"] == "normalization"
    assert solution["definition"] == definition["name"]
    assert solution["spec"]["entry_point"] == "main.py::run"
    assert solution["spec"]["language"] == "python"
    assert [source["path"] for source in solution["sources"]] == ["main.py"]
    assert "def run(x, weight_scale):" in solution["sources"][0]["content"]


def test_the_reference_of_a_definition_computes_the_operator_from_the_weights_it_is_given(tmp_path):
    write_solutions(confirmed_winners(FIRST), tmp_path)
    definition = json.loads((tmp_path / "definitions/normalization/cpu_rms_norm.json").read_text())
    names: dict = {}
    exec(definition["reference"], names)

    x, scale = torch.randn(3, 2048), torch.randn(2048)
    assert torch.allclose(names["run"](x, scale), x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * scale)


def exported(kind: str, out: Path, *logs: Path, options: tuple[str, ...] = ()) -> list[dict]:
    paths = [part for log in logs for part in ("--logs", str(log))]
    result = CliRunner().invoke(command, [kind, *paths, "--out", str(out / f"{kind}.jsonl"), *options])
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in (out / f"{kind}.jsonl").read_text().splitlines()]


@functools.cache
def shipped(kind: str) -> list[dict]:
    return export_rows(kind, [LOGS], license_id="unknown", min_trust=0.9)[0]


def test_conversations_end_in_right_answers_and_keep_the_log_s_own_prompt_where_memory_put_nothing_into_it(tmp_path):
    rows = exported("sft", tmp_path, FIRST, options=("--license", "mit"))
    events = events_of(FIRST)
    answers = {event["payload"]["text"] for event in events if event["kind"] == "answer"}

    assert {row["outcome"] for row in rows} == {"correct"}
    assert {row["license"] for row in rows} == {"mit"}
    assert all([turn["role"] for turn in row["messages"]] == ["system", "user", "assistant"] for row in rows)
    assert {row["messages"][-1]["content"] for row in rows if row["prompt_from"] == "log"} <= answers


def test_a_prompt_that_the_log_left_out_is_rebuilt_and_the_row_says_so(tmp_path):
    rows = exported("sft", tmp_path, UNCONFIRMED)
    assert {row["prompt_from"] for row in rows} == {"rebuilt"}
    assert all("class Model" in row["messages"][1]["content"] for row in rows)


def test_an_operator_is_on_one_side_of_the_split_however_it_is_spelled():
    rows = shipped("rl")
    sides: dict[str, set[str]] = {}
    for row in rows:
        sides.setdefault(row["operator"], set()).add(row["split"])
    assert {row["task"] for row in rows} >= {"cpu/-/rms_norm", "cuda/-/rms_norm"}
    assert all(len(found) == 1 for found in sides.values())
    assert {row["split"] for row in rows} == {"train", "test"}


def test_rewards_are_log2_of_the_speedup_and_a_failure_is_below_all():
    rows = shipped("rl")
    right = [row for row in rows if row["outcome"] == "correct"]
    failed = [row["reward"] for row in rows if row["outcome"] != "correct"]
    assert failed
    assert set(failed) == {-5.0}
    assert all(row["reward"] == pytest.approx(min(4.0, math.log2(row["speedup"]))) for row in right)


def test_a_pair_has_one_prompt_and_its_chosen_answer_was_faster_or_the_other_failed():
    rows = shipped("preferences")
    assert rows
    assert all(row["margin"] >= 0.1 or row["rejected_outcome"] != "correct" for row in rows)
    assert all(row["chosen"] != row["rejected"] for row in rows)


def test_what_is_not_trusted_is_left_out_unless_asked_for(tmp_path):
    strict = exported("sft", tmp_path, MIXED)
    lenient = exported("sft", tmp_path, MIXED, options=("--min-trust", "0"))
    assert all(not set(row["flags"]) - {"plan_not_followed", "one_seed", "weak_baseline"} for row in strict)
    assert len(lenient) > len(strict)


@pytest.mark.parametrize("kind", ["sft", "rl", "preferences"])
def test_the_rows_are_a_data_set(kind, tmp_path):
    datasets = pytest.importorskip("datasets")
    rows = shipped(kind)
    write_rows(rows, tmp_path / f"{kind}.jsonl")
    loaded = datasets.load_dataset(
        "json", data_files=str(tmp_path / f"{kind}.jsonl"), split="train", cache_dir=str(tmp_path / "cache")
    )
    assert loaded.num_rows == len(rows)
    assert loaded[0]["operator"] == rows[0]["operator"]
    assert set(loaded.filter(lambda row: row["split"] == "test")["split"]) == {"test"}

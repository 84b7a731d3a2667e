"""A whole run through files, as a user types it; measurements are made up, nothing is built."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from artifacts.codec import encode
from artifacts.measurement import Measurement, Timing
from artifacts.outcome import Outcome
from optimizer.run.manifest import Selection
from optimizer.selection import SelectionSettings
from pipeline.cli import cli
from pipeline.commands.optimize import command as optimize

TASK = """import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=1)

def get_inputs():
    return [torch.rand(16, 64)]

def get_init_inputs():
    return []
"""


class Desk:
    """A user at a terminal with one run directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run = folder / "run"
        for name in ("a", "b"):
            (folder / "mine").mkdir(exist_ok=True)
            (folder / "mine" / f"{name}.py").write_text(f"# {name}\n{TASK}")

    def types(self, *words: object) -> Result:
        return CliRunner().invoke(cli, [str(word) for word in words])

    def optimize(self, *more: object) -> Result:
        words = ("optimize", self.folder / "mine", "--arm", "feedback", "--llm", "files", "--evaluator", "files")
        return self.types(*words, "--run", self.run, "--seed", 1, "--steps", 2, *more)

    def ask(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        requests, jobs = self.folder / "requests.jsonl", self.folder / "jobs.jsonl"
        assert self.types("ask", self.run, "--requests", requests, "--jobs", jobs).exit_code == 0
        return lines(requests), lines(jobs)

    def tell(self, *records: dict[str, Any], name: str = "told.jsonl") -> Result:
        path = self.folder / name
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
        return self.types("tell", self.run, path)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def answer(request: dict[str, Any]) -> dict[str, Any]:
    code = f"import torch\nTAG = {request['custom_id']!r}\n\nclass ModelNew(torch.nn.Module):\n    pass"
    return {"custom_id": request["custom_id"], "text": f"PLAN: rows\n```python\n{code}\n```"}


def measured(job: dict[str, Any], us: float = 50.0) -> dict[str, Any]:
    timing = Timing(median_us=us, low_us=us - 1, high_us=us + 1)
    measurement = Measurement(
        outcome=Outcome.CORRECT,
        stage="timing",
        device="cpu",
        timing=timing,
        baselines={"eager": Timing(median_us=100.0, low_us=99.0, high_us=101.0)},
        incumbent=timing if job["incumbent_source"] else None,
        checks=("seed 1",),
    )
    return {"job_id": job["job_id"], "measurement": encode(measurement)}


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def finish(desk: Desk) -> Result:
    result = desk.optimize()
    for _ in range(10):
        requests, jobs = desk.ask()
        if not requests and not jobs:
            break
        records = [answer(request) for request in requests] or [measured(job) for job in jobs]
        result = desk.tell(*records)
    return result


def test_a_run_goes_from_files_to_a_winner(desk: Desk) -> None:
    result = finish(desk)
    assert result.exit_code == 0, result.output
    assert "mine/-/a: 2.00x eager, measured again, after 2 steps" in result.output
    winner = (desk.run / "best" / "mine_a.py").read_text()
    assert "# speedup over eager: 2.000 (interval 1.941 to 2.061)" in winner
    assert "# measured again after the search" in winner


def test_a_run_goes_on_with_the_confirmation_that_it_was_started_with(desk: Desk) -> None:
    assert desk.optimize("--no-confirm").exit_code == 0
    assert finish(desk).exit_code == 0
    jobs = [event["key"] for event in lines(desk.run / "events.jsonl") if event["kind"] == "measurement"]
    assert jobs
    assert not any(key.endswith("/confirm") for key in jobs)


def test_a_winner_can_be_loaded_with_the_weights_of_the_reference(desk: Desk) -> None:
    torch = pytest.importorskip("torch")
    finish(desk)
    spec = importlib.util.spec_from_file_location("winner", desk.run / "best" / "mine_a.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    loaded = module.load(reference=torch.nn.Identity().eval())
    assert not loaded.training


def test_the_first_step_of_all_tasks_is_open_at_once_and_said_so(desk: Desk) -> None:
    result = desk.optimize()
    assert result.exit_code == 0
    assert "2 LLM requests are open" in result.output
    assert "htam ask" in result.output


def test_what_is_told_twice_is_taken_once(desk: Desk) -> None:
    desk.optimize()
    requests, _ = desk.ask()
    desk.tell(*map(answer, requests))
    before = (desk.run / "events.jsonl").read_bytes()
    assert desk.tell(*map(answer, requests)).exit_code == 0
    assert (desk.run / "events.jsonl").read_bytes() == before


def test_a_bad_line_is_named_and_the_rest_is_taken(desk: Desk) -> None:
    desk.optimize()
    requests, _ = desk.ask()
    result = desk.tell(answer(requests[0]), {"custom_id": requests[1]["custom_id"], "response": None})
    assert result.exit_code == 1
    assert "told.jsonl:2" in str(result.exception)
    assert len(desk.ask()[0]) == 1
    assert len(desk.ask()[1]) == 1


def test_each_of_several_bad_lines_is_named(desk: Desk) -> None:
    desk.optimize()
    result = desk.tell({"custom_id": "f" * 64, "text": "hello"}, {"custom_id": "e", "response": None})
    assert "2 lines could not be used" in str(result.exception)
    assert "told.jsonl:2" in result.stderr
    assert "nobody waits for ffff" in result.stderr


def test_an_answer_nobody_waits_for_is_reported(desk: Desk) -> None:
    desk.optimize()
    result = desk.tell({"custom_id": "f" * 64, "text": "hello"})
    assert result.exit_code == 1
    assert "nobody waits for ffff" in str(result.exception)


def test_a_measurement_that_the_host_failed_leaves_the_job_open(desk: Desk) -> None:
    desk.optimize()
    requests, _ = desk.ask()
    desk.tell(*map(answer, requests))
    _, jobs = desk.ask()
    failed = Measurement(outcome=Outcome.INFRA_ERROR, stage="infrastructure", device="h200", error="no driver")
    result = desk.tell({"job_id": jobs[0]["job_id"], "measurement": encode(failed)})
    assert "stays open, the host failed: no driver" in str(result.exception)
    assert len(desk.ask()[1]) == 2


def test_a_file_that_is_neither_is_refused(desk: Desk) -> None:
    desk.optimize()
    assert "neither answers nor measurements" in str(desk.tell({"hello": 1}).exception)


def test_answers_that_came_as_files_can_be_replayed_elsewhere(desk: Desk, tmp_path: Path) -> None:
    finish(desk)
    words = ("optimize", desk.folder / "mine", "--arm", "feedback", "--evaluator", "files", "--seed", 1, "--steps", 2)
    recording = desk.run / "cassette.jsonl"
    result = desk.types(*words, "--llm", f"replay:{recording}", "--run", tmp_path / "again")
    assert result.exit_code == 0, result.output
    assert "2 evaluation jobs are open" in result.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--steps", 3), "search.steps 2, not 3"),
        (("--seed", 2), "seed 1, not 2"),
        (("--candidates", 2), "candidates 1, not 2"),
        (("--backend", "cuda"), "backend 'cpu', not 'cuda'"),
        (("--lead", 0), "selection.lead 1.5, not 0.0"),
    ],
)
def test_a_run_is_not_gone_on_with_under_other_settings(words: tuple[object, ...], said: str, desk: Desk) -> None:
    desk.optimize()
    result = desk.optimize(*words)
    assert result.exit_code == 1
    assert said in str(result.exception)


def test_a_run_that_got_nowhere_may_be_removed(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")
    words = ("optimize", desk.folder / "mine", "--arm", "feedback", "--evaluator", "files", "--run", desk.run)
    assert desk.types(*words, "--llm", "openai:typo", "--budget-tokens", 1).exit_code == 1
    said = str(desk.types(*words, "--llm", "openai:m").exception)
    assert "llm 'openai:typo', not 'openai:m'" in said
    assert "remove it, nothing was answered or measured there" in said


def test_a_task_that_changed_since_is_noticed(desk: Desk) -> None:
    desk.optimize()
    (desk.folder / "mine" / "a.py").write_text(TASK + "# changed\n")
    assert "the tasks" in str(desk.optimize().exception)


def test_explain_shows_what_is_logged_of_a_step(desk: Desk) -> None:
    finish(desk)
    result = desk.types("explain", desk.run, "a/1.0", "--prompt")
    assert result.exit_code == 0, result.output
    for words in (
        "optimize of step 0.0",
        "runtime_us: 50",
        "arm feedback",
        "plan of the model: rows",
        "----- user -----",
    ):
        assert words in result.output


def test_explain_of_an_ambiguous_step_offers_the_choices(desk: Desk) -> None:
    finish(desk)
    assert "mine/-/a/1.0, mine/-/b/1.0" in str(desk.types("explain", desk.run, "1.0").exception)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--llm", "telepathy"), "openai:MODEL"),
        (("--llm", "files", "--arm", "htam"), "needs a memory"),
        (("--llm", "files", "--arm", "feedback", "--memory", "m"), "uses no memory"),
        (("--llm", "files", "--arm", "feedback", "--backend", "cuda"), "--device"),
        (("--llm", "replay:missing.jsonl", "--arm", "feedback"), "missing.jsonl"),
        (("--llm", "openai:nobody", "--arm", "feedback", "--budget-usd", 1), "needs the price of 'nobody'"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_no_run_behind(words: tuple[object, ...], said: str, desk: Desk) -> None:
    base = ("optimize", desk.folder / "mine", "--evaluator", "files", "--run", desk.run)
    result = desk.types(*base, *words)
    assert result.exit_code == 1
    assert said in str(result.exception)
    assert not desk.run.exists()


def test_a_random_seed_stays_with_its_run(desk: Desk) -> None:
    words = ("optimize", desk.folder / "mine", "--arm", "feedback", "--llm", "files", "--evaluator", "files")
    assert desk.types(*words, "--run", desk.run).exit_code == 0
    assert desk.types(*words, "--run", desk.run).exit_code == 0


def test_further_baselines_and_counters_are_asked_of_the_bench(desk: Desk) -> None:
    desk.optimize("--baseline", "compile", "--baseline", "eager_tf32", "--profile")
    requests, _ = desk.ask()
    desk.tell(*map(answer, requests))
    settings = desk.ask()[1][0]["settings"]
    assert settings["baselines"] == ["eager", "compile", "eager_tf32"]
    assert settings["profile"]


def test_the_defaults_of_a_run_are_those_of_the_selection() -> None:
    own, told = SelectionSettings(), Selection()
    assert (told.explore, told.optimism, told.lead) == (own.explore, own.optimism, own.least_lead)
    offered = {parameter.name: parameter.default for parameter in optimize.params}
    assert (offered["explore"], offered["lead"]) == (told.explore, told.lead)

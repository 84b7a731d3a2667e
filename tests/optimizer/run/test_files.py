"""A whole run through files, as a user types it; measurements are made up, nothing is built."""

from __future__ import annotations

import importlib
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from artifacts.codec import encode
from artifacts.measurement import Measurement, Outcome, Timing
from optimizer.run.manifest import Selection
from optimizer.run.winners import LOADER
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
        """Begin or resume the run; its references have been measured elsewhere."""
        words = ("optimize", self.folder / "mine", "--arm", "feedback", "--llm", "files", "--evaluator", "files")
        result = self.types(*words, "--run", self.run, "--seed", 1, "--steps", 2, *more)
        jobs = self.ask()[1] if result.exit_code == 0 else []
        return self.tell(*map(measured, jobs)) if any(job["reference_only"] for job in jobs) else result

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
        baselines={"eager_fp32": Timing(median_us=100.0, low_us=99.0, high_us=101.0)},
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
    assert "mine/-/a: 2.00x eager_fp32, measured again, after 2 steps" in result.output
    winner = (desk.run / "best" / "mine_a.py").read_text()
    assert "# speedup over eager_fp32: 2.000 (interval 1.941 to 2.061)" in winner
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


def test_a_winner_takes_over_weights_in_their_own_type() -> None:
    torch = pytest.importorskip("torch")
    names: dict[str, Any] = {"ModelNew": torch.nn.Linear}
    exec(LOADER, names)
    reference = torch.nn.Linear(3, 2).half()
    loaded = names["load"](3, 2, reference=reference)
    assert loaded.weight.dtype == torch.float16
    assert torch.equal(loaded.weight, reference.weight)
    assert loaded.weight.data_ptr() != reference.weight.data_ptr()


def test_a_cast_is_asked_of_the_evaluator_and_told_to_the_model(desk: Desk) -> None:
    assert desk.optimize("--dtype", "float16").exit_code == 0
    requests, _ = desk.ask()
    assert "come as float16" in str(requests[0])
    desk.tell(*map(answer, requests))
    assert desk.ask()[1][0]["settings"]["dtype"] == "float16"
    assert json.loads((desk.run / "manifest.json").read_text())["tasks"][0]["dtype"] == "float16"


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
    desk.run = tmp_path / "again"
    desk.types(*words, "--llm", f"replay:{recording}", "--run", desk.run)
    result = desk.tell(*map(measured, desk.ask()[1]))
    assert result.exit_code == 0, result.output
    assert "2 evaluation jobs are open" in result.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--seed", 2), "seed 1, not 2"),
        (("--candidates", 2), "candidates 1, not 2"),
        (("--backend", "cuda"), "backend 'cpu', not 'cuda'"),
        (("--margin", 0), "selection.margin 1.5, not 0.0"),
        (("--precision", "tf32"), "evaluation.precision 'auto', not 'tf32'"),
        (("--dtype", "bfloat16"), "evaluation.dtype '', not 'bfloat16'"),
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
    assert desk.types(*words, "--llm", "openai:typo").exit_code == 0
    said = str(desk.types(*words, "--llm", "openai:m").exception)
    assert "llm 'openai:typo', not 'openai:m'" in said
    assert "remove it, nothing was answered or measured there" in said


def test_a_task_that_cannot_be_evaluated_ends_the_run_with_its_reason(desk: Desk) -> None:
    desk.types(
        "optimize",
        desk.folder / "mine",
        "--arm",
        "feedback",
        "--llm",
        "files",
        "--evaluator",
        "files",
        "--run",
        desk.run,
    )
    _, jobs = desk.ask()
    assert [job["reference_only"] for job in jobs] == [True, True]
    broken = Measurement(
        outcome=Outcome.RUNTIME_ERROR, stage="task", device="h200", error="shapes cannot be multiplied"
    )
    result = desk.tell(*({"job_id": job["job_id"], "measurement": encode(broken)} for job in jobs))
    assert result.exit_code == 1
    assert "mine/-/b: cannot be evaluated, shapes cannot be multiplied" in result.output
    assert "2 tasks cannot be evaluated" in str(result.exception)
    assert "best" not in result.output
    assert desk.ask() == ([], [])


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
        "what the prompt showed:\n  tried before: 0.0",
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
        (("--llm", "files", "--arm", "flat", "--memory", "none"), "needs a memory"),
        (("--llm", "files", "--arm", "feedback", "--memory", "m"), "uses no memory"),
        (("--llm", "files", "--arm", "feedback", "--backend", "cuda"), "--device"),
        (("--llm", "replay:missing.jsonl", "--arm", "feedback"), "missing.jsonl"),
        (("--llm", "openai:nobody", "--arm", "feedback", "--budget-usd", 1), "needs the price of 'nobody'"),
        (("--llm", "files", "--arm", "feedback", "--precision", "tf32", "--dtype", "float16"), "tf32 is for float32"),
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
    assert settings["baselines"] == ["compile", "eager_tf32"]
    assert settings["profile"]


def test_the_defaults_of_a_run_are_those_of_the_selection() -> None:
    own, given = SelectionSettings(), Selection()
    assert (given.explore, given.optimism, given.margin) == (own.explore, own.optimism, own.least_margin)
    offered = {parameter.name: parameter.default for parameter in optimize.params}
    assert (offered["explore"], offered["margin"]) == (given.explore, given.margin)


def by_hand(desk: Desk) -> str:
    """Answer the prompt that ``ask --print`` shows, as a person who copies it into a chat and saves what comes back."""
    shown = desk.types("ask", desk.run, "--print")
    assert shown.exit_code == 0, shown.output
    assert "Answer in this form" in shown.stdout
    place = shown.stderr.partition("[")[2].partition(",")[0]
    code = f"import torch\nTAG = {place!r}\n\nclass ModelNew(torch.nn.Module):\n    pass"
    saved = desk.folder / "answer.md"
    saved.write_text(f"PLAN: rows\n```python\n{code}\n```")
    told = desk.types("tell", desk.run, "--answer", saved, "--id", place)
    assert "taken: 1 answer, 0 measurements" in told.stderr
    return place


def test_a_person_walks_a_whole_run_with_ask_print_and_tell_answer(desk: Desk) -> None:
    desk.optimize("--no-confirm")
    answered = []
    for _ in range(4):
        answered.append(by_hand(desk))
        _, jobs = desk.ask()
        result = desk.tell(*map(measured, jobs))
    assert answered[0] == "mine/-/a/0.0"
    assert len(set(answered)) == 4
    assert result.exit_code == 0, result.output
    assert "mine/-/b: 2.00x eager_fp32, unconfirmed, after 2 steps" in result.output
    over = desk.types("ask", desk.run, "--print")
    assert isinstance(over.exception, Exception)
    assert "nothing is open" in str(over.exception)


def test_an_answer_by_hand_names_its_prompt_and_says_something(desk: Desk) -> None:
    desk.optimize()
    answer = desk.folder / "answer.md"
    answer.write_text(" ")
    for words, wrong in ((("--answer", answer), "is empty"), (("--answer", answer, "--id", "c/0.0"), "is empty")):
        assert wrong in str(desk.types("tell", desk.run, *words).exception)
    answer.write_text("text")
    assert "names 2 open prompts" in str(desk.types("tell", desk.run, "--answer", answer, "--id", "0.0").exception)
    assert "nothing was told" in str(desk.types("tell", desk.run).exception)


def test_one_of_a_kind_is_told_in_the_singular(desk: Desk) -> None:
    (desk.folder / "mine" / "b.py").unlink()
    assert "1 LLM request is open" in desk.optimize().output
    assert "open: 1 LLM request and 0 evaluation jobs" in desk.types("ask", desk.run).output


def events(desk: Desk, kind: str) -> list[dict[str, Any]]:
    return [event for event in lines(desk.run / "events.jsonl") if event["kind"] == kind]


@pytest.mark.parametrize("more", [(), ("--fixed-steps",)])
def test_a_complete_run_takes_more_steps_and_repeats_none(desk: Desk, more: tuple[str, ...]) -> None:
    desk.optimize(*more)
    finish_open(desk)
    before = {kind: [event["key"] for event in events(desk, kind)] for kind in ("answer", "measurement", "step")}
    raised = desk.types("optimize", "--run", desk.run, "--steps", 3)
    assert raised.exit_code == 0, raised.output
    assert "resumes: 4 of 6 steps known" in raised.stderr
    result = finish_open(desk)
    assert "after 3 steps" in result.output
    assert [event["payload"] for event in events(desk, "steps_changed")] == [{"before": 2, "steps": 3}]
    for kind, keys in before.items():
        after = [event["key"] for event in events(desk, kind)]
        assert after[: len(keys)] == keys
        assert len(set(after)) == len(after)
    assert len(events(desk, "step")) == 6
    assert [event["payload"]["steps"] for event in events(desk, "task_finished")] == [2, 2, 3, 3]
    again = desk.types("optimize", "--run", desk.run)
    assert "after 3 steps" in again.output
    assert len(events(desk, "step")) == 6


def test_a_packed_run_is_as_complete_as_before_and_takes_more_steps_once_it_is_unpacked(desk: Desk) -> None:
    desk.optimize()
    finish_open(desk)
    complete = desk.types("optimize", "--run", desk.run)
    assert desk.types("logs", "pack", desk.run).exit_code == 0
    assert desk.types("optimize", "--run", desk.run).output == complete.output
    assert desk.ask() == ([], [])
    refused = desk.types("optimize", "--run", desk.run, "--steps", 3)
    assert f"takes nothing more; htam logs unpack {desk.run} first" in str(refused.exception)
    assert desk.types("logs", "unpack", desk.run).exit_code == 0
    assert desk.types("optimize", "--run", desk.run, "--steps", 3).exit_code == 0
    finish_open(desk)
    assert len(events(desk, "step")) == 6


def finish_open(desk: Desk) -> Result:
    result = desk.types("optimize", "--run", desk.run)
    for _ in range(10):
        requests, jobs = desk.ask()
        if not requests and not jobs:
            break
        result = desk.tell(*([answer(request) for request in requests] or [measured(job) for job in jobs]))
    return result


def test_steps_are_not_lowered_below_what_was_taken(desk: Desk) -> None:
    finish(desk)
    refused = desk.types("optimize", "--run", desk.run, "--steps", 1)
    assert "has taken 2 steps a task already, --steps 1 is fewer; give 2 or more" in str(refused.exception)
    assert events(desk, "steps_changed") == []


def test_a_run_that_resumes_without_its_tasks_keeps_its_other_settings(desk: Desk) -> None:
    desk.optimize()
    refused = desk.types("optimize", "--run", desk.run, "--seed", 4)
    assert "keeps its --seed; leave the option out" in str(refused.exception)
    assert "holds no run" in str(desk.types("optimize", "--run", desk.folder / "none").exception)


PYTHON_KERNEL = """import torch

CALLS = []

class ModelNew(torch.nn.Module):
    def forward(self, x):
        CALLS.append(tuple(x.shape))
        return torch.exp(x) / torch.exp(x).sum(dim=1, keepdim=True)
"""


@pytest.fixture
def package(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> Result:
    """What ``htam apply`` says of a run whose winner is written in Python; it writes the package ``quick``."""
    (desk.folder / "mine" / "b.py").unlink()
    words = ("--arm", "feedback", "--llm", "files", "--evaluator", "files", "--steps", 1, "--no-confirm")
    desk.types("optimize", desk.folder / "mine", *words, "--run", desk.run)
    desk.tell(*map(measured, desk.ask()[1]))
    saved = desk.folder / "answer.md"
    saved.write_text(f"PLAN: rows\n```python\n{PYTHON_KERNEL}\n```")
    desk.types("tell", desk.run, "--answer", saved)
    desk.tell(*map(measured, desk.ask()[1]))
    monkeypatch.chdir(desk.folder)
    monkeypatch.syspath_prepend(desk.folder)
    return desk.types("apply", desk.run, "mine/a.py", "--swap", ".=a", "--out", "quick")


def test_apply_writes_a_package_and_says_how_to_import_and_use_it(desk: Desk, package: Result) -> None:
    assert package.exit_code == 0, package.output
    assert f"use it, from {desk.folder}:\n    from quick import accelerate\n" in package.stdout
    files = {path.name for path in (desk.folder / "quick").iterdir()}
    assert files == {"__init__.py", "runtime.py", "kernel_0.py", "task_0.py"}
    assert not any("optimizer" in path.read_text().split("import")[1:] for path in (desk.folder / "quick").iterdir())


def test_an_applied_package_runs_its_kernel_plainly_and_compiled_and_falls_back(package: Result) -> None:
    assert package.exit_code == 0, package.output
    torch = pytest.importorskip("torch")
    quick = importlib.import_module("quick")
    reference: dict[str, Any] = {}
    exec(TASK, reference)
    model, x = quick.accelerate(reference["Model"]().eval()), torch.rand(16, 64)
    calls = quick.kernel_0.CALLS
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    with torch.inference_mode():
        assert torch.allclose(model(x), torch.softmax(x, dim=1))
        assert torch.allclose(compiled(x), torch.softmax(x, dim=1))
        assert calls == [(16, 64)] * 2
        assert torch.allclose(compiled(x[:4]), torch.softmax(x[:4], dim=1))
    x.requires_grad_()
    compiled(x).square().sum().backward()
    assert x.grad is not None
    assert calls == [(16, 64)] * 2


def test_apply_overwrites_its_own_package_alone(desk: Desk, package: Result) -> None:
    assert package.exit_code == 0
    words = ("apply", desk.run, "mine/a.py", "--swap", ".=a", "--out")
    assert desk.types(*words, "quick").exit_code == 0
    assert "not written by htam apply" in str(desk.types(*words, "mine").exception)
    assert "cannot be called 'no-name'" in str(desk.types(*words, "no-name").exception)

import importlib.util
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from artifacts.codec import encode
from artifacts.errors import BadInputError
from artifacts.measurement import Doubt, DoubtKind, Measurement, Outcome, Timing
from artifacts.memory.htg import Memory
from artifacts.memory.store import MemoryStore
from artifacts.run_events import TaskFinished
from builder.validate.transfer import Part, restricted, transfer
from pipeline.commands.serve import problems
from pipeline.report import page
from pipeline.settings import read_settings
from pipeline.study.matrix import Entry, entries
from pipeline.study.spec import Study, StudyMemory, StudyTarget, cells, read_study
from pipeline.study.studying import ask, bases, study_page, tell
from pipeline.study.working import WaitingError, believed, done, publish_part, work

STUDY = """
name = "tiny"
base = "mined@latest"
out = "{base}/out"
store = "{base}/store"

[[memory]]
name = "h200"
part = {{ archs = ["sm_90"] }}

[[target]]
name = "a800"
part = {{ archs = ["sm_80"] }}

[[target]]
name = "cpu"
kind = "run"
tasks = ["softmax.py"]
options = {{ backend = "cpu" }}
"""


BASES = {"h200": "mined@1"}


@pytest.fixture(scope="module")
def memory() -> Memory:
    spec = importlib.util.spec_from_file_location("mined", Path(__file__).with_name("mined.py"))
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made: Memory = module.memory(transitions=600)
    return made


@pytest.fixture
def study(tmp_path: Path) -> Study:
    path = tmp_path / "study.toml"
    path.write_text(STUDY.format(base=tmp_path))
    return read_study(path)


def test_a_study_is_every_memory_on_every_target_with_every_arm_and_seed(study: Study) -> None:
    wanted = list(cells(replace(study, seeds=(0, 1)), BASES))
    assert [(cell.target.kind, cell.arm, cell.seed) for cell in wanted] == [
        ("replay", "", 0),
        *(("run", arm, seed) for arm in ("feedback", "htam") for seed in (0, 1)),
    ]
    assert len({cell.key for cell in wanted}) == 5


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("leave_out = 'none'", "leave_out"),
        ("arms = 3", "arms"),
        ("arms = ['feedback', 'guess']", "unknown arm 'guess'"),
        ("arms = []", "at least one arm"),
        ("seeds = [1, 1]", "at least one seed, and none twice"),
        ("speed = 1", "speed"),
        ("name = [", "no TOML"),
    ],
)
def test_a_wrong_study_names_its_field(tmp_path: Path, change: str, named: str) -> None:
    path = tmp_path / "study.toml"
    path.write_text(change + "\n" + STUDY.format(base=tmp_path))
    with pytest.raises(BadInputError, match=named):
        read_study(path)


def test_a_target_cannot_set_what_the_study_decides() -> None:
    with pytest.raises(ValueError, match="'memory'"):
        StudyTarget(name="cpu", kind="run", tasks=("x.py",), options={"memory": "mine"})


def test_a_ratio_that_is_not_to_be_believed_decides_no_cell() -> None:
    waited = Doubt(kind=DoubtKind.UNSTEADY, text="the candidate took 1 to 800 us")
    ends = [
        TaskFinished(task_id="a", reason="all steps used", steps=1, speedups={"fastest": 9.0}, doubts=(waited,)),
        TaskFinished(task_id="b", reason="all steps used", steps=1, speedups={"fastest": 2.0}),
        TaskFinished(task_id="c", reason="all steps used", steps=1),
    ]
    assert believed([encode(end) for end in ends]) == {"b": 2.0, "c": None}


def test_a_part_keeps_what_it_names_and_nothing_else(memory: Memory) -> None:
    part = restricted(memory, Part(archs=("sm_90",), sources=("log_1",)))
    assert {(item.state.arch, item.source) for item in part.transitions()} == {("sm_90", "log_1")}


def test_a_part_with_an_unknown_name_is_refused(memory: Memory) -> None:
    with pytest.raises(BadInputError, match="no source 'log_9'"):
        restricted(memory, Part(sources=("log_9",)))


def test_transfer_trains_on_no_task_and_no_family_it_is_tried_on(memory: Memory) -> None:
    by_task = transfer(memory, Part(), Part(archs=("sm_80",)), leave_out="task")
    by_family = transfer(memory, Part(), Part(archs=("sm_80",)), leave_out="family")
    assert by_task
    assert by_family is None or by_family.trained_on <= by_task.trained_on


def test_a_published_part_has_forgotten_the_tasks_of_its_target(memory: Memory, tmp_path: Path) -> None:
    own, spelled = "kernelbench/1/3_fusion", "local/-/fusion"
    part = StudyMemory(name="All")
    reference = publish_part(part, "task", [spelled, "never/seen"], {"fusion"}, tmp_path, memory)
    left = MemoryStore(str(tmp_path / "memories")).load(*reference.split("@"))
    tasks = {item.task.task_id for item in left.transitions()}
    assert own not in tasks
    assert tasks


def test_every_tested_task_is_a_win_a_tie_or_a_loss(study: Study, memory: Memory) -> None:
    found = transfer(memory, Part(), Part(archs=("sm_80",)))
    assert found
    assert 0 < found.wins + len(found.losses) <= found.tasks
    result = {"memory": "h200", "target": "a800", "kind": "replay", "arm": "", "seed": 0, "transfer": encode(found)}
    (entry,) = entries(study, [result])
    assert entry.losses == found.losses
    assert f"{found.wins} wins" in entry.text


def test_the_page_leads_to_the_page_of_each_run(study: Study) -> None:
    run = Path(study.out) / "runs" / "h200-cpu-htam-0"
    shutil.copytree(Path(__file__).parents[2] / "examples/logs/cpu-first", run)
    given: dict[str, Any] = {
        "memory": "h200",
        "target": "cpu",
        "arm": "htam",
        "kind": "run",
        "tasks": 1,
        "text": "htam over feedback",
    }
    entry = Entry(**given, value=1.0, low=None, high=None, runs=(str(run), "gone"))
    text = study_page(study, "mined@1", [entry], (), {})
    assert 'href="runs/h200-cpu-htam-0.html"' in text
    assert "<code>gone</code>" in text
    assert "cpu-first" in run.with_name("h200-cpu-htam-0.html").read_text()


def test_a_cell_is_done_once(study: Study, memory: Memory, tmp_path: Path) -> None:
    cell = next(cells(study, BASES))
    assert done(cell, tmp_path) is None
    result = work(cell, tmp_path, memory)
    assert done(cell, tmp_path) == json.loads(json.dumps(result))


def test_runs_are_paired_over_tasks_against_the_first_arm(study: Study, memory: Memory, tmp_path: Path) -> None:
    common = {"memory": "h200", "target": "cpu", "kind": "run", "seed": 0}
    control = common | {"arm": "feedback", "run": "a", "speedups": {"x": 1.0, "y": 2.0, "z": None}}
    htam = common | {"arm": "htam", "run": "b", "speedups": {"x": 2.0, "y": 1.0, "z": 2.0}}
    (entry,) = entries(study, [control, htam])
    assert (entry.arm, entry.tasks, entry.losses) == ("htam", 3, ("y",))
    assert entry.value == pytest.approx(2 ** (1 / 3))
    text = study_page(study, "mined@1", [entry], (("some-cell", "no key"),), {})
    assert "no key" in text
    assert not page.OUTSIDE.search(text)


CUDA_SIDE = """
name = "By files (2 memories)"
out = "{base}/out"
store = "{base}/store"

[[memory]]
name = "first"
base = "mined@latest"

[[memory]]
name = "Second: A800 only"
base = "mined@latest"
part = {{ archs = ["sm_80"] }}

[[target]]
name = "elsewhere"
kind = "run"
tasks = ["{task}"]
options = {{ llm = "files", evaluator = "files", backend = "cuda", device = "h200", steps = "1", fixed-steps = "" }}
"""

WRONG = Measurement(outcome=Outcome.WRONG_RESULT, stage="correctness", device="h200", error="max error 3 at [0]")
RUNS = Measurement(
    outcome=Outcome.CORRECT, stage="task", device="h200", timing=Timing(median_us=9.0, low_us=9.0, high_us=9.0)
)

ANSWER = """```python
from torch.utils.cpp_extension import load_inline

ext = load_inline(name="x", cuda_sources="__global__ void kernel() {}", functions=["f"])


class ModelNew:
    pass
```"""


def test_an_arm_without_memory_is_played_once_for_all_memories(study: Study) -> None:
    two = replace(study, memory=(StudyMemory(name="a"), StudyMemory(name="b")))
    played = [cell for cell in cells(two, {"a": "mined@1", "b": "mined@1"}) if cell.target.kind == "run"]
    assert [(cell.memory.name if cell.memory else "", cell.arm) for cell in played] == [
        ("", "feedback"),
        ("a", "htam"),
        ("b", "htam"),
    ]


def test_the_same_operator_in_another_backend_is_forgotten_too(memory: Memory, tmp_path: Path) -> None:
    reference = publish_part(StudyMemory(name="All"), "task", ["cpu/-/3_fusion"], {"fusion"}, tmp_path, memory)
    left = MemoryStore(str(tmp_path / "memories")).load(*reference.split("@"))
    assert "3_fusion" not in {item.task.task_id.rpartition("/")[2] for item in left.transitions()}


def test_memories_built_apart_cannot_be_tried_on_recorded_choices() -> None:
    with pytest.raises(ValueError, match="base of its own"):
        Study(name="x", out="y", memory=(StudyMemory(name="a", base="b"),), target=(StudyTarget(name="r"),))


def test_a_study_through_files_asks_for_all_its_runs_at_once_and_goes_on_with_what_it_is_told(
    memory: Memory, tmp_path: Path
) -> None:
    MemoryStore(str(tmp_path / "store")).publish(memory, tag="latest")
    task = Path(__file__).parents[2] / "examples/tasks/cuda/row_softmax.py"
    path = tmp_path / "study.toml"
    path.write_text(CUDA_SIDE.format(base=tmp_path, task=task))
    read = read_study(path)
    loaded = bases(read)
    for cell in cells(read, {name: item.reference for name, item in loaded.items()}):
        with pytest.raises(WaitingError, match="open: 0 requests and 1 job;"):
            work(cell, tmp_path / "out", loaded.get(cell.memory.name if cell.memory else ""))

    def measure() -> Path:
        """Results of all open jobs, three runs of them."""
        jobs = [json.loads(line) for line in (tmp_path / "open" / "jobs.jsonl").read_text().splitlines()]
        found = {job["job_id"]: encode(RUNS if job["reference_only"] else WRONG) for job in jobs}
        assert len(found) == 3  # the same job id in three runs
        results = tmp_path / "results.jsonl"
        results.write_text(
            "".join(json.dumps({"job_id": name, "measurement": each}) + "\n" for name, each in found.items())
        )
        return results

    asked = ask(path, tmp_path / "open")
    assert (asked.requests, asked.jobs) == (0, 3)  # the references come first
    assert tell(path, [measure()]).jobs == 3
    asked = ask(path, tmp_path / "open")
    assert (1 <= asked.requests <= 3, asked.jobs) == (True, 0)
    keys = [json.loads(line)["custom_id"] for line in (tmp_path / "open" / "requests.jsonl").read_text().splitlines()]
    answers = tmp_path / "answers.jsonl"
    answers.write_text("".join(json.dumps({"custom_id": key, "text": ANSWER}) + "\n" for key in keys))
    assert tell(path, [answers]).requests >= len(keys)
    asked = ask(path, tmp_path / "open")
    assert (asked.requests, asked.jobs) == (0, 3)
    results = measure()
    told = tell(path, [results])
    assert (told.requests, told.jobs, told.problems) == (0, 3, ())
    assert tell(path, [results, answers]).jobs == 0


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ('options = { backend = "cpu" }', 'options = { backend = "cpu", llm = "files" }', ""),
        ('options = { backend = "cpu" }', 'options = { llm = "files", stepz = "3" }', "target cpu: .*--stepz"),
        ("softmax.py", "no-such-task.py", "target cpu: .*no-such-task.py"),
        ("mined@latest", "other@latest", "holds no memory 'other'"),
        ('"sm_90"', '"sm_91"', "no architecture 'sm_91'"),
    ],
)
def test_a_study_that_could_not_run_is_found_before_it_is_served(
    memory: Memory, tmp_path: Path, old: str, new: str, named: str
) -> None:
    MemoryStore(str(tmp_path / "store")).publish(memory, tag="latest")
    task = Path(__file__).parents[2] / "examples/tasks/cpu/row_softmax.py"
    text = STUDY.format(base=tmp_path).replace(old, new).replace('"softmax.py"', f'"{task}"')
    (tmp_path / "study.toml").write_text(text)
    settings = tmp_path / "team.toml"
    settings.write_text(f"[[transfer]]\nname = 'a'\nstudy = '{tmp_path / 'study.toml'}'")
    found = "; ".join(problems(read_settings(settings)))
    assert re.search(named, found) if named else not found

from pathlib import Path

import pytest

from artifacts.errors import BadInputError
from pipeline.commands.serve import checked, lines, when
from pipeline.settings import deployment, read_settings

ROOT = Path(__file__).parents[2]
TASK = ROOT / "examples/tasks/cpu/row_softmax.py"
OPTIMIZE = f"[[optimize]]\nname = 'a'\ntasks = ['{TASK}']\nruns = 'r'"
FILES = f"{OPTIMIZE}\noptions.llm = 'files'"
FEEDBACK = f"{FILES}\noptions.arm = 'feedback'"


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "team.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[[rebuild]]\nlogs = ['x']\nstore = 's'", "name"),
        ("[[rebuild]]\nname = 'a'\nlogs = 'x'\nstore = 's'", "logs"),
        ("[[optimise]]\nname = 'a'", "optimise"),
        ("[service]\nparallel = 0", "parallel"),
        (
            "[[rebuild]]\nname = 'a'\nlogs = ['x']\nstore = 's'\ncron = '* * * * *'\nevery_s = 5.0",
            "both cron and every_s",
        ),
        ("[[transfer]]\nname = 'a'\nstudy = 'x'\n[[transfer]]\nname = 'a'\nstudy = 'y'", "two jobs"),
        ("[[optimize]]\nname = 'a'\ntasks = ['x']\nruns = 'r'\ntimeout_s = 0", "timeout_s"),
        ("[[notify]]\non = ['failed']", "field 'url' is missing"),
        ("[[notify]]\non = ['late']\nurl = 'https://x'", "late"),
        ("name = [", "no TOML"),
        ("[[rebuild]]\nname = 'a'\nstore = 's'", "field 'logs' is missing; add it"),
        ("[service]\nport = 70000", "port lies in 0..65535, got 70000"),
    ],
)
def test_a_wrong_settings_file_names_what_is_wrong(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(BadInputError, match=named):
        read_settings(written(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[[rebuild]]\nname = 'a'\nlogs = ['/no/such']\nstore = 's'", "no logs at /no/such"),
        ("[[optimize]]\nname = 'a'\ntasks = ['/no/such.py']\nruns = 'r'", "/no/such.py"),
        (
            f"{FILES}\noptions.memory = 'm'\noptions.store = '/no/s'",
            "/no/s",
        ),
        (f"{FILES}\noptions.backend = 'cuda'", "needs devices"),
        (
            f"{FILES}\ndevices = [0]\noptions.evaluator = 'files'",
            "devices belong to this host",
        ),
        (f"{FILES}\ncron = 'daily'", "no schedule"),
        (f"{FILES}\noptions.arm = 'flat'\noptions.memory = 'none'", "needs a memory"),
        (f"{FILES}\noptions.arm = 'guess'", "guess"),
        (
            f"{OPTIMIZE}\noptions.arm = 'feedback'\noptions.llm = 'oracle:x'",
            "oracle",
        ),
        (
            f"{FEEDBACK}\noptions.steps = '0'",
            "steps",
        ),
        (
            f"{FEEDBACK}\noptions.backend = 'tpu'",
            "tpu",
        ),
        (f"[[rebuild]]\nname = 'a'\nlogs = ['{ROOT}']\nstore = 's'\nmodel = 'hashing'\nrunner = 'slurm'", "slurm"),
        (f"[[rebuild]]\nname = 'a'\nlogs = ['{ROOT}']\nstore = 's'\nmodel = '/no/model'", "/no/model"),
        (f"[[rebuild]]\nname = 'A b'\nlogs = ['{ROOT}']\nstore = 's'", "memory name 'A b' is not allowed"),
        ("[[transfer]]\nname = 'a'\nstudy = '/no/such.toml'", "/no/such.toml"),
        (f"[[transfer]]\nname = 'a'\nstudy = '{ROOT / 'pyproject.toml'}'", "pyproject.toml: Study"),
        ("", "no job"),
    ],
)
def test_a_job_that_could_not_run_is_found_before_it_is_served(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(BadInputError, match=named):
        checked(written(tmp_path, text))


def test_the_shipped_settings_describe_deployments_with_schedules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    settings = read_settings(Path("examples/team/team.toml"))
    assert [(job.name, when(job)) for job in settings.jobs] == [
        ("team", "cron 0 3 * * * UTC"),
        ("cpu-operators", "on demand"),
    ]
    named = {job.name: deployment(job, ".htam") for job in settings.jobs}
    assert named["team"]["flow"] == "rebuild"
    assert named["cpu-operators"]["parameters"]["options"]["budget-calls"] == "200"


def test_the_shipped_settings_can_be_served_once_there_is_a_folder_of_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("runs").mkdir()
    Path("examples").symlink_to(ROOT / "examples")
    assert len(list(lines(checked(Path("examples/team/team.toml"))))) == 2


def test_a_host_without_gpus_may_serve_jobs_that_a_cluster_evaluates(tmp_path: Path) -> None:
    way = "options.evaluator = 'dask:tcp://gpus:8786'"
    path = written(
        tmp_path,
        f"{FEEDBACK}\noptions.backend = 'cuda'\n{way}",
    )
    assert [job.name for job in checked(path).jobs] == ["a"]


def test_a_time_limit_reaches_the_flow(tmp_path: Path) -> None:
    text = f"{FILES}\ntimeout_s = 3600"
    (suite,) = read_settings(written(tmp_path, text)).jobs
    assert deployment(suite, "")["parameters"]["timeout_s"] == 3600.0


def test_the_settings_of_a_rebuild_reach_its_flow(tmp_path: Path) -> None:
    text = "[[rebuild]]\nname = 'a'\nlogs = ['x']\nstore = 's'\nmodel = 'hashing'"
    (rebuild,) = read_settings(written(tmp_path, text)).jobs
    assert deployment(rebuild, "")["parameters"]["model"] == "hashing"

"""The wheel alone is enough: rooms, data, tasks and memory, in an environment that knows no checkout."""

import importlib.util
import json
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("pipeline", "flows", "builder", "optimizer", "artifacts")
DEMO_READS = """
import json, pipeline.commands.demo as demo
from artifacts.memory.shipped import CARD, SHIPPED, load_memory
words = [word.removeprefix("replay:") for part in demo.parts(demo.Path("home")) for word in part.words]
reads = [word for word in words if word.startswith(str(demo.EXAMPLES))]
missing = [path for path in (*reads, CARD) if not demo.Path(path).is_file()]
print(json.dumps([demo.__file__, len(reads), missing, len(load_memory("", SHIPPED))]))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    builder = [sys.executable, "-P", "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(builder, cwd=ROOT, check=True, capture_output=True)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def home(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment with the wheel and, beside it, the packages of this one, but not the checkout."""
    folder = tmp_path_factory.mktemp("home")
    venv.create(folder / "env", with_pip=False)
    pip = [sys.executable, "-m", "pip", "--python", str(python(folder)), "install"]
    subprocess.run([*pip, "--no-deps", "--no-index", "--quiet", str(wheel)], check=True, cwd=folder)
    own = next((folder / "env/lib").glob("python*/site-packages"))
    found = [importlib.util.find_spec(name) for name in ("torch", "click")]
    packages = sorted({str(Path(spec.origin).parents[1]) for spec in found if spec is not None and spec.origin})
    (own / "packages-of-the-tests.pth").write_text("\n".join(packages) + "\n")
    return folder


def python(home: Path) -> Path:
    return home / "env/bin/python"


def htam(home: Path, *words: str) -> str:
    command = [str(python(home).with_name("htam")), *words]
    return subprocess.run(command, cwd=home, check=True, capture_output=True, text=True).stdout


def test_the_wheel_holds_the_rooms_with_their_data_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert {name.split("/")[0] for name in names} == set(ROOMS)
    listed = subprocess.run(["git", "ls-files", *ROOMS], cwd=ROOT, check=True, capture_output=True, text=True)
    assert set(listed.stdout.split()) <= names


def test_the_installed_command_knows_its_version_and_the_demo(home: Path) -> None:
    assert "0.1.0" in htam(home, "--version")
    assert "--home" in htam(home, "demo", "--help")


def test_everything_that_the_demo_reads_travels_in_the_wheel(home: Path) -> None:
    command = [str(python(home)), "-P", "-c", DEMO_READS]
    said = subprocess.run(command, cwd=home, check=True, capture_output=True, text=True).stdout
    module, reads, missing, steps = json.loads(said)
    assert Path(module).is_relative_to(home)
    assert reads > 3
    assert missing == []
    assert steps > 100


def test_a_shipped_task_is_evaluated_from_the_wheel(home: Path) -> None:
    task = next((home / "env/lib").glob("python*/site-packages/pipeline/examples/tasks/cpu/row_softmax.py"))
    verdict = json.loads(
        htam(home, "evaluate", str(task), str(ROOT / "examples/lineage/row_softmax/expert.py"), "--json")
    )
    assert verdict["outcome"] == "correct"

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from artifacts.codec import encode
from artifacts.measurement import Measurement, Outcome, Timing
from artifacts.runlog import RunLog


def _load() -> ModuleType:
    """The fake server, importable although tests are no packages."""
    path = Path(__file__).with_name("fake_openai.py")
    spec = importlib.util.spec_from_file_location("fake_openai", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["fake_openai"] = module
    spec.loader.exec_module(module)
    return module


_load()


@pytest.fixture(autouse=True)
def no_key_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.fixture
def tell_references() -> Callable[[Path], None]:
    """Tell a run that the reference of every task runs, as a worker on another host found."""
    timing = Timing(median_us=9.0, low_us=9.0, high_us=9.0)
    found = Measurement(outcome=Outcome.CORRECT, stage="task", device="cpu", timing=timing)

    def tell(run: Path) -> None:
        with RunLog.open(run) as log:
            for task in [event.key for event in log.events() if event.kind == "task_started"]:
                log.append("measurement", encode(found), key=f"{task}/reference")

    return tell

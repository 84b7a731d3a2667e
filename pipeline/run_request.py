"""From the options of ``htam optimize`` to the manifest of a run."""

from __future__ import annotations

import secrets
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from artifacts.candidate import Language, source_hash
from artifacts.errors import BadInputError, UnavailableError
from artifacts.memory.store import LATEST
from artifacts.runlog import RunLog
from optimizer.arms.registry import ARMS, WITHOUT_MEMORY
from optimizer.evaluation.job import EvaluationSettings
from optimizer.run.manifest import LANGUAGES, LlmSpec, RunManifest, Selection, pool_path, read_manifest
from optimizer.run.opening import load_memory, task_entry
from optimizer.search.settings import SearchSettings
from optimizer.tasks import Task

DEFAULT_STORE = "memories"
"""Where a run that begins looks for its memory unless it is told."""


def wanted_manifest(path: Path, tasks: Sequence[Task], options: Mapping[str, Any]) -> RunManifest:
    """The manifest that the options ask for; an existing run keeps its pinned memory version and its device.

    Raises:
        BadInputError: options that do not go together, or a value out of range.
        UnavailableError: no device for the backend.
    """
    known = read_manifest(RunLog.open(path)) if RunLog.is_run(path) else None
    backend = options["backend"]
    store = options["store"] or (DEFAULT_STORE if known is None else known.store)
    try:
        return RunManifest(
            run_id=path.resolve().name,
            arm=_arm(options["arm"]),
            llm=options["llm"],
            model=_model(options["llm"]),
            evaluator=options["evaluator"],
            backend=backend,
            device=_device(options, known),
            language=_language(options["language"], backend),
            memory=_memory(options, known, store),
            store=store,
            seed=_seed(options, known),
            tasks=tuple(task_entry(task, source_hash(task.source)) for task in tasks),
            search=SearchSettings(
                steps=options["steps"],
                candidates=options["candidates"],
                shared=options["shared"],
                reallocate=not options["fixed_steps"],
                confirm=_confirm(options, known),
            ),
            selection=Selection(explore=options["explore"], lead=options["lead"], leave_out=options["leave_out"]),
            evaluation=EvaluationSettings(baselines=("eager", *options["baselines"]), profile=options["profile"]),
            temperature=options["temperature"],
            max_tokens=options["max_tokens"],
            tunables=options["tunables"],
            code_version=version("htam-kernels"),
        )
    except ValueError as problem:
        raise BadInputError(str(problem), "see htam optimize --help") from problem


def _arm(wanted: str) -> str:
    if wanted not in ARMS:
        raise BadInputError(f"unknown arm {wanted!r}", f"one of: {', '.join(ARMS)}")
    return wanted


def _language(wanted: str | None, backend: str) -> Language:
    if wanted is None:
        return LANGUAGES[backend]
    if (wanted == "cpp") != (backend == "cpu"):
        raise BadInputError(f"candidates in {wanted} do not run on --backend {backend}", "change one of them")
    return Language(wanted)


def _seed(options: Mapping[str, Any], known: RunManifest | None) -> int:
    if options["seed"] is not None:
        return int(options["seed"])
    return secrets.randbits(48) if known is None else known.seed


def _confirm(options: Mapping[str, Any], known: RunManifest | None) -> bool:
    if options["confirm"] is not None:
        return bool(options["confirm"])
    return True if known is None else known.search.confirm


def _model(llm: str) -> str:
    """Name of the model that requests carry; a recording brings its own."""
    spec = LlmSpec.parse(llm)
    if spec.kind != "replay":
        return spec.name
    from optimizer.llm.cassette import Cassette

    entries = Cassette(Path(spec.name)).entries
    if not entries:
        raise BadInputError(f"the recording {spec.name} is empty", "record a run first")
    return entries[0].model


def _memory(options: Mapping[str, Any], known: RunManifest | None, store: str) -> str:
    wanted = str(options["memory"]).removesuffix(f"@{LATEST}")
    if options["arm"] in WITHOUT_MEMORY:
        if wanted:
            raise BadInputError(f"arm {options['arm']} uses no memory", "leave --memory out")
        return ""
    if not wanted:
        raise BadInputError(f"arm {options['arm']!r} needs a memory", "give --memory NAME, or use --arm feedback")
    if known is not None and known.memory.partition("@")[0] == wanted:
        return known.memory
    return load_memory(store, wanted).reference


def _device(options: Mapping[str, Any], known: RunManifest | None) -> str:
    if options["device"]:
        return str(options["device"])
    if known is not None:
        return known.device
    if options["backend"] == "cpu":
        return "cpu"
    pool = pool_path(options["evaluator"])
    if pool is not None:
        from optimizer.evaluation.pool.evaluator import device_name

        return device_name(pool, options["backend"])
    if options["evaluator"] == "files":
        raise BadInputError("measurements come from elsewhere and the device is not named", "give --device, e.g. h200")
    return _gpu_name()


def _gpu_name() -> str:
    tool = shutil.which("nvidia-smi")
    if tool is not None:
        command = [tool, "--query-gpu=name", "--format=csv,noheader"]
        found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        names = found.stdout.strip().splitlines()
        if found.returncode == 0 and names:
            return names[0].strip()
    raise UnavailableError(
        "no GPU was found for --backend cuda", "use --backend cpu, or --evaluator files and measure on another host"
    )

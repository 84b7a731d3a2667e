"""From the options of ``htam optimize`` to the manifest of a run."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click

from artifacts.candidate import Language, source_hash
from artifacts.device import device_spec
from artifacts.errors import BadInputError
from artifacts.memory.shipped import SHIPPED, is_shipped, load_memory, steps_on
from artifacts.memory.store import LATEST
from artifacts.runlog import RunLog
from optimizer.arms.registry import ARMS, WITHOUT_MEMORY
from optimizer.evaluation.worker.devices import devices_of
from optimizer.run.manifest import LANGUAGES, LlmSpec, RunManifest, Selection, cluster_address, read_manifest
from optimizer.run.opening import take_steps, task_entry
from optimizer.search.settings import SearchSettings
from optimizer.tasks import Task
from pipeline.precision import evaluation_settings

NO_MEMORY = "none"
"""What ``--memory`` is given to leave out the shipped memory."""
DEFAULT_ARM = "htam"
STEPS = 6
"""Steps a task that a run takes on average unless it is told."""
RESUMING = frozenset({"path", "steps", "store", "as_json", "quiet", "workers", "concurrency", "prices"})
"""Parameters, beside budgets, that may be given when a run is resumed without its tasks."""
DEFAULT_STORE = "memories"
"""Where a run that begins looks for its memory unless it is told."""


def wanted_manifest(path: Path, tasks: Sequence[Task], options: Mapping[str, Any]) -> RunManifest:
    """The manifest that the options ask for; an existing run keeps its pinned memory version and its device.

    Raises:
        BadInputError: options that do not go together, or a value out of range.
        UnavailableError: no device for the backend.
        click.MissingParameter: no ``--llm``.
    """
    if options["llm"] is None:
        raise click.MissingParameter(param_hint="'--llm'", param_type="option")
    known = read_manifest(RunLog.open(path)) if RunLog.is_run(path) else None
    backend = options["backend"]
    store = options["store"] or (DEFAULT_STORE if known is None else known.store)
    device, language = _device(options, known), _language(options["language"], backend)
    arm, memory = _arm_and_memory(options, known, store, device, language)
    if options["dtype"]:  # as the evaluator will make them: for states, by which a memory finds what is alike
        tasks = [replace(task, dtype=options["dtype"]) for task in tasks]
    try:
        return RunManifest(
            run_id=path.resolve().name,
            arm=arm,
            llm=options["llm"],
            model=_model(options["llm"]),
            evaluator=options["evaluator"],
            backend=backend,
            device=device,
            language=language,
            memory=memory,
            store=store,
            seed=_seed(options, known),
            tasks=tuple(task_entry(task, source_hash(task.source)) for task in tasks),
            search=SearchSettings(
                steps=options["steps"] or (STEPS if known is None else known.search.steps),
                candidates=options["candidates"],
                reallocate=not options["fixed_steps"],
                confirm=_confirm(options, known),
            ),
            selection=Selection(explore=options["explore"], margin=options["margin"], leave_out=options["leave_out"]),
            evaluation=evaluation_settings(
                options["precision"], options["dtype"], options["baselines"], profile=options["profile"]
            ),
            temperature=options["temperature"],
            max_tokens=options["max_tokens"],
            tunables=options["tunables"],
            answers=options["answers"],
            code_version=version("htam-kernels"),
        )
    except ValueError as problem:
        raise BadInputError(str(problem), "see htam optimize --help") from problem


def resumed(path: Path, steps: int | None, given: Iterable[str]) -> RunLog:
    """The run in ``path``, which keeps all of its settings but the number of steps.

    Args:
        given: names of the parameters on the command line.

    Raises:
        BadInputError: there is no run, or a parameter that the run has fixed is given.
        RunLogError: the number of steps cannot be changed so.
    """
    if not RunLog.is_run(path):
        raise BadInputError(f"no TASK is named and {path} holds no run", "name tasks, or --run of an existing run")
    fixed = [name for name in given if name not in RESUMING and not name.startswith("budget_")]
    if fixed:
        option = f"--{fixed[0].replace('_', '-')}"
        raise BadInputError(f"a run that is resumed without TASK keeps its {option}", "leave the option out")
    log = RunLog.open(path)
    take_steps(log, steps or read_manifest(log).search.steps)
    return log


def _language(wanted: str | None, backend: str) -> Language:
    if wanted is None:
        return LANGUAGES[backend][0]
    if wanted not in LANGUAGES[backend]:
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


def _arm_and_memory(
    options: Mapping[str, Any], known: RunManifest | None, store: str, device: str, language: Language
) -> tuple[str, str]:
    """Arm and ``name@version``: what was asked for, else the shipped memory where it knows the device."""
    arm, wanted = str(options["arm"]), str(options["memory"]).removesuffix(f"@{LATEST}")
    if arm not in ARMS:
        raise BadInputError(f"unknown arm {arm!r}", f"one of: {', '.join(ARMS)}")
    if arm in WITHOUT_MEMORY:
        if wanted not in ("", NO_MEMORY):
            raise BadInputError(f"arm {arm} uses no memory", "leave --memory out")
        return arm, ""
    if wanted == NO_MEMORY:
        return _without_memory(arm), ""
    if wanted and known is not None and wanted == known.memory.partition("@")[0]:
        return arm, known.memory
    if wanted:
        return arm, load_memory(store, wanted).reference
    return _shipped(arm, known, device, language)


def _shipped(arm: str, known: RunManifest | None, device: str, language: Language) -> tuple[str, str]:
    if known is not None and (is_shipped(known.memory) or known.arm in WITHOUT_MEMORY):
        return known.arm, known.memory
    memory, spec = load_memory("", SHIPPED), device_spec(device)
    steps = steps_on(memory, spec.arch, language.value)
    if steps:
        there = f"{steps} steps in {language.value} on {spec.arch}"
        click.echo(f"memory {memory.reference}: {there}; --memory none leaves it out", err=True)
        return arm, memory.reference
    click.echo(f"the shipped memory knows no steps in {language.value} on {spec.name}: none is used", err=True)
    return _without_memory(arm), ""


def _without_memory(arm: str) -> str:
    """The arm that does what is left of the default one without a memory.

    Raises:
        BadInputError: another arm was asked for, and it is nothing without one.
    """
    if arm != DEFAULT_ARM:
        raise BadInputError(f"arm {arm!r} needs a memory", "give --memory NAME, or use --arm feedback")
    return "feedback"


def _device(options: Mapping[str, Any], known: RunManifest | None) -> str:
    if options["device"]:
        return str(options["device"])
    if known is not None:
        return known.device
    if options["backend"] == "cpu":
        return "cpu"
    if address := cluster_address(options["evaluator"]):
        from optimizer.evaluation.worker.cluster import ClusterEvaluator

        with closing(ClusterEvaluator(address)) as cluster:
            return cluster.device_name(options["backend"])
    if options["evaluator"] == "files":
        raise BadInputError("measurements come from elsewhere and the device is not named", "give --device, e.g. h200")
    return devices_of(options["backend"])[0].name

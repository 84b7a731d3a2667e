"""``htam memory lineage``: the model, the evaluator and the log of one walk backwards."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import replace
from pathlib import Path

from artifacts.device import device_spec
from artifacts.errors import BadInputError
from artifacts.features.extract import detect_language
from artifacts.measurement import Measurement, doubt_mark
from optimizer.evaluation.job import EvaluationSettings
from optimizer.evaluation.worker.devices import devices_of
from optimizer.evaluation.worker.local import LocalEvaluator
from optimizer.lineage import Version, Walk, write_lineage
from optimizer.llm.budget import Budget
from optimizer.prompting.request import LANGUAGES, PromptSettings
from optimizer.run.manifest import LlmSpec
from optimizer.run.opening import create_run, in_words
from optimizer.run.resources import Resources, make_client
from optimizer.tasks import load_task
from pipeline.commands import optimize
from pipeline.report.charts import microseconds
from pipeline.run_request import wanted_manifest


def walk_back(
    kernel: Path,
    task: Path,
    llm: str,
    run: Path,
    backend: str,
    most: int,
    evaluation: EvaluationSettings | None = None,
) -> str:
    """Walk the kernel backwards, write the run and return what came of it.

    Raises:
        BadInputError: the kernel is in no known language or not correct, or answers would come through files.
        RunLogError: the run's directory holds something.
    """
    source, loaded = kernel.read_text("utf-8"), load_task(task)
    language = detect_language(source)
    if language not in LANGUAGES:
        raise BadInputError(f"{kernel} holds no kernel of its own", "give one in CUDA, Triton or C++")
    if LlmSpec.parse(llm).kind == "files":
        raise BadInputError(
            "a walk backwards asks one thing after the other", "use --llm command:WORDS or openai:MODEL"
        )
    device = device_spec(devices_of(backend)[0].name)
    words = ["--llm", llm, "--arm", "feedback", "--backend", backend, "--device", device.name, "--steps", str(most)]
    words += ["--language", language.value, "--seed", str(secrets.randbits(48)), "--run", str(run)]
    options = optimize.command.make_context("htam memory lineage", [str(task), *words]).params
    manifest = replace(wanted_manifest(run, (loaded,), options), arm="lineage")
    manifest = manifest if evaluation is None else replace(manifest, evaluation=evaluation)
    log = create_run(run, manifest, (loaded,))
    client = make_client(manifest, run, Budget(Resources().limits), Resources())  # it keeps paid answers in the run
    assert client is not None
    prompt = PromptSettings(model=manifest.model, language=language, device=in_words(device))
    evaluator = LocalEvaluator()
    walk = Walk(loaded, client, evaluator, prompt, backend, manifest.seed, manifest.evaluation)

    async def walked() -> list[tuple[Version, ...]]:
        try:
            return await walk.versions(source, most)
        finally:
            await client.close()

    try:
        found = asyncio.run(walked())
    finally:
        evaluator.close()
    count = write_lineage(log, loaded, found, device.arch, prompt)
    log.close()
    return "\n".join([*_lines(found), f"{count} steps in {run}"])


def _lines(found: list[tuple[Version, ...]]) -> list[str]:
    lines = []
    for version, *refused in found:
        what = "the kernel as given" if version.removed is None else f"without {version.removed}"
        lines.append(f"{what}: {_timed(version.measurement)}")
        lines += [f"  not taken, without {one.removed}: {one.reason}" for one in refused]
    return lines


def _timed(measured: Measurement | None) -> str:
    """The time, and how it compares with that of the version before: the times of two lines are of two moments."""
    if measured is None or measured.timing is None:
        return ""
    time = microseconds(measured.timing.median_us)
    if measured.incumbent is None:
        return time
    words = f"{time}, {measured.timing.median_us / measured.incumbent.median_us:.2f} times the version before"
    return f"{words} ({doubt_mark(measured.doubts)})" if measured.doubts else words

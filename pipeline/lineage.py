"""``htam memory lineage``: the model, the evaluator and the log of one walk backwards."""

from __future__ import annotations

import asyncio
import secrets
from importlib.metadata import version as version_of
from pathlib import Path

from artifacts.candidate import source_hash
from artifacts.device import device_spec
from artifacts.errors import BadInputError
from artifacts.features.extract import detect_language
from optimizer.evaluation.job import EvaluationSettings
from optimizer.evaluation.worker.devices import devices_of
from optimizer.evaluation.worker.local import LocalEvaluator
from optimizer.lineage import Version, Walk, write_lineage
from optimizer.llm.budget import Budget
from optimizer.llm.cassette import Cassette
from optimizer.prompting.request import LANGUAGES, PromptSettings
from optimizer.run.manifest import LlmSpec, RunManifest, Selection
from optimizer.run.opening import create_run, in_words, task_entry
from optimizer.run.resources import Resources, make_client
from optimizer.search.settings import SearchSettings
from optimizer.tasks import load_task
from pipeline.report.charts import microseconds


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
    """
    source, loaded = kernel.read_text("utf-8"), load_task(task)
    language = detect_language(source)
    if language not in LANGUAGES:
        raise BadInputError(f"{kernel} holds no kernel of its own", "give one in CUDA, Triton or C++")
    device = device_spec(devices_of(backend)[0].name)
    spec = LlmSpec.parse(llm)
    model = Cassette(Path(spec.name)).entries[0].model if spec.kind == "replay" else spec.name
    manifest = RunManifest(
        run_id=run.resolve().name,
        arm="lineage",
        llm=llm,
        model=model,
        evaluator="local",
        backend=backend,
        device=device.name,
        language=language,
        memory="",
        store="",
        seed=secrets.randbits(48),
        evaluation=evaluation or EvaluationSettings(),
        tasks=(task_entry(loaded, source_hash(loaded.source)),),
        search=SearchSettings(steps=most),
        selection=Selection(),
        code_version=version_of("htam-kernels"),
    )
    client = make_client(manifest, run, Budget(Resources().limits), Resources())
    if client is None:
        raise BadInputError(
            "a walk backwards asks one thing after the other", "use --llm command:WORDS or openai:MODEL"
        )
    prompt = PromptSettings(model=model, language=language, device=in_words(device))
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
    log = create_run(run, manifest, (loaded,))
    count = write_lineage(log, loaded, found, device.arch, prompt)
    log.close()
    return "\n".join([*_lines(found), f"{count} steps in {run}"])


def _lines(found: list[tuple[Version, ...]]) -> list[str]:
    lines = []
    for version, *refused in found:
        timing = None if version.measurement is None else version.measurement.timing
        what = "the kernel as given" if version.removed is None else f"without {version.removed}"
        lines.append(f"{what}: {'' if timing is None else microseconds(timing.median_us)}")
        lines += [f"  not taken, without {one.removed}: {one.reason}" for one in refused]
    return lines

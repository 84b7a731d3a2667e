"""What one session of a run may use: its budget, its model client and its evaluation queue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from artifacts.errors import BadInputError
from optimizer.llm.budget import Budget, BudgetLimits
from optimizer.llm.cassette import Cassette, RecordingClient, ReplayClient
from optimizer.llm.prices import Meter, load_prices
from optimizer.llm.protocol import LlmClient
from optimizer.run.manifest import LlmSpec, RunManifest
from optimizer.search.measure import EvaluationQueue

if TYPE_CHECKING:
    from optimizer.llm.openai_client import Retry

CASSETTE = "cassette.jsonl"
"""Recording of a run's answers, in its directory."""

CLUSTER_LANES = 32
"""Batches under way at a time where others measure: a batch ends with its slowest job, and waiting costs nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """Settings that change how fast and how far a run goes, never what it does.

    Attributes:
        limits: budget of the whole run, earlier sessions included.
        workers: candidates that a local evaluator builds side by side.
        concurrency: questions under way at most.
        prices: the user's own price file.
    """

    limits: BudgetLimits = field(default_factory=BudgetLimits)
    workers: int = 2
    concurrency: int = 16
    prices: Path | None = None


def require_here(manifest: RunManifest, resources: Resources) -> None:
    """See that this host has what a run needs, before its directory is made and its first answer paid.

    Raises:
        UnavailableError: there is no key, no such command, or no device to measure on.
        BadInputError: the address is none, or there is a money budget and no price for the model.
    """
    require_price(manifest, resources)
    spec = LlmSpec.parse(manifest.llm)
    if spec.kind == "openai":
        from optimizer.llm.openai_client import endpoint_from_environment

        endpoint_from_environment()
    elif spec.kind == "command":
        from optimizer.llm.command_client import command_words

        command_words(spec.name)
    if manifest.evaluator == "local":
        from optimizer.evaluation.worker.devices import devices_of

        devices_of(manifest.backend)


def require_price(manifest: RunManifest, resources: Resources) -> None:
    """See that a money budget can be kept.

    Raises:
        BadInputError: the price of the run's model is unknown, or the price file cannot be used.
    """
    if LlmSpec.parse(manifest.llm).kind == "openai":
        Meter(load_prices(resources.prices), Budget(resources.limits)).require_price(manifest.model)


def make_client(
    manifest: RunManifest,
    path: Path,
    budget: Budget,
    resources: Resources,
    on_retry: Callable[[Retry], None] | None = None,
) -> LlmClient | None:
    """The client that a run's ``llm`` names; None when answers come through files.

    Args:
        on_retry: called when an endpoint has to be asked again.

    Raises:
        UnavailableError: there is no key, or no such command.
        BadInputError: the recording or the price file cannot be used.
    """
    spec = LlmSpec.parse(manifest.llm)
    if spec.kind == "files":
        return None
    if spec.kind == "replay":
        return ReplayClient(Cassette(Path(spec.name)))
    client = _paid_client(manifest, budget, resources, on_retry)
    return RecordingClient(client, Cassette(path / CASSETTE, writable=True))


def _paid_client(
    manifest: RunManifest, budget: Budget, resources: Resources, on_retry: Callable[[Retry], None] | None
) -> LlmClient:
    """The client whose answers cost something and are recorded."""
    spec = LlmSpec.parse(manifest.llm)
    if spec.kind == "agent":
        raise BadInputError("an agent's session asks nobody", "go on with it by htam mcp --run")
    if spec.kind == "command":
        from optimizer.llm.command_client import CommandClient

        return CommandClient(spec.name, budget=budget, on_retry=on_retry)
    from optimizer.llm.openai_client import OpenAiClient, endpoint_from_environment

    meter = Meter(load_prices(resources.prices), budget)
    return OpenAiClient(endpoint_from_environment(), meter=meter, on_retry=on_retry)


def make_queue(manifest: RunManifest, resources: Resources) -> EvaluationQueue | None:
    """The evaluation queue that a run's ``evaluator`` names; None when measurements come through files."""
    if manifest.evaluator == "files":
        return None
    if manifest.cluster:
        from optimizer.evaluation.worker.cluster import ClusterEvaluator

        return EvaluationQueue(ClusterEvaluator(manifest.cluster), lanes=CLUSTER_LANES)
    from optimizer.evaluation.worker.local import LocalEvaluator

    return EvaluationQueue(LocalEvaluator(workers=resources.workers))

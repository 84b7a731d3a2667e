"""What one sitting of a run may use: its budget, its model client and its bench."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from optimizer.llm.budget import Budget, BudgetLimits
from optimizer.llm.cassette import Cassette, RecordingClient, ReplayClient
from optimizer.llm.protocol import LlmClient
from optimizer.run.manifest import LlmSpec, RunManifest
from optimizer.search.bench import Bench

if TYPE_CHECKING:
    from optimizer.llm.openai_client import Retry

CASSETTE = "cassette.jsonl"
"""Recording of a run's answers, in its directory."""

ENDPOINTS = ("openai", "batch")
"""Kinds of models that are paid when they are asked."""

BATCHES = "batches.jsonl"
POOL_LANES = 32
"""Batches under way at a time where others measure: a batch ends with its slowest job, and waiting costs nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """Settings that change how fast and how far a run goes, never what it does.

    Attributes:
        limits: budget of the whole run, earlier sittings included.
        workers: candidates that a local evaluator builds side by side.
        concurrency: calls to an endpoint under way at most.
        prices: the user's own price file.
    """

    limits: BudgetLimits = field(default_factory=BudgetLimits)
    workers: int = 2
    concurrency: int = 16
    prices: Path | None = None


def require_here(manifest: RunManifest, resources: Resources) -> None:
    """See that this host has what a run needs, before its directory is made and its first answer paid.

    Raises:
        UnavailableError: there is no key, or no device to measure on.
        BadInputError: the address is none, or there is a money budget and no price for the model.
    """
    require_price(manifest, resources)
    if LlmSpec.parse(manifest.llm).kind in ENDPOINTS:
        from optimizer.llm.endpoint import endpoint_from_environment

        endpoint_from_environment()
    if manifest.evaluator == "local":
        from optimizer.evaluation.hosts import devices_of

        devices_of(manifest.backend)


def require_price(manifest: RunManifest, resources: Resources) -> None:
    """See that a money budget can be kept.

    Raises:
        BadInputError: nobody knows what the run's model costs, or the price file cannot be used.
    """
    if LlmSpec.parse(manifest.llm).kind in ENDPOINTS:
        from optimizer.llm.meter import Meter
        from optimizer.llm.prices import load_prices

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
        on_retry: told when an endpoint has to be asked again.

    Raises:
        UnavailableError: there is no key.
        BadInputError: the recording or the price file cannot be used.
    """
    spec = LlmSpec.parse(manifest.llm)
    if spec.kind == "files":
        return None
    if spec.kind == "replay":
        return ReplayClient(Cassette(Path(spec.name)), by_slot=True)
    client = _endpoint_client(spec, path, budget, resources, on_retry)
    return RecordingClient(client, Cassette(path / CASSETTE, writable=True))


def _endpoint_client(
    spec: LlmSpec, path: Path, budget: Budget, resources: Resources, on_retry: Callable[[Retry], None] | None
) -> LlmClient:
    from optimizer.llm.endpoint import endpoint_from_environment
    from optimizer.llm.meter import Meter
    from optimizer.llm.prices import load_prices

    endpoint, prices = endpoint_from_environment(), load_prices(resources.prices)
    if spec.kind == "batch":
        from optimizer.llm.batch_client import BatchClient

        return BatchClient(endpoint, meter=Meter(prices, budget, factor=prices.batch_factor), state=path / BATCHES)
    from optimizer.llm.openai_client import ClientSettings, OpenAiClient

    settings = ClientSettings(concurrency=resources.concurrency)
    return OpenAiClient(endpoint, meter=Meter(prices, budget), settings=settings, on_retry=on_retry)


def make_bench(manifest: RunManifest, resources: Resources) -> Bench | None:
    """The bench that a run's ``evaluator`` names; None when measurements come through files."""
    if manifest.evaluator == "files":
        return None
    if manifest.pool is not None:
        from optimizer.evaluation.pool.evaluator import PoolEvaluator

        return Bench(PoolEvaluator(manifest.pool), lanes=POOL_LANES)
    from optimizer.evaluation.local import LocalEvaluator

    return Bench(LocalEvaluator(workers=resources.workers))

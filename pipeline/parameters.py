"""From a job of a settings file to the parameters of the flow that does it."""

from __future__ import annotations

from typing import Any

from pipeline.settings import Job, OptimizeJob, RebuildJob, TransferJob


def parameters_of(job: Job, work: str) -> tuple[str, dict[str, Any]]:
    """Name of the flow that does ``job``, and its parameters."""
    if isinstance(job, RebuildJob):
        engine = {"runner": job.runner, "workers": job.workers, "address": job.address}
        named = {"logs": list(job.logs), "store": job.store, "name": job.name, "tag": job.tag, "model": job.model}
        refining = {"refine": job.refine, "refine_url": job.refine_url}
        return "rebuild", named | refining | {"work": work, "engine": engine}
    if isinstance(job, TransferJob):
        return "transfer", {"study": job.study}
    return "optimize", _optimize_parameters(job)


def _optimize_parameters(job: OptimizeJob) -> dict[str, Any]:
    where = {"devices": list(job.devices), "deployment": f"optimize-one/{job.name}" if job.work_pool else ""}
    what = {"tasks": list(job.tasks), "runs": job.runs, "options": optimize_options(job), "timeout_s": job.timeout_s}
    return what | where


def optimize_options(job: OptimizeJob) -> dict[str, str]:
    """What ``htam optimize`` is asked for a task of ``job``, names without dashes."""
    options = {"store": job.store, "backend": job.backend, "llm": job.llm, "arm": job.arm, "memory": job.memory}
    options |= {"evaluator": job.evaluator}
    options |= {"steps": str(job.steps), "candidates": str(job.candidates)}
    options |= {"budget-usd": _text(job.max_usd), "budget-calls": _text(job.max_calls)}
    return {name: value for name, value in options.items() if value}


def _text(value: float | None) -> str:
    return "" if value is None else f"{value:g}"

"""Any function over many keys as a flow: what a study's cells are run by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from prefect import flow, task

from flows.engine import RETRY, EngineSettings, run
from flows.pages import followed
from flows.stages import STAGE

T = TypeVar("T")


def mapped(
    name: str, work: Callable[[str], T], keys: Sequence[str], engine: EngineSettings
) -> dict[str, T | Exception]:
    """``work`` of every key, several at a time; an exception is the result of its key and stops no other."""

    @task(name=name, task_run_name="{key}", **STAGE, **RETRY)
    def one(key: str) -> T:
        return work(key)

    @flow(name=name)
    def every(keys: Sequence[str]) -> dict[str, Any]:
        futures = one.map(keys)
        return dict(zip(keys, followed(futures, "cells", raising=False), strict=True))

    found: dict[str, T | Exception] = run(every, engine, list(keys)) if keys else {}
    return found

"""The options that say in what arithmetic candidates are judged and what they are compared with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from artifacts.errors import BadInputError
from artifacts.measurement import BASELINES
from optimizer.evaluation.job import DTYPES, PRECISIONS, EvaluationSettings

_OPTIONS = (
    click.option(
        "--precision",
        type=click.Choice(PRECISIONS),
        default="auto",
        show_default=True,
        help="Class for reference, baselines and candidate alike: no TF32 anywhere (strict), or TF32 for both sides; "
        "auto is strict, and a half type stays what it is.",
    ),
    click.option(
        "--dtype",
        type=click.Choice(DTYPES),
        help="Cast the model and its floating-point inputs; by default they stay as the task makes them.",
    ),
    click.option(
        "--baseline",
        "baselines",
        multiple=True,
        type=click.Choice(BASELINES),
        help="Time this beside the reference; may be repeated. By default all that tell the fastest of the class.",
    ),
)


def precision_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--precision``, ``--dtype`` and ``--baseline``."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def evaluation_settings(
    precision: str, dtype: str | None, baselines: tuple[str, ...], **others: Any
) -> EvaluationSettings:
    """Settings of an evaluation from the options' values.

    Raises:
        BadInputError: they do not go together.
    """
    try:
        return EvaluationSettings(precision=precision, dtype=dtype or "", baselines=baselines or None, **others)
    except ValueError as problem:
        raise BadInputError(str(problem), "leave --precision or --dtype out") from problem

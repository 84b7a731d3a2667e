"""``htam memory replay``: does a memory predict what helps?"""

from __future__ import annotations

import json
from collections.abc import Iterator
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from artifacts.statistics import Interval
    from builder.validate.calibration import Calibration
    from builder.validate.replay import Figures
    from builder.validate.report import LevelReport, ReplayReport


@click.command(name="replay", short_help="Say whether a memory predicts what helps.")
@click.argument("reference", metavar="MEMORY")
@click.option("--store", default="memories", show_default=True, help="Folder or fsspec URL that holds memories.")
@click.option(
    "--test-logs",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Score on these logs instead of held-out tasks; their operators leave the memory first.",
)
@click.option("--work", default=".htam", show_default=True, help="Folder that remembers described logs and vectors.")
@click.option("--json", "as_json", is_flag=True, help="Print every figure as JSON.")
def command(reference: str, store: str, test_logs: tuple[Path, ...], work: str, as_json: bool) -> None:
    """Rank directions and strategies at recorded choices and score the ranking by what the choices really gained.

    Operators are held out, baselines are shown beside the memory, intervals are over tasks.

    \b
    Examples:
      htam memory replay demo
      htam memory replay demo@prod --test-logs runs/monday --json
    """
    from artifacts.codec import encode
    from artifacts.memory.shipped import load_memory
    from builder.validate.report import replay, replay_on

    memory = load_memory(store, reference)
    if test_logs:
        from builder.build import BuildSettings, build

        model = memory.manifest.embedding.name
        settings = BuildSettings(name="test-logs", model=model, cache=Path(work) / "cache", replay=False)
        report = replay_on(memory, build(test_logs, settings).memory)
    else:
        report = replay(memory)
    click.echo(json.dumps(encode(report), indent=2, allow_nan=False) if as_json else "\n".join(lines(report)))


def lines(report: ReplayReport) -> Iterator[str]:
    """The report as text."""
    yield f"{report.reference} on {report.test}"
    for level in report.levels:
        if not level.figures:
            yield f"{level.level}: no decision point: no parent with two options"
            continue
        yield from _table(f"{level.level} ranking", level.figures)
        yield from _verdict(level)


def _table(title: str, figures: tuple[Figures, ...]) -> Iterator[str]:
    yield f"\n{title}: {figures[0].decision_points} choices of {figures[0].regret.tasks} tasks"
    yield f"  {'':30}{'regret':>8}{'ndcg':>8}{'hit@3':>8}{'pairs':>8}   regret that the memory saves"
    for item in figures:
        measured = (item.regret, item.ndcg, item.hit3, item.pairwise)
        values = "".join(f"{'–' if isnan(found.value) else f'{found.value:.3f}':>8}" for found in measured)
        yield f"  {item.ranker:30}{values}   {'' if item is figures[0] else _share(item.margin)}".rstrip()


def _share(found: Interval) -> str:
    if isnan(found.value):
        return "–"
    return f"{found.value:+.0%} [{found.low:+.0%}, {found.high:+.0%}]" if found.known else f"{found.value:+.0%}"


def _verdict(level: LevelReport) -> Iterator[str]:
    if level.calibration is not None:
        yield from _calibrated(level.calibration)
    if level.off_policy is not None:
        yield f"  {level.off_policy.line}"
    if level.chance is not None:
        yield f"  permuted labels rank as well with probability {level.chance:.2f}"
    yield f"  surely beaten: {', '.join(level.beaten) or 'none'}"
    if level.detectable is not None:
        yield f"  a margin below {level.detectable:.0%} over no direction could not be distinguished from chance here"


def _calibrated(found: Calibration) -> Iterator[str]:
    yield (
        f"  predicted against observed within sources over {found.steps} steps: slope {found.slope.value:.2f} "
        f"[{found.slope.low:.2f}, {found.slope.high:.2f}], AUC {found.auc_within:.3f} (over all {found.auc:.3f}: "
        f"sources differ in how often steps gain), bias {found.bias.value:+.3f}, "
        f"{sum(item.holds for item in found.bins)} of {len(found.bins)} bins inside their intervals"
    )

"""``htam memory replay``: does a memory predict what helps?"""

from __future__ import annotations

import json
from collections.abc import Iterator
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from builder.judge.bootstrap import Interval
    from builder.judge.replay import Figures
    from builder.judge.report import LevelReport, ReplayReport
    from builder.judge.steps import Calibration

PLURAL = {"direction": "directions", "strategy": "strategies"}


@click.command(name="replay", short_help="Say whether a memory predicts what helps.")
@click.argument("reference", metavar="MEMORY")
@click.option("--store", default="memories", show_default=True, help="Folder or fsspec URL that holds memories.")
@click.option(
    "--test-logs",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Score on these logs instead of held-out tasks; their tasks leave the memory first.",
)
@click.option("--selection", is_flag=True, help="Also choose the formula on training folds (minutes).")
@click.option("--work", default=".htam", show_default=True, help="Folder that remembers drafted logs and vectors.")
@click.option("--json", "as_json", is_flag=True, help="Print every figure as JSON.")
def command(reference: str, store: str, test_logs: tuple[Path, ...], selection: bool, work: str, as_json: bool) -> None:
    """Rank directions and strategies at recorded choices and score the ranking by what the choices really gained.

    Tasks are held out, baselines are shown beside the memory, intervals are over tasks.

    \b
    Examples:
      htam memory replay demo
      htam memory replay demo@prod --test-logs runs/monday --json
    """
    from artifacts.codec import encode
    from artifacts.memory.store import MemoryStore, split_reference
    from builder.judge.report import replay, replay_on

    memory = MemoryStore(store).load(*split_reference(reference))
    if test_logs:
        from builder.build import BuildSettings, build
        from builder.embed import named_embedder

        embedder = named_embedder(memory.manifest.embedding.name)
        settings = BuildSettings(name="test-logs", cache=Path(work) / "cache", replay=False)
        report = replay_on(memory, build(test_logs, embedder, settings).memory)
    else:
        report = replay(memory, selection=selection)
    click.echo(json.dumps(_plain(encode(report)), indent=2) if as_json else "\n".join(lines(report)))


def lines(report: ReplayReport) -> Iterator[str]:
    """The report as text."""
    yield f"{report.reference} on {report.test}"
    for level in report.levels:
        if not level.figures:
            yield f"{level.level}: no recorded choice with two options to judge by"
            continue
        yield from _table(f"{level.level} ranking", level.figures)
        for name, found in level.across.items():
            yield from _table(f"{level.level} ranking, {name} left out", found)
        yield from _verdict(level)


def _table(title: str, figures: tuple[Figures, ...]) -> Iterator[str]:
    yield f"\n{title}: {figures[0].occasions} choices of {figures[0].regret.tasks} tasks"
    heads = "".join(f"{head:>22}" for head in ("tasks alike", "choices alike", "keeping the best"))
    yield f"  {'':30}{'regret':>8}{'ndcg':>8}{'hit@3':>8}{'pairs':>8}   regret that the memory saves:"
    yield f"  {'':62}{heads}"
    for item in figures:
        measured = (item.regret, item.ndcg, item.hit3, item.pairwise)
        values = "".join(f"{'–' if isnan(found.value) else f'{found.value:.3f}':>8}" for found in measured)
        savings = (item.saving, item.saving_by_occasion, item.kept_saving_by_occasion)
        saved = "" if item is figures[0] else "".join(f" {_share(saving):>21}" for saving in savings)
        yield f"  {item.ranker:30}{values}{saved}".rstrip()


def _share(found: Interval) -> str:
    if isnan(found.value):
        return "–"
    return f"{found.value:+.0%} [{found.low:+.0%}, {found.high:+.0%}]"


def _verdict(level: LevelReport) -> Iterator[str]:
    if level.calibration is not None:
        yield from _calibrated("predicted against observed", level.calibration)
    for name, told in level.calibration_across.items():
        yield from _calibrated(f"{name} predicted by the others", told)
    if level.off_policy is not None:
        logged, robust = level.off_policy.logged, level.off_policy.robust
        yield (
            f"  over {level.off_policy.steps} steps of known choice probability: chosen {logged.value:+.3f}, first by "
            f"the memory {robust.value:+.3f} [{robust.low:+.3f}, {robust.high:+.3f}] log2 gain a step (doubly robust)"
        )
    if level.chance is not None:
        yield f"  labels dealt out at random rank as well with probability {level.chance:.2f}"
    for name, found in level.contrasts.items():
        counted = "losing" if name == "step" else "gaining nothing"
        yield (
            f"  among siblings, failures {counted}: {PLURAL[level.level]} explain {found.explained:.1%} of what "
            f"differs, {found.by_chance:.1%} by chance (p = {found.probability:.3f}); an average effect worth "
            f"{found.worth:.3f} log2 a step would have been found"
        )
    beaten = [name for name, won in level.beaten.items() if won]
    yield f"  surely beaten: {', '.join(beaten) or 'none'}"
    if level.detectable is not None:
        yield f"  a saving below {level.detectable:.0%} over the state alone could not be told from chance here"


def _calibrated(what: str, told: Calibration) -> Iterator[str]:
    yield (
        f"  {what} over {told.steps} steps: slope {told.slope.value:.2f} "
        f"[{told.slope.low:.2f}, {told.slope.high:.2f}], bias {told.bias.value:+.3f}, AUC {told.auc:.3f}, "
        f"{told.inside} of {len(told.bins)} bins inside their intervals"
    )


def _plain(value: object) -> object:
    """NaN is no JSON."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and value != value else value

"""Flow ``optimize-suite``: one run directory a task, one task a device at a time."""

from __future__ import annotations

from prefect import flow, unmapped

from flows.devices import Devices
from flows.elsewhere import LOST_S, optimize_elsewhere
from flows.notify import HOOKS
from flows.pages import suite_table
from flows.reporting import write_report
from flows.suite import optimize_task, settled, suite_entries


@flow(name="optimize-suite", flow_run_name="{runs}", **HOOKS)
def optimize_suite(
    tasks: list[str],
    runs: str,
    options: dict[str, str] | None = None,
    devices: list[int] | None = None,
    timeout_s: float | None = None,
    deployment: str = "",
    lost_s: float = LOST_S,
) -> list[str]:
    """Optimize every task below ``tasks`` in a run directory of its own below ``runs`` and return those directories.

    Args:
        options: of ``htam optimize``, without dashes, e.g. ``{"memory": "team@prod", "llm": "openai:gpt-5"}``.
        devices: GPU numbers, each lent to one task at a time; empty for the CPU backend.
        timeout_s: of one task.
        deployment: of flow ``optimize-one`` in a work pool, whose workers then run the tasks; empty to run them here.
        lost_s: seconds without a sign of life after which a worker's host counts as lost.

    Raises:
        HtamError: a task could not be run; all others were, and the table names every one with its result.
    """
    entries = suite_entries(tasks, runs)
    if deployment:
        futures = optimize_elsewhere.map(
            entries, unmapped(options or {}), unmapped(deployment), unmapped(timeout_s), unmapped(lost_s)
        )
    else:
        lent = Devices(devices or ())
        futures = optimize_task.map(entries, unmapped(options or {}), unmapped(lent), unmapped(timeout_s))
    results = settled(entries, futures)
    suite_table(results)
    made = [result.entry.run for result in results if result.problem is None]
    write_report.map([[run] for run in made], [f"{run}.html" for run in made]).wait()
    return [result.checked() for result in results]

"""``htam doctor``: say what this host can do and what is missing."""

from __future__ import annotations

import sys

import click

MARKS = {"good": ("ok", "green"), "missing": ("--", "yellow"), "broken": ("!!", "red")}


@click.command(name="doctor")
@click.option("--store", default="memories", show_default=True, help="Store whose access is checked.")
@click.option("--online", is_flag=True, help="Also ask whether the LLM endpoint answers.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(store: str, online: bool, as_json: bool) -> None:
    """Say what this host can do and what is missing; exit code 1 when something is broken.

    \b
    Examples:
      htam doctor
      htam doctor --store memories --online --json
    """
    import json
    from dataclasses import asdict

    from pipeline.doctor import examine

    findings = []
    for finding in examine(store, online=online):
        findings.append(finding)
        if not as_json:
            mark, colour = MARKS[finding.status.value]
            fix = f" ({finding.fix})" if finding.fix else ""
            click.echo(f"{click.style(mark, fg=colour)}  {finding.subject:<14} {finding.text}{fix}")
    if as_json:
        click.echo(json.dumps([asdict(finding) for finding in findings], indent=1))
    sys.exit(any(finding.status.value == "broken" for finding in findings))

"""How many characters an answer has as edits and as a whole file, on recorded steps: benchmarks/results/answers.json.

For each of 30 recorded steps from one candidate to the next, short search/replace blocks are derived that turn the
parent into the child, and applied to see that they do. PLAN and STRATEGY lines are the same in both forms and not
counted. The steps were answered as whole files, so a child also holds what its author rewrote in passing. Not measured:
what a model writes when it is asked for edits, how often its anchors fit, and what that does to its kernels.

    python -P benchmarks/answers.py
"""

from __future__ import annotations

import difflib
import hashlib
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from runner import LOGS, write_results

from artifacts.candidate import normalise_source
from artifacts.codec import decode
from artifacts.run_events import LoggedStep
from artifacts.runlog import RunLog
from optimizer.prompting.edits import Edit, applied

STEPS = 30
NEAR = 3
"""Changes with at most so many equal lines between them make one edit: its marks cost more than the lines."""

Span = tuple[int, int, int, int]
"""Lines of the parent from the first to before the second number, and of the child likewise."""


def derived(parent: str, child: str) -> tuple[Edit, ...]:
    """Short edits that turn ``parent`` into ``child``; not proven to be the shortest."""
    before, after = parent.split("\n"), child.split("\n")
    matcher = difflib.SequenceMatcher(a=before, b=after, autojunk=False)
    spans = [(a, b, c, d) for tag, a, b, c, d in matcher.get_opcodes() if tag != "equal"]
    spans = _merged(spans, NEAR)
    while (wanting := next((span for span in spans if not _unique(before, span)), None)) is not None:
        spans = _merged([_wider(span, len(before)) if span == wanting else span for span in spans], 0)
    return tuple(Edit(tuple(before[a:b]), tuple(after[c:d])) for a, b, c, d in spans)


def _merged(spans: list[Span], gap: int) -> list[Span]:
    result: list[Span] = []
    for span in spans:
        if result and span[0] - result[-1][1] <= gap:
            result[-1] = (result[-1][0], span[1], result[-1][2], span[3])
        else:
            result.append(span)
    return result


def _unique(lines: list[str], span: Span) -> bool:
    wanted = lines[span[0] : span[1]]
    places = range(len(lines) - len(wanted) + 1)
    return any(wanted) and sum(lines[at : at + len(wanted)] == wanted for at in places) == 1


def _wider(span: Span, count: int) -> Span:
    """A span with one more equal line on each side where there is one."""
    up, down = int(span[0] > 0), int(span[1] < count)
    return span[0] - up, span[1] + down, span[2] - up, span[3] + down


def pairs(folder: Path) -> Iterator[dict[str, Any]]:
    """Parent and child of every recorded step that starts from a candidate."""
    for path in sorted(path for path in folder.iterdir() if path.is_dir()):
        log = RunLog.open(path)
        for event in log.events():
            step = decode(LoggedStep, event.payload) if event.kind == "step" else None
            if (
                step is not None
                and step.mode in ("optimize", "repair")
                and step.parent_sha256
                and step.candidate_sha256
            ):
                parent, child = (
                    normalise_source(log.candidate(name)) for name in (step.parent_sha256, step.candidate_sha256)
                )
                yield {"step": f"{path.name}/{event.key}", "mode": step.mode, "parent": parent, "child": child}


def measured(pair: dict[str, Any]) -> dict[str, Any]:
    """Characters of one answer in both forms."""
    edits = derived(pair["parent"], pair["child"])
    if applied(pair["parent"], edits) != pair["child"]:
        raise AssertionError(f"the edits of {pair['step']} do not give its child")
    text = "\n".join(edit.text for edit in edits)
    figures = {"file": len(pair["child"]), "edits": len(text), "blocks": len(edits)}
    return {"step": pair["step"], "mode": pair["mode"], **figures, "share": round(len(text) / len(pair["child"]), 3)}


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Totals and shares of ``rows``; ``shorter`` takes the shorter form of each step."""
    shares = [row["share"] for row in rows]
    whole, edits = (sum(row[form] for row in rows) for form in ("file", "edits"))
    return {
        "steps": len(rows),
        "characters": {"file": whole, "edits": edits, "shorter": sum(min(row["file"], row["edits"]) for row in rows)},
        "share": round(edits / whole, 3),
        "share_by_step": {"median": round(statistics.median(shares), 3), "least": min(shares), "most": max(shares)},
        "longer_as_edits": sum(share > 1 for share in shares),
    }


def main() -> None:
    """Measure :data:`STEPS` steps, drawn by the hash of their names, and for comparison all recorded ones."""
    every = [measured(pair) for pair in pairs(LOGS)]
    drawn = sorted(every, key=lambda row: hashlib.sha256(row["step"].encode()).digest())[:STEPS]
    rows = sorted(drawn, key=lambda row: str(row["step"]))
    write_results("answers", {"drawn": summary(rows), "all": summary(every), "rows": rows})


if __name__ == "__main__":
    main()

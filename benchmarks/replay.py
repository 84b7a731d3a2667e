"""Does the memory's ranking beat its baselines on held-out tasks? ``python benchmarks/replay.py LOGS``.

Builds a memory from LOGS, replays it, prints what ``htam memory replay`` prints and writes benchmarks/results/NAME.json
with all intervals.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "benchmarks")]

from runner import write_results  # noqa: E402

from artifacts.codec import encode  # noqa: E402
from artifacts.memory.attention import AttentionSettings  # noqa: E402
from builder.build import BuildSettings, build  # noqa: E402
from builder.validate.report import replay  # noqa: E402
from pipeline.commands.memory_replay import lines  # noqa: E402


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("logs", nargs="+", type=Path)
    parser.add_argument("--cache", type=Path, default=None, help="folder of an earlier build's cache")
    parser.add_argument("--name", default="replay", help="of the file in benchmarks/results")
    arguments = parser.parse_args()
    settings = BuildSettings(name="replay", cache=arguments.cache, replay=False)
    memory = build(arguments.logs, settings).memory
    report = replay(memory)
    print("\n".join(lines(report)))
    sizes = {"transitions": len(memory), "directions": len(memory.directions), "strategies": len(memory.strategies)}
    write_results(
        arguments.name, {"memory": sizes, "settings": encode(AttentionSettings()), "levels": encode(report.levels)}
    )


if __name__ == "__main__":
    main()

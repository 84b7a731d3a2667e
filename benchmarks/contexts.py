"""How many CUDA contexts a host starts and ends in a second: ``python -P benchmarks/contexts.py [--out FILE]``.

Each lane forks a process from one that has torch imported; the process starts a context, makes one tensor and ends,
and the lane begins again. Lanes on one device and on all, with the driver's eight hardware queues and with one.
Needs torch and a CUDA device; writes JSON to FILE, ``$OUT/contexts.json`` or ``benchmarks/results/contexts.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import torch  # noqa: E402 - children are forked with it imported
from profile_gpu import machine  # noqa: E402 - a bare host has the checkout only

SECONDS = 2.0
LANES = (1, 2, 4)


def child(device: int, queues: int) -> None:
    """A process's whole life."""
    os.environ["CUDA_VISIBLE_DEVICES"] = str(device)
    os.environ["CUDA_DEVICE_MAX_CONNECTIONS"] = str(queues)
    try:
        torch.empty(1, device="cuda")
        torch.cuda.synchronize()
    finally:
        os._exit(0)


def churn(devices: list[int], queues: int) -> dict[str, Any]:
    """One lane for each entry of ``devices``."""
    begun: dict[int, tuple[int, float]] = {}
    lives: list[float] = []

    def launch(device: int) -> None:
        pid = os.fork()
        if pid == 0:
            child(device, queues)
        begun[pid] = device, time.perf_counter()

    start = time.perf_counter()
    for device in devices:
        launch(device)
    while begun:
        pid, _ = os.waitpid(-1, 0)
        device, birth = begun.pop(pid)
        lives.append(time.perf_counter() - birth)
        if time.perf_counter() - start < SECONDS:
            launch(device)
    seconds = time.perf_counter() - start
    found = {"devices": devices, "queues": queues, "per_s": len(lives) / seconds, "mean_s": sum(lives) / len(lives)}
    print(f"{len(devices)} lanes on {sorted(set(devices))}, {queues} queues: {found['per_s']:.1f} a second", flush=True)
    return found


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    folder = Path(os.environ.get("OUT", ROOT / "benchmarks" / "results"))
    parser.add_argument("--out", type=Path, default=folder / "contexts.json")
    options = parser.parse_args()
    every = [path.name.removeprefix("nvidia") for path in Path("/dev").glob("nvidia[0-9]*")]
    groups = [[0]] if len(every) == 1 else [[0], sorted(map(int, every))]
    rows = [churn(group * lanes, queues) for queues in (8, 1) for group in groups for lanes in LANES]
    result = {"host": machine(), "rows": rows}
    options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

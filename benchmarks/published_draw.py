"""Draw candidates for ``published_speed.py`` from a collection, by a seed.

    python -P benchmarks/published_draw.py ALL.json DRAWN.json [--count 80] [--seed 7]

ALL is a JSON list of ``level``, ``problem``, ``kind``, ``origin``, ``claimed`` (what its authors say: None or a mapping
with ``correct``) and ``source``.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

ENDLESS = '''
import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <torch/extension.h>
__global__ void spin(const float* x, float* y, long n, volatile int* stop) {
    long i = blockIdx.x * (long)blockDim.x + threadIdx.x;
    while (*stop == 0) { }
    if (i < n) y[i] = x[i];
}
torch::Tensor run(torch::Tensor x) {
    auto y = torch::empty_like(x);
    auto stop = torch::zeros({1}, x.options().dtype(torch::kInt32));
    spin<<<(x.numel() + 255) / 256, 256>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.numel(), stop.data_ptr<int>());
    return y;
}
"""
ext = load_inline(
    name="endless_NUMBER", cpp_sources="torch::Tensor run(torch::Tensor x);", cuda_sources=SOURCE, functions=["run"]
)


class ModelNew(nn.Module):
    def forward(self, x):
        return ext.run(x)
'''
"""A kernel that never ends, for the first element-wise tasks of level 1."""
_ENDLESS_TASKS = (19, 20, 21, 22, 25)


def draw(arguments: argparse.Namespace) -> None:
    """Half that their authors call correct, a sixteenth endless, the others as they come; spread over the levels."""
    everything = json.loads(arguments.collection.read_text(encoding="utf-8"))
    generator = random.Random(arguments.seed)
    endless = max(arguments.count // 16, 1)
    right = [c for c in everything if (c["claimed"] or {}).get("correct")]
    others = [c for c in everything if not (c["claimed"] or {}).get("correct")]
    chosen = _spread(right, arguments.count // 2, generator)
    chosen += _spread(others, arguments.count - len(chosen) - endless, generator)
    chosen += [
        {
            "level": 1,
            "problem": problem,
            "kind": "cuda",
            "origin": "endless",
            "claimed": None,
            "source": ENDLESS.replace("NUMBER", str(problem)),
        }
        for problem in _ENDLESS_TASKS[:endless]
    ]
    generator.shuffle(chosen)
    arguments.out.write_text(json.dumps(chosen), encoding="utf-8")
    print(len(chosen), Counter(c["level"] for c in chosen), Counter(c["kind"] for c in chosen))


def _spread(pool: list[dict[str, Any]], count: int, generator: random.Random) -> list[dict[str, Any]]:
    """Evenly over the levels, no task twice as long as there are others."""
    by_level: dict[int, list[dict[str, Any]]] = {}
    for candidate in generator.sample(pool, len(pool)):
        if all(c["problem"] != candidate["problem"] for c in by_level.setdefault(candidate["level"], [])):
            by_level[candidate["level"]].append(candidate)
    return [c for row in zip(*by_level.values(), strict=False) for c in row][:count]


def main() -> None:
    """Draw and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("collection", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--count", type=int, default=80)
    parser.add_argument("--seed", type=int, default=7)
    draw(parser.parse_args())


if __name__ == "__main__":
    main()

"""Whole kernels that were verified on the device at hand, for other operators: what a memory has to show, not to say.

A plan tells that products moved to tensor cores; how to feed them, swizzle and accumulate takes a hundred lines that
were measured to work. A model that sees them can start where earlier runs ended.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from artifacts.features import code_features
from artifacts.memory.htg import Memory
from artifacts.memory.records import Transition
from artifacts.memory.tables import transition_rows
from artifacts.state import State
from optimizer.llm.prompt import Exemplar
from optimizer.search.cargo import nearness
from optimizer.search.ledger import LEAST_GAIN, TRUSTED

CRAFT = frozenset(
    (
        *("tensor_core_wmma", "tensor_core_mma", "tensor_core_wgmma", "tma", "async_copy", "software_pipeline"),
        *("double_buffering", "swizzle", "register_tiling", "cache_blocking", "warp_specialization", "split_k"),
        *("persistent_kernel", "vector_load", "warp_shuffle", "block_reduce", "online_softmax", "welford", "scan"),
        *("omp_parallel", "omp_simd", "avx", "multiple_accumulators", "polynomial_approximation"),
    )
)
"""Features that are worth seeing in code; of the others the name says it all."""
HEAVY = frozenset(("torch_matmul", "torch_convolution", "torch_attention", "torch_recurrent", "torch_sort"))
"""What decides how a kernel is built, where a reference has it; it counts :data:`WEIGHT` times."""
WEIGHT = 3
OTHER_DTYPE = 0.6
UNSAID = 0.5
"""Likeness of two operators of which torch does nothing that has a name."""
KINSHIP = (1.0, 0.5, 0.0)
"""Likeness of the same operator family, of its kin, of others."""
LEAST = 0.6
"""Likeness in kind and family, out of 2, below which a kernel is of another trade; kinship alone is too little."""
MOST = 1.5
"""Log2 gain of a search from which more counts no more."""


class Exemplars:
    """The kernels of a memory for one device architecture and language."""

    def __init__(self, memory: Memory, arch: str, language: str) -> None:
        self._memory = memory
        self._arch, self._language = arch, language

    def nearest(self, task_source: str, state: State, learnt: Sequence[Transition] = ()) -> Exemplar | None:
        """The kernel of an operator like that of ``task_source``, of several the one whose search gained most.

        None when there is none like it, or when the code at ``state`` has all the craft (:data:`CRAFT`) that it shows.

        Args:
            learnt: what other tasks of the run have done, on the same device and in the same language.
        """
        found = [one for one in learnt if one.kernel]
        mine, offered = kind(task_source), [*self._offered, *_offered(transition_rows(found))]
        worth = [_worth(row, mine, state) for row in offered]
        best = max(worth, default=(0.0, 0.0))
        if not best[0]:
            return None
        row = offered[worth.index(best)]
        if state.features and not (code_features(row["kernel"]).names & CRAFT) - state.features:
            return None
        return Exemplar(
            operator=str(row["task_id"]).rsplit("/", 1)[-1],
            speed=float(row["speed"]),
            source=row["kernel"],
            reference=row["reference"],
        )

    @cached_property
    def _offered(self) -> list[dict[str, Any]]:
        """Kernels of the memory, of this architecture and language only."""
        table = self._memory.table
        here = pc.and_(
            pc.equal(table["state_arch"].cast(pa.string()), self._arch),
            pc.equal(table["state_language"].cast(pa.string()), self._language),
        )
        return _offered(table.filter(pc.and_(here, pc.not_equal(table["kernel"], ""))))


def _offered(table: pa.Table) -> list[dict[str, Any]]:
    """Kernels among the rows of ``table``, with what their operators are made of.

    Each beats the baseline and what its search began with: what a first answer is, nobody needs to be shown.
    """
    speed, found = (pc.add(table["reward"], table[name]) for name in ("state_log2_speedup", "state_log2_progress"))
    sound = pc.and_(pc.not_equal(table["kernel"], ""), pc.greater_equal(table["weight"], TRUSTED))
    better = pc.and_(pc.greater(speed, 0.0), pc.greater_equal(found, LEAST_GAIN))
    shown = table.select(["task_id", "state_family", "state_dtype", "kernel", "reference"])
    rows = shown.append_column("speed", speed).append_column("found", found).filter(pc.and_(sound, better)).to_pylist()
    return [row | {"kind": kind(row["reference"])} for row in rows]


@functools.lru_cache(maxsize=4096)
def kind(reference: str) -> frozenset[str]:
    """What an operator is made of, as far as its reference leaves it to torch."""
    return frozenset(name for name in code_features(reference).names if name.startswith("torch_"))


def _worth(row: dict[str, Any], mine: frozenset[str], state: State) -> tuple[float, float]:
    """Likeness of operators times what the search for the kernel gained, and its speed to decide between equals."""
    alike = _alike(row["kind"], mine) + KINSHIP[nearness(row["state_family"], state.family)]
    dtype = 1.0 if row["state_dtype"] == state.dtype else OTHER_DTYPE
    return float((alike >= LEAST) * alike * dtype * min(MOST, row["found"])), float(row["speed"])


def _alike(one: frozenset[str], other: frozenset[str]) -> float:
    """Weighted share of what two operators have in common, 0 to 1."""
    return _weight(one & other) / _weight(one | other) if one | other else UNSAID


def _weight(kinds: frozenset[str]) -> int:
    return sum(WEIGHT if kind in HEAVY else 1 for kind in kinds)

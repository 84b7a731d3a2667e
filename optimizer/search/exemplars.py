"""Whole kernels that were verified on the device at hand, for other operators: what a memory has to show, not to say.

A plan tells that products moved to tensor cores; how to feed them, swizzle and accumulate takes a hundred lines that
were measured to work. A model that sees them can start where earlier runs ended.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc

from artifacts.device import UNKNOWN
from artifacts.features import code_features
from artifacts.memory.htg import Memory
from artifacts.memory.records import Transition
from artifacts.memory.tables import transitions_of
from artifacts.state import State
from artifacts.task_identity import operator_name
from optimizer.evaluation.guard.static import check_source
from optimizer.llm.prompt import Exemplar
from optimizer.search.cargo import nearness
from optimizer.search.ledger import LEAST_GAIN, TRUSTED
from optimizer.tasks import Task

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
LOOKED_AT = 20
"""Kernels that the guard is asked about at most, the nearest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A kernel that may be shown, with what its operator is made of and called.

    Attributes:
        made: the step that ended in it.
        speed, found: log2 of how much faster it is than eager, and than what its search began with.
    """

    made: Transition
    speed: float
    found: float
    kind: frozenset[str]
    operator: str


Ranked = tuple[tuple[float, float], Offer]
"""A kernel with what it is worth for a task."""


class Exemplars:
    """The kernels of a memory for one device architecture and language."""

    def __init__(self, memory: Memory, arch: str, language: str) -> None:
        self._memory = memory
        self._arch, self._language = arch, language
        self._backend = "cpu" if arch == "cpu" else "cuda"
        self._ranked: dict[tuple[str, str, str, str], list[Ranked]] = {}

    def nearest(self, task: Task, state: State, learnt: Sequence[Transition] = ()) -> Exemplar | None:
        """The kernel of another operator like that of ``task``, of several the one whose search gained most.

        None when there is none like it, or when the code at ``state`` has all the craft (:data:`CRAFT`) that it shows.

        Args:
            learnt: what other tasks of the run have done, on the same device and in the same language.
        """
        best = _first([*self._known(task, state), *_ranked(_offers(learnt), task, state)])
        shown = next((one for _, one in best if allowed(one.made.kernel, self._backend)), None)
        if shown is None or (state.features and not (code_features(shown.made.kernel).names & CRAFT) - state.features):
            return None
        name = shown.made.task.task_id.rpartition("/")[2]
        return Exemplar(operator=name, speed=shown.speed, source=shown.made.kernel, reference=shown.made.reference)

    def _known(self, task: Task, state: State) -> list[Ranked]:
        """The memory's kernels for a task, ranked once: nothing of their order depends on the candidate at hand."""
        key = (task.ref.task_id, task.source, state.family, state.dtype)
        if key not in self._ranked:
            self._ranked[key] = _first(_ranked(self._offered, task, state))
        return self._ranked[key]

    @cached_property
    def _offered(self) -> tuple[Offer, ...]:
        """Kernels of the memory, of this architecture and language only; unknown devices have nothing in common."""
        if self._arch == UNKNOWN:
            return ()
        table = self._memory.table
        here = pc.and_(
            pc.equal(table["state_arch"].cast(pa.string()), self._arch),
            pc.equal(table["state_language"].cast(pa.string()), self._language),
        )
        return tuple(_offers(transitions_of(table.filter(pc.and_(here, pc.not_equal(table["kernel"], ""))))))


def _offers(steps: Iterable[Transition]) -> Iterator[Offer]:
    """Kernels of ``steps`` that beat the baseline and what their search began with.

    What a first answer is, nobody needs to be shown.
    """
    for made in steps:
        gain, before = made.reward, made.state.log2_speedup
        if not made.kernel or gain is None or before is None or made.weight < TRUSTED:
            continue
        speed, found = before + gain, made.state.log2_progress + gain
        if speed > 0.0 and found >= LEAST_GAIN:
            operator = operator_name(made.task.task_id)
            yield Offer(made=made, speed=speed, found=found, kind=kind(made.reference), operator=operator)


def _ranked(offers: Iterable[Offer], task: Task, state: State) -> list[Ranked]:
    """Those of ``offers`` that are worth something for ``task`` and do not compute the very same."""
    mine, own = kind(task.source), operator_name(task.ref.task_id)
    found = [(_worth(one, mine, state), one) for one in offers if not _same(one, own, mine, task.source)]
    return [item for item in found if item[0][0]]


def _first(ranked: list[Ranked]) -> list[Ranked]:
    return sorted(ranked, key=lambda item: item[0], reverse=True)[:LOOKED_AT]


def _same(offer: Offer, operator: str, mine: frozenset[str], source: str) -> bool:
    """Whether a kernel computes the very task: by the operator's name in any suite, or by the text of the reference."""
    return offer.operator == operator or (offer.kind == mine and offer.made.reference.split() == source.split())


@functools.lru_cache(maxsize=4096)
def allowed(kernel: str, backend: str) -> bool:
    """Whether the guard would let a candidate like this run; other harnesses verify what leaves its work to torch."""
    return not any(finding.fatal for finding in check_source(kernel, backend))


@functools.lru_cache(maxsize=4096)
def kind(reference: str) -> frozenset[str]:
    """What an operator is made of, as far as its reference leaves it to torch."""
    return frozenset(name for name in code_features(reference).names if name.startswith("torch_"))


def _worth(offer: Offer, mine: frozenset[str], state: State) -> tuple[float, float]:
    """Likeness of operators times what the search for the kernel gained, and its speed to decide between equals."""
    there = offer.made.state
    alike = _alike(offer.kind, mine) + KINSHIP[nearness(there.family, state.family)]
    dtype = 1.0 if there.dtype == state.dtype else OTHER_DTYPE
    return (alike >= LEAST) * alike * dtype * min(MOST, offer.found), offer.speed


def _alike(one: frozenset[str], other: frozenset[str]) -> float:
    """Weighted share of what two operators have in common, 0 to 1."""
    return _weight(one & other) / _weight(one | other) if one | other else UNSAID


def _weight(kinds: frozenset[str]) -> int:
    return sum(WEIGHT if kind in HEAVY else 1 for kind in kinds)

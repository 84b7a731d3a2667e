"""Reference kernels: whole kernels that were verified on the device at hand, for other operators.

A plan says that products moved to tensor cores; how to feed them, swizzle and accumulate takes a hundred lines that
were measured to work. A model that sees them can start where earlier runs ended (docs/decisions/0010).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc

from artifacts.device import UNKNOWN
from artifacts.features import code_features
from artifacts.memory.htg import Memory
from artifacts.memory.records import Transition
from artifacts.memory.tables import transitions_of
from artifacts.task import operator_name
from artifacts.trajectory import State
from optimizer.evaluation.guard.static import check_source
from optimizer.prompting.device_experience import LEAST_GAIN, TRUSTED
from optimizer.tasks import Task

TECHNIQUES = frozenset(
    (
        *("tensor_core_wmma", "tensor_core_mma", "tensor_core_wgmma", "tma", "async_copy", "software_pipeline"),
        *("double_buffering", "swizzle", "register_tiling", "cache_blocking", "warp_specialization", "split_k"),
        *("persistent_kernel", "vector_load", "warp_shuffle", "block_reduce", "online_softmax", "welford", "scan"),
        *("omp_parallel", "omp_simd", "avx", "multiple_accumulators", "polynomial_approximation"),
    )
)
"""Techniques that are worth seeing in code; of the others the name says it all."""
HEAVY = frozenset(("torch_matmul", "torch_convolution", "torch_attention", "torch_recurrent", "torch_sort"))
"""What decides how a kernel is built, where a reference has it; it counts :data:`HEAVY_WEIGHT` times."""
LIGHT = frozenset(("torch_activation", "transposed"))
"""What goes along with anything else."""
ROWS = frozenset(("torch_softmax", "torch_normalization", "torch_reduction", "torch_loss"))
"""What is built alike: rows that are read, reduced and perhaps written; all of them have the part ``rows`` too."""
HEAVY_WEIGHT = 3
MOST_PROGRESS = 1.5
"""Log2 gain of a search from which more counts no more."""
LEAST_WORTH = 0.3
"""Likeness times progress from which a kernel is worth the length of a prompt: 1.23 times, were all of it to carry."""
CHECKED = 20
"""Kernels that the guard is asked about at most, the best first."""
_PRODUCT = re.compile(r"[\w)\]] *@ *\(?\w")
_TRANSPOSED = re.compile(r"ConvTranspose\dd|conv_transpose\dd")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceKernel:
    """A verified kernel to learn from.

    Attributes:
        operator: for which it was written; ``speed`` is log2(eager time / its time) there.
        reference: what it computes; empty where that is unknown.
        source: its code; ``transition_id`` is the step that made it.
    """

    operator: str
    speed: float
    source: str
    reference: str = ""
    transition_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedKernel:
    """A kernel that may be shown, with the name of its operator and the parts of torch that its reference calls.

    Attributes:
        step: the transition that ended in it.
        speed, progress: log2 of how much faster it is than eager, and than the first candidate of its search.
    """

    step: Transition
    speed: float
    progress: float
    parts: frozenset[str]
    operator: str

    def computes(self, task: Task) -> bool:
        """Whether it computes the very task: by the operator's name in any suite, or by the text of the reference."""
        if self.operator == operator_name(task.ref.task_id):
            return True
        return self.step.reference.split() == task.source.split()

    def worth(self, task: Task, state: State) -> tuple[bool, float, float]:
        """Whether it computes in the task's precision, likeness times progress of the search, and its speed."""
        there = self.step.state
        same = UNKNOWN in (there.dtype, state.dtype) or there.dtype == state.dtype
        likeness = _likeness(self.parts, parts(task.source), of_family=there.family == state.family)
        return same, likeness * min(MOST_PROGRESS, self.progress), self.speed


class ReferenceKernels:
    """The kernels of a memory for one device architecture and language."""

    def __init__(self, memory: Memory, arch: str, language: str) -> None:
        self._memory = memory
        self._arch, self._language = arch, language
        self._backend = "cpu" if arch == "cpu" else "cuda"
        self._ranked: dict[tuple[str, str, str, str], list[VerifiedKernel]] = {}

    def nearest(self, task: Task, state: State) -> ReferenceKernel | None:
        """The kernel of another operator that does what ``task`` needs, in its precision before others.

        Of several the one most like it whose search gained most. None when there is none worth its length, or when the
        code at ``state`` has every technique (:data:`TECHNIQUES`) of it.
        """
        kernels = self._of_memory(task, state)
        found = next((kernel for kernel in kernels if allowed(kernel.step.kernel, self._backend)), None)
        if found is None:
            return None
        step = found.step
        if state.features and not (code_features(step.kernel).names & TECHNIQUES) - state.features:
            return None
        return ReferenceKernel(
            operator=step.task.task_id.rpartition("/")[2],
            speed=found.speed,
            source=step.kernel,
            reference=step.reference,
            transition_id=step.transition_id,
        )

    def _of_memory(self, task: Task, state: State) -> list[VerifiedKernel]:
        """The memory's kernels for a task, ranked once: nothing of their order depends on the candidate at hand."""
        key = (task.ref.task_id, task.source, state.family, state.dtype)
        if key not in self._ranked:
            self._ranked[key] = _ranked(self._here, task, state)
        return self._ranked[key]

    @cached_property
    def _here(self) -> tuple[VerifiedKernel, ...]:
        """Kernels of this architecture and language only; unknown devices have nothing in common."""
        if self._arch == UNKNOWN:
            return ()
        table = self._memory.table
        here = pc.and_(
            pc.equal(table["state_arch"].cast(pa.string()), self._arch),
            pc.equal(table["state_language"].cast(pa.string()), self._language),
        )
        return tuple(_verified(transitions_of(table.filter(pc.and_(here, pc.not_equal(table["kernel"], ""))))))


@functools.lru_cache(maxsize=4096)
def allowed(kernel: str, backend: str) -> bool:
    """Whether the guard would let a candidate like this run; other harnesses verify what leaves its work to torch."""
    return not any(finding.fatal for finding in check_source(kernel, backend))


@functools.lru_cache(maxsize=4096)
def parts(reference: str) -> frozenset[str]:
    """What an operator is made of, as far as its reference leaves it to torch."""
    found = {name for name in code_features(reference).names if name.startswith("torch_")}
    found |= {"torch_matmul"} if _PRODUCT.search(reference) else set()
    found |= {"rows"} if found & ROWS else set()
    return frozenset(found | {"transposed"} if _TRANSPOSED.search(reference) else found)


def _verified(steps: Iterable[Transition]) -> Iterator[VerifiedKernel]:
    """Kernels of ``steps`` that beat eager and the first candidate of their search: a model finds that one itself."""
    for step in steps:
        gain, before = step.reward, step.state.log2_speedup
        if not step.kernel or gain is None or before is None or step.weight < TRUSTED:
            continue
        speed, progress = before + gain, step.state.log2_progress + gain
        if speed > 0.0 and progress >= LEAST_GAIN:
            operator = operator_name(step.task.task_id)
            yield VerifiedKernel(
                step=step, speed=speed, progress=progress, parts=parts(step.reference), operator=operator
            )


def _ranked(kernels: Iterable[VerifiedKernel], task: Task, state: State) -> list[VerifiedKernel]:
    """Those of ``kernels`` that are worth something for ``task`` and do not compute the very same, best first."""
    found = [(kernel.worth(task, state), kernel) for kernel in kernels if not kernel.computes(task)]
    able = sorted((item for item in found if item[0][1] >= LEAST_WORTH), key=lambda item: item[0], reverse=True)
    return [kernel for _, kernel in able[:CHECKED]]


def _likeness(one: frozenset[str], other: frozenset[str], *, of_family: bool) -> float:
    """Weighted share of what two operators have in common, 0 to 1; 0 where what decides their design differs.

    Where only light parts or none have a name, the families have to be the same.
    """
    core = _core(one) & _core(other)
    if not core:
        return float(of_family and not _core(one) | _core(other))
    return _weight(one & other) / _weight(one | other)


def _core(names: frozenset[str]) -> frozenset[str]:
    """What decides how a kernel for these parts is built."""
    return names & HEAVY or names - LIGHT


def _weight(names: frozenset[str]) -> int:
    return sum(HEAVY_WEIGHT if name in HEAVY else 1 for name in names)

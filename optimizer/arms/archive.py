"""Quality-diversity in the manner of KernelFoundry (arXiv 2603.12440): an archive over techniques and bound.

As published: a MAP-Elites archive over descriptors of memory, algorithm and synchronization keeps the fastest
candidate of each cell, and parents come from the archive, not from the fastest alone. Otherwise here: a descriptor
counts the techniques of its kind in the code, 0 to 2; what limits the candidate is a fourth axis; the parent is drawn
evenly from all cells, where the paper draws by the gradient of past gains; the prompts do not evolve. Template
parameters that the paper searches at the end are ``--tunables``. The paper takes 10 to 40 iterations a task.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from optimizer.arms.protocol import Arm, ArmContext, Choice, Member

AXES = {
    "memory": frozenset(
        (
            "shared_memory",
            "double_buffering",
            "swizzle",
            "vector_load",
            "prefetch",
            "async_copy",
            "tma",
            "software_pipeline",
            "register_tiling",
            "cache_blocking",
            "transposed_layout",
            "triton_block_pointer",
            "avx",
        )
    ),
    "algorithm": frozenset(
        (
            "online_softmax",
            "welford",
            "fused_epilogue",
            "winograd_or_fft",
            "im2col",
            "split_k",
            "early_exit",
            "weight_folding",
            "scan",
            "tensor_core_wmma",
            "tensor_core_mma",
            "tensor_core_wgmma",
            "triton_dot",
            "polynomial_approximation",
        )
    ),
    "synchronization": frozenset(
        (
            "warp_shuffle",
            "warp_vote",
            "block_reduce",
            "atomics",
            "cooperative_groups",
            "grid_sync",
            "persistent_kernel",
            "warp_specialization",
            "triton_reduce",
            "omp_parallel",
        )
    ),
}
"""Kind of technique → features of :data:`artifacts.features.FEATURES` that belong to it."""

MOST = 2
"""More techniques of a kind than this make no cell of their own."""

Cell = tuple[int, int, int, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveArm(Arm):
    """Starts from the fastest candidate of a cell that is drawn evenly."""

    name: str = "quality-diversity"

    def start(self, context: ArmContext) -> str:
        """An elite of the archive."""
        elites = sorted(archive(context.members).items())
        return context.draw("cell").choice(elites)[1].step_id if elites else context.parent

    def choose(self, context: ArmContext) -> Choice:
        """Leave the direction to the model."""
        return Choice(arm=self.name)


def archive(members: Iterable[Member]) -> dict[Cell, Member]:
    """Cell → its fastest candidate that may still be started from."""
    elites: dict[Cell, Member] = {}
    for member in members:
        held = elites.get(cell := cell_of(member))
        if member.alive and member.score is not None and (held is None or member.score > (held.score or 0.0)):
            elites[cell] = member
    return elites


def cell_of(member: Member) -> Cell:
    """How many techniques of each kind a candidate has, and what limits it."""
    memory, algorithm, synchronization = (min(len(names & member.features), MOST) for names in AXES.values())
    profile = member.measurement.profile
    return memory, algorithm, synchronization, "unknown" if profile is None else profile.bottleneck.value

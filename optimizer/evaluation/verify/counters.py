"""From Nsight Compute's table to what limits a candidate, in sentences of one line."""

from __future__ import annotations

import csv
import dataclasses
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from artifacts.measurement import Bottleneck, EvidenceLevel, Profile

_BUSY = 60.0
"""Per cent of peak from which a unit is what limits a kernel; below it everywhere, latency does."""
_IDLE_SHARE = 0.5
"""Kernels that fill less than this part of the measured time leave the rest to launches and the host."""
_FOREIGN_SHARE = 0.1
_LOW_OCCUPANCY = 40.0
_GOOD_HIT_RATE = 50.0


def with_counters(counted: Profile, kernels: Sequence[KernelCounters], time_us: float) -> Profile:
    """``counted`` with what the counters say.

    Args:
        counted: bound and fraction stay as they are.
        kernels: of one call, at least one.
        time_us: measured time of one call.
    """
    total = summed(kernels)
    own = [kernel for kernel in kernels if kernel.own]
    mine = summed(own) if own else total
    return dataclasses.replace(
        counted,
        bottleneck=bottleneck_of(mine, total["duration_ns"] / 1e3, time_us),
        evidence=EvidenceLevel.COUNTERS,
        findings=(*_time_spent(kernels, own, time_us), *_sentences(mine), *counted.findings),
        metrics=mine,
    )


def summed(kernels: Sequence[KernelCounters]) -> dict[str, float]:
    """One value a metric: sums, or means weighted by duration over the kernels that have it."""
    result = {}
    for name in METRICS:
        known = [
            (kernel.values[name], kernel.values["duration_ns"])
            for kernel in kernels
            if kernel.values.get(name) is not None
        ]
        if known and name in SUMMED:
            result[name] = sum(value for value, _ in known)
        elif known:
            result[name] = sum(value * weight for value, weight in known) / sum(weight for _, weight in known)
    return result


def bottleneck_of(mine: Mapping[str, float], kernels_us: float, time_us: float) -> Bottleneck:
    """What limits a call whose own kernels have the counters ``mine``.

    Args:
        kernels_us: time inside all kernels of the call; ``time_us``: of the whole call.
    """
    if kernels_us < _IDLE_SHARE * time_us:
        return Bottleneck.LAUNCH
    memory = max(mine.get("dram_percent", 0.0), mine.get("memory_percent", 0.0))
    compute = max(mine.get("sm_percent", 0.0), mine.get("tensor_percent", 0.0))
    if max(memory, compute) >= _BUSY:
        return Bottleneck.MEMORY if memory >= compute else Bottleneck.COMPUTE
    return Bottleneck.LATENCY if mine.keys() & {"dram_percent", "sm_percent"} else Bottleneck.UNKNOWN


def _time_spent(kernels: Sequence[KernelCounters], own: Sequence[KernelCounters], time_us: float) -> Iterator[str]:
    def duration(kernel: KernelCounters) -> float:
        return kernel.values["duration_ns"] / 1e3

    inside = sum(map(duration, kernels))
    longest = max(own or kernels, key=duration)
    yield (
        f"{_count(len(kernels), 'kernel')} a call, {inside:.1f} µs inside them;"
        f" the longest is {longest.name} with {duration(longest):.1f} µs"
    )
    foreign = inside - sum(map(duration, own))
    if foreign > _FOREIGN_SHARE * inside:
        yield f"kernels of torch and its libraries take {100 * foreign / inside:.0f} % of that"
    if inside < _IDLE_SHARE * time_us:
        share = 100 * inside / time_us
        yield f"the device waits for launches: kernels fill {share:.0f} % of the {time_us:.1f} µs measured"


def _sentences(mine: Mapping[str, float]) -> Iterator[str]:
    yield from _memory(mine)
    if "sm_percent" in mine:
        tensor = f", tensor cores at {mine['tensor_percent']:.0f} %" if "tensor_percent" in mine else ""
        yield f"multiprocessors at {mine['sm_percent']:.0f} % of their peak{tensor}"
    yield from _parallelism(mine)
    spilled = mine.get("local_load_sectors", 0.0) + mine.get("local_store_sectors", 0.0)
    if spilled:
        yield f"local memory in use ({spilled:.3g} sectors): registers spill, or an array is indexed at run time"


def _memory(mine: Mapping[str, float]) -> Iterator[str]:
    if "dram_percent" not in mine:
        return
    read, written = (mine.get(name, 0.0) / 1e6 for name in ("read_bytes", "written_bytes"))
    yield f"device memory at {mine['dram_percent']:.0f} % of its peak: {read:.1f} MB read, {written:.1f} MB written"
    if mine.get("memory_percent", 0.0) >= max(_BUSY, mine["dram_percent"] + 10):
        yield f"caches or shared memory at {mine['memory_percent']:.0f} % of their peak, more than device memory"
    if mine.get("l2_hit_percent", 0.0) >= _GOOD_HIT_RATE:
        yield f"{mine['l2_hit_percent']:.0f} % of L2 accesses hit"


def _parallelism(mine: Mapping[str, float]) -> Iterator[str]:
    if "occupancy_percent" in mine:
        registers = f" with {mine['registers']:.0f} registers a thread" if "registers" in mine else ""
        low = "only " if mine["occupancy_percent"] < _LOW_OCCUPANCY else ""
        yield f"{low}{mine['occupancy_percent']:.0f} % of the warps a multiprocessor can hold are active{registers}"
    if 0 < mine.get("waves", 1.0) < 1:
        yield f"the grid fills {mine['waves']:.2g} of one wave, so multiprocessors stay idle"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


METRICS = {
    "duration_ns": "gpu__time_duration.sum",
    "dram_percent": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "memory_percent": "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    "sm_percent": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "tensor_percent": "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active",
    "occupancy_percent": "sm__warps_active.avg.pct_of_peak_sustained_active",
    "l2_hit_percent": "lts__t_sector_hit_rate.pct",
    "read_bytes": "dram__bytes_read.sum",
    "written_bytes": "dram__bytes_write.sum",
    "registers": "launch__registers_per_thread",
    "local_load_sectors": "l1tex__t_sectors_pipe_lsu_mem_local_op_ld.sum",
    "local_store_sectors": "l1tex__t_sectors_pipe_lsu_mem_local_op_st.sum",
    "waves": "launch__waves_per_multiprocessor",
}
"""Our name → Nsight Compute's. ``memory`` is the busiest of DRAM, L2 and L1; local memory holds spilled registers."""

SUMMED = frozenset({"duration_ns", "read_bytes", "written_bytes", "local_load_sectors", "local_store_sectors"})
"""Added up over kernels; all others are averaged, weighted by duration."""


_HEAD = '"ID"'
_KERNEL = "Kernel Name"
_NAME_LIMIT = 60
_TORCHS_OWN = re.compile(
    r"\b(at|at_cuda_detail|c10|cub|thrust|cudnn|cutlass|cublasLt|internal)::"
    r"|^(void )?(sm\d+_xmma|(volta|turing|ampere|hopper)_\w*gemm|cutlass_|nvjet|cudnn_|cublas|gemmSN|implicit_convolve)"
)
"""Kernels that torch or a vendor library brings. A candidate's kernel of such a name is taken for one of theirs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCounters:
    """Counters of one launch.

    Attributes:
        name: plain function name, harmless to show.
        own: True for the candidate's kernels, False for those of torch and its libraries.
        values: by the names of :data:`METRICS`; what the device does not count is missing.
    """

    name: str
    own: bool
    values: Mapping[str, float]


class NoCountersError(ValueError):
    """The text holds no table of kernels; the message says what was found instead."""


def parse_table(text: str) -> tuple[KernelCounters, ...]:
    """Read what ``ncu --csv --page raw`` wrote, its own messages among it.

    Raises:
        NoCountersError: no table, no kernel in it, or a kernel without a duration.
    """
    lines = text.splitlines()
    start = next((number for number, line in enumerate(lines) if line.startswith(_HEAD)), None)
    if start is None:
        raise NoCountersError(complaint(lines))
    rows = list(csv.DictReader(line for line in lines[start:] if line.startswith('"')))
    kernels = tuple(_kernel(row) for row in rows if (row.get("ID") or "").isdigit())
    if not kernels:
        raise NoCountersError(complaint(lines))
    if not all(kernel.values.get("duration_ns", 0) > 0 for kernel in kernels):
        raise NoCountersError("the profiler counted kernels without a duration")
    return kernels


def complaint(lines: Iterable[str]) -> str:
    """The profiler's own reason, shortened: the line that names an error, else its last one."""
    said = [line.strip("= ").removeprefix("PROF").strip("= ") for line in lines if line.startswith("==")]
    errors = [line for line in said if "ERR" in line.upper()]
    return ([*errors, *said[-1:]] or ["the profiler said nothing"])[0][:200]


def plain_name(name: str) -> str:
    """Function name without template arguments and parameters; letters of identifiers only."""
    bare = re.sub(r"^void\s+", "", name.strip())
    bare = re.sub(r"[<(].*", "", bare.replace("(anonymous namespace)", "anonymous").replace("<unnamed>", "anonymous"))
    return re.sub(r"[^\w:]", "", bare)[-_NAME_LIMIT:] or "kernel"


def _kernel(row: Mapping[str, str]) -> KernelCounters:
    values = {ours: _number(row.get(theirs) or "") for ours, theirs in METRICS.items()}
    name = row.get(_KERNEL) or ""
    return KernelCounters(
        name=plain_name(name),
        own=not _TORCHS_OWN.search(name),
        values={ours: value for ours, value in values.items() if value is not None},
    )


def _number(text: str) -> float | None:
    """A value as the profiler prints it, thousands apart by commas; None for ``n/a`` and nothing."""
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    return value if math.isfinite(value) else None

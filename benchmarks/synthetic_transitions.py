"""Made-up raw transitions of any number, with the sizes and the duplication of real logs."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from artifacts.task import FAMILIES
from builder.describe.raw_transitions import RAW_TRANSITIONS
from builder.embed.encoders import Vectors

STEPS = 12
"""Steps of a trajectory, root left out."""
DISTINCT_TEXTS = 0.05
FEATURES = (
    *("shared_memory", "vector_load", "shuffle", "unroll", "launch_bounds", "fast_math", "restrict", "block_reduce"),
    *("grid_stride_loop", "fma", "multiple_kernels", "atomics", "half_precision", "tensor_core", "async_copy"),
)
IDEAS = (
    "vectorize global loads with float4 for {}",
    "stage tiles of {} in shared memory",
    "fuse the {} epilogue into the kernel",
    "use warp shuffles for the {} reduction",
    "tune the block size of the {} kernel",
    "unroll the inner loop over {}",
    "hide latency of {} with double buffering",
    "use half precision for {}",
    "replace {} by an algebraic simplification",
    "use one thread block per row of {}",
)


def raw_transitions(count: int, seed: int = 0) -> pa.Table:
    """``count`` raw transitions, in trajectories of :data:`STEPS` with three siblings a parent."""
    rng = np.random.default_rng(seed)
    rows = np.arange(count)
    trajectory, step = rows // STEPS, rows % STEPS
    parent = np.maximum(step // 3 - 1, -1)
    correct = rng.random(count) < 0.7
    reward = np.where(correct, rng.normal(0, 0.5, count), np.nan)
    parent_us = np.exp2(rng.normal(9, 2, count))
    ids = [f"synthetic:{t:07d}/{s}" for t, s in zip(trajectory, step, strict=True)]
    previous = [f"synthetic:{t:07d}/{p}" if p >= 0 else "" for t, p in zip(trajectory, parent, strict=True)]
    texts = _texts(count, rng)
    sets = _feature_sets(max(100, count // 200), rng)
    fragments = ["\n".join([f"float acc{i} = tile[threadIdx.x + {i}];"] * 12) for i in range(200)]
    columns: dict[str, object] = {
        "transition_id": ids,
        "trajectory_id": [f"synthetic:{t:07d}" for t in trajectory],
        "siblings": [f"synthetic:{t:07d}/{p}>" for t, p in zip(trajectory, parent, strict=True)],
        "task_id": [f"synthetic/1/{t % 2500}" for t in trajectory],
        "family": [FAMILIES[t % len(FAMILIES)] for t in trajectory],
        "state_family": [FAMILIES[t % len(FAMILIES)] for t in trajectory],
        "level": np.ones(count, np.int32),
        "outcome": np.where(correct, "correct", "wrong_result"),
        "reward": pa.array(reward, from_pandas=True),
        "expected": pa.nulls(count, pa.float64()),
        "weight": np.ones(count),
        "parent_us": parent_us,
        "child_us": pa.array(parent_us / np.exp2(reward), from_pandas=True),
        "plan": _pick(texts, rng, count),
        "error": np.where(correct, "", "values differ from the reference"),
        "parent_sha256": [hashlib.sha256(name.encode()).hexdigest() for name in previous],
        "child_sha256": [hashlib.sha256(name.encode()).hexdigest() for name in ids],
        "state_log2_speedup": rng.normal(0, 1.5, count),
        "state_log2_progress": rng.normal(0.5, 1, count),
        "state_runtime_us": parent_us,
        "state_step": step.astype(np.int32),
        "state_stagnation": (step % 4).astype(np.int32),
        "state_arch": _pick(["sm_80", "sm_90"], rng, count),
        "state_bottleneck": _pick(["memory", "compute", "unknown"], rng, count),
        "state_features": _pick(sets, rng, count),
        "added": _pick(sets[:50], rng, count),
        "fragment": np.where(reward > 0, _pick(fragments, rng, count), ""),
        "previous": previous,
        "provenance_line": rows,
    }
    return pa.table([_column(field, columns, count) for field in RAW_TRANSITIONS], schema=RAW_TRANSITIONS)


CONSTANT = {
    "repair": False,
    "source": "synthetic",
    "suite": "synthetic",
    "state_language": "cuda",
    "state_dtype": "float32",
    "state_size": "large",
    "provenance_importer_version": 1,
}


def _column(field: pa.Field, columns: dict[str, object], count: int) -> pa.Array:
    if field.name in columns:
        return pa.array(columns[field.name]).cast(field.type)
    value = CONSTANT.get(field.name, "" if not field.nullable else None)
    if value is None:
        return pa.nulls(count, field.type)
    return pa.array([value] * count).cast(field.type)


def _texts(count: int, rng: np.random.Generator) -> list[str]:
    distinct = max(50, int(count * DISTINCT_TEXTS))
    return [IDEAS[int(rng.integers(len(IDEAS)))].format(f"operand {number}") for number in range(distinct)]


def _feature_sets(count: int, rng: np.random.Generator) -> list[str]:
    return [" ".join(sorted(rng.choice(FEATURES, int(rng.integers(2, 9)), replace=False))) for _ in range(count)]


def _pick(values: Sequence[str], rng: np.random.Generator, count: int) -> np.ndarray:
    return np.array(values, object)[rng.integers(0, len(values), count)]


@dataclass(frozen=True, slots=True, kw_only=True)
class InstantEmbedder:
    """Vectors at no cost, near each other for the same idea: what is measured is everything beside embedding."""

    dimensions: int = 384

    @property
    def name(self) -> str:
        """Name in manifests."""
        return "instant"

    @property
    def sha256(self) -> str:
        """Nothing decides the vectors but the texts."""
        return "0" * 64

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Unit vectors around one centre an idea."""
        centres: dict[str, Vectors] = {}
        found = np.empty((len(texts), self.dimensions), np.float32)
        for row, text in enumerate(texts):
            idea = text.split(" ", 1)[0]
            if idea not in centres:
                centres[idea] = _unit(int(hashlib.sha256(idea.encode()).hexdigest()[:8], 16), self.dimensions)
            found[row] = centres[idea] + 0.5 * _unit(
                int(hashlib.sha256(text.encode()).hexdigest()[:8], 16), self.dimensions
            )
        found /= np.linalg.norm(found, axis=1, keepdims=True)
        return found


def _unit(seed: int, dimensions: int) -> Vectors:
    vector = np.random.default_rng(seed).standard_normal(dimensions).astype(np.float32)
    unit: Vectors = vector / np.linalg.norm(vector)
    return unit

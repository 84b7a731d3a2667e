"""Arrow schemas of a memory artifact.

Categories are dictionary columns and sets are space-separated sorted names in one dictionary column, because parents
are shared by siblings: a million transitions hold far fewer distinct feature sets. Any Parquet tool can read them.
"""

from __future__ import annotations

import pyarrow as pa

CATEGORY = pa.dictionary(pa.int32(), pa.string())
TEXT = pa.large_string()


def _list_of(kind: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", kind, nullable=False))


def _required(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


EFFECT = pa.struct(
    [_required(name, pa.float64()) for name in ("mean", "low", "high")]
    + [_required("n", pa.int64()), _required("effective_n", pa.float64()), _required("failures", pa.int64())]
)
CONDITION = pa.struct(
    [
        _required("field", pa.string()),
        _required("op", pa.string()),
        pa.field("text", pa.string()),
        pa.field("number", pa.float64()),
        _required("words", pa.string()),
    ]
)
EXCERPT = pa.struct(
    [_required("text", pa.string()), _required("transition_id", pa.string()), _required("gain", pa.float64())]
)

DIRECTIONS = pa.schema(
    [_required(name, pa.string()) for name in ("direction_id", "name", "description")]
    + [_required("effect", EFFECT), _required("resource", pa.string())]
)
STRATEGIES = pa.schema(
    [_required(name, pa.string()) for name in ("strategy_id", "direction_id", "name", "intent")]
    + [
        _required("when", _list_of(CONDITION)),
        _required("recipe", pa.string()),
        _required("template", pa.string()),
        _required("effect", EFFECT),
        _required("risks", _list_of(pa.string())),
        _required("evidence", _list_of(pa.string())),
        _required("risk_evidence", _list_of(_list_of(pa.string()))),
        _required("recipes", _list_of(EXCERPT)),
        _required("templates", _list_of(EXCERPT)),
    ]
)
TRANSITIONS = pa.schema(
    [
        _required("transition_id", TEXT),
        _required("source", CATEGORY),
        _required("trajectory_id", CATEGORY),
        _required("task_id", CATEGORY),
        _required("suite", CATEGORY),
        _required("family", CATEGORY),
        pa.field("level", pa.int32()),
        _required("device", CATEGORY),
        _required("llm", CATEGORY),
        _required("direction_id", CATEGORY),
        _required("strategy_id", CATEGORY),
        _required("outcome", CATEGORY),
        pa.field("reward", pa.float64()),
        pa.field("expected", pa.float64()),
        _required("weight", pa.float64()),
        _required("flags", CATEGORY),
        _required("siblings", TEXT),
        _required("parent_sha256", TEXT),
        _required("child_sha256", TEXT),
        pa.field("parent_us", pa.float64()),
        pa.field("child_us", pa.float64()),
        pa.field("choice_probability", pa.float64()),
        _required("plan", TEXT),
        _required("kernel", TEXT),
        _required("reference", TEXT),
        _required("error", TEXT),
        _required("state_family", CATEGORY),
        _required("state_arch", CATEGORY),
        _required("state_language", CATEGORY),
        _required("state_dtype", CATEGORY),
        _required("state_size", CATEGORY),
        _required("state_bottleneck", CATEGORY),
        pa.field("state_fraction_of_bound", pa.float64()),
        pa.field("state_log2_speedup", pa.float64()),
        _required("state_log2_progress", pa.float64()),
        pa.field("state_runtime_us", pa.float64()),
        pa.field("state_last_outcome", CATEGORY),
        _required("state_step", pa.int32()),
        _required("state_stagnation", pa.int32()),
        _required("state_features", CATEGORY),
        _required("state_history", CATEGORY),
        _required("provenance_format", CATEGORY),
        _required("provenance_importer_version", pa.int32()),
        _required("provenance_file", CATEGORY),
        _required("provenance_file_sha256", CATEGORY),
        pa.field("provenance_line", pa.int64()),
    ]
)
SOURCES = pa.schema(
    [_required(name, pa.string()) for name in ("source", "format", "file", "file_sha256")]
    + [_required(name, pa.int64()) for name in ("importer_version", "transitions", "measured", "failures")]
)
BATCH = 20_000
"""Records that are Python objects at one time while a table is written."""

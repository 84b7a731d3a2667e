"""Of the kernels that trajectories offer for others to adapt, the fastest of each task."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from builder.link.drafts import TRUSTED

TASK = ("source", "task_id", "state_arch", "state_language")
"""Rows that agree in these compete; sources do not, so that a filter on them leaves what the others have."""


def fastest_kernels(table: pa.Table) -> pa.Table:
    """``table`` with one trusted ``kernel`` left for each :data:`TASK`, so that sources grow with tasks, not with runs.

    Trust is asked for here too, because what a log gives is known before what other logs repeat of it.
    """
    trusted = pc.greater_equal(table["weight"], TRUSTED)
    offered = np.flatnonzero(np.asarray(pc.and_(pc.not_equal(table["kernel"], ""), trusted)))
    rows = table.select([*TASK, "transition_id", "reward", "state_log2_speedup"]).take(pa.array(offered))
    speed = pc.add(rows["reward"], rows["state_log2_speedup"])
    ranked = pa.table({name: rows[name].cast(pa.string()) for name in (*TASK, "transition_id")})
    ranked = ranked.append_column("speed", speed).append_column("row", pa.array(offered))
    ranked = ranked.sort_by([("speed", "descending"), ("transition_id", "ascending")])
    best = ranked.group_by(TASK, use_threads=False).aggregate([("row", "first")])["row_first"]
    kept = np.zeros(table.num_rows, np.bool_)
    kept[np.asarray(best)] = True
    for name in ("kernel", "reference"):
        place = table.schema.get_field_index(name)
        left = pc.if_else(pa.array(kept), table[name], pa.scalar("", table[name].type))
        table = table.set_column(place, table.schema.field(place), left)
    return table

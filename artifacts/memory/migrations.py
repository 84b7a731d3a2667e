"""Reading memories that older releases wrote: an ordered list of steps, each from one schema version to the next.

A step lifts the manifest and the tables. To change a column: change the schema in :mod:`artifacts.memory.schemas`, and
append to :data:`MIGRATIONS` what makes the old table of the new, e.g.
``Migration(tables={"transitions": (renamed("plan", "text"), added("seconds", pa.float64(), None))})``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from artifacts.errors import ArtifactError

ManifestStep = Callable[[dict[str, Any]], dict[str, Any]]
"""Takes a manifest as JSON data and gives a newer one."""
TableStep = Callable[[pa.Table], pa.Table]
"""Takes a table and gives a newer one; the order of the columns does not matter."""


def unchanged(manifest: dict[str, Any]) -> dict[str, Any]:
    """A manifest step that does nothing."""
    return manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """From one schema version to the next; ``tables`` holds steps by the name of the table, in their order."""

    manifest: ManifestStep = unchanged
    tables: Mapping[str, Sequence[TableStep]] = field(default_factory=dict)


def renamed(old: str, new: str) -> TableStep:
    """A step that gives the column ``old`` the name ``new``."""

    def step(table: pa.Table) -> pa.Table:
        return table.rename_columns([new if name == old else name for name in table.column_names])

    return step


def added(name: str, kind: pa.DataType, value: object) -> TableStep:
    """A step that appends a column that older releases did not know, with the same value in every row."""

    def step(table: pa.Table) -> pa.Table:
        plain = kind.value_type if pa.types.is_dictionary(kind) else kind
        return table.append_column(name, pa.array([value] * table.num_rows, plain))

    return step


def dropped(name: str) -> TableStep:
    """A step that takes away a column that newer releases do not know."""

    def step(table: pa.Table) -> pa.Table:
        return table.drop_columns([name])

    return step


MIGRATIONS: tuple[Migration, ...] = (
    Migration(tables={"transitions": tuple(added(name, pa.large_string(), "") for name in ("kernel", "reference"))}),
)
"""``MIGRATIONS[n - 1]`` lifts version n; a change of the manifest or of a table's columns appends one."""

SCHEMA_VERSION = len(MIGRATIONS) + 1
"""What this release writes."""


def migrated(manifest: Mapping[str, Any], where: str, migrations: Sequence[Migration] = MIGRATIONS) -> dict[str, Any]:
    """Lift ``manifest``; its ``schema_version`` stays, because it says what its tables are still to be lifted from.

    Raises:
        ArtifactError: the version is missing or newer than this release knows.
    """
    newest = len(migrations) + 1
    version = manifest.get("schema_version")
    if not isinstance(version, int) or isinstance(version, bool) or not 1 <= version <= newest:
        raise ArtifactError(
            f"{where}: schema version {version!r} is unknown (this release reads 1 to {newest})",
            "upgrade htam-kernels or rebuild the memory",
        )
    lifted = dict(manifest)
    for migration in migrations[version - 1 :]:
        lifted = migration.manifest(lifted)
    return lifted | {"schema_version": version}


def migrated_table(
    table: pa.Table, name: str, version: int, schema: pa.Schema, migrations: Sequence[Migration] = MIGRATIONS
) -> pa.Table:
    """Lift the table ``name`` of schema ``version``; a table of the newest version is given back as it is.

    Args:
        schema: what the newest version's columns are.

    Raises:
        KeyError, pa.ArrowException: what comes out is not of that schema.
    """
    steps = [step for migration in migrations[version - 1 :] for step in migration.tables.get(name, ())]
    for step in steps:
        table = step(table)
    return table.select(schema.names).cast(schema) if steps else table

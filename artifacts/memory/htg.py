"""The Hierarchical Transition Graph as it is used: columnar, immutable, filterable."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from artifacts.errors import BadInputError
from artifacts.memory import expectation
from artifacts.memory.columns import Bools, Columns, Floats, Rows, columns_of
from artifacts.memory.edges import computed
from artifacts.memory.effects import effects_by, learned_conditions
from artifacts.memory.expectation import Expectation, learned_correction
from artifacts.memory.manifest import Manifest
from artifacts.memory.records import Direction, Edge, Effect, Excerpt, Strategy, Transition
from artifacts.memory.schemas import canonical
from artifacts.memory.tables import transitions_of
from artifacts.task import operator_name

START = "start"
"""Node that the first step of a lineage comes from."""


@dataclass(frozen=True)
class Memory:
    """A loaded memory: directions, strategies, transitions as columns, and the manifest.

    Everything derived is computed on first use and kept; nothing is ever changed, so threads may share one memory.
    Not slotted because cached properties need a ``__dict__``.
    """

    manifest: Manifest
    directions: tuple[Direction, ...]
    strategies: tuple[Strategy, ...]
    table: pa.Table
    edges: tuple[Edge, ...] = ()

    def __len__(self) -> int:
        """Number of transitions."""
        return int(self.table.num_rows)

    @property
    def reference(self) -> str:
        """``name@version``, what runs record."""
        return f"{self.manifest.name}@{self.manifest.version}"

    @cached_property
    def columns(self) -> Columns:
        """Transitions as numpy columns."""
        return columns_of(
            self.table,
            tuple(direction.direction_id for direction in self.directions),
            tuple(strategy.strategy_id for strategy in self.strategies),
        )

    @cached_property
    def gains(self) -> Floats:
        """Gain of each transition in log2, NaN where nothing can be said."""
        return expectation.gains(self.columns)

    @cached_property
    def expectation(self) -> Expectation:
        """Model of the gain that the state predicts, fitted on this memory's transitions."""
        if self.manifest.expectation is not None:
            return self.manifest.expectation
        fitted = expectation.fit(self.columns, self.gains)
        return replace(fitted, correction=learned_correction(self.expected, self.gains, self.columns.weight))

    @cached_property
    def advantages(self) -> Floats:
        """Gain beyond the siblings' and what the state predicts, cross-fitted by task; NaN where there is no gain."""
        return self._credit[0]

    @cached_property
    def credit(self) -> Floats:
        """Weight of each transition in what is said of directions: its trust times how sure its contrast is."""
        return self.columns.weight * self._credit[1]

    @cached_property
    def expected(self) -> Floats:
        """Gain of each transition that its state predicts, by a model that never saw its operator.

        Not corrected, because a correction is learnt from these.
        """
        known = self.columns.expected
        if np.isnan(known[~np.isnan(self.gains)]).any():
            return expectation.cross_fitted(self.columns, self.gains)
        return known

    @cached_property
    def _credit(self) -> tuple[Floats, Floats]:
        return expectation.credited(self.columns, self.gains, self.expected)

    def direction(self, direction_id: str) -> Direction:
        """The direction of that id.

        Raises:
            BadInputError: no such direction.
        """
        for direction in self.directions:
            if direction.direction_id == direction_id:
                return direction
        raise BadInputError(f"no direction {direction_id!r} in {self.reference}", "see htam memory show")

    def strategy(self, strategy_id: str) -> Strategy:
        """The strategy of that id.

        Raises:
            BadInputError: no such strategy.
        """
        for strategy in self.strategies:
            if strategy.strategy_id == strategy_id:
                return strategy
        raise BadInputError(f"no strategy {strategy_id!r} in {self.reference}", "see htam memory show")

    def strategies_of(self, direction_id: str) -> tuple[Strategy, ...]:
        """Strategies under one direction."""
        return tuple(strategy for strategy in self.strategies if strategy.direction_id == direction_id)

    def rows_of(self, strategy_id: str) -> Iterator[Transition]:
        """Transitions of a strategy, as records."""
        return self.transitions(self.columns.strategy.values == self.columns.strategy.code(strategy_id))

    def transitions(self, mask: Bools | None = None) -> Iterator[Transition]:
        """Transitions as records, all or those under ``mask``."""
        return transitions_of(self.table if mask is None else self.table.filter(pa.array(mask)))

    def same_operators(self, task_ids: Iterable[str]) -> tuple[str, ...]:
        """Tasks of the memory whose operator is that of one of ``task_ids``, under whatever id."""
        wanted = {operator_name(task) for task in task_ids}
        return tuple(task for task in self.columns.task.names if operator_name(task) in wanted)

    def filter(
        self,
        *,
        exclude_tasks: Collection[str] = (),
        exclude_families: Collection[str] = (),
        exclude_sources: Collection[str] = (),
        min_trust: float = 0.0,
        device_discount: Mapping[str, float] | None = None,
    ) -> Memory:
        """A memory without some of its experience, every statistic computed anew.

        Args:
            exclude_tasks, exclude_families, exclude_sources: task ids, families and sources to forget; texts, code
                templates and risks that rest on forgotten transitions go with them.
            min_trust: transitions of lower weight are forgotten.
            device_discount: device architecture to a factor in 0..1 on the weight of its transitions.

        Raises:
            BadInputError: a source that the memory does not hold. Tasks and families may be unknown, because a run
                excludes its own tasks whether or not the memory has seen them.
        """
        columns = self.columns
        keep: Bools = columns.weight >= min_trust
        unknown = sorted(set(exclude_sources) - set(columns.source.names))
        if unknown:
            known = ", ".join(sorted(columns.source.names))
            raise BadInputError(f"the memory holds no source {unknown[0]!r}", f"its sources are {known}")
        keep &= ~columns.task.among(exclude_tasks)
        keep &= ~columns.categories["family"].among(exclude_families)
        keep &= ~columns.source.among(exclude_sources)
        return self.kept(keep, device_discount or {})

    def kept(self, keep: Bools, device_discount: Mapping[str, float] | None = None) -> Memory:
        """The memory of the rows under ``keep``."""
        return refreshed(self.rows(keep, device_discount))

    def rows(self, keep: Bools, device_discount: Mapping[str, float] | None = None) -> Memory:
        """The rows under ``keep`` as far as scoring looks; effects, conditions and texts stay those of all rows."""
        table = self.table
        if device_discount:
            arch = self.columns.categories["arch"]
            factors = np.array([*(device_discount.get(name, 1.0) for name in arch.names), 1.0])
            weights = pa.array(np.asarray(table["weight"]) * factors[arch.values])
            table = table.set_column(table.schema.get_field_index("weight"), table.schema.field("weight"), weights)
        table = table.filter(pa.array(keep))
        # What was fitted on rows that are now gone is computed anew on first use.
        nothing = pa.nulls(table.num_rows, pa.float64())
        table = table.set_column(table.schema.get_field_index("expected"), table.schema.field("expected"), nothing)
        # Canonical, so that no dictionary still names what was removed.
        manifest = replace(self.manifest, expectation=None)
        return replace(self, manifest=manifest, table=canonical(table))

    def relabelled(self, order: Rows) -> Memory:
        """For scoring only: row i has the direction and strategy of row ``order[i]``; tables stay as they are.

        What the state predicts does not depend on labels, so it is not fitted again.
        """
        columns = self.columns
        direction = replace(columns.direction, values=columns.direction.values[order])
        strategy = replace(columns.strategy, values=columns.strategy.values[order])
        found = replace(self, manifest=replace(self.manifest, expectation=self.expectation))
        found.__dict__.update(columns=replace(columns, direction=direction, strategy=strategy), expected=self.expected)
        return found


def refreshed(memory: Memory) -> Memory:
    """``memory`` with effects, conditions, texts and evidence that rest on the transitions it has now."""
    columns = memory.columns
    direction_effects = effects_by(columns, columns.direction.values.astype(np.int64), len(memory.directions))
    strategy_effects = effects_by(columns, columns.strategy.values.astype(np.int64), len(memory.strategies))
    alive = _alive(memory)
    rows = np.bincount(columns.strategy.values + 1, minlength=len(memory.strategies) + 1)[1:]
    strategies = tuple(
        _refreshed(memory, code, strategy, strategy_effects[code], alive)
        for code, strategy in enumerate(memory.strategies)
        if rows[code]
    )
    seen = np.bincount(columns.direction.values + 1, minlength=len(memory.directions) + 1)[1:]
    directions = tuple(
        replace(direction, effect=direction_effects[code])
        for code, direction in enumerate(memory.directions)
        if seen[code]
    )
    shown = {edge.excerpt.transition_id: edge.excerpt.text for edge in memory.edges if edge.excerpt is not None}
    return replace(
        memory, directions=directions, strategies=strategies, edges=computed(memory.table, memory.columns, shown)
    )


def _alive(memory: Memory) -> frozenset[str]:
    wanted: set[str] = set()
    for strategy in memory.strategies:
        wanted.update(strategy.evidence)
        wanted.update(excerpt.transition_id for excerpt in (*strategy.recipes, *strategy.templates))
        wanted.update(*strategy.risk_evidence)
    names = pa.array(sorted(wanted), pa.large_string())
    present = pc.is_in(names, value_set=memory.table["transition_id"].combine_chunks())
    return frozenset(names.filter(present).to_pylist())


def _refreshed(memory: Memory, code: int, strategy: Strategy, effect: Effect, alive: frozenset[str]) -> Strategy:
    recipes = tuple(item for item in strategy.recipes if item.transition_id in alive)
    templates = tuple(item for item in strategy.templates if item.transition_id in alive)
    risks = [
        (risk, kept)
        for risk, ids in zip(strategy.risks, strategy.risk_evidence, strict=True)
        if (kept := tuple(item for item in ids if item in alive))
    ]
    return replace(
        strategy,
        effect=effect,
        when=learned_conditions(memory.columns, memory.advantages, memory.columns.strategy.values == code),
        recipe=_best(recipes),
        template=_best(templates),
        recipes=recipes,
        templates=templates,
        risks=tuple(risk for risk, _ in risks),
        risk_evidence=tuple(ids for _, ids in risks),
        evidence=tuple(item for item in strategy.evidence if item in alive),
    )


def _best(excerpts: tuple[Excerpt, ...]) -> str:
    return excerpts[0].text if excerpts else ""

"""Clustering of drafts: equal actions are looked at once, however many steps took them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from builder.cluster import UNCLASSIFIED, Clustering, ClusterSettings, cluster
from builder.embed import Embedder
from builder.link.labels import Labels, Named


@dataclass(frozen=True, slots=True)
class TextAction:
    """A strategy text and the code difference that went with it."""

    text: str
    added: frozenset[str]
    removed: frozenset[str]


def grouped(drafts: pa.Table, embedder: Embedder, settings: ClusterSettings, workers: int = 1) -> Labels:
    """Directions and strategies of the drafts, with the texts read in ``workers`` processes; the rest is noise."""
    actions, row_action = distinct_actions(drafts)
    return labels(cluster(actions, embedder, settings, workers), row_action)


def distinct_actions(drafts: pa.Table) -> tuple[tuple[TextAction, ...], list[int]]:
    """Distinct actions in order of first use, and for each row the number of its action."""
    number: dict[tuple[str, str, str], int] = {}
    names = ("plan", "added", "removed")
    columns = [drafts[name].cast(pa.large_string()).combine_chunks().to_pylist() for name in names]
    rows = [number.setdefault(key, len(number)) for key in zip(*columns, strict=True)]
    actions = tuple(
        TextAction(text, frozenset(added.split()), frozenset(removed.split())) for text, added, removed in number
    )
    return actions, rows


def labels(found: Clustering, row_action: list[int]) -> Labels:
    """What clustering found, spread over the rows; a strategy without a direction is noise as well."""
    nodes = [node for node in found.strategies if _known(node.strategy_id) and _known(node.direction_id)]
    placed = {node.strategy_id for node in nodes}
    strategies = np.array(
        [item.strategy_id if item.strategy_id in placed else "" for item in found.assignments], object
    )
    directions = np.array([_known(item.direction_id) for item in found.assignments], object)
    return Labels(
        direction_ids=list(directions[row_action]),
        strategy_ids=list(strategies[row_action]),
        directions={
            node.direction_id: Named(name=node.name, description=node.description)
            for node in found.directions
            if _known(node.direction_id)
        },
        strategies={node.strategy_id: Named(name=node.name, description=node.description) for node in nodes},
        parents={node.strategy_id: node.direction_id for node in nodes},
        resources={node.direction_id: node.resource for node in found.directions},
    )


def _known(identity: str) -> str:
    return "" if identity == UNCLASSIFIED else identity

"""Group strategy texts into strategies and strategies into directions."""

from builder.cluster.clustering import PLAIN_TEXTS, cluster, cluster_texts
from builder.cluster.record import UNCLASSIFIED, Assignment, Clustering, DirectionNode, StrategyNode
from builder.cluster.settings import ClusterSettings, identity

__all__ = [
    "PLAIN_TEXTS",
    "UNCLASSIFIED",
    "Assignment",
    "ClusterSettings",
    "Clustering",
    "DirectionNode",
    "StrategyNode",
    "cluster",
    "cluster_texts",
    "identity",
]

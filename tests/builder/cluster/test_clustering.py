from __future__ import annotations

import multiprocessing
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from artifacts.features import FEATURES
from builder.cluster import UNCLASSIFIED, Assignment, Clustering, ClusterSettings, cluster, cluster_texts
from builder.cluster.scoring import feature_scores
from builder.cluster.taxonomy import seed_directions, seeds
from builder.embed import Embedder
from builder.link.grouping import TextAction

NEEDED = {
    "memory_access", "data_reuse", "parallel_mapping", "boundary_handling", "instruction_throughput", "algorithm",
    "fusion", "parameter_tuning", "precision", "launch_overhead", "correctness_fix",
}  # fmt: skip


def test_texts_go_to_the_strategies_they_mean(embedder: Embedder, texts: list[str], meant: list[str]) -> None:
    found = cluster_texts(texts, embedder)
    assert [item.strategy_id for item in found.assignments] == meant


def test_the_same_input_gives_the_same_clustering(embedder: Embedder, texts: list[str]) -> None:
    assert cluster_texts(texts, embedder) == cluster_texts(texts, embedder)


def test_texts_read_in_two_processes_give_the_same_clustering(embedder: Embedder, texts: list[str]) -> None:
    small = ClusterSettings(sample=3)
    described = [TextAction(text, frozenset(), frozenset()) for text in texts]
    assert cluster(described, embedder, small, workers=2) == cluster(described, embedder, small)


def test_order_and_repetition_do_not_change_an_assignment(embedder: Embedder, texts: list[str]) -> None:
    plain = dict(zip(texts, cluster_texts(texts, embedder).assignments, strict=True))
    shuffled = [*reversed(texts), *texts]
    again = cluster_texts(shuffled, embedder).assignments
    assert all(plain[text] == item for text, item in zip(shuffled, again, strict=True))


def test_a_text_about_something_else_stays_unclassified(embedder: Embedder) -> None:
    found = cluster_texts(["zebra violin marmalade"], embedder, ClusterSettings(known=0.9))
    assert found.assignments[0].strategy_id == UNCLASSIFIED
    assert found.directions[0].direction_id == UNCLASSIFIED


def test_a_group_that_the_taxonomy_does_not_know_becomes_a_strategy(embedder: Embedder) -> None:
    group = [f"zebra violin marmalade {word}" for word in ("one", "two", "three", "four", "five", "six")]
    found = cluster_texts(group, embedder, ClusterSettings(known=0.9, min_similarity=0.3, cohesion=0.3, resolution=1.0))
    names = {item.strategy_id for item in found.assignments}
    assert len(names) == 1
    strategy = found.strategies[0]
    assert not strategy.seeded
    assert "zebra" in strategy.name.lower() + strategy.description
    assert strategy.size == 6


def test_sizes_add_up_and_examples_come_from_the_input(embedder: Embedder, texts: list[str]) -> None:
    found = cluster_texts(texts, embedder)
    assert sum(node.size for node in found.strategies) == len(texts)
    assert {node.example for node in found.strategies} <= set(texts)


def test_no_texts_give_no_groups(embedder: Embedder) -> None:
    assert cluster_texts([], embedder) == Clustering(assignments=(), directions=(), strategies=())


def test_texts_beyond_the_sample_are_assigned_like_those_in_it(embedder: Embedder, texts: list[str]) -> None:
    whole = cluster_texts(texts, embedder).assignments
    part = cluster_texts(texts, embedder, ClusterSettings(sample=10)).assignments
    assert [item.strategy_id for item in part] == [item.strategy_id for item in whole]


def test_code_features_speak_for_the_strategies_that_promise_them() -> None:
    scores = feature_scores(frozenset({"vector_load"}), frozenset())
    best = {seeds()[index].strategy_id for index in range(len(seeds())) if scores[index] == scores.max()}
    assert "memory_access.vectorized_access" in best
    assert feature_scores(frozenset(), frozenset()).max() == 0.0


@given(st.frozensets(st.sampled_from(sorted(FEATURES))), st.frozensets(st.sampled_from(sorted(FEATURES))))
def test_feature_scores_lie_between_zero_and_one(added: frozenset[str], removed: frozenset[str]) -> None:
    scores = feature_scores(added, removed)
    assert scores.min() >= 0.0
    assert scores.max() <= 1.0


@given(st.lists(st.text(max_size=60), max_size=12))
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_texts_get_one_assignment_each(embedder: Embedder, texts: list[str]) -> None:
    assert len(cluster_texts(texts, embedder).assignments) == len(texts)


def test_the_taxonomy_has_the_directions_that_experts_name() -> None:
    assert set(seed_directions()) >= NEEDED
    assert {node.resource for node in seed_directions().values()} <= {"memory", "compute", "latency", "launch", ""}


def test_every_seed_speaks_for_itself() -> None:
    assert all(seed.examples and seed.terms and seed.description.endswith(".") for seed in seeds())
    assert len({seed.strategy_id for seed in seeds()}) == len(seeds())


@pytest.mark.parametrize(
    "make",
    [
        lambda: ClusterSettings(min_size=0),
        lambda: ClusterSettings(cohesion=1.5),
        lambda: ClusterSettings(resolution=0.0),
    ],
)
def test_impossible_settings_are_refused(make: Callable[[], ClusterSettings]) -> None:
    with pytest.raises(ValueError, match="must"):
        make()


def test_an_assignment_to_nowhere_is_refused() -> None:
    stray = Assignment(direction_id="a", strategy_id="a.b", score=1.0)
    with pytest.raises(ValueError, match="unknown strategy"):
        Clustering(assignments=(stray,), directions=(), strategies=())


def test_texts_are_read_in_turn_where_processes_may_have_none_of_their_own(
    embedder: Embedder, texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(multiprocessing.current_process().__dict__["_config"], "daemon", True)
    actions = [TextAction(text, frozenset(), frozenset()) for text in texts]
    settings = ClusterSettings(sample=max(2, len(texts) // 2))
    assert cluster(actions, embedder, settings, workers=2) == cluster(actions, embedder, settings)

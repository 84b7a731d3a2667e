from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from artifacts.features import FEATURES
from builder.cluster.clustering import LONGEST_NAME, MENDING, _name, cluster, cluster_texts
from builder.cluster.record import Action, ClusterSettings, Labels
from builder.cluster.scoring import feature_scores, seed_directions, seeds
from builder.describe.glossary import split_identifiers
from builder.embed.encoders import Embedder

NEEDED = {
    "memory_access", "data_reuse", "parallel_mapping", "boundary_handling", "instruction_throughput", "algorithm",
    "fusion", "parameter_tuning", "precision", "launch_overhead", "correctness_fix",
}  # fmt: skip


def test_texts_go_to_the_strategies_they_mean(embedder: Embedder, texts: list[str], meant: list[str]) -> None:
    found = cluster_texts(texts, embedder)
    assert found.strategy_ids == meant


def test_the_same_input_gives_the_same_clustering(embedder: Embedder, texts: list[str]) -> None:
    assert cluster_texts(texts, embedder) == cluster_texts(texts, embedder)


def test_order_and_repetition_do_not_change_an_assignment(embedder: Embedder, texts: list[str]) -> None:
    plain = dict(zip(texts, cluster_texts(texts, embedder).strategy_ids, strict=True))
    shuffled = [*reversed(texts), *texts]
    again = cluster_texts(shuffled, embedder).strategy_ids
    assert all(plain[text] == item for text, item in zip(shuffled, again, strict=True))


def test_a_text_about_something_else_stays_unclassified(embedder: Embedder) -> None:
    found = cluster_texts(["zebra violin marmalade"], embedder, ClusterSettings(known=0.9))
    assert (found.direction_ids, found.strategy_ids) == ([""], [""])
    assert found.directions == found.strategies == ()


def test_a_group_that_the_taxonomy_does_not_know_becomes_a_strategy(embedder: Embedder) -> None:
    group = [f"zebra violin marmalade {word}" for word in ("one", "two", "three", "four", "five", "six")]
    found = cluster_texts(group, embedder, ClusterSettings(known=0.9, min_similarity=0.3, cohesion=0.3, resolution=1.0))
    (strategy,) = found.strategies
    assert found.strategy_ids == [strategy.strategy_id] * 6
    assert "zebra" in strategy.name.lower() + strategy.description


def test_no_texts_give_no_groups(embedder: Embedder) -> None:
    assert cluster_texts([], embedder) == Labels(direction_ids=[], strategy_ids=[], directions=(), strategies=())


def test_texts_beyond_the_sample_are_assigned_like_those_in_it(embedder: Embedder, texts: list[str]) -> None:
    part = cluster_texts(texts, embedder, ClusterSettings(sample=10))
    assert part.strategy_ids == cluster_texts(texts, embedder).strategy_ids


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
    assert len(cluster_texts(texts, embedder).strategy_ids) == len(texts)


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


def test_an_identifier_says_what_its_words_say(embedder: Embedder) -> None:
    """``tune_block_size`` was once taken for a diagnosis."""
    found = cluster_texts(["tune_block_size", "tune block size"], embedder)
    assert found.direction_ids == ["parameter_tuning"] * 2
    assert split_identifiers("useSharedMemory in conv_kernel") == "use Shared Memory in conv_kernel"


def test_a_step_from_a_correct_parent_mends_nothing(embedder: Embedder) -> None:
    text = "Fix the compile error: declare the binding of the function"
    mending, other = (Action(text, mends=mends) for mends in (True, False))
    first, second = cluster([mending, other], embedder).direction_ids
    assert first in MENDING
    assert second not in MENDING


def test_library_calls_and_folded_weights_are_no_launch_overhead(embedder: Embedder) -> None:
    found = cluster_texts(["Introduce weight folding.", "Call cuBLAS for the product", "Use channels last"], embedder)
    assert set(found.direction_ids) == {"library"}


def test_a_first_kernel_is_named_as_one(embedder: Embedder) -> None:
    text = "Write an own cuda kernel; introduce shared memory, block 2d, unroll."
    assert cluster_texts([text], embedder).direction_ids == ["own_kernel"]


def test_what_no_direction_covers_becomes_one_with_a_name_that_can_be_read(embedder: Embedder) -> None:
    texts = [f"Replaced zorgon quibbling by vornal quibbling, variant {number} of the garden" for number in range(6)]
    loose = ClusterSettings(known=0.9, min_similarity=0.3, cohesion=0.3)
    found = cluster_texts(texts, embedder, loose)
    (direction,) = found.directions
    assert direction.direction_id.startswith("found_")
    assert direction.name == found.strategies[0].name
    assert "Replaced" not in direction.name.split()
    assert len(direction.name) <= LONGEST_NAME


def test_a_name_ends_with_a_word(embedder: Embedder) -> None:
    name = _name((), "drop torch_matmul, torch_convolution and whatever else the module had of its own in there")
    assert name == "Drop torch matmul"
    assert _name((), "x" * 30 + " " + "y" * 30) == "X" + "x" * 29

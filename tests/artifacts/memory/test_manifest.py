from dataclasses import replace

from artifacts.memory.manifest import Manifest, RankingQuality, moved

DIRECTIONS = RankingQuality(
    level="direction",
    decision_points=26,
    regret=0.08336,
    regret_no_direction=0.09252,
    ndcg=0.8303,
    margin=0.099,
    margin_interval=(-0.59, 0.678),
)
MANIFEST = Manifest(name="demo", quality=(DIRECTIONS,))


def test_a_level_is_one_line() -> None:
    assert DIRECTIONS.line == (
        "directions, 26 held-out choices: regret 0.083 log2, no direction 0.093, saved +10% [-59%, +68%], ndcg 0.830"
    )


def test_what_is_not_known_is_left_out() -> None:
    bare = replace(DIRECTIONS, ndcg=None, margin=None, margin_interval=None)
    assert bare.line == "directions, 26 held-out choices: regret 0.083 log2, no direction 0.093"
    assert replace(DIRECTIONS, margin_interval=None).saved == "+10%"


def test_the_same_figures_have_not_moved() -> None:
    assert moved(MANIFEST, replace(MANIFEST, parent="other")) == ()


def test_what_moved_names_both_sides() -> None:
    better = replace(DIRECTIONS, regret=0.03, decision_points=28)
    (line,) = moved(MANIFEST, replace(MANIFEST, quality=(better,)))
    assert "regret 0.083 → 0.030 (no direction 0.093 → 0.093), 26 → 28 choices" in line


def test_a_level_that_one_side_lacks_has_not_moved() -> None:
    assert moved(Manifest(name="demo"), MANIFEST) == ()

from artifacts.memory.replay_figures import moved, replay_figures

QUALITY = {
    "direction.occasions": 26.0,
    "direction.regret": 0.08336,
    "direction.regret_state_only": 0.09252,
    "direction.ndcg": 0.8303,
    "direction.saving_over_state_only": 0.099,
    "direction.saving_over_state_only_low": -0.59,
    "direction.saving_over_state_only_high": 0.678,
}


def test_a_level_is_one_line() -> None:
    (found,) = replay_figures(QUALITY)
    assert found.line == (
        "directions, 26 held-out choices: regret 0.083 log2, state alone 0.093, saved +10% [-59%, +68%], ndcg 0.830"
    )


def test_a_level_without_regret_has_no_line() -> None:
    assert replay_figures({"direction.ndcg": 0.8, "anything": 1.0}) == ()


def test_the_same_figures_have_not_moved() -> None:
    assert moved(QUALITY, dict(QUALITY)) == ()


def test_what_moved_names_both_sides() -> None:
    (line,) = moved(QUALITY, QUALITY | {"direction.regret": 0.03, "direction.occasions": 28.0})
    assert "regret 0.083 → 0.030 (state alone 0.093 → 0.093), 26 → 28 choices" in line


def test_a_level_that_one_side_lacks_has_not_moved() -> None:
    assert moved({}, QUALITY) == ()

"""Speeds of ranks that a move contradicts are not said."""

from pipeline.rebalancing.rank_comparison import RankComparison


def compared():
    ranks = RankComparison(has_profile=False)
    ranks.holds = True
    return ranks


def test_a_profile_is_believed():
    ranks = RankComparison(has_profile=True)
    assert ranks.see([1, 1], [0, 2, 4], [0, 1])
    assert ranks.see([3, 1], [0, 3, 4], [0, 1])


def test_layers_that_cost_less_elsewhere_contradict():
    """Three layers of 1 s and 3 of 3 s: one moves, and takes 1 s."""
    ranks = compared()
    assert ranks.see([1, 1], [0, 3, 6], [0, 1])
    assert not ranks.see([(3 + 3) / (3 + 1), 1], [0, 4, 6], [0, 1])
    assert "rank 0 computes layers of others 1.50 times as fast" in ranks.reason
    # It stays so, wherever layers go.
    assert not ranks.see([1, 1], [0, 3, 6], [0, 1])


def test_layers_that_cost_as_much_elsewhere_agree():
    ranks = compared()
    assert ranks.see([1, 1 / 3, 1], [0, 3, 6, 9], [0, 1, 2])
    assert ranks.see([1.1, 0.3, 0.9], [0, 4, 5, 9], [0, 1, 2])
    assert ranks.reason == ""


def test_a_host_that_becomes_slow_and_recovers_does_not_contradict():
    ranks = compared()
    assert ranks.see([0.5, 1], [0, 4, 8], [0, 1])
    assert ranks.see([0.5, 1], [0, 3, 8], [0, 1])
    # It has recovered, with its own layers, and then gets others.
    assert ranks.see([1.0, 1], [0, 3, 8], [0, 1])
    assert ranks.see([1.0, 1], [0, 5, 8], [0, 1])


def test_all_stages_of_a_rank_count():
    ranks = compared()
    assert ranks.see([1, 1], [0, 2, 4, 6, 8], [0, 1, 1, 0])
    assert ranks.see([1.5, 1], [0, 1, 4, 7, 8], [0, 1, 1, 0])
    assert not ranks.see([1.5, 2.5], [0, 1, 4, 7, 8], [0, 1, 1, 0])

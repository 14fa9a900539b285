"""What the benchmark of rebalancing compares."""

from benchmarks.rebalancing import PHASE, SETTLED, WAYS, are_equal, n_iterations


def test_a_run_has_time_to_settle_before_the_host_recovers():
    slow, fast, end = n_iterations(20)
    assert slow % 20 == 0
    assert slow + SETTLED * 20 < fast < end
    assert fast - slow == end - fast == PHASE * 20


def test_runs_are_equal_bit_for_bit_or_not():
    one = {"losses": ["0x1p0"], "digest": "ab"}
    assert are_equal({way: [one, dict(one)] for way in WAYS})
    other = {**one, "digest": "ac"}
    assert not are_equal({"kept": [one], "rebalanced": [other]})
    other = {**one, "losses": ["0x1.1p0"]}
    assert not are_equal({"kept": [one], "rebalanced": [one, other]})

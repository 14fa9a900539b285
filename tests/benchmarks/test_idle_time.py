"""The idle time that the benchmark predicts, against the formulas of the schedules."""

import pytest

from benchmarks.idle_time import N_HOSTS, N_MICROBATCHES, simulated

BUSY = 3 * N_MICROBATCHES


@pytest.mark.parametrize(
    "name, wait, ends",
    [
        # All hosts but the last begin and end with a part of the bubble.
        ("1f1b", 3 * (N_HOSTS - 1), [9, 6, 3, 0]),
        ("zb_h1", N_HOSTS - 1, [3, 2, 1, 0]),
        ("zb_h2", N_HOSTS - 1, [0, 0, 0, 0]),
    ],
)
def test_idle_time_is_that_of_the_bubble(name, wait, ends):
    found = simulated(name, 5)
    # The last minibatch ends for each host at its own last action.
    span = 4 * (BUSY + wait) + BUSY + sum(ends) / N_HOSTS
    assert found["waits"] == pytest.approx(1 - 5 * BUSY / span)


def test_only_schedules_with_work_for_the_gap_gain():
    for name in ("zb_h2", "zb_v"):
        assert simulated(name, 4)["overlaps"] == pytest.approx(0, abs=1e-12)
    for name in ("1f1b", "zb_h1"):
        found = simulated(name, 4)
        assert found["overlaps"] == pytest.approx(found["waits"])

"""What stages compute in the steps of plans."""

from benchmarks.common.plans import stage_seconds
from divisible.schedules.timeline import Timeline


def test_stages_of_one_rank_are_apart():
    first = [(0, "0F0", 0, 2), (0, "0F1", 2, 4.5), (0, "2F0", 7, 8)]
    second = [(1, "1F0<0", 0, 3), (1, "1F0", 3, 4), (1, "1B0", 4, 6)]
    assert stage_seconds(Timeline(first + second)) == [4.5, 3.0, 1.0]

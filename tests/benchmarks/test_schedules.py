"""What the table of all schedules says of their targets."""

import pytest

from benchmarks.schedules import TARGETS, verdicts
from divisible.schedules.catalogue import CATALOGUE

BASE = {"seconds": [2.0, 4.0, 2.0], "held": 4.0}


def test_schedules_with_targets_are_in_the_catalogue():
    assert TARGETS.keys() <= CATALOGUE.keys()


@pytest.mark.parametrize(
    "seconds, held, word",
    [
        ([2.0, 3.9, 1.9], 3.0, "met"),
        ([2.2, 3.9, 2.1], 3.0, "MISSED"),
        ([1.0, 1.0, 1.0], 3.5, "MISSED"),
    ],
)
def test_time_and_memory_both_count(seconds, held, word):
    found = {"1f1b": BASE, "v_half": {"seconds": seconds, "held": held}}
    (line,) = verdicts(found, n_hosts=4)
    assert line.startswith("v_half: ") and line.endswith(f"wanted 3: {word}")


def test_without_the_base_there_is_no_verdict():
    assert verdicts({"v_half": BASE}, n_hosts=4) == []

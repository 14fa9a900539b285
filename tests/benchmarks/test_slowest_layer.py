"""What the slowest layer allows."""

import numpy as np
import pytest

from benchmarks.paper_tables.points import Point
from benchmarks.slowest_layer import bound, layer_seconds, seconds_in_step
from divisible import LayerCost, Profile


def test_layers_share_the_seconds_of_their_stage():
    found = seconds_in_step([10.0, 2.0, 4.0], [0, 1, 3], [9.0, 18.0])
    assert found.tolist() == [9.0, 6.0, 12.0]


def test_no_schedule_is_faster_than_the_slowest_layer_or_all_hosts():
    assert bound(np.array([1.0, 5.0, 2.0]), 4) == 5.0
    assert bound(np.array([1.0, 5.0, 2.0]), 1) == 8.0


def test_layers_take_all_microbatches():
    profiles = [
        Profile([LayerCost(n, n, 2 * n), LayerCost(0, n, 0)], n) for n in (1, 8)
    ]
    # Microbatches of 3, 3 and 2 samples.
    seconds = layer_seconds(Point("mlp", 4, 8, 2, 3), profiles)
    assert seconds == pytest.approx([4 * 8, 8])

"""Slices and lanes: everything is added up once, on each node by one replica."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_parallel.nodes import lanes_of, nodes_of, shares, slices_of

some = st.integers(1, 9)


@given(some, some)
def test_each_replica_is_on_one_node(n_replicas, local_size):
    nodes = nodes_of(n_replicas, local_size)
    assert [r for node in nodes for r in node] == list(range(n_replicas))
    assert all(len(node) == local_size for node in nodes[:-1])
    assert 1 <= len(nodes[-1]) <= local_size


@given(st.lists(some, min_size=1, max_size=5))
def test_each_lane_has_a_replica_on_each_node(sizes):
    ends = np.cumsum(sizes)
    nodes = [tuple(range(end - size, end)) for size, end in zip(sizes, ends)]
    lanes = lanes_of(nodes)
    assert len(lanes) == max(sizes)
    for number, node in enumerate(nodes):
        served = [lane[number] for lane in lanes]
        # All of a node take part, about as often.
        counts = [served.count(replica) for replica in node]
        assert sum(counts) == len(lanes)
        assert max(counts) - min(counts) <= 1


@given(st.integers(0, 1000), st.sampled_from([1, 16, 48]), some)
def test_slices_are_whole_blocks_and_about_equal(n, block, n_parts):
    slices = slices_of(n, block, n_parts)
    assert len(slices) == n_parts
    assert slices[0].start == 0 and slices[-1].stop == n
    for one, other in zip(slices, slices[1:]):
        assert one.stop == other.start
        assert one.stop % block == 0 or one.stop == n
    blocks = [-(-(part.stop - part.start) // block) for part in slices]
    assert max(blocks) - min(blocks) <= 1


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=9))
def test_shares_add_up_to_one(counts):
    if not sum(counts):
        with pytest.raises(ValueError, match="must have a number of samples"):
            shares(counts, len(counts))
        return
    found = shares(counts, len(counts))
    assert all(share.dtype == np.float32 for share in found)
    assert [share > 0 for share in found] == [count > 0 for count in counts]
    assert sum(map(float, found)) == pytest.approx(1, rel=1e-6)


def test_shares_without_samples_are_equal():
    assert shares(None, 4) == [np.float32(0.25)] * 4


@pytest.mark.parametrize("counts", [[1], [1, 2, 3], [1, -1], [3, -1]])
def test_shares_that_are_refused(counts):
    with pytest.raises(ValueError, match="for each of 2 replicas"):
        shares(counts, 2)

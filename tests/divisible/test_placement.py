import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_parallel import simulate_exchange
from divisible.communication.wire import WIRE
from divisible.placement import (
    PLACEMENTS,
    Traffic,
    cheaper_placement,
    placement_by_hosts,
    placement_seconds,
)


def pipeline(n, activations, gradients, exact=None):
    """Traffic of ranks that all send alike."""
    messages = {}
    for rank in range(n - 1):
        messages[rank, rank + 1] = messages[rank + 1, rank] = activations
    return Traffic(messages, [gradients] * n, [exact or 4 * gradients] * n)


def test_two_replicas_of_two_stages_on_two_hosts():
    traffic, hosts = pipeline(2, activations=10, gradients=30), "aabb"
    # Both ranks of a host send a half of their gradients twice.
    assert placement_seconds("stages_together", traffic, hosts) == 2 * 30
    # Two replicas, each of which sends activations one way, gradients the other.
    assert placement_seconds("replicas_together", traffic, hosts) == 2 * 10
    assert cheaper_placement(traffic, hosts) == "replicas_together"
    # Within a host float32 goes twice, the sum and what is added up.
    slow = {"within": 1.0, "between": 10.0}
    assert placement_seconds("stages_together", traffic, hosts, **slow) == 6 + 20
    assert placement_seconds("replicas_together", traffic, hosts, **slow) == 2 + 240
    assert cheaper_placement(traffic, hosts, **slow) == "stages_together"


@given(st.integers(1, 4), st.integers(1, 4), st.floats(0, 1e9), st.floats(0, 1e9))
def test_on_one_host_or_one_rank_each_there_is_nothing_to_choose(n, r, a, g):
    traffic = pipeline(n, a, g)
    for hosts in ([0] * (n * r), list(range(n * r))):
        one, other = (placement_seconds(name, traffic, hosts) for name in PLACEMENTS)
        assert one == pytest.approx(other)
        assert cheaper_placement(traffic, hosts) in PLACEMENTS
    assert cheaper_placement(traffic, [0] * (n * r)) == "stages_together"
    assert placement_seconds("stages_together", traffic, [0] * (n * r)) == 0


@given(
    st.integers(2, 4),
    st.integers(2, 4),
    st.floats(1, 1e9),
    st.floats(1, 1e9),
    st.floats(1, 100),
)
def test_more_activations_keep_stages_together(n, r, activations, gradients, more):
    hosts = [rank // n for rank in range(n * r)]
    before = cheaper_placement(pipeline(n, activations, gradients), hosts)
    after = cheaper_placement(pipeline(n, more * activations, gradients), hosts)
    if before == "stages_together":
        assert after == "stages_together"


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=12), st.integers(1, 4))
def test_by_hosts_fewer_gradients_cross(hosts, n):
    if len(hosts) % n:
        with pytest.raises(ValueError, match=f"make no pipelines of {n}"):
            placement_by_hosts(hosts, n)
        return
    chosen = placement_by_hosts(hosts, n)
    for activations, gradients in [(0, 1), (1e-6, 1)]:
        traffic = pipeline(n, activations, gradients)
        best = min(placement_seconds(name, traffic, hosts) for name in PLACEMENTS)
        assert placement_seconds(chosen, traffic, hosts) == pytest.approx(best, 1e-5)


@pytest.mark.parametrize("wire", ["fp32", "int8"])
@pytest.mark.parametrize(("n_hosts", "local_size"), [(2, 1), (2, 2), (3, 2), (4, 4)])
def test_what_leaves_a_host_is_what_the_exchange_sends(wire, n_hosts, local_size):
    n = 256 * n_hosts * local_size * 3
    gradients = [np.zeros(n, np.float32)] * (n_hosts * local_size)
    sent = simulate_exchange(
        gradients, exchange_dtype=wire, local_size=local_size
    ).sent_bytes
    traffic = pipeline(1, 0, WIRE[wire].n_bytes(n, 256))
    hosts = [rank // local_size for rank in range(len(gradients))]
    leaving = placement_seconds("stages_together", traffic, hosts)
    assert leaving == pytest.approx(local_size * sent)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"placement": "apart"}, "placement must be 'stages_together' or 'replicas"),
        ({"hosts": "aab"}, "hosts are of 3 ranks, which make no pipelines of 2"),
        ({"hosts": ""}, "hosts are of 0 ranks"),
        ({"between": 0.0}, "bandwidths must be positive, not inf and 0.0"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments, message):
    given = {
        "placement": "stages_together",
        "traffic": pipeline(2, 1, 1),
        "hosts": "aabb",
        **arguments,
    }
    with pytest.raises(ValueError, match=message):
        placement_seconds(**given)

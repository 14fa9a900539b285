import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_parallel import simulate_exchange
from divisible import Plan
from divisible.communication.wire import WIRE
from divisible.planning.placement import (
    Traffic,
    cheaper_placement,
    placement_seconds,
)
from divisible.planning.plan import StagePlan
from divisible.rank_grid import PLACEMENTS


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


@pytest.mark.parametrize("wire", ["fp32", "int8"])
@pytest.mark.parametrize(("n_hosts", "local_size"), [(2, 1), (2, 2), (3, 2), (4, 4)])
def test_what_leaves_a_host_is_what_the_exchange_sends(wire, n_hosts, local_size):
    n = 256 * n_hosts * local_size * 3
    gradients = [np.zeros(n, np.float32)] * (n_hosts * local_size)
    sent = simulate_exchange(gradients, wire, local_size=local_size).sent_bytes
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


def plan_of(output_bytes, n_gradients, **options):
    n = options.pop("n_stages", 2)
    stage = StagePlan(1.0, 0.0, 0, None, output_bytes, n_gradients)
    options = {"schedule": "1f1b", "replicas": 2, **options}
    return Plan(range(n + 1), 4, stages=[stage] * n, **options)


def test_a_plan_knows_what_its_ranks_send():
    hosts = ["a", "a", "b", "b"]
    # 4 microbatches of 1000 bytes, for two replicas, against two ranks' gradients.
    assert plan_of(1000, 900).placement(hosts) == "stages_together"
    assert plan_of(1000, 1100).placement(hosts) == "replicas_together"
    # In 8 bits gradients are a quarter.
    assert plan_of(1000, 1100, wire_dtype="int8").placement(hosts) == "stages_together"
    assert plan_of(1, 5000, wire_dtype="int8").placement(hosts) == "replicas_together"


def test_stages_of_one_rank_send_each_other_nothing():
    """In a V the middle stages share a rank, and the last one lies on the first."""
    options = {"n_stages": 4, "schedule": "zb_v", "stages_per_rank": 2}
    # Two edges between the ranks, and two stages' gradients of each.
    assert plan_of(1000, 900, **options).placement("aabb") == "stages_together"
    assert plan_of(1000, 1100, **options).placement("aabb") == "replicas_together"


def test_a_plan_that_does_not_say_what_it_sends():
    with pytest.raises(ValueError, match="does not say what its stages send"):
        Plan([0, 1, 2], 4, replicas=2).placement("aabb")
    with pytest.raises(ValueError, match="is for 4 ranks, but hosts has 3"):
        plan_of(1, 1).placement("aab")

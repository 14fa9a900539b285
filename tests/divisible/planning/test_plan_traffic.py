"""What a plan's ranks send decides about its placement."""

import pytest

from divisible import Plan
from divisible.planning.expected_costs import StagePlan
from divisible.planning.plan_traffic import traffic_of


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
    assert (
        plan_of(1000, 1100, exchange_dtype="int8").placement(hosts) == "stages_together"
    )
    assert (
        plan_of(1, 5000, exchange_dtype="int8").placement(hosts) == "replicas_together"
    )


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


def test_bytes_between_ranks_and_of_their_gradients():
    """Stages 0 and 3 are on rank 0 and the others on rank 1, as in a V."""
    stages = [
        StagePlan(1.0, 0.0, 0, None, sent, 1000 * n)
        for n, sent in enumerate((10, 20, 30, 0), start=1)
    ]
    traffic = traffic_of(stages, [0, 1, 1, 0], n_microbatches=4)
    # What stages 0 and 2 send, and as much back.
    assert traffic.messages == {(0, 1): 160, (1, 0): 160}
    assert traffic.gradients == traffic.exact == [4 * 5000, 4 * 5000]
    coded = traffic_of(stages, [0, 1, 1, 0], 4, "fp16")
    assert (coded.gradients, coded.exact) == ([2 * 5000] * 2, [4 * 5000] * 2)

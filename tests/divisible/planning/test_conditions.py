import json
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from divisible import Disk, LayerCost, Machine, Network, Plan, Profile, best_plan
from divisible.planning.coding import CodingRate
from divisible.planning.conditions import Conditions
from divisible.planning.plan_simulation import predicted_step, simulate_plan
from tests.support.examples import examples

MACHINE = Machine(
    4,
    memory=[2**30, np.inf, 10**9, 10**9],
    network=Network([1e9, np.inf, 3e9], np.array([5e-5, 0, 0]), overlap=False),
    speeds=np.array([1, 0.5, 1, 1]),
    disk=Disk(1e9, 5e8),
)


def profile_of(layers, n=8):
    return Profile(
        [LayerCost(f, b, w, output_bytes=1000, **sizes) for f, b, w, sizes in layers],
        n_samples=n,
        input_bytes=100,
        coding={"fp32": CodingRate(1e9, 1e9), "int8": CodingRate(2e8, 3e8)},
    )


def test_a_file_has_them(tmp_path):
    os.makedirs(tmp_path / "a" / "b")
    names = [str(tmp_path / "a" / "p.json"), str(tmp_path / "q.json")]
    conditions = Conditions(
        MACHINE,
        np.int64(96),
        profiles=names,
        coding={"int8": CodingRate(1, 2)},
        overlap_minibatches=True,
    )
    path = tmp_path / "a" / "b" / "plan.json"
    Plan([0, 1, 2], 2, "1f1b", conditions=conditions).save(path)
    # As strict readers of JSON want it, and beside the plan wherever that is moved.
    content = json.loads(path.read_text(), parse_constant=pytest.fail)
    assert content["conditions"]["profiles"] == ["../p.json", "../../q.json"]
    assert content["conditions"]["machine"]["network"]["bandwidth"] == [1e9, None, 3e9]
    found = Plan.load(path).conditions
    assert (found.batch, found.microbatch_size) == (96, None)
    assert found.profiles == tuple(names)
    assert found.coding == conditions.coding
    assert found.overlap_minibatches is True
    assert found.machine.memory == (2**30, np.inf, 1e9, 1e9)
    assert found.machine.speeds == (1, 0.5, 1, 1)
    assert list(found.machine.network.bandwidth) == [1e9, np.inf, 3e9]
    assert not found.machine.network.overlap
    assert found.machine.disk == Disk(1e9, 5e8)
    assert str(found) == str(conditions)


def test_in_words():
    assert str(Conditions(MACHINE, 1)) == (
        "a minibatch of 1 sample on 4 ranks of 1.0 GiB, any size, 953.7 MiB, 953.7 MiB,"
        " speeds 1, 0.5, 1, 1, links of 1 GB/s, any rate, 3 GB/s with 50 us, 0, 0 of"
        " latency while ranks do not compute, disks that read 1 GB/s and write 500 MB/s"
    )
    many = Machine(100, speeds=np.linspace(0.5, 1, 100), network=Network(1e3))
    assert str(many) == "100 ranks, speeds 0.5 to 1, links of 1 kB/s"


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ({"ranks": 0}, ValueError, "ranks must be 1 or more"),
        ({"ranks": 2.5}, TypeError, "ranks must be an integer"),
        ({"speeds": [1, 1]}, ValueError, "speeds has 2 numbers, but there are 3 ranks"),
        ({"speeds": -1.0}, ValueError, "speeds must be finite and positive"),
        ({"memory": 0}, ValueError, "memory must be positive"),
        (
            {"memory": "8GiB"},
            TypeError,
            "memory must be a number, or a list",
        ),
        ({"network": Network([1e9])}, ValueError, "there are 2 links between ranks"),
        ({"network": 1e9}, TypeError, "network must be a Network"),
        ({"disk": 1e9}, TypeError, "disk must be a Disk"),
    ],
)
def test_a_machine_that_cannot_be(values, error, message):
    with pytest.raises(error, match=message):
        Machine(**{"ranks": 3, **values})


def test_a_machine_of_any_number_of_ranks_takes_no_memory():
    assert Machine(10**15, memory=1.0, speeds=2.0).ranks == 10**15


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ({}, ValueError, "either batch or microbatch_size"),
        ({"batch": 8, "microbatch_size": 2}, ValueError, "either batch or"),
        ({"batch": 0}, ValueError, "batch must be 1 or more"),
        ({"microbatch_size": 1.5}, TypeError, "microbatch_size must be an integer"),
        ({"batch": 8, "profiles": "p.json"}, TypeError, "profiles must be a list"),
        ({"batch": 8, "profiles": [3]}, TypeError, "name 0 of profiles"),
        ({"batch": 8, "coding": {"int7": None}}, ValueError, "coding is of 'int7'"),
        ({"batch": 8, "machine": 4}, TypeError, "machine must be a Machine"),
        ({"batch": 8, "overlap_minibatches": 2}, TypeError, "must be true, false"),
    ],
)
def test_conditions_that_cannot_be(values, error, message):
    with pytest.raises(error, match=message):
        Conditions(**{"machine": Machine(2), **values})


def test_a_slow_rank_is_predicted_from_the_file(tmp_path):
    """By equation (3) of Takisawa et al. (2022), (m + d - 1) (F + B), and by hand."""
    layers = profile_of([(1.0, 1.0, 1.0, {})] * 2)
    plan = best_plan(
        layers,
        Machine(2, speeds=[1, 1]),
        batch=32,
        microbatches=[4],
        schedules=["gpipe"],
        recompute=["never"],
        pipeline_ranks=[2],
    )
    plan.save(tmp_path / "plan.json")
    plan = Plan.load(tmp_path / "plan.json")
    # Profiles are of 8 samples, and a minibatch has 32.
    assert simulate_plan(plan, layers).makespan == pytest.approx((4 + 2 - 1) * 3)
    assert plan.bubble == pytest.approx(1 / 5)
    # The second rank at half the speed: its four microbatches follow on the first one.
    slow = best_plan(
        layers,
        Machine(2, speeds=[1, 0.5]),
        batch=32,
        microbatches=[4],
        schedules=["gpipe"],
        recompute=["never"],
        pipeline_ranks=[2],
    )
    slow.save(tmp_path / "plan.json")
    timeline = simulate_plan(Plan.load(tmp_path / "plan.json"), layers)
    assert timeline.makespan == pytest.approx(1 + 4 * 6 + 2)
    assert timeline.bubble == pytest.approx([1 - 12 / 27, 1 - 24 / 27])


seconds = st.floats(0.001, 1.0)
layer = st.tuples(
    seconds,
    seconds,
    seconds,
    st.fixed_dictionaries(
        {
            "activation_bytes": st.integers(0, 10**6),
            "parameter_bytes": st.integers(1, 10**6).map(lambda n: 4 * n),
        }
    ),
)


@given(
    layers=st.lists(layer, min_size=2, max_size=5),
    ranks=st.integers(1, 4),
    speeds=st.lists(st.floats(0.2, 3.0), min_size=4, max_size=4),
    bandwidth=st.sampled_from([np.inf, 1e4, 1e6]),
    latency=st.floats(0, 0.1),
    overlap=st.booleans(),
    batch=st.integers(1, 40),
    replicas=st.integers(1, 3),
    exchange_dtype=st.sampled_from(["fp32", "int8"]),
)
@examples(40, deadline=None)
def test_a_saved_plan_predicts_what_the_plan_did(
    tmp_path_factory,
    layers,
    ranks,
    speeds,
    bandwidth,
    latency,
    overlap,
    batch,
    replicas,
    exchange_dtype,
):
    profiles = [profile_of(layers, 8), profile_of(layers, 3)]
    plan = best_plan(
        profiles,
        Machine(ranks, network=Network(bandwidth, latency, overlap), speeds=speeds),
        batch=batch,
        exchange_dtype=exchange_dtype,
        microbatches=[1, 3, 4],
        schedules=["gpipe", "1f1b", "zb_v"],
        replicas=(1, replicas),
    )
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    for each in (plan, *(other.plan for other in plan.alternatives)):
        if each is None or each.step_seconds is None:
            continue
        each.save(path)
        loaded = Plan.load(path)
        timeline = simulate_plan(loaded, profiles)
        seconds = predicted_step(timeline, loaded, profiles)
        assert seconds == pytest.approx(each.step_seconds, rel=1e-9)
        bubble = 1 - timeline.busy.mean() / seconds
        assert bubble == pytest.approx(each.bubble, abs=1e-9)
        assert loaded.batch == batch

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from divisible import (
    LayerCost,
    Machine,
    MemoryLimitError,
    Network,
    Plan,
    Profile,
    partition,
    schedules,
    simulate,
)
from divisible.planning.coding import CodingRate
from divisible.planning.cut_plan import UncutPlan
from divisible.planning.cutting import cut_plan
from divisible.planning.expected_costs import StagePlan
from divisible.planning.gradient_exchange import Wire
from divisible.planning.interpolation import interpolate
from divisible.planning.moves import simulated
from divisible.planning.plan_simulation import predicted_step, simulate_plan
from divisible.planning.search import best_plan
from divisible.planning.workload import Workload
from divisible.schedules.catalogue import (
    CATALOGUE,
    ONE_PER_RANK,
    TRIED_BY_DEFAULT,
)
from divisible.schedules.costs import Costs
from divisible.schedules.recomputation import RECOMPUTATIONS
from tests.support.examples import examples


def uneven(n=8, n_samples=12):
    random = np.random.RandomState(1)
    layers = [
        LayerCost(
            *random.uniform(0.01, 0.1, 3).tolist(),
            output_bytes=int(random.randint(1000, 5000)),
            activation_bytes=int(random.randint(1000, 5000)),
            parameter_bytes=int(random.randint(1000, 5000)),
            pending_bytes=int(random.randint(1000, 5000)),
            passing_bytes=500 * (2 <= i < 6),
            skip_bytes=300 * (i == 4) + 500 * (i == 6),
            name=f"layer {i}",
        )
        for i in range(n)
    ]
    return Profile(layers, n_samples, input_bytes=2000, loss=LayerCost(0.01, 0.01, 0))


@pytest.mark.parametrize("schedule", ONE_PER_RANK)
@pytest.mark.parametrize("checkpoint", RECOMPUTATIONS)
@pytest.mark.parametrize("m", [1, 2, 4])
def test_predicted_memory_is_what_the_cut_reckons_with(schedule, checkpoint, m):
    profile = uneven()
    options = {"n_microbatches": m, "schedule": schedule, "recompute": checkpoint}
    plan = partition(profile, 3, **options)
    timeline = simulate_plan(plan, profile, batch=m * profile.n_samples)
    assert timeline.peak_memory.tolist() == [stage.memory for stage in plan.stages]


def test_a_prediction_is_a_simulation_of_the_stages_sums():
    profile = uneven()
    plan = Plan([0, 3, 8], n_microbatches=4, schedule="1f1b")
    column = profile.column
    sums = [
        [column(name)[i:j].sum() for i, j in ((0, 3), (3, 8))]
        for name in ("forward", "backward_input", "backward_weight")
    ]
    costs = Costs(*sums, profile.layers[2].output_bytes / 1e5, 0.002)
    expected = simulate(schedules.one_f_one_b(2, 4), costs, links="serial")
    network = Network(1e5, 0.002)
    timeline = simulate_plan(
        plan,
        profile,
        batch=4 * profile.n_samples,
        machine=Machine(plan.n_ranks, network=network),
    )
    assert timeline.makespan == pytest.approx(expected.makespan)
    assert timeline.bubble == pytest.approx(expected.bubble)


def test_several_minibatches_of_a_plan():
    profile = Profile([LayerCost(1.0, 1.0, 1.0)] * 4, n_samples=1)
    plan = Plan([0, 1, 2, 3, 4], n_microbatches=8, schedule="zb_h2")
    timeline = simulate_plan(plan, profile, batch=8, n_minibatches=5)
    assert timeline.makespan == 27 + 4 * 24
    assert timeline.name.endswith(", 5 minibatches")
    plan = Plan([0, 4], n_microbatches=8, schedule="zb_h2", replicas=2)
    with pytest.raises(ValueError, match="n_minibatches is 5, but .* 2 replicas"):
        simulate_plan(plan, profile, batch=16, n_minibatches=5)


def test_a_step_is_one_of_many_that_overlap(tmp_path):
    """By hand: ranks of ZB-H2 never wait, but the first has to fill the pipeline."""
    profile = Profile([LayerCost(1.0, 1.0, 1.0)] * 4, n_samples=1)
    names = ["1f1b", "zb_h1", "zb_h2"]
    options = {"batch": 8, "microbatches": [8], "schedules": names}
    options["pipeline_ranks"] = [4]
    plan = best_plan(profile, Machine(4), **options)
    assert (plan.schedule, plan.step_seconds, plan.bubble) == ("zb_h2", 24, 0)
    assert plan.bound == 24 and plan.conditions.overlap_minibatches
    assert "for overlapping minibatches of 8 samples on 4 ranks" in str(plan)
    plan.save(tmp_path / "plan.json")
    loaded = Plan.load(tmp_path / "plan.json")
    timeline = simulate_plan(loaded, profile)
    assert timeline.makespan == 27
    assert predicted_step(timeline, loaded, profile) == 24
    apart = best_plan(profile, Machine(4), **options, overlap_minibatches=False)
    assert (apart.schedule, apart.step_seconds) == ("zb_h1", 27)
    assert apart.conditions.overlap_minibatches is False
    # One rank, and replicas, which exchange gradients, cannot.
    options.update(pipeline_ranks=None, microbatches=[4])
    one = best_plan(profile, Machine(1), **options)
    two = best_plan(profile, Machine(4), replicas=(2, 2), **options)
    assert one.conditions.overlap_minibatches is None
    assert two.conditions.overlap_minibatches is None


def test_speeds_recomputation_and_unequal_microbatches():
    profile = Profile([LayerCost(1.0, 1.0, 1.0)] * 2, n_samples=1)

    def seconds(cuts, m, **options):
        more = {k: options.pop(k) for k in ("recompute",) if k in options}
        plan = Plan(cuts, n_microbatches=m, schedule="gpipe", **more)
        machine = Machine(plan.n_ranks, speeds=options.pop("speeds", None))
        return simulate_plan(plan, profile, machine=machine, **options).makespan

    assert seconds([0, 2], 1) == 6
    assert seconds([0, 2], 1, speeds=[3]) == 2
    assert seconds([0, 1, 2], 3, batch=3) == (3 + 2 - 1) * 3
    # Five samples in two microbatches: three and two, in proportion.
    assert seconds([0, 2], 2, batch=5) == 5 * 6
    assert seconds([0, 2], 4, batch=4, recompute="always") == 4 * (6 + 2)
    assert seconds([0, 2], 4, batch=4, recompute="except_last") == 4 * 6 + 3 * 2


@st.composite
def small_profiles(draw):
    n = draw(st.integers(1, 5))
    times = st.floats(0.01, 1)
    layers = [
        LayerCost(
            *draw(st.tuples(times, times, times)),
            output_bytes=draw(st.integers(0, 1000)),
            activation_bytes=draw(st.integers(0, 1000)),
            parameter_bytes=draw(st.integers(0, 1000)),
        )
        for _ in range(n)
    ]
    return Profile(layers, n_samples=4, input_bytes=100)


@pytest.mark.slow
@examples(40)
@given(
    small_profiles(),
    st.integers(1, 3),
    st.one_of(st.none(), st.integers(2000, 30000)),
    st.sampled_from([None, Network(500.0, 0.01), Network(500.0, 0.01, overlap=False)]),
)
def test_nothing_that_is_left_out_is_faster(profile, ranks, memory, network):
    """The bounds spare simulations; they never spare the best configuration."""
    found = []
    for n_ranks, m, name, checkpoint in itertools.product(
        range(1, ranks + 1), (1, 2, 4), TRIED_BY_DEFAULT, RECOMPUTATIONS
    ):
        per_rank = CATALOGUE[name].stages_per_rank
        if n_ranks * per_rank > len(profile) or (n_ranks == 1 and name != "1f1b"):
            continue
        options = {"recompute": checkpoint, "network": network, "n_microbatches": m}
        sized = interpolate([profile], -(-4 // m))
        if per_rank > 1:
            if n_ranks > 2:
                continue
            schedule = schedules.create(name, 2 * n_ranks, m, n_ranks)
            if name == "zb_v" and network is not None:
                continue  # the two middle stages lie on one rank
            if network is not None and n_ranks > 1:
                continue
            plan = partition(sized, 2 * n_ranks, schedule=schedule, **options)
            plan = Plan(
                plan.cuts, m, name, recompute=checkpoint, stages_per_rank=per_rank
            )
            peak = simulate_plan(
                plan, profile, machine=Machine(plan.n_ranks, network=network)
            ).peak_memory.max()
            if memory is not None and peak > memory:
                continue
        else:
            try:
                plan = partition(
                    sized, n_ranks, schedule=name, memory=memory, **options
                )
            except MemoryLimitError:
                continue
        found.append(
            simulate_plan(
                plan, profile, machine=Machine(plan.n_ranks, network=network)
            ).makespan
        )
    machine = Machine(ranks, memory, network)
    try:
        options = {"microbatches": [1, 2, 4], "overlap_minibatches": False}
        best = best_plan(profile, machine, **options)
    except MemoryLimitError:
        assert not found
        return
    assert best.step_seconds <= min(found, default=math.inf) * (1 + 1e-9)
    timeline = simulate_plan(best, profile, machine=Machine(ranks, network=network))
    assert timeline.makespan == pytest.approx(best.step_seconds)
    assert best.bound == pytest.approx(timeline.bound)
    assert best.gap == pytest.approx(timeline.gap, abs=1e-9)
    if memory is not None:
        assert timeline.peak_memory.max() <= memory


@pytest.mark.parametrize(
    ("parameter_bytes", "cuts", "seconds"),
    [
        # The cut that is best without a limit needs 1100 bytes on rank 0.
        ([300, 200, 50, 50, 50], [0, 1, 3, 4, 5], 15.125),
        # It fits, though not if the two stages of rank 0 had half of it each.
        ([200, 200, 50, 50, 50], [0, 2, 3, 4, 5], 12.25),
    ],
)
def test_stages_of_a_rank_share_its_memory(parameter_bytes, cuts, seconds):
    layers = [
        LayerCost(t, t, t, parameter_bytes=n)
        for t, n in zip((1, 1, 2, 2, 2), parameter_bytes)
    ]
    profile = Profile(layers, n_samples=8)
    options = {"microbatches": [8], "recompute": ["never"], "pipeline_ranks": [2]}
    options["overlap_minibatches"] = False
    plan = best_plan(profile, Machine(2, memory=1000), schedules=["zb_v"], **options)
    assert (plan.cuts, plan.step_seconds) == (cuts, pytest.approx(seconds))
    # Others to choose from do not make it worse.
    among = best_plan(
        profile, Machine(2, memory=1000), schedules=["1f1b", "zb_v"], **options
    )
    assert among.step_seconds <= plan.step_seconds


def test_the_slowest_replica_is_predicted():
    profile = Profile([LayerCost(1, 1, 1)] * 2, n_samples=8)
    speeds = [1, 1, 0.9, 0.8]
    plan = best_plan(
        profile,
        Machine(4, speeds=speeds),
        pipeline_ranks=[2],
        microbatches=[4],
        schedules=["1f1b"],
        replicas=(1, 2),
    )
    assert plan.replicas == 2
    seconds = simulate_plan(
        plan, profile, machine=Machine(plan.n_ranks, speeds=speeds)
    ).makespan
    assert seconds == pytest.approx(plan.step_seconds)
    machine = Machine(4, network=Network(latency=[0.0, 9.0, 0.5]), speeds=speeds)
    one = replace(plan, replicas=1)
    slowest = Machine(2, network=Network(latency=0.5), speeds=[0.9, 0.8])
    expected = simulate_plan(one, profile, batch=4, machine=slowest).makespan
    assert simulate_plan(plan, profile, machine=machine).makespan == expected
    with pytest.raises(ValueError, match="is for 4 ranks, but the machine has 2"):
        simulate_plan(plan, profile, machine=Machine(2, speeds=[1, 1]))


@pytest.mark.parametrize("speed", [0, -1, np.nan, np.inf])
def test_impossible_speeds_are_refused(speed):
    plan = Plan([0, 3, 8], n_microbatches=4, schedule="1f1b")
    with pytest.raises(ValueError, match="speeds must be finite and positive"):
        simulate_plan(plan, uneven(), machine=Machine(2, speeds=[1, speed]))


def test_one_rank_needs_no_other_schedule():
    plan = best_plan(uneven(), Machine(1), schedules=["interleaved", "gpipe", "1f1b"])
    assert (plan.schedule, plan.n_stages) == ("1f1b", 1)
    for name in ONE_PER_RANK:
        assert best_plan(uneven(), Machine(1), schedules=[name]).schedule == name
    with pytest.raises(ValueError, match="no configuration of 1 ranks"):
        best_plan(uneven(), Machine(1), schedules=["interleaved"])


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.matrix)])
@pytest.mark.parametrize("schedule", ["1f1b", "zb_h1", "zb_h2"])
def test_the_choice_is_as_good_as_the_best_of_all_cuts(seed, schedule):
    """As simulating every cut with every number of microbatches shows."""
    work = np.random.RandomState(seed).lognormal(0, 1, 7) * 0.01

    def at(n):
        layers = [
            LayerCost(
                *(w * (fixed + n / 64) for fixed in (0.003, 0.002, 0.003)),
                output_bytes=4000 * n,
            )
            for w in work.tolist()
        ]
        return Profile(layers, n, input_bytes=4000 * n)

    profiles, network = [at(n) for n in (4, 16, 64)], Network(125e6, 2e-4)
    numbers = 1, 2, 3, 5, 8, 12, 16
    chosen = best_plan(
        profiles,
        Machine(3, network=network),
        schedules=[schedule],
        recompute=["never"],
        pipeline_ranks=[3],
        microbatches=numbers,
    )
    least = min(
        simulate_plan(
            Plan([0, i, j, 7], m, schedule),
            profiles,
            machine=Machine(3, network=network),
        ).makespan
        for i, j in itertools.combinations(range(1, 7), 2)
        for m in numbers
    )
    assert chosen.step_seconds <= 1.002 * least


def test_cuts_move_away_from_large_messages(monkeypatch):
    """Where few microbatches let the messages' time show, though no link is busy."""
    sizes = [1, 1, 1, 10**6, 1, 1, 1, 1]
    layers = [LayerCost(0.1, 0.1, 0.1, output_bytes=size) for size in sizes]
    profile, network = Profile(layers, n_samples=1), Network(2e6)
    options = {"schedules": ["1f1b"], "microbatches": [2], "pipeline_ranks": [2]}
    plan = best_plan(profile, Machine(2, network=network), batch=2, **options)
    assert partition(profile, 2, network=network).cuts == [0, 4, 8]
    assert plan.cuts in ([0, 3, 8], [0, 5, 8])
    # A cut that does not fit is no improvement.
    layers = [replace(layer, parameter_bytes=10**7) for layer in layers]
    profile = Profile(layers, n_samples=1)
    even = partition(profile, 2)
    memory = max(stage.memory for stage in even.stages)
    machine = Machine(2, memory, network)
    plan = best_plan(profile, machine, batch=2, **options)
    assert plan.cuts == [0, 4, 8]
    # Nor is there one if nothing may be tried.
    monkeypatch.setattr("divisible.planning.search._EFFORT", 0)
    options.update(recompute=["never"])
    plan = best_plan(profile, Machine(2, network=network), batch=2, **options)
    assert plan.cuts == [0, 4, 8]


@pytest.mark.parametrize("schedule", ["interleaved", "zb_v"])
def test_cuts_of_several_stages_on_a_rank_move_as_well(schedule):
    profile, network = uneven(), Network(1e6, 1e-3)
    options = {"schedules": [schedule], "pipeline_ranks": [2], "microbatches": [4]}
    chosen = best_plan(
        profile, Machine(2, network=network), recompute=["never"], **options
    )
    least = min(
        simulate_plan(
            Plan([0, *inner, 8], 4, schedule, stages_per_rank=2),
            profile,
            machine=Machine(2, network=network),
        ).makespan
        for inner in itertools.combinations(range(1, 8), 3)
    )
    assert chosen.step_seconds <= 1.02 * least


def test_the_others_lost_for_a_reason():
    plan = best_plan(uneven(), Machine(4, memory=30e3, network=Network(1e6, 1e-3)))
    # The search draws nothing.
    assert best_plan(uneven(), Machine(2)) == best_plan(uneven(), Machine(2))
    assert plan.alternatives
    reasons = [other.reason for other in plan.alternatives]
    assert all(other.seconds >= plan.step_seconds for other in plan.alternatives)
    assert any("slower: its busiest rank computes" in reason for reason in reasons)
    assert any("more than the" in reason for reason in reasons)
    assert any("cannot win: its ranks and links need" in reason for reason in reasons)
    # Of every number of ranks and every schedule there is one.
    names = " ".join(other.name for other in plan.alternatives)
    used = plan.n_ranks
    for n in {1, 2, 3, 4} - {used}:
        assert f"{n} stage" in names or f"on {n} ranks" in names
    assert all(name in f"{names} {plan.schedule}" for name in TRIED_BY_DEFAULT)


def test_schedules_that_tie_do_not_keep_others_from_being_improved():
    """With one microbatch all schedules in the shape of a V are the same."""
    machine = Machine(4, network=Network(1e6, 1e-3))
    profiles = [uneven(n_samples=n) for n in (12, 6, 3)]
    options = {"weight_groups": [1], "microbatches": [1]}
    alone = best_plan(profiles, machine, schedules=["zb_h1"], **options)
    together = best_plan(profiles, machine, **options)
    assert together.step_seconds <= alone.step_seconds


def test_what_is_slower_by_less_than_timings_scatter_is_said_to_be_as_good(tmp_path):
    machine = Machine(4, network=Network(1e6, 1e-3))
    unknown = best_plan(uneven(), machine)
    assert unknown.scatter is None and "scatter" not in str(unknown)
    # The largest counts of those that are known.
    scatters = {12: None, 6: 0.01, 3: 0.075}
    profiles = [replace(uneven(n_samples=n), scatter=s) for n, s in scatters.items()]
    names = ["1f1b", "zb_h1", "zb_h2", "zb_v", "interleaved", "gpipe"]
    options = {"weight_groups": [1], "overlap_minibatches": False}
    plan = best_plan(profiles, machine, schedules=names, **options)
    assert plan.scatter == 0.075
    assert str(plan).splitlines()[1] == (
        "the timings of the layers scattered by 7.5%: plans within that are as good"
    )
    said = set()
    for other in plan.alternatives:
        words, _, _ = other.reason.partition(":")
        if "slower" in words or "cannot win" in words:
            is_near = other.seconds <= 1.075 * plan.step_seconds
            assert words.endswith(" within the scatter of the timings") == is_near
            said.add((is_near, words[:10] == "cannot win"))
    assert len(said) == 4
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json").certainty == plan.certainty


@pytest.mark.parametrize(
    "memory, schedule, seconds",
    [(8200, "zb_v", 51), (7000, "v_half", 56), (5000, "v_min", 59)],
)
def test_schedules_that_hold_little_spare_recomputation(memory, schedule, seconds):
    layers = [LayerCost(1, 1, 1, output_bytes=10, activation_bytes=1000)] * 8
    profile = Profile(layers, n_samples=1, input_bytes=10)
    machine = Machine(4, memory=memory)
    options = {"batch": 8, "microbatches": [8], "overlap_minibatches": False}
    plan = best_plan(profile, machine, **options)
    assert (plan.schedule, plan.recompute) == (schedule, "never")
    assert plan.step_seconds == seconds


def test_memory_forces_recomputation():
    layers = [
        LayerCost(1.0, 1.0, 1.0, output_bytes=10, activation_bytes=1000)
        for _ in range(4)
    ]
    profile = Profile(layers, n_samples=8, input_bytes=10)
    options = {"microbatches": [8], "batch": 64}
    free = best_plan(profile, Machine(2), **options)
    tight = best_plan(profile, Machine(2, memory=3000), **options)
    assert free.recompute == "never"
    assert tight.recompute != "never" or tight.recomputed
    assert tight.step_seconds > free.step_seconds
    with pytest.raises(MemoryLimitError, match="none of .* configurations fits"):
        best_plan(profile, Machine(2, memory=300), **options)


def small_are_slow(pending=0):
    """Returns profiles of layers whose W hardly depends on the size of a microbatch."""
    return [
        Profile(
            [
                LayerCost(0.1 * n, 0.1 * n, 0.5 + 0.05 * n, pending_bytes=pending * n)
                for _ in range(4)
            ],
            n_samples=n,
        )
        for n in (1, 4, 16)
    ]


def test_groups_of_weight_gradients_where_small_ones_are_slow():
    options = {"microbatches": [16], "batch": 16, "schedules": ["gpipe", "1f1b"]}
    machine = Machine(2)
    alone = best_plan(small_are_slow(), machine, weight_groups=[1], **options)
    plan = best_plan(small_are_slow(), machine, **options)
    assert (alone.weight_groups, plan.weight_groups) == (1, 16)
    # Each rank computes the W of its two layers once, at 16 samples.
    assert plan.step_seconds < alone.step_seconds - 2 * (16 * 0.55 - 1.3) + 2.5
    timeline = simulate_plan(plan, small_are_slow())
    assert timeline.makespan == pytest.approx(plan.step_seconds)
    # One profile in proportion shows no gain, so nothing is tried.
    assert best_plan(small_are_slow()[:1], machine, **options).weight_groups == 1


def late_layers_are_slow(takes_groups=True, activation=0):
    """Returns profiles of layers, of which the last ones are slow for few samples."""
    return [
        Profile(
            [
                LayerCost(
                    *([0.1 * n + fixed] * 3),
                    activation_bytes=activation * n,
                    takes_groups=takes_groups,
                )
                for fixed in (0, 0, 0.5, 0.5)
            ],
            n_samples=n,
        )
        for n in (1, 4, 16)
    ]


def test_late_stages_take_several_microbatches_as_one(tmp_path):
    options = {"microbatches": [16], "schedules": ["1f1b"], "weight_groups": [1]}
    machine = Machine(2)
    without = best_plan(late_layers_are_slow(False), machine, **options)
    profiles = late_layers_are_slow()
    plan = best_plan(profiles, machine, **options)
    assert without.stage_groups == () and max(plan.stage_groups) > 1
    assert plan.step_seconds < 0.6 * without.step_seconds
    assert "stages in groups of" in plan.headline
    timeline = simulate_plan(plan, profiles)
    assert timeline.makespan == pytest.approx(plan.step_seconds)
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json").stage_groups == plan.stage_groups


def test_memory_limits_groups_of_stages():
    options = {"microbatches": [16], "schedules": ["1f1b"], "weight_groups": [1]}
    profiles = late_layers_are_slow(activation=1000)
    seconds = []
    for memory in (100_000, 30_000, 10_000, 3_000):
        plan = best_plan(profiles, Machine(2, memory=memory), **options)
        timeline = simulate_plan(plan, profiles)
        assert timeline.peak_memory.max() <= memory
        seconds.append(plan.step_seconds)
    assert seconds == sorted(seconds) and len({*seconds}) > 2


@pytest.mark.parametrize("sizes", [[0, 1], [1], [1, 2, 3], [1.5, 1], "12"])
def test_groups_that_no_plan_has(sizes):
    with pytest.raises((TypeError, ValueError), match="stage_groups"):
        Plan([0, 1, 2], 4, "1f1b", stage_groups=sizes)


def test_memory_limits_groups_of_weight_gradients():
    options = {"microbatches": [16], "batch": 16, "schedules": ["1f1b"]}
    profiles = small_are_slow(pending=1000)
    sizes = [1, 2, 4, 8, 16]
    chosen = [
        best_plan(profiles, Machine(2, memory=m), weight_groups=sizes, **options)
        for m in (10**6, 20_000, 10_000, 100)
    ]
    groups = [plan.weight_groups for plan in chosen]
    assert groups[0] == 16 and groups[-1] == 1
    assert groups == sorted(groups, reverse=True) and len(set(groups)) == 4
    for plan in chosen[1:3]:
        memory = simulate_plan(plan, profiles).peak_memory
        assert memory.max() == max(stage.memory for stage in plan.stages)


def test_replicas_where_stages_are_few():
    """Two layers make two stages at most; four ranks take two pipelines."""
    layers = [LayerCost(1.0, 1.0, 1.0, parameter_bytes=1000) for _ in range(2)]
    profile = Profile(layers, n_samples=16)
    assert best_plan(profile, Machine(4)).n_ranks <= 2
    plan = best_plan(profile, Machine(4), replicas=(1, 4))
    assert plan.replicas > 1
    assert plan.step_seconds < best_plan(profile, Machine(4)).step_seconds
    # Adding up the gradients over a slow network is not worth it.
    slow = Machine(4, network=Network(100, 0.0))
    assert best_plan(profile, slow, replicas=(1, 4)).replicas == 1
    # Unless it must be.
    some = best_plan(profile, slow, replicas=(2, 4))
    assert some.replicas == 2
    assert min(other.seconds for other in some.alternatives) >= some.step_seconds


#: Faster than any wire.
FREE = CodingRate(1e15, 1e15)


def test_what_two_replicas_of_one_stage_take():
    profile = Profile([LayerCost(1.0, 1.0, 1.0, parameter_bytes=600)], n_samples=4)
    options = {"microbatches": [1], "recompute": ["never"], "replicas": (1, 2)}
    network = Network(1e3, 0.05)
    plan = best_plan(profile, Machine(2, network=network), coding=FREE, **options)
    assert plan.replicas == 2
    # Half of the samples; then, after an opening, half of the gradients twice.
    exchange = 0.3 + 0.3 + 3 * 0.05
    assert plan.step_seconds == pytest.approx(6 / 4 + exchange)
    # The exchange is known to come last, but for its opening.
    assert plan.bound == pytest.approx(plan.step_seconds - 0.05)
    assert plan.exchange.sent_bytes == 600
    assert plan.exchange.seconds == pytest.approx(exchange)
    assert plan.exchange.hidden_seconds == 0
    text = str(plan).splitlines()[1]
    assert text.startswith("exchange of gradients: 600 B from a rank, 750 ms with")
    assert text.endswith("of coding; 0 hidden, 750 ms not")
    # 150 elements: a byte each, and a scale.
    plan = best_plan(
        profile,
        Machine(2, network=network),
        exchange_dtype="int8",
        coding=FREE,
        **options,
    )
    assert plan.exchange.sent_bytes == 154
    assert plan.step_seconds == pytest.approx(6 / 4 + 0.154 + 0.15)
    # A chunk of them is coded first: one and a half times written, twice read.
    slow = CodingRate(encode=1500, decode=3000)
    plan = best_plan(
        profile,
        Machine(2, network=network),
        exchange_dtype="int8",
        coding=slow,
        **options,
    )
    assert plan.exchange.coding_seconds == pytest.approx(0.15 + 0.1)
    assert plan.step_seconds == pytest.approx(6 / 4 + 0.154 + 0.15 + 0.25)


@examples(60)
@given(
    small_profiles(),
    st.sampled_from(["gpipe", "1f1b", "zb_h1", "interleaved", "zb_v"]),
    st.sampled_from([(2, 1), (3, 2)]),
    st.sampled_from(["fp32", "int8"]),
    st.sampled_from([Network(500.0, 0.01), Network(500.0, 0.01, overlap=False)]),
    st.sampled_from([FREE, CodingRate(1e3, 3e3)]),
)
def test_no_step_with_replicas_is_faster_than_its_bound(
    profile, name, sizes, exchange_dtype, network, coding
):
    replicas, n_ranks = sizes
    per_rank = CATALOGUE[name].stages_per_rank
    assume(n_ranks * per_rank <= len(profile) and per_rank <= n_ranks)
    wire = Wire(exchange_dtype, coding=coding)
    workload = Workload([profile], Machine(6, network=network), 12, wire)
    one = UncutPlan(replicas, n_ranks, per_rank, name, 2, "never")
    cut = simulated(workload, cut_plan(workload, one))
    assert cut.bound <= cut.step.seconds * (1 + 1e-9)
    plan = workload.plan(cut)
    timeline = simulate_plan(
        plan,
        profile,
        batch=12,
        coding=coding,
        machine=Machine(plan.n_ranks, network=network),
    )
    assert timeline.makespan == pytest.approx(cut.step.seconds)
    assert timeline.find_bound() <= timeline.makespan * (1 + 1e-9)
    exchange = plan.exchange
    if exchange is not None:
        backward = max(event.end for event in timeline if event.category in "FBIW")
        after = timeline.makespan - backward
        if network.overlap:
            assert exchange.exposed_seconds == pytest.approx(after, abs=1e-9)
        assert 0 <= exchange.hidden_seconds <= exchange.seconds


def test_fewer_bits_and_more_replicas_are_chosen_by_the_wire():
    layers = [LayerCost(0.1, 0.1, 0.1, parameter_bytes=10**5)] * 2
    profile = Profile(layers, n_samples=16)

    def seconds(exchange_dtype, coding=FREE, most=4):
        options = {
            "exchange_dtype": exchange_dtype,
            "coding": coding,
            "replicas": (1, most),
            "schedules": ["1f1b"],
            "overlap_minibatches": False,
        }
        plan = best_plan(profile, Machine(4, network=Network(1e6)), **options)
        return plan.step_seconds

    fp32, bf16, int8 = (seconds(name) for name in ("fp32", "bf16", "int8"))
    assert int8 < bf16 < fp32 < seconds("fp32", most=1)
    # More to choose from is never slower.
    several = [seconds("int8", most=most) for most in (1, 2, 4)]
    assert several == sorted(several, reverse=True)
    # What codes slowly is no gain.
    assert seconds("int8", CodingRate(1e5, 1e5)) > fp32


def test_an_exchange_takes_memory():
    layers = [LayerCost(1.0, 1.0, 1.0, parameter_bytes=4000, n_parameters=1000)] * 2
    profile = Profile(layers, n_samples=4)
    options = {"microbatches": [2], "recompute": ["never"], "pipeline_ranks": [1]}
    options.update(coding=FREE, exchange_dtype="int8", replicas=(1, 2))
    plan = best_plan(profile, Machine(2), **options)
    alone = partition(profile, 1).stages[0].memory
    # Of two replicas each sends a half, receives a half, twice; and has its own half.
    codes = 2000 + 4 * 8
    buffers = 5 / 2 * codes
    assert plan.replicas == 2
    assert plan.stages[0].memory == alone + buffers
    kept = best_plan(profile, Machine(2), error_feedback=True, **options)
    assert kept.stages[0].memory == alone + buffers + 2 * 8000
    assert "gradients in int8 with error feedback" in str(kept)
    assert simulate_plan(kept, profile).peak_memory.tolist() == [kept.stages[0].memory]
    # What does not fit is not chosen.
    for error_feedback, other in ((False, plan), (True, kept)):
        memory = other.stages[0].memory
        options["error_feedback"] = error_feedback
        assert best_plan(profile, Machine(2, memory=memory), **options).replicas == 2
        assert (
            best_plan(profile, Machine(2, memory=memory - 1), **options).replicas == 1
        )


def test_a_plan_says_what_the_exchange_costs():
    layers = [LayerCost(0.1, 0.1, 0.1, parameter_bytes=10**5)] * 4
    profile = Profile(layers, n_samples=16)
    options = {"coding": FREE, "replicas": (1, 2), "overlap_minibatches": False}
    options["schedules"] = ["1f1b", "zb_h1"]
    machine = Machine(4, network=Network(1e6))
    plan = best_plan(profile, machine, pipeline_ranks=[2], **options)
    assert (plan.replicas, plan.exchange_dtype) == (2, "fp32")
    assert "2 replicas, gradients in fp32" in plan.headline
    reasons = " ".join(other.reason for other in plan.alternatives)
    assert "and gradients are exchanged for" in reasons
    one = best_plan(profile, machine, coding=FREE)
    assert (one.exchange_dtype, one.exchange) == (None, None)
    assert "gradients" not in f"{one} {[other.reason for other in one.alternatives]}"
    with pytest.raises(ValueError, match="exchange_dtype must be one of fp32, fp16"):
        best_plan(profile, Machine(4), exchange_dtype="int7")


def test_each_rank_has_the_slowest_link_to_its_replica():
    profile = Profile([LayerCost(1, 1, 1, parameter_bytes=400)] * 2, n_samples=8)
    plan = Plan([0, 1, 2], 4, "1f1b", replicas=2)
    network = Network(bandwidth=[100.0, 50.0, 25.0], latency=[0.1, 0.2, 0.4])
    timeline = simulate_plan(
        plan, profile, coding=FREE, machine=Machine(plan.n_ranks, network=network)
    )
    seconds = {
        event.what: event.end - event.start
        for event in timeline
        if event.category == "other"
    }
    # Rank 0 and rank 2 are two links apart, and so are 1 and 3.
    assert seconds == {
        "exchange of stage 0": pytest.approx(400 / 50 + 3 * 0.2),
        "exchange of stage 1": pytest.approx(400 / 25 + 3 * 0.4),
    }


def test_slow_ranks_get_less():
    profile = Profile([LayerCost(1.0, 1.0, 1.0)] * 6, n_samples=8)
    options = {"schedules": ["1f1b"], "microbatches": [8]}
    assert best_plan(profile, Machine(2, speeds=[1, 2]), **options).cuts == [0, 2, 6]
    # Too slow to help at all.
    assert best_plan(profile, Machine(2, speeds=[1, 0.01]), **options).cuts == [0, 6]


def test_profiles_at_several_sizes():
    def layers(forward):
        return [LayerCost(forward, 0.0, 0.0) for _ in range(4)]

    # A microbatch costs 1 s and 0.1 s for each sample: few and large ones are best.
    profiles = [Profile(layers(1 + 0.1 * n), n_samples=n) for n in (1, 16)]
    several = best_plan(profiles, Machine(4), schedules=["gpipe"])
    single = best_plan(profiles[1], Machine(4), schedules=["gpipe"])
    assert single.n_microbatches == 16
    assert several.n_microbatches < 8
    seen = []
    best_plan(
        profiles, Machine(2), progress=lambda done, total: seen.append((done, total))
    )
    assert [done for done, _ in seen] == list(range(1, seen[0][1] + 1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch": 0}, "batch must be at least 1"),
        ({"replicas": (1, 0)}, "replicas must be at least 1"),
        ({"replicas": (0, 1)}, "replicas must be at least 1"),
        ({"replicas": (2, 1)}, "replicas are 2 at least and 1 at most, but of 2 ranks"),
        ({"replicas": (3, 9)}, "of 2 ranks there can be 2 at most"),
        ({"schedules": ["1f2b"]}, "schedules must be some of"),
        ({"schedules": []}, "schedules must be some of"),
        ({"recompute": ["often"]}, "recompute must be some of"),
        ({"microbatches": [100]}, "no configuration"),
        ({"microbatches": []}, "microbatches must be some positive integers"),
        ({"microbatches": [0, 1]}, "microbatches must be some positive integers"),
        ({"pipeline_ranks": [5]}, r"pipeline_ranks \[5\]"),
        ({"profile": []}, "there is no profile"),
    ],
)
def test_bad_requests(options, message):
    arguments = {"profile": uneven(), "machine": Machine(2), **options}
    with pytest.raises(ValueError, match=message):
        best_plan(**arguments)


@pytest.mark.parametrize("machine", [2, None, "two", {"ranks": 2}])
def test_what_is_no_machine_is_refused(machine):
    with pytest.raises(TypeError, match=r"must be a Machine, such as Machine\(ranks=4"):
        best_plan(uneven(), machine)


@pytest.mark.parametrize("replicas", [2, None, (1,), (1, 2, 3), (1.5, 2), "ab"])
def test_replicas_are_the_fewest_and_the_most(replicas):
    with pytest.raises(TypeError, match="replicas must be the fewest and the most"):
        best_plan(uneven(), Machine(2), replicas=replicas)


@pytest.mark.parametrize("name", ["microbatches", "pipeline_ranks"])
def test_numbers_to_try(name):
    expected = best_plan(uneven(), Machine(2), replicas=(1, 2), **{name: [1, 2]})
    for numbers in (iter([1, 2]), np.array([1, 2]), (1, 2)):
        plan = best_plan(uneven(), Machine(2), replicas=(1, 2), **{name: numbers})
        assert (plan, plan.step_seconds) == (expected, expected.step_seconds)
    for bad in (2, [1.5], "two"):
        with pytest.raises(TypeError, match=f"{name} must be integers to try"):
            best_plan(uneven(), Machine(2), **{name: bad})


def test_a_plan_for_another_model():
    profile = uneven()
    plan = Plan([0, 3, 8], 4, "1f1b", layers=[f"layer {i + 1}" for i in range(8)])
    with pytest.raises(
        ValueError, match="the plan is of another model: layer 0 is layer 1 there"
    ):
        simulate_plan(plan, profile)
    with pytest.raises(ValueError, match="a model of 7 layers, but the profile"):
        simulate_plan(Plan([0, 7], 4, "1f1b"), profile)
    with pytest.raises(ValueError, match="does not say n_microbatches"):
        simulate_plan(Plan([0, 8]), profile)
    with pytest.raises(ValueError, match="cannot be cut into 40 microbatches"):
        simulate_plan(Plan([0, 8], 40, "1f1b"), profile)


def test_a_chosen_plan_saved_and_loaded(tmp_path):
    plan = best_plan(uneven(), Machine(3, memory=1e6), schedules=["interleaved"])
    plan.save(tmp_path / "plan.json")
    loaded = Plan.load(tmp_path / "plan.json")
    assert loaded == plan
    assert loaded.stages == plan.stages
    assert isinstance(loaded.stages[0], StagePlan)
    assert loaded.step_seconds == plan.step_seconds
    assert loaded.n_ranks == plan.n_ranks


def even(n_bytes=10):
    layers = [LayerCost(1.0, 1.0, 1.0, activation_bytes=n_bytes)] * 4
    return Profile(layers, n_samples=1)


def test_huge_minibatches_are_searched_as_far_as_it_helps():
    options = {"schedules": ["1f1b"], "recompute": ["never"]}
    plan = best_plan(even(), Machine(2), batch=10**12, **options)
    assert plan.n_microbatches == 1024
    assert plan.n_stages == 2


def test_more_microbatches_are_tried_if_memory_asks_for_them():
    # Two of its layers of so many samples fit, in one microbatch at a time.
    options = {"schedules": ["1f1b"], "recompute": ["never"]}
    plan = best_plan(
        even(), Machine(2, memory=2 * 2 * 10 * 10), batch=40_000, **options
    )
    assert plan.n_microbatches == 4000
    with pytest.raises(MemoryLimitError, match="62500 microbatches"):
        best_plan(even(), Machine(2, memory=20), batch=10**6, **options)


@pytest.mark.parametrize(
    "options, words",
    [
        ({"batch": 2**60}, "the layers would hold 5e[+]19 bytes"),
        ({"batch": 2**20, "microbatches": [2, 2**20]}, "microbatches must be 65536"),
    ],
)
def test_what_is_too_large_to_be_reckoned_with(options, words):
    with pytest.raises(ValueError, match=words):
        best_plan(even(), Machine(2), **options)


def test_many_replicas_and_ranks_end():
    plan = best_plan(even(), Machine(10), schedules=["1f1b"], replicas=(1, 10**9))
    assert plan.replicas * plan.n_stages <= 10


def test_one_rank_is_what_others_are_compared_with():
    plan = best_plan(uneven(), Machine(4))
    (alone,) = [
        each for each in plan.alternatives if each.plan and each.plan.n_stages == 1
    ]
    times = alone.seconds / plan.step_seconds
    assert 1 < times <= 4
    assert alone.reason == f"one rank takes {times:.2f} times as long"


def test_a_schedule_without_a_flush_is_planned_where_it_is_named():
    """Weights and gradients twice, the seconds of the steady state, and no groups."""
    layer = LayerCost(1e-3, 1e-3, 1e-3, activation_bytes=2000, parameter_bytes=10**4)
    profiles = [Profile([layer] * 8, n_samples=n) for n in (8, 16)]
    plans = [
        best_plan(
            profiles,
            Machine(4),
            batch=64,
            schedules=[name],
            pipeline_ranks=[4],
            microbatches=[8],
            weight_groups=sizes,
        )
        for name, sizes in (("1f1b", [1]), ("pipedream_2bw", [1, 4]))
    ]
    flushed, late = ([stage.memory for stage in plan.stages] for plan in plans)
    copies = [2, 2, 2, 1]
    assert [b - a for a, b in zip(flushed, late)] == [n * 2 * 10**4 for n in copies]
    assert plans[1].weight_groups == 1 and plans[1].schedule == "pipedream_2bw"
    assert plans[1].step_seconds == pytest.approx(8 * 2 * 3e-3)
    assert plans[1].conditions.overlap_minibatches

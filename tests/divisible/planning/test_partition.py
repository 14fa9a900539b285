import itertools
import math
import time
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from divisible import (
    LayerCost,
    MemoryLimitError,
    Network,
    Plan,
    Profile,
    partition,
    schedules,
)
from divisible.planning import dynamic_program
from divisible.schedules.catalogue import ONE_PER_RANK
from divisible.schedules.recomputation import RECOMPUTATIONS, recompute
from tests.support.examples import examples
from tests.support.schedules import held_moments

SETTINGS = examples(400)


def layers_of(times, **columns):
    return [
        LayerCost(t, 2 * t, t / 2, **{k: v[i] for k, v in columns.items()}, name=str(i))
        for i, t in enumerate(times)
    ]


@st.composite
def requests(draw):
    """A profile and what to cut it for, small enough to try every cut."""
    n = draw(st.integers(1, 8))
    n_stages = draw(st.integers(1, min(n, 4)))
    size = st.integers(0, 50)

    def sizes():
        return draw(st.lists(size, min_size=n, max_size=n))

    layers = [
        LayerCost(
            *draw(st.tuples(st.integers(1, 20), st.integers(0, 20), st.integers(0, 9))),
            output_bytes=draw(size),
            skip_bytes=draw(size),
            activation_bytes=draw(size),
            parameter_bytes=draw(size),
            optimizer_bytes=draw(size),
            boundary_output_bytes=draw(size),
            pending_bytes=draw(size),
            workspace_bytes=draw(size),
        )
        for _ in range(n)
    ]
    # Of what crosses a cut, a part may be of skip connections.
    layers = [
        replace(layer, passing_bytes=draw(st.integers(0, layer.output_bytes)))
        for layer in layers
    ]
    loss = LayerCost(1, 1, 1, activation_bytes=7) if draw(st.booleans()) else None
    profile = Profile(layers, n_samples=1, input_bytes=draw(size), loss=loss)

    def each(values, n):
        return draw(st.lists(values, min_size=n, max_size=n))

    edges = n_stages - 1
    options = {
        "speeds": each(st.sampled_from([0.25, 0.5, 1, 2, 3]), n_stages),
        "memory": draw(
            st.one_of(st.none(), st.lists(st.integers(50, 900), min_size=n_stages))
        ),
        "network": Network(
            each(st.sampled_from([0.5, 1, 4, 100]), edges),
            each(st.sampled_from([0, 1, 5]), edges),
            overlap=draw(st.booleans()),
        )
        if edges
        else None,
        "schedule": draw(st.sampled_from(ONE_PER_RANK)),
        "n_microbatches": draw(st.integers(1, 5)),
        "recompute": draw(st.sampled_from(["never", "except_last", "always"])),
    }
    return profile, n_stages, options


def costs_of(profile, cuts, options):
    """The costs of the stages of a plan, from their definitions.

    Returns the slowest stage or link, the sum of squares, and whether all fit.
    """
    n, n_stages = len(profile), len(cuts) - 1
    m, checkpoint = options["n_microbatches"], options["recompute"]
    network = options["network"] or Network()
    bandwidth, latency, _ = network.links(n_stages)
    schedule = schedules.create(options["schedule"], n_stages, m)
    moments = held_moments(recompute(schedule, checkpoint))
    again = {"never": 0, "except_last": (m - 1) / m, "always": 1}[checkpoint]
    slowest, squares, fits = 0.0, 0.0, True
    for s, (i, j) in enumerate(zip(cuts, cuts[1:])):
        layers = list(profile.layers[i:j])
        if m == 1 or (j == n and options["schedule"] != "gpipe"):
            # Each backward follows its forward at once.
            again = 0
        loss = [profile.loss] if j == n and profile.loss is not None else []
        busy = sum((1 + again) * c.forward for c in layers + loss)
        busy += sum(c.backward_input + c.backward_weight for c in layers + loss)
        busy /= options["speeds"][s]
        incoming = profile.layers[i - 1].output_bytes if i else profile.input_bytes
        outgoing = layers[-1].output_bytes if j < n else 0
        loose = layers[-1].boundary_output_bytes if j < n else 0
        before = incoming / bandwidth[s - 1] if s else 0
        behind = outgoing / bandwidth[s] if j < n else 0
        if network.overlap:
            cost = max(busy, before)
        else:
            before += latency[s - 1] if s else 0
            behind += latency[s] if j < n else 0
            cost = busy + 2 * before + 2 * behind
        slowest, squares = max(slowest, cost), squares + cost**2

        held = sum(c.activation_bytes for c in layers + loss)
        memory = sum(2 * c.parameter_bytes + c.optimizer_bytes for c in layers)
        if options["schedule"] == "pipedream_2bw":
            # The second gradient, and the second version of the weights.
            copies = 1 + (min(m, n_stages - s) > 1)
            memory += copies * sum(c.parameter_bytes for c in layers)
        crossing = profile.layers[i - 1].passing_bytes if i else 0
        skips = min(crossing, sum(c.skip_bytes for c in layers))
        incoming += skips - crossing
        passing = layers[-1].passing_bytes if j < n else 0
        begun = passing - crossing + sum(c.skip_bytes for c in layers)
        outgoing += min(passing, max(begun, 0)) - passing
        memory += incoming + outgoing
        if any(pending for _, _, pending in moments[s]):
            memory += max(c.workspace_bytes for c in layers)
        else:
            # Layers behind the one that runs hold nothing, and the loss nothing either.
            behind = [sum(c.activation_bytes for c in layers[k:]) for k in range(1, j)]
            behind = [b + sum(c.activation_bytes for c in loss) for b in behind]
            behind[j - i - 1 :] = [0]
            memory += max(c.workspace_bytes - b for c, b in zip(layers, behind))
        waiting = sum(c.pending_bytes for c in layers)
        memory += max(
            in_flight * incoming + graphs * (held + loose) + pending * waiting
            for in_flight, graphs, pending in moments[s]
        )
        # Two messages may come before they are needed.
        most = max(in_flight for in_flight, *_ in moments[s])
        memory += min(2, m - most) * incoming if s else 0
        memory += min(2, m - 1) * outgoing if j < n else 0
        if options["memory"] is not None:
            fits = fits and memory <= options["memory"][s]
    return slowest, squares, fits


def all_cuts(profile, n_stages):
    n = len(profile)
    for inner in itertools.combinations(range(1, n), n_stages - 1):
        yield [0, *inner, n]


@pytest.mark.slow
@SETTINGS
@given(requests())
def test_equals_brute_force(request):
    profile, n_stages, options = request
    tried = [
        (cuts, costs_of(profile, cuts, options)) for cuts in all_cuts(profile, n_stages)
    ]
    fitting = [(cost, cuts) for cuts, cost in tried if cost[2]]
    if not fitting:
        with pytest.raises(MemoryLimitError, match=r"stage \d .* more than the"):
            partition(profile, n_stages, **options)
        return
    plan = partition(profile, n_stages, **options)
    slowest, squares, fits = costs_of(profile, plan.cuts, options)
    best = min(cost[0] for cost, _ in fitting)
    assert fits
    assert slowest == pytest.approx(best)
    least = min(cost[1] for cost, _ in fitting if cost[0] <= best * (1 + 1e-9))
    assert squares == pytest.approx(least)


@pytest.mark.slow
@SETTINGS
@given(requests())
def test_a_plan_describes_its_stages(request):
    profile, n_stages, options = request
    options["memory"] = None
    plan = partition(profile, n_stages, **options)
    # Every layer is in one stage.
    assert [i for s in range(n_stages) for i in range(*plan.range(s))] == list(
        range(len(profile))
    )
    # What a stage is said to need is what it fits into, and no less.
    for s, stage in enumerate(plan.stages):
        least = [math.inf] * n_stages
        for memory, fits in ((stage.memory, True), (stage.memory - 1, False)):
            least[s] = memory
            options["memory"] = least
            if memory > 0:
                assert costs_of(profile, plan.cuts, options)[2] == fits


@given(requests(), st.sampled_from(["uniform", "parameters", "time"]))
@examples(150)
def test_other_methods_minimise_what_they_say(request, method):
    profile, n_stages, options = request
    options["memory"] = None
    candidates = list(all_cuts(profile, n_stages))
    weights = {
        "uniform": np.ones(len(profile)),
        "parameters": profile.column("parameter_bytes"),
        "time": profile.column("forward")
        * (1 + (options["recompute"] == "always" and options["n_microbatches"] != 1))
        + profile.column("backward_input")
        + profile.column("backward_weight"),
    }[method]
    if options["recompute"] == "except_last":
        options["recompute"] = "never"

    def most(cuts):
        return max(weights[i:j].sum() for i, j in zip(cuts, cuts[1:]))

    plan = partition(profile, n_stages, method=method, **options)
    assert plan.cuts in candidates
    assert most(plan.cuts) == pytest.approx(min(map(most, candidates)))


@pytest.mark.parametrize("block", [1, 2, 5])
def test_what_is_passed_over_is_never_better(block):
    """In blocks of the size in use, so few layers are all tried."""
    n, n_stages, feasible = 30, 5, 0
    for seed in range(100):
        random = np.random.RandomState(seed)

        def rare(most, shape, random=random):
            return random.randint(1, most, shape) * (random.rand(shape) < 0.2)

        columns = {
            "workspace_bytes": rare(300, n),
            "parameter_bytes": random.randint(0, 10, n),
            "output_bytes": rare(100, n),
        }
        columns = {name: values.tolist() for name, values in columns.items()}
        profile = Profile(layers_of(random.randint(1, 10, n), **columns), n_samples=1)
        options = {
            "speeds": random.randint(1, 4, n_stages),
            "memory": random.randint(50, 500, n_stages),
            "network": Network(1.0, 0.0, overlap=bool(seed % 2)),
        }
        try:
            expected = partition(profile, n_stages, **options).cuts
        except MemoryLimitError as error:
            expected = str(error)
        else:
            feasible += 1
        with mock.patch.object(dynamic_program, "_BLOCK", block):
            try:
                found = partition(profile, n_stages, **options).cuts
            except MemoryLimitError as error:
                found = str(error)
        assert found == expected
    assert 16 < feasible < 84


def test_ten_thousand_layers_on_64_stages():
    random = np.random.RandomState(0)
    columns = {
        name: random.randint(0, 10**6, 10000).tolist()
        for name in ("output_bytes", "activation_bytes", "parameter_bytes")
    }
    profile = Profile(layers_of(random.rand(10000) + 0.01, **columns), n_samples=1)
    speeds = random.rand(64) + 0.5
    # A machine shared with others is slow at times: the limit leaves room for that.
    begin = time.process_time()
    plan = partition(
        profile,
        64,
        speeds=speeds,
        memory=1e11,
        network=Network(1e6, 1e-3, overlap=False),
    )
    assert time.process_time() - begin < 30
    seconds = [stage.seconds for stage in plan.stages]
    assert max(seconds) < 1.2 * sum(seconds) / 64


@pytest.mark.parametrize("position", [0, 1500, 2999])
def test_a_layer_that_outweighs_all_others(position):
    """The search can bound it least, and what fits nowhere."""
    seconds = np.full(3000, 1.0)
    seconds[position] = 3000.0
    profile = Profile(layers_of(seconds, parameter_bytes=[1] * 3000), n_samples=1)
    slowest = max(layer.seconds for layer in profile.layers)
    plan = partition(profile, 16)
    assert max(stage.seconds for stage in plan.stages) == pytest.approx(slowest)
    with pytest.raises(MemoryLimitError, match="no plan of 16 stages"):
        partition(profile, 16, memory=10)


def test_layers_without_parameters_are_spread_too():
    layers = layers_of([1.0] * 8, parameter_bytes=[100] + [0] * 7)
    assert partition(Profile(layers, 1), 4, method="parameters").cuts[1] == 1
    layers = layers_of([1.0] * 8, parameter_bytes=[0] * 8)
    plan = partition(Profile(layers, 1), 4, method="parameters")
    assert plan.cuts == [0, 2, 4, 6, 8]


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        (
            {"memory": "8GiB"},
            TypeError,
            "memory must be a number, .*'8GiB'",
        ),
        (
            {"speeds": [1, None, "x"]},
            TypeError,
            "speeds must be a number, or a list",
        ),
        ({"memory": float("nan")}, ValueError, "memory must be positive, not nan"),
    ],
)
def test_numbers_for_ranks_that_are_none(arguments, error, message):
    profile = Profile(layers_of([1.0] * 4), n_samples=1)
    with pytest.raises(error, match=message):
        partition(profile, 3, **arguments)
    with pytest.raises(TypeError, match="bandwidth must be a number, or .*'1Gbit/s'"):
        Network("1Gbit/s")
    with pytest.raises(TypeError, match="needs one Profile.* best_plan takes several"):
        partition([profile, profile], 2)


def test_equal_layers_are_cut_evenly():
    profile = Profile(layers_of([1.0] * 12), n_samples=1)
    assert partition(profile, 4).cuts == [0, 3, 6, 9, 12]
    assert partition(profile, 1).cuts == [0, 12]
    assert partition(profile, 12).cuts == list(range(13))


def test_a_slow_link_is_avoided():
    outputs = [1, 1000, 1, 1]
    profile = Profile(layers_of([1.0] * 4, output_bytes=outputs), n_samples=1)
    assert partition(profile, 2).cuts == [0, 2, 4]
    assert partition(profile, 2, network=Network(50)).cuts in ([0, 1, 4], [0, 3, 4])


def test_memory_moves_the_cut():
    profile = Profile(
        layers_of([1.0] * 4, activation_bytes=[100] * 4, parameter_bytes=[10] * 4),
        n_samples=1,
    )
    # 1F1B holds two microbatches on the first stage and one on the second.
    assert [stage.memory for stage in partition(profile, 2).stages] == [440, 240]
    assert partition(profile, 2, memory=400).cuts == [0, 1, 4]
    assert partition(profile, 2, memory=400, recompute="always").cuts == [0, 2, 4]


def test_cuts_that_are_given():
    times = [1.0, 5.0, 1.0, 1.0]
    profile = Profile(layers_of(times, parameter_bytes=[10] * 4), n_samples=1)
    best, given = partition(profile, 2), partition(profile, 2, cuts=[0, 3, 4])
    assert (best.cuts, given.cuts) == ([0, 2, 4], [0, 3, 4])
    assert [stage.seconds for stage in given.stages] == [3.5 * 7, 3.5]
    assert partition(profile, 2, cuts=best.cuts).stages == best.stages
    with pytest.raises(MemoryLimitError, match=r"cuts \[0, 3, 4\] do not fit: stage 0"):
        partition(profile, 2, memory=50, cuts=[0, 3, 4])


def test_zero_bubble_has_its_peaks_at_different_times():
    layers = [LayerCost(1, 1, 1, activation_bytes=100, pending_bytes=100)] * 3
    profile = Profile(layers, n_samples=1)
    options = {"schedule": "zb_h1", "n_microbatches": 4}
    plan = partition(profile, 3, memory=300, **options)
    assert [stage.memory for stage in plan.stages] == [300, 300, 300]


def test_what_lacks_is_said():
    profile = Profile(
        layers_of([1.0] * 4, parameter_bytes=[1000, 1000, 5000, 1000]), n_samples=1
    )
    with pytest.raises(MemoryLimitError) as error:
        partition(profile, 2, memory=[9000, 9500])
    message = str(error.value)
    assert "stage 1 (layers 2 to 3) needs 11.7 KiB, 2.4 KiB more than the" in message
    assert "Layer 2 alone fits nowhere: where it lacks least, as stage 1, it" in message
    # The first stage has room for more, but the last layer is never there.
    profile = Profile(layers_of([1.0] * 3, activation_bytes=[1000] * 3), n_samples=1)
    with pytest.raises(MemoryLimitError, match="least, as stage 2, it needs 1000 B"):
        partition(profile, 3, memory=[3500, 2500, 950])
    profile = Profile(
        layers_of([1.0] * 4, parameter_bytes=[1000, 1000, 5000, 1000]), n_samples=1
    )
    with pytest.raises(MemoryLimitError, match="one rank|stage 0 .layers 0 to 3"):
        partition(profile, 1, memory=9000)
    with pytest.raises(MemoryLimitError, match=r"cuts \[0, 2, 4\] do not fit: stage 1"):
        partition(profile, 2, method="uniform", memory=9000)


def test_what_lacks_for_a_skip_is_said():
    layers = [
        LayerCost(1, 1, 1, output_bytes=10**6, passing_bytes=10**6 * (i < 3))
        for i in range(4)
    ]
    layers[3] = replace(layers[3], skip_bytes=10**6)
    with pytest.raises(MemoryLimitError, match="as stage 3, it needs 3.8 MiB"):
        partition(Profile(layers, n_samples=1), 4, memory=3.2e6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "fastest"}, "method must be one of optimal, uniform"),
        ({"n_stages": 5}, "4 layers cannot be cut into 5 stages"),
        ({"n_stages": 0}, "cannot be cut into 0 stages"),
        ({"speeds": [1, 0]}, "speeds must be finite and positive"),
        ({"speeds": [1]}, "there are 2 ranks"),
        ({"memory": [1e9]}, "there are 2 ranks"),
        ({"memory": -1}, "memory must be positive"),
        ({"memory": float("nan")}, "memory must be positive"),
        ({"schedule": "1f2b"}, "no schedule '1f2b'; choose one of 1f1b"),
        ({"schedule": "gpipe"}, "n_microbatches is needed"),
        ({"recompute": "often"}, "recompute must be one of never"),
        ({"recompute": "often", "schedule": "zb_h1"}, "recompute must be one of"),
        ({"schedule": "zb_v"}, "zb_v puts several stages on a rank.* best_plan cuts"),
        ({"schedule": schedules.gpipe(3, 4)}, "gpipe is of 3 stages, not of 2"),
        (
            {"schedule": schedules.gpipe(2, 4), "n_microbatches": 5},
            "n_microbatches is 5, but the schedule has 4",
        ),
        (
            {"schedule": schedules.Schedule([["0B0", "0F0"], ["1F0", "1B0"]])},
            "0B0 runs before",
        ),
        ({"n_microbatches": 0}, "n_microbatches must be positive"),
        ({"cuts": [0, 2, 4], "method": "time"}, "nothing for method='time' to cut"),
        ({"cuts": [0, 4]}, "make 1 stage of 4 layers, not 2 of 4"),
        ({"cuts": [0, 2, 5]}, "make 2 stages of 5 layers, not 2 of 4"),
        ({"cuts": [0, 4, 4]}, "has no layers; cuts must grow"),
    ],
)
def test_bad_requests(options, message):
    profile = Profile(layers_of([1.0] * 4), n_samples=1)
    with pytest.raises(ValueError, match=message):
        partition(profile, **{"n_stages": 2, **options})


@pytest.mark.parametrize("values", [{"bandwidth": 0}, {"latency": -1}])
def test_bad_networks(values):
    with pytest.raises(ValueError, match="must be"):
        Network(**values)


def test_too_few_links():
    profile = Profile(layers_of([1.0] * 4), n_samples=1)
    with pytest.raises(ValueError, match="2 links between ranks"):
        partition(profile, 3, network=Network([1e9]))


def test_the_plan_knows_what_it_is_for():
    profile = Profile(layers_of([1.0, 2.0]), n_samples=1)
    plan = partition(profile, 2, n_microbatches=4, recompute="always")
    assert plan == Plan([0, 1, 2], 4, "1f1b", recompute="always", layers=["0", "1"])
    assert str(plan).splitlines()[0] == (
        "2 layers cut at [0, 1, 2], 1f1b schedule, 4 microbatches, recomputation always"
    )
    folded = Plan([0, 1, 2], 4, "zb_v", stages_per_rank=2)
    assert "cut at [0, 1, 2], 1 rank, zb_v schedule" in folded.headline


def test_the_last_stage_recomputes_nothing():
    """Its backward follows its forward at once, so it gets more layers."""
    profile = Profile([LayerCost(1, 1, 1)] * 14, n_samples=1)
    options = {"n_microbatches": 8, "recompute": "always"}
    assert partition(profile, 2, schedule="1f1b", **options).cuts == [0, 6, 14]
    assert partition(profile, 2, schedule="gpipe", **options).cuts == [0, 7, 14]


@pytest.mark.parametrize("checkpoint", RECOMPUTATIONS)
@pytest.mark.parametrize("name", [name for name in ONE_PER_RANK if name != "gpipe"])
def test_any_number_of_microbatches_are_as_many(name, checkpoint):
    layers = layers_of([1.0] * 9, activation_bytes=[10] * 9, output_bytes=[3] * 9)
    layers = [replace(layer, pending_bytes=5) for layer in layers]
    profile = Profile(layers, n_samples=1)
    options = {"schedule": name, "recompute": checkpoint}
    for n_stages in (1, 2, 4):
        plan = partition(profile, n_stages, **options)
        many = partition(profile, n_stages, n_microbatches=10**4, **options)
        assert plan.n_microbatches is None
        for stage, other in zip(plan.stages, many.stages):
            assert stage.memory == other.memory
            assert stage.seconds == pytest.approx(other.seconds, rel=1e-3)


def test_a_schedule_of_ones_own():
    """What it holds is read from its actions, with several stages on a rank too."""
    layers = layers_of([1.0] * 4, activation_bytes=[100] * 4)
    profile = Profile(layers, n_samples=1)
    mine = schedules.Schedule(
        [["0F0", "0F1", "0B0", "0B1"], ["1F0", "1F1", "1B1", "1B0"]]
    )
    plan = partition(profile, 2, schedule=mine)
    assert (plan.schedule, plan.n_microbatches) == (None, 2)
    assert [stage.memory for stage in plan.stages] == [400, 400]
    folded = partition(profile, 4, schedule=schedules.zero_bubble_v(2, 8))
    held = schedules.zero_bubble_v(2, 8).validate().stage_in_flight
    assert [stage.memory for stage in folded.stages] == [100 * n for n in held]


def test_a_single_microbatch_is_not_recomputed():
    profile = Profile([LayerCost(1, 1, 1)] * 14, n_samples=1)
    options = {"n_microbatches": 1, "recompute": "always"}
    assert partition(profile, 2, schedule="1f1b", **options).cuts == [0, 7, 14]


def test_a_skip_takes_memory_where_it_begins_and_ends_only():
    """Not in the stages that it passes by, on its way straight to its end."""
    skip = 10**6
    layers = [
        LayerCost(
            1, 1, 1, output_bytes=10 + skip * (i < 3), passing_bytes=skip * (i < 3)
        )
        for i in range(4)
    ]
    layers[3] = replace(layers[3], skip_bytes=skip)
    plan = partition(Profile(layers, n_samples=1, input_bytes=10), 4)
    needed = [stage.memory for stage in plan.stages]
    # For the one microbatch in flight there, the one whose gradient leaves, and two
    # that may come; and for the gradient in use where it begins, and two that may come.
    assert needed[3] // skip == 4 and needed[0] // skip == 3
    assert max(needed[1:3]) < skip
    whole = partition(Profile(layers, n_samples=1, input_bytes=10), 1)
    assert whole.stages[0].memory < skip

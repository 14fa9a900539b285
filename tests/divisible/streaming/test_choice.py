"""stream() puts on disk what has to be there, and what costs least."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from divisible import (
    Divisible,
    LayerCost,
    Machine,
    MemoryLimitError,
    Plan,
    Profile,
    best_plan,
    deferred_init,
    pop,
    stash,
)
from divisible.planning.conditions import Conditions
from divisible.planning.disk import IN_MEMORY, Disk
from divisible.streaming import StoreError, Streamed, stream
from divisible.streaming.choice import _Part
from divisible.streaming.model_weights import LayerWeights

MIB = 2**20


def perceptron(*widths):
    with deferred_init(seed=0):
        layers = []
        for i, (n_in, n_out) in enumerate(zip(widths, widths[1:])):
            layers += [F.relu] * (i > 0) + [L.Linear(n_in, n_out)]
        return Divisible(*layers)


def losses(stage, n_in, n_steps=3):
    optimizer = chainer.optimizers.Adam().setup(stage)
    random, found = np.random.RandomState(0), []
    for _ in range(n_steps):
        loss = F.sum(stage(random.randn(8, n_in).astype("f")) ** 2)
        stage.cleargrads()
        loss.backward()
        optimizer.update()
        found.append(float(loss.array))
    return found


def kinds(model):
    return [type(layer).__name__ for layer in model]


def test_the_model_computes_what_it_did(tmp_path, capsys):
    widths = (1000, 1200, 900, 10)
    model = perceptron(*widths)
    adam = chainer.optimizers.Adam()
    report = stream(model, memory="34MiB", directory=tmp_path, optimizer=adam)
    assert kinds(model) == ["Streamed", "function", "Linear", "function", "Linear"]
    assert report.streamed == (0,) and report.directory == str(tmp_path)
    memory = report.ranks[0]
    whole = sum(a * b + b for a, b in zip(widths, widths[1:])) * 4 * 4
    assert memory.weights == whole
    assert memory.resident == whole - 1000 * 1200 * 4 * 4
    assert memory.segments == 16 * MIB and memory.needed <= memory.limit == 34 * MIB
    printed = capsys.readouterr().out
    assert "rank 0: " in printed and "of 34.0 MiB" in printed and "yes" in printed
    expected = losses(perceptron(*widths).divide(), 1000)
    np.testing.assert_allclose(losses(model.divide(), 1000), expected, rtol=1e-5)


def test_nothing_is_on_disk_that_has_room_in_memory(capsys):
    model = perceptron(100, 100, 10)
    assert stream(model, memory="1MiB", show=False).streamed == ()
    assert kinds(model) == ["Linear", "function", "Linear"]
    assert capsys.readouterr().out == ""


def profile_of(model, seconds):
    costs = [
        LayerCost(s, s, s, activation_bytes=MIB, workspace_bytes=MIB, name=name)
        for s, name in zip(seconds, model.model_layers)
    ]
    return Profile(costs, n_samples=32)


def test_the_layer_goes_whose_computation_hides_the_disk():
    model = perceptron(2000, 2000, 2000, 2000)
    profile = profile_of(model, [0.1, 0.1, 9.0, 0.1, 0.1])
    report = stream(
        model,
        memory="90MiB",
        profile=profile,
        disk=Disk(read=MIB, write=MIB),
        show=False,
    )
    assert report.streamed == (2,)
    # Of its 15.3 MiB, of which each takes a second: three passes, the last of them
    # with the update, that take 6.3 s longer than its computation.
    np.testing.assert_allclose(report.layers[1].seconds, 3 * 15.26 - 27, rtol=1e-3)
    assert report.ranks[0].activations == 6 * MIB
    # With a disk that is fast enough, it costs nothing.
    fast = stream(
        perceptron(2000, 2000, 2000, 2000),
        memory="90MiB",
        profile=profile,
        disk=Disk(read=1e15, write=1e15),
        show=False,
    )
    assert len(fast.streamed) == 1 and fast.layers[0].seconds < 1e-6


class Block(chainer.Chain):
    def __init__(self, n):
        super().__init__()
        with self.init_scope():
            self.first = L.Convolution2D(n, n, 3, pad=1)
            self.norm = L.BatchNormalization(n)
            self.second = L.Convolution2D(n, n, 3, pad=1)

    def forward(self, x):
        return x + self.second(F.relu(self.norm(self.first(x))))


def test_links_of_a_chain_are_streamed_together():
    def model():
        with deferred_init(seed=1):
            return Divisible(L.Convolution2D(3, 384, 1), Block(384))

    blocks = model()
    assert stream(blocks, memory="18MiB", show=False).streamed == (1,)
    assert type(blocks[1].first) is type(blocks[1].second) is Streamed
    assert type(blocks[0]) is L.Convolution2D
    assert "Streamed" in blocks.model_layers[1]
    x = np.random.RandomState(0).randn(2, 3, 4, 4).astype("f")
    stages = blocks.divide(), model().divide()
    paths = [[path for path, _ in stage.namedparams()] for stage in stages]
    assert sorted(paths[0]) == sorted(paths[1])
    np.testing.assert_allclose(
        *(stage(x).array for stage in stages), rtol=1e-4, atol=1e-5
    )


def test_a_link_at_two_places_stays_one():
    with deferred_init(seed=0):
        link = L.Linear(1500, 1500)
        model = Divisible(link, F.relu, link, L.Linear(1500, 3))
    report = stream(model, memory="17MiB", show=False)
    assert report.streamed == (0,) and model[0] is model[2]
    assert report.ranks[0].weights == 2 * 4 * (1500 * 1501 + 1501 * 3)


def test_reasons_are_said():
    with deferred_init(seed=0):
        model = Divisible(
            stash("x"),
            L.Linear(600, 600),
            pop("x", F.add),
            L.Linear(600, 600),
            L.BatchNormalization(600),
            L.Linear(600, 700),
        )
    model.tie("/1/W", "/3/W")
    report = stream(model, memory="1GiB", show=False)
    assert [each.position for each in report.layers] == [1, 3, 4, 5]
    reasons = [each.reason for each in report.layers]
    assert "another layer" in reasons[0] and "another layer" in reasons[1]
    assert "only Linear" in reasons[2] and reasons[3] == ""


def test_what_does_not_fit_is_refused_and_the_model_is_as_it_was():
    model = perceptron(1000, 1000, 1000)
    with pytest.raises(MemoryLimitError) as refused:
        stream(model, memory="10MiB", show=False)
    words = "rank 0", "16.0 MiB of its 10.0 MiB", "segments 16.0 MiB", "Give more"
    assert all(word in str(refused.value) for word in words)
    assert kinds(model) == ["Linear", "function", "Linear"]
    model.divide()


def test_each_rank_has_its_memory():
    model = perceptron(1500, 1500, 1500, 1500)
    plan = Plan([0, 2, 5], n_microbatches=4, schedule="1f1b")
    report = stream(model, memory=["17MiB", "1GiB"], plan=plan, show=False)
    assert report.streamed == (0,) and len(report.ranks) == 2
    # Two microbatches of 8 samples in flight on the first rank, one on the second.
    model = perceptron(1500, 1500, 1500, 1500)
    profile = profile_of(model, [0.1] * 5)
    disk = Disk(read=1e9, write=1e9)
    report = stream(
        model, memory="1GiB", plan=plan, profile=profile, disk=disk, show=False
    )
    held = [rank.activations for rank in report.ranks]
    assert held == [2 * 2 * MIB // 4 + MIB // 4, 3 * MIB // 4 + MIB // 4]


def test_a_plan_says_what_is_streamed():
    model = perceptron(800, 800, 800, 800)
    plan = Plan([0, 2, 5], 4, "1f1b", streamed=[0, 4])
    assert stream(model, memory="1GiB", plan=plan, show=False).streamed == (0, 4)
    with pytest.raises(ValueError, match="the plan streams layer 1, but"):
        wrong = Plan([0, 2, 5], 4, "1f1b", streamed=[1])
        stream(perceptron(800, 800, 800, 800), memory="1GiB", plan=wrong, show=False)


def test_best_plan_and_stream_agree():
    model = perceptron(2000, 2000, 2000)
    profile = Profile(
        [
            LayerCost(
                *(1.0, 1.0, 1.0),
                parameter_bytes=size,
                streamable_bytes=size,
                name=name,
            )
            for size, name in zip((16 * 10**6, 0, 16 * 10**6), model.model_layers)
        ],
        n_samples=8,
    )
    disk = Disk(1e9, 1e9)
    plan = best_plan(profile, Machine(1, memory=55 * MIB, disk=disk))
    report = stream(model, memory=55 * MIB, plan=plan, show=False)
    assert report.streamed == plan.streamed and len(plan.streamed) == 1


def test_a_plan_says_for_which_memory_disk_and_minibatch(capsys):
    model = perceptron(1500, 1500, 1500, 1500)
    # Of two replicas, the first rank of the second one has least.
    memory = [2**30, 2**30, 17 * MIB, 2**30]
    machine = Machine(4, memory, disk=Disk(read=1e9, write=1e8))
    plan = Plan(
        [0, 2, 5], 4, "1f1b", replicas=2, conditions=Conditions(machine, batch=128)
    )
    report = stream(model, plan=plan)
    assert report.streamed == (0,)
    assert [rank.limit for rank in report.ranks] == [17 * MIB, 2**30]
    printed = capsys.readouterr().out
    assert "the plan is for a minibatch of 128 samples on 4 ranks of" in printed
    # Microbatches of 16 samples, half as many as the profile's 32 take.
    model = perceptron(1500, 1500, 1500, 1500)
    profile = profile_of(model, [0.1] * 5)
    report = stream(model, memory="1GiB", plan=plan, profile=profile, show=False)
    held = [rank.activations for rank in report.ranks]
    half = MIB * 16 // profile.n_samples
    assert held == [2 * 2 * half + half, 3 * half + half]
    assert report.disk == machine.disk
    with pytest.raises(TypeError, match="give memory, such as '4GiB', or a plan"):
        stream(perceptron(10, 10), plan=Plan([0, 1]), show=False)


def made():
    with deferred_init(seed=0):
        return Divisible(L.Linear(3, 2)).divide()


@pytest.mark.parametrize(
    "model, memory, options, error, words",
    [
        (made, "1GiB", {}, StoreError, "deferred_init"),
        (lambda: L.Linear(3, 2), "1GiB", {}, TypeError, "not a Linear"),
        (lambda: perceptron(3, 2), "much", {}, ValueError, "much"),
        (lambda: perceptron(3, 2), 0, {}, ValueError, "memory must be positive"),
        (lambda: perceptron(3, 2), 10, {"plan": Plan([0, 2])}, ValueError, "layers"),
        (lambda: perceptron(3, 2), 10, {"optimizer": "adam"}, TypeError, "adam"),
        (lambda: perceptron(3, 2), 10, {"directory": "/no"}, StoreError, "'/no'"),
    ],
)
def test_refusals(model, memory, options, error, words):
    with pytest.raises(error, match=words):
        stream(model(), memory=memory, show=False, **options)


@given(
    sizes=st.lists(st.tuples(st.integers(0, 60), st.booleans()), min_size=1),
    limit=st.integers(1, 500),
)
def test_no_layer_is_on_disk_for_nothing(sizes, limit):
    weights = {
        i: LayerWeights(
            2 * n * MIB,
            2 * n * MIB * able,
            n * MIB * able,
            0,
            n * MIB * able,
            4000 * able,
            "",
        )
        for i, (n, able) in enumerate(sizes)
    }
    part = _Part(weights, limit * MIB, None)
    part.choose({})
    everything = {i for i, each in weights.items() if each.freed}
    if part.fits:
        for i in sorted(part.chosen):
            part.chosen.remove(i)
            assert not part.fits
            part.chosen.add(i)
    else:
        assert part.chosen == everything
    largest = max((weights[i].largest for i in part.chosen), default=0)
    assert part.memory.segments <= IN_MEMORY * largest


def test_an_embedding_on_disk_costs_no_pass_of_a_microbatch():
    def words():
        with deferred_init(seed=0):
            return Divisible(L.EmbedID(100000, 50), L.Linear(150, 20000, nobias=True))

    costs = [
        LayerCost(1e-3, 1e-3, 1e-3, parameter_bytes=20_000_000, gathered_bytes=0),
        LayerCost(1e-3, 1e-3, 1e-3, parameter_bytes=12_000_000),
    ]
    profile = Profile(costs, n_samples=8)
    report = stream(
        words(), memory="40MiB", profile=profile, disk=Disk(1e8, 1e8), show=False
    )
    # Twice as large, and on disk at less cost than the layer behind it.
    assert report.streamed == (0,)
    assert report.layers[0].seconds == pytest.approx(0)

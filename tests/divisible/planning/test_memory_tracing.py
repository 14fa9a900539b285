from types import SimpleNamespace

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from divisible import Divisible, deferred_init, profile, trace_memory
from divisible.planning.cost_model import CostModel
from divisible.planning.network import Network
from divisible.planning.shape_arrays import ShapeArray
from divisible.schedules import gpipe, one_f_one_b, zero_bubble_h1
from examples.autoencoder.model import Autoencoder
from examples.cluster.model import Network as DigitsNetwork
from examples.grid.model import DigitNet
from examples.language_model.model import LanguageModel, RecurrentModel
from examples.train.models.cnn import CNN
from examples.train.models.mlp import MLP
from examples.train.models.resnet50 import ResNet50
from examples.train.models.vgg16 import VGG16
from examples.unet.model import UNet
from mixed_precision import MixedPrecision

IMAGES = (8, 3, 32, 32), np.float32
DIGITS = (8, 1, 8, 8), np.float32
WORDS = (8, 12), np.int32
# Models of the examples, and the shapes and dtypes of inputs and targets.
EXAMPLES = {
    "autoencoder": (Autoencoder, ((8, 64), np.float32), None),
    "cluster": (DigitsNetwork, DIGITS, ((8,), np.int32)),
    "cnn": (CNN, DIGITS, ((8,), np.int32)),
    "first": (
        lambda: Divisible(L.Linear(64, 99), F.relu, L.Linear(99, 10)),
        ((8, 64), np.float32),
        ((8,), np.int32),
    ),
    "grid": (DigitNet, DIGITS, ((8,), np.int32)),
    "language model": (lambda: LanguageModel(50), WORDS, ((8, 12), np.int32)),
    "mlp": (lambda: MLP(128, n_layers=4), ((8, 128), np.float32), ((8,), np.int32)),
    "recurrent": (lambda: RecurrentModel(50), WORDS, ((8, 12), np.int32)),
    "resnet50": (ResNet50, IMAGES, ((8,), np.int32)),
    "unet": (UNet, ((4, 1, 16, 16), np.float32), ((4, 16, 16), np.int32)),
    "vgg16": (VGG16, IMAGES, ((8,), np.int32)),
    "vgg16 with norms": (
        lambda: VGG16(batch_normalization=True),
        IMAGES,
        ((8,), np.int32),
    ),
}


def zeros(kind):
    return None if kind is None else np.zeros(*kind)


@pytest.fixture
def narrow_groups(monkeypatch):
    """Leaves the depth of the large networks, and makes them narrow."""
    from examples.train.models import resnet50, vgg16

    groups = tuple(tuple(max(4, n // 16) for n in each) for each in vgg16.GROUPS)
    monkeypatch.setattr(vgg16, "GROUPS", groups)
    groups = tuple((1, n // 16) for n, _ in ((n, n) for _, n in resnet50.GROUPS))
    monkeypatch.setattr(resnet50, "GROUPS", groups)


@pytest.mark.parametrize("name", EXAMPLES)
def test_memory_from_shapes_is_that_of_a_measurement(name, narrow_groups):
    make, x, t = EXAMPLES[name]
    optimizer = chainer.optimizers.Adam()
    x, t = zeros(x), zeros(t)
    measured = profile(make(), x, t, optimizer=optimizer, repeat=1)
    with deferred_init():
        model = make()
    traced = trace_memory(model, x, t, optimizer=optimizer)
    assert not traced.unknown
    for column, tolerance in (
        ("parameter_bytes", 0.05),
        ("optimizer_bytes", 0.05),
        ("n_gradients", 0.05),
        ("activation_bytes", 0.1),
        ("output_bytes", 0),
        ("passing_bytes", 0),
        ("skip_bytes", 0),
        # Recurrent layers share the arrays of their steps.
        ("pending_bytes", 0.5),
    ):
        here, there = traced.column(column), measured.column(column)
        assert here.sum() == pytest.approx(there.sum(), rel=tolerance), column
        # A copy of a transposed array may count for the layer before.
        share = tolerance * there.sum()
        assert here == pytest.approx(there, rel=tolerance, abs=share), column


def test_held_by_a_schedule_as_by_a_measured_plan():
    x, t = np.zeros((8, 128), np.float32), np.zeros(8, np.int32)
    model, optimizer = MLP(128, n_layers=6), chainer.optimizers.MomentumSGD()
    measured = profile(model, x, t, optimizer=optimizer, repeat=1)
    traced = trace_memory(model, x, t, optimizer=optimizer)
    cuts = [0, 3, 7, 11]
    for schedule in (gpipe(3, 4), one_f_one_b(3, 4), zero_bubble_h1(3, 4)):
        network = Network().links(3)
        costs = CostModel.of(schedule, [measured] * 4, np.ones(3), network)
        # What layers allocate while they compute has no shape.
        sums, has_pending = measured.sums.stages(cuts), costs.moments.has_pending
        space = np.where(has_pending, sums.workspace_bytes, sums.excess_bytes)
        without = costs.rank_bytes(cuts) - space
        assert traced.rank_bytes(cuts, schedule) == pytest.approx(without, rel=0.05)


def test_even_cuts_fill_the_fullest_stage_least():
    with deferred_init():
        model = Divisible(*(L.Linear(n, 100) for n in (100, 300, 100, 100, 200)))
    memory = trace_memory(model, np.empty((2, 100), np.float32))
    assert memory.unknown
    with pytest.raises(ValueError, match="unknown from layer 1"):
        memory.even_cuts(gpipe(2, 2))
    with deferred_init():
        model = Divisible(*(L.Linear(100, 100) for _ in range(7)))
    memory = trace_memory(model, np.empty((2, 100), np.float32))
    assert memory.even_cuts(gpipe(7, 2)) == list(range(8))
    cuts = memory.even_cuts(one_f_one_b(3, 8))
    fullest = max(memory.rank_bytes(cuts, one_f_one_b(3, 8)))
    for i in range(1, 6):
        for j in range(i + 1, 7):
            others = memory.rank_bytes([0, i, j, 7], one_f_one_b(3, 8))
            assert fullest <= max(others)
    with pytest.raises(ValueError, match="fewer than the 8 stages"):
        memory.even_cuts(gpipe(8, 2))


def test_no_layer_computes_and_nothing_is_made(monkeypatch):
    def forbidden(*_, **__):
        raise AssertionError("arithmetic")

    monkeypatch.setattr(np, "dot", forbidden)
    with deferred_init():
        # A host with a terabyte of memory has no room for these weights.
        model = Divisible(
            L.Linear(10**6, 10**6), F.relu, L.Linear(None, 10**5), F.dropout
        )
    memory = trace_memory(
        model,
        ShapeArray((10**5, 10**6), np.float32),
        optimizer=chainer.optimizers.Adam(),
    )
    assert not memory.unknown
    first, _, third, dropped = memory.layers
    assert first.parameter_bytes == 4 * (10**12 + 10**6)
    assert first.optimizer_bytes == 2 * first.parameter_bytes
    # The size of a layer that finds it at its first call is known as well.
    assert third.parameter_bytes == 4 * (10**11 + 10**5)
    assert dropped.output == "(100000, 100000) float32"
    assert not model[2].W.is_initialized


class OwnLoss(chainer.Chain):
    """A loss with a layer that gets its size at its first call."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.last = L.Linear(None, 3)

    def forward(self, y, t):
        self.y = self.last(y)
        return F.softmax_cross_entropy(self.y, t)


def test_a_loss_stays_as_it_was():
    loss = OwnLoss()
    x, t = np.ones((8, 5), np.float32), np.zeros(8, np.int32)
    memory = trace_memory(Divisible(L.Linear(5, 4)), x, t, loss)
    assert not memory.unknown and memory.loss.n_parameters == 3 * 4 + 3
    assert not loss.last.W.is_initialized and not hasattr(loss, "y")
    memory = trace_memory(Divisible(L.Linear(5, 4)), x, t, loss)
    assert memory.loss.n_parameters == 3 * 4 + 3


def test_running_averages_and_carried_states_stay():
    norm, lstm = L.BatchNormalization(4), L.LSTM(4, 4)
    before = norm.avg_mean.copy(), np.random.get_state()[1].copy()
    memory = trace_memory(Divisible(norm, F.dropout, lstm), np.ones((3, 4), "f"))
    assert not memory.unknown
    assert lstm.h is None
    assert norm.N == 0
    np.testing.assert_array_equal(norm.avg_mean, before[0])
    np.testing.assert_array_equal(np.random.get_state()[1], before[1])


class Counted(chainer.Link):
    """Counts its calls in arrays, one of which is saved."""

    def __init__(self):
        super().__init__()
        self.add_persistent("n_calls", np.zeros(1))
        self.largest = np.zeros(3)

    def forward(self, x):
        self.n_calls += 1
        self.largest[0] = len(x)
        return 2 * x


def test_arrays_that_a_layer_changes_stay():
    layer = Counted()
    assert not trace_memory(Divisible(layer), np.ones((3, 4), "f")).unknown
    assert not layer.n_calls.any()
    assert not layer.largest.any()


class Doubled(chainer.FunctionNode):
    def forward(self, inputs):
        return (2 * inputs[0],)


def by_number(x):
    return x[: int(x.array[0, 0])]


# Chainer's words on a layer whose input has another size.
WRONG = "Expect: x.shape[1] == W.shape[1] Actual: 4 != 5"
seen = []


def recording(x):
    seen.append(x.shape)
    return x


@pytest.mark.parametrize(
    "layer, reason",
    [
        (lambda x: Doubled().apply((x,))[0], "function Doubled are unknown"),
        (by_number, "reads the numbers of an array"),
        (recording, "a function named recording uses 'seen', a list"),
        (L.Linear(5, 5), WRONG),
    ],
    ids=["own function", "numbers", "effect", "wrong size"],
)
def test_unknown_shapes_are_told_with_layer_and_reason(layer, reason):
    model = Divisible(L.Linear(4, 4), layer, L.Linear(4, 2))
    memory = trace_memory(model, np.ones((3, 4), "f"), np.zeros(3, "i"))
    assert memory.unknown.startswith("shapes are unknown from layer 1 on: ")
    assert reason in str(memory)
    remedy = "Check the shape of the input" if reason == WRONG else "divisible profile"
    assert remedy in memory.unknown
    assert [layer.held is None for layer in memory.layers] == [False, True, True]
    # Parameters need no shapes of activations.
    assert memory.layers[2].parameter_bytes == 4 * (8 + 2)
    assert memory.loss is None
    assert not seen
    with pytest.raises(ValueError, match="unknown from layer 1"):
        memory.rank_bytes([0, 2, 3], gpipe(2, 2))


def test_float16_counts_with_the_sums_and_masters_of_mixed_precision():
    with chainer.using_config("dtype", np.float16):
        model = Divisible(L.Linear(64, 32), F.relu, L.Linear(32, 8))
    optimizer = MixedPrecision(chainer.optimizers.MomentumSGD())
    x, t = np.ones((4, 64), np.float32), np.zeros(4, np.int32)
    measured = profile(model, x, t, optimizer=optimizer, repeat=1)
    traced = trace_memory(model, x, t, optimizer=optimizer)
    for column in ("parameter_bytes", "optimizer_bytes", "activation_bytes"):
        assert traced.column(column).tolist() == measured.column(column).tolist()


def test_recomputed_layers_hold_their_input_alone():
    model = Divisible(L.Linear(16, 16))
    for _ in range(3):
        model.append(L.Linear(16, 16), recompute=True)
        model.append(F.tanh, recompute=True)
    x = np.ones((4, 16), np.float32)
    measured, traced = profile(model, x, repeat=1), trace_memory(model, x)
    here, there = (each.column("activation_bytes") for each in (traced, measured))
    assert here.tolist() == there.tolist()
    assert (traced.column("workspace_bytes")[1:] > 0).all()


@pytest.mark.parametrize("first", [lambda: L.BatchNormalization(3), L.PReLU])
def test_a_first_layer_waits_as_a_whole_for_w(first):
    # Its input needs no gradient, so nothing of its backward is I.
    model = Divisible(first(), L.Convolution2D(3, 3, 3), first())
    x = np.zeros((8, 3, 32, 32), np.float32)
    here = trace_memory(model, x).column("pending_bytes")
    # A batch normalization keeps the statistics of three channels as well.
    assert 2 * x.nbytes <= here[0] <= 2 * x.nbytes + 36
    there = profile(model, x, repeat=1).column("pending_bytes")
    assert here.tolist() == there.tolist()


def test_a_stage_and_what_is_no_model_are_refused(monkeypatch):
    model = MLP(8, n_layers=3)
    x = np.ones((2, 8), "f")
    with pytest.raises(ValueError, match="give the whole"):
        trace_memory(model.divide(1, 3), x)
    with pytest.raises(TypeError, match="must be a Divisible, not Linear"):
        trace_memory(L.Linear(2, 2), x)
    with pytest.raises(TypeError, match="x must be an array"):
        trace_memory(model, [1, 2])
    with pytest.raises(ValueError, match="x is an empty tuple"):
        trace_memory(model, ())
    with pytest.raises(ValueError, match="the model has no layers"):
        trace_memory(Divisible(), x)
    monkeypatch.setattr(MLP, "device", SimpleNamespace(xp=None))
    with pytest.raises(ValueError, match="trace it before"):
        trace_memory(model, x)

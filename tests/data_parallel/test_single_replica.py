"""A single replica is trained as by its optimizer alone, at little more cost."""

import warnings

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer.optimizer_hooks import GradientClipping, WeightDecay
from chainer.serializers import DictionarySerializer, NpzDeserializer
from mpi4py import MPI

from data_parallel import create_multi_node_optimizer, simulate_exchange
from divisible import Divisible
from divisible.communication.errors import DisagreementError
from pipeline import Pipeline
from tests.support.replicas import make_batches, make_model, values_of
from tests.support.walk import walk

#: The most calls of our functions that an update of one replica adds.
MOST_CALLS = 30
#: Calls that a gradient comes by: there already, or from a loss.
CALLS = ["update()", "update(lossfun)"]
N_STEPS = 4


def make(name, model, is_wrapped, **options):
    optimizer = getattr(chainer.optimizers, name)(0.1)
    if is_wrapped:
        optimizer = create_multi_node_optimizer(optimizer, MPI.COMM_SELF, **options)
    optimizer.setup(model)
    for hook in (WeightDecay(0.01), GradientClipping(0.5)):
        optimizer.add_hook(hook)
    return optimizer


def train(optimizer, model, batches, call):
    for x, t in batches:
        if call == "update(lossfun)":
            optimizer.update(model, x, t)
            continue
        loss = model(x, t)
        model.cleargrads()
        loss.backward(loss_scale=optimizer._loss_scale)
        optimizer.update()


@pytest.mark.parametrize("dtype", ["e", "f", "d"])
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", ["SGD", "Adam"])
def test_weights_are_those_of_the_optimizer_alone(name, call, dtype):
    batches = [(x.astype(dtype), t) for x, t in make_batches(N_STEPS, 4)]
    found = []
    for is_wrapped in (False, True):
        with chainer.using_config("dtype", np.dtype(dtype)):
            model = make_model()
        optimizer = make(name, model, is_wrapped)
        optimizer.set_loss_scale(8)
        train(optimizer, model, batches, call)
        assert optimizer.t == N_STEPS
        found.append(values_of(model))
    assert found[0] == found[1]


@pytest.mark.parametrize("exchange_dtype", ["fp32", "int8"])
def test_gradients_stay_where_they_are(exchange_dtype):
    model = make_model()
    optimizer = make("SGD", model, True, exchange_dtype=exchange_dtype, overlap=True)
    train(optimizer, model, make_batches(2, 4), CALLS[0])
    gradients = [param.grad for param in model.params()]
    optimizer.update()
    assert all(p.grad is grad for p, grad in zip(model.params(), gradients))
    assert optimizer.exchange.sent_bytes == 0
    optimizer.average_gradients()
    optimizer.update()
    assert optimizer.t == 4


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", ["SGD", "Adam"])
def test_an_update_adds_few_calls(name, call):
    batches, counts = make_batches(3, 4), []
    for is_wrapped in (False, True):
        model = make_model()
        optimizer = make(name, model, is_wrapped)
        train(optimizer, model, batches, call)
        counts.append(walk(train, optimizer, model, batches[:1], call))
    added = counts[1].calls - counts[0].calls
    assert added <= MOST_CALLS, f"{added} calls in {counts[1]}"


def test_parameters_that_get_a_shape_later_are_trained():
    found = []
    for is_wrapped in (False, True):
        np.random.seed(0)
        model = L.Classifier(chainer.Sequential(L.Linear(None, 8), L.Linear(None, 5)))
        train(make("SGD", model, is_wrapped), model, make_batches(3, 4), CALLS[1])
        found.append(values_of(model))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "n_samples, error, text",
    [
        (0, DisagreementError, "n_samples is 0 on all ranks"),
        (-1, ValueError, "n_samples must be 0 or more"),
        (2.5, TypeError, "n_samples must be an integer"),
    ],
)
def test_a_wrong_number_of_samples_is_refused(n_samples, error, text):
    model = make_model()
    optimizer = make("SGD", model, True)
    train(optimizer, model, make_batches(2, 4), CALLS[0])
    before = values_of(model)
    optimizer.n_samples = n_samples
    with pytest.raises(error, match=text):
        optimizer.update()
    assert values_of(model) == before
    optimizer.n_samples = 4
    optimizer.update()
    assert optimizer.n_samples is None


def test_a_forgotten_number_of_samples_is_told_where_it_is():
    model = make_model()
    optimizer = make("SGD", model, True)
    train(optimizer, model, make_batches(1, 4), CALLS[0])
    optimizer.n_samples = 4
    optimizer.update()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        optimizer.update()
        optimizer.update()
    (warning,) = caught
    assert "n_samples was set for the last update" in str(warning.message)
    assert warning.filename == __file__


def test_parameters_that_no_exchange_takes_are_refused():
    link = chainer.Link()
    with link.init_scope():
        link.n = chainer.Parameter(np.zeros(3, "i"))
    optimizer = create_multi_node_optimizer(chainer.optimizers.SGD(), MPI.COMM_SELF)
    optimizer.setup(link)
    for _ in range(2):
        with pytest.raises(TypeError, match="parameter /n is of dtype int32"):
            optimizer.update()
    assert optimizer.t == 0


def test_a_closed_exchange_is_refused():
    model = make_model()
    optimizer = make("SGD", model, True)
    train(optimizer, model, make_batches(1, 4), CALLS[0])
    optimizer.close()
    with pytest.raises(RuntimeError, match="the exchange is closed"):
        optimizer.update()


def test_double_buffering_is_one_update_late():
    link = L.Linear(2, 1, initialW=0)
    optimizer = make_plain_sgd(link, double_buffering=True)
    found = []
    for number in (1, 2, 4):
        link.W.grad, link.b.grad = np.full((1, 2), number, "f"), np.zeros(1, "f")
        optimizer.update()
        found.append(float(link.W.array[0, 0]))
    assert found == [0, -1, -3]


def make_plain_sgd(link, **options):
    sgd = chainer.optimizers.SGD(1)
    return create_multi_node_optimizer(sgd, MPI.COMM_SELF, **options).setup(link)


def test_error_feedback_gives_back_what_was_kept():
    link = L.Linear(2, 1, initialW=0)
    optimizer = make_plain_sgd(link, error_feedback=True)
    for number, kept, expected in ((1, 0, -1), (1, 2, -4), (1, 0, -5)):
        if kept:
            optimizer.residuals["/W"][:] = kept
        link.W.grad, link.b.grad = np.full((1, 2), number, "f"), np.zeros(1, "f")
        optimizer.update()
        assert link.W.array.tolist() == [[expected] * 2]
    target = {}
    optimizer.serialize(DictionarySerializer(target))
    assert target["W/exchange/residual"].tolist() == [0, 0]
    optimizer.serialize(NpzDeserializer(target))


def test_a_file_of_a_serial_script_drops_what_earlier_updates_have_left():
    """An optimizer that is set back by it goes on as a new one does."""
    serial = {}
    sgd = chainer.optimizers.SGD(1).setup(L.Linear(2, 1))
    sgd.serialize(DictionarySerializer(serial))
    for options in ({"double_buffering": True}, {"error_feedback": True}):
        found = []
        for is_used in (False, True):
            link = L.Linear(2, 1, initialW=0)
            optimizer = make_plain_sgd(link, **options)
            for number in (5, 1, 2) if is_used else (1, 2):
                if number == 1:
                    optimizer.serialize(NpzDeserializer(serial))
                    link.W.array[...] = 0
                link.W.grad = np.full((1, 2), number, "f")
                link.b.grad = np.zeros(1, "f")
                optimizer.update()
                if number == 5 and "error_feedback" in options:
                    optimizer.residuals["/W"][:] = 3
            found.append(link.W.array.tolist())
        assert found[0] == found[1], options


@pytest.mark.parametrize("is_wrapped", [False, True])
def test_files_of_hdf5_are_read_with_and_without_an_exchange(is_wrapped, tmp_path):
    pytest.importorskip("h5py")
    saved = make("MomentumSGD", L.Linear(2, 1), is_wrapped)
    saved.target.cleargrads()
    saved.update()
    chainer.serializers.save_hdf5(tmp_path / "optimizer.h5", saved)
    options = {"error_feedback": True, "double_buffering": True}
    read = make("MomentumSGD", L.Linear(2, 1), True, **options)
    chainer.serializers.load_hdf5(tmp_path / "optimizer.h5", read)
    assert read.t == 1
    for param, expected in zip(read.target.params(), saved.target.params()):
        velocity = param.update_rule.state["v"]
        np.testing.assert_array_equal(velocity, expected.update_rule.state["v"])


def test_oyama2017_rounds_the_gradient_of_one_replica():
    random = np.random.RandomState(0)
    link = L.Linear(40, 30, nobias=True)
    optimizer = make_plain_sgd(
        link, exchange_dtype="fp8", strategy="oyama2017", minimum=0, exempt=None
    )
    weights = link.W.array.copy()
    gradient = random.standard_normal((30, 40)).astype("f")
    mean = simulate_exchange(
        [gradient],
        exchange_dtype="fp8",
        strategy="oyama2017",
        weights=weights,
        array="/W",
    ).mean
    link.W.grad = gradient.copy()
    optimizer.update()
    np.testing.assert_array_equal(link.W.grad, mean)
    assert not np.array_equal(mean, gradient)


def make_pipeline(is_wrapped):
    np.random.seed(0)
    model = Divisible(L.Linear(10, 8), F.relu, L.Linear(8, 5))
    pipe = Pipeline(
        model, MPI.COMM_SELF, n_microbatches=2, lossfun=F.softmax_cross_entropy
    )
    options = {"pipeline": pipe} if is_wrapped else {}
    return model, pipe, make("Adam", model, is_wrapped, **options)


def test_a_pipeline_without_replicas_tells_of_no_gradient():
    batches, found = make_batches(N_STEPS, 4), []
    for is_wrapped in (False, True):
        model, pipe, optimizer = make_pipeline(is_wrapped)
        with pipe:
            for x, t in batches:
                pipe.step(x, t)
                optimizer.update()
            assert not pipe.internals.early_exchanges.are_wanted
            found.append((values_of(model), walk(optimizer.update).calls))
    assert found[0][0] == found[1][0]
    assert found[1][1] - found[0][1] <= MOST_CALLS
    assert optimizer.overlap_report == "never: there is one replica"

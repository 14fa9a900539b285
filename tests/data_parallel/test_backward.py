"""The backward of an update: watched once, then overlapped with the exchange."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from mpi4py import MPI

from data_parallel.averaging import Averaging
from data_parallel.backward import Backward
from data_parallel.exchange import Exchange
from data_parallel.parameters import is_exempt
from data_parallel.replica_agreement import ReplicaAgreement
from mixed_precision import MixedPrecision, float32_loss, to_float16

X = np.ones((2, 3), "f")


class Net(chainer.Chain):
    def __init__(self):
        super().__init__(a=L.Linear(3, 4), b=L.Linear(4, 2))

    def loss(self, x):
        return F.sum(self.b(F.tanh(self.a(x))))


@pytest.fixture
def model():
    return Net()


@pytest.fixture
def optimizer(model):
    return chainer.optimizers.SGD().setup(model)


@pytest.fixture
def averaging(optimizer):
    with Exchange(MPI.COMM_SELF, exchange_dtype="fp32") as exchange:
        agreement = ReplicaAgreement(5)
        yield Averaging(
            optimizer, exchange, agreement, is_exempt(None), True, optimizer.serialize
        )


def gradients_of(model):
    return {name: param.grad for name, param in model.namedparams()}


def first_update(backward, averaging, model):
    loss = backward.loss_of(model.loss, X)
    assert not backward.may_average(averaging.parameters())
    backward.run(loss, averaging.parameters())
    assert averaging.agree(averaging.parameters())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_loss_of_clears_gradients(model, averaging, optimizer):
    backward = Backward(optimizer, averaging, False)
    for param in model.params():
        param.grad = np.ones_like(param.array)
    loss = backward.loss_of(lambda x, t: model.loss(x) + t, X, t=5)
    assert loss.shape == ()
    assert all(gradient is None for gradient in gradients_of(model).values())
    optimizer.use_cleargrads(False)
    backward.loss_of(model.loss, X)
    assert not any(gradient.any() for gradient in gradients_of(model).values())


def test_the_first_backward_shows_the_order(model, averaging, optimizer):
    backward = Backward(optimizer, averaging, True)
    first_update(backward, averaging, model)
    assert sorted(averaging.order[:2]) == ["/b/W", "/b/b"]
    assert sorted(averaging.order[2:]) == ["/a/W", "/a/b"]
    assert backward.may_average(averaging.parameters())


def test_without_overlap_nothing_is_seen(model, averaging, optimizer):
    backward = Backward(optimizer, averaging, False)
    first_update(backward, averaging, model)
    assert averaging.order == [] and not backward.may_average(averaging.parameters())


def test_all_gradients_are_in_the_exchange(model, averaging, optimizer, monkeypatch):
    """Those of the loss before backward ends, and that there are no others."""
    backward = Backward(optimizer, averaging, True)
    first_update(backward, averaging, model)
    expected = gradients_of(model)
    model.add_link("c", L.Linear(2, 2))
    parameters = averaging.parameters()
    averaging.agree(parameters)
    n_updates, given, put = averaging.agreement.n_updates, {}, averaging.exchange.put

    def noting(i, gradient):
        name, param = parameters[i]
        assert param.grad is None
        given[name] = gradient is not None
        put(i, gradient)

    monkeypatch.setattr(averaging.exchange, "put", noting)
    loss = backward.loss_of(model.loss, X)
    backward.average(loss, parameters, None)
    assert averaging.agreement.n_updates == n_updates + 1
    others = {"/c/W": False, "/c/b": False}
    assert given == {**dict.fromkeys(expected, True), **others}
    found = gradients_of(model)
    for name, gradient in expected.items():
        np.testing.assert_array_equal(found[name], gradient)
    assert found["/c/W"] is None and found["/c/b"] is None


def test_replicas_are_compared_before_an_exchange(model, averaging, optimizer):
    backward = Backward(optimizer, averaging, True)
    first_update(backward, averaging, model)
    for _ in range(4):
        assert backward.may_average(averaging.parameters())
        loss = backward.loss_of(model.loss, X)
        backward.average(loss, averaging.parameters(), None)
    assert averaging.is_due(averaging.parameters())
    assert not backward.may_average(averaging.parameters())


def test_the_loss_scale_is_the_optimizer_s(model, averaging, optimizer):
    optimizer.set_loss_scale(8)
    backward = Backward(optimizer, averaging, False)
    backward.run(backward.loss_of(model.loss, X), averaging.parameters())
    np.testing.assert_array_equal(model.b.b.grad, [16, 16])
    assert model.b.b._loss_scale == 8


def test_mixed_precision_runs_a_backward_of_its_own(averaging):
    model = to_float16(Net())
    optimizer = MixedPrecision(chainer.optimizers.SGD(), loss_scale=4).setup(model)
    backward = Backward(optimizer, averaging, False)
    with pytest.raises(TypeError, match="the loss is float16"):
        backward.run(backward.loss_of(model.loss, X.astype("e")), [])
    lossfun = float32_loss(F.sum)
    loss = backward.loss_of(lambda: lossfun(model.b(model.a(X.astype("e")))))
    backward.run(loss, [])
    assert model.b.b._loss_scale == 4

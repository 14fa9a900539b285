"""What is applied is the mean of the last gradients, in the units of now."""

import chainer
import chainer.links as L
import numpy as np
import pytest
from chainer.serializers import DictionarySerializer, NpzDeserializer
from mpi4py import MPI

from data_parallel.averaging import Averaging
from data_parallel.double_buffering import LateGradients
from data_parallel.exchange import Exchange
from data_parallel.parameters import is_exempt
from data_parallel.replica_agreement import ReplicaAgreement


@pytest.fixture
def optimizer():
    return chainer.optimizers.SGD().setup(L.Linear(3, 2))


@pytest.fixture
def averaging(optimizer):
    with Exchange(MPI.COMM_SELF, exchange_dtype="fp32") as exchange:
        agreement = ReplicaAgreement(1000)
        yield Averaging(
            optimizer, exchange, agreement, is_exempt(None), True, optimizer.serialize
        )


def average(late, averaging, number, scale=None):
    """Gives gradients of one number, and returns that of those that are applied."""
    parameters = averaging.parameters()
    for _, param in parameters:
        param.grad = np.full(param.shape, number, "f")
    is_there = late.average(parameters, None, scale)
    found = {each for _, param in parameters for each in param.grad.ravel().tolist()}
    assert len(found) == 1
    return is_there, *found


def test_means_are_those_of_the_last_gradients(averaging):
    late = LateGradients(averaging)
    assert average(late, averaging, 1) == (False, 1)
    for number in (2, 3, 4):
        assert average(late, averaging, number) == (True, number - 1)
    late.finish()
    late.finish()


def test_gradients_may_be_changed_while_they_are_exchanged(averaging):
    late = LateGradients(averaging)
    average(late, averaging, 1)
    for _, param in averaging.parameters():
        param.grad[...] = np.nan
    assert average(late, averaging, 2) == (True, 1)
    late.finish()


def test_means_get_the_scale_of_now(averaging, optimizer):
    late = LateGradients(averaging)
    optimizer.set_loss_scale(4)
    average(late, averaging, 8, scale=4)
    optimizer.set_loss_scale(2)
    assert average(late, averaging, 5, scale=2) == (True, 4)
    assert {param._loss_scale for _, param in averaging.parameters()} == {2}
    assert average(late, averaging, 7) == (True, 2.5)
    late.finish()


def test_a_missing_gradient_stays_none(averaging):
    late = LateGradients(averaging)
    parameters = dict(averaging.parameters())
    for number in (1, 2):
        parameters["/W"].grad = np.full((2, 3), number, "f")
        parameters["/b"].grad = None
        assert late.average(averaging.parameters(), None, None) == (number == 2)
    assert parameters["/b"].grad is None and (parameters["/W"].grad == 1).all()
    late.finish()


def test_means_are_saved_and_loaded(averaging, optimizer):
    late, again = LateGradients(averaging), LateGradients(averaging)
    optimizer.set_loss_scale(2)
    average(late, averaging, 6, scale=2)
    late.finish()
    target = {}
    writer, names = DictionarySerializer(target), ["/W", "/b"]
    late.serialize({name: writer[name] for name in names})
    reader = NpzDeserializer(target)
    again.serialize({name: reader[name] for name in names})
    for each in (late, again):
        assert average(each, averaging, 1, scale=4) == (True, 12)
        each.finish()

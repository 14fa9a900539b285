"""Gradients that a pipeline gives to an exchange as it completes them."""

import chainer.links as L
import chainer.optimizers
import numpy as np
import pytest
from mpi4py import MPI

from data_parallel.averaging import Averaging
from data_parallel.early_gradients import EarlyGradients
from data_parallel.exchange import Exchange
from data_parallel.parameters import is_exempt
from data_parallel.replica_agreement import ReplicaAgreement

ORDER = ["/b", "/W"]


@pytest.fixture
def link():
    return L.Linear(3, 2)


@pytest.fixture
def averaging(link):
    optimizer = chainer.optimizers.SGD().setup(link)
    with Exchange(MPI.COMM_SELF, exchange_dtype="fp32") as exchange:
        agreement = ReplicaAgreement(1000)
        yield Averaging(
            optimizer, exchange, agreement, is_exempt("1d"), True, optimizer.serialize
        )


def ones(link):
    return {id(link.W): np.ones((2, 3), "f"), id(link.b): np.ones(2, "f")}


def first_step(early, averaging, link):
    """Shows the order of gradients; its update compares the replicas."""
    assert {id(param) for param in early.begin_step()} == set(ones(link))
    early.open(4)
    early.complete(link.b, pytest.fail)
    early.end_step([link.b, link.W], "")
    assert early.report == "after the step: its update compares the replicas first"
    assert averaging.agree(averaging.parameters())
    assert averaging.order == ORDER


@pytest.mark.parametrize("is_open_at_once", [True, False])
def test_gradients_are_in_the_exchange_in_their_order(link, averaging, is_open_at_once):
    early = EarlyGradients(averaging, True)
    first_step(early, averaging, link)
    assert len(early.begin_step()) == 2
    given = ones(link)
    if is_open_at_once:
        early.open(4)
    # The weights' gradient comes at the end only.
    early.complete(link.b, lambda: given[id(link.b)])
    early.look()
    if not is_open_at_once:
        assert not early.is_under_way
        early.open(4)
    early.end_step([link.b], "")
    assert early.is_under_way
    assert early.report == "during the step: 1 of 2 gradients"
    link.W.grad = given[id(link.W)]
    early.put_others(4)
    means = averaging.exchange.finish()
    assert [name for name, _ in early.parameters] == ORDER
    assert means[0] is given[id(link.b)]
    assert means[1] is link.W.grad


def test_what_nobody_updates_with_is_dropped(link, averaging):
    early = EarlyGradients(averaging, True)
    first_step(early, averaging, link)
    for _ in range(2):
        early.begin_step()
        early.open(None)
        early.end_step([], "")
        assert early.is_under_way
    early.drop()
    early.drop()
    assert not early.is_under_way


def test_another_number_of_samples_is_refused(link, averaging):
    early = EarlyGradients(averaging, True)
    first_step(early, averaging, link)
    early.begin_step()
    early.open(4)
    with pytest.raises(ValueError, match="n_samples is 5, but .* means of 4 samples"):
        early.put_others(5)
    early.drop()


def test_a_step_that_is_not_opened_says_why(link, averaging):
    early = EarlyGradients(averaging, True)
    first_step(early, averaging, link)
    early.begin_step()
    early.complete(link.b, pytest.fail)
    early.end_step([link.b], "it counts late")
    assert early.report == "after the step: it counts late"
    assert not early.is_under_way


def test_what_has_no_shape_yet_is_waited_for(link, averaging):
    early = EarlyGradients(averaging, True)
    first_step(early, averaging, link)
    with link.init_scope():
        link.later = chainer.Parameter()
    assert not early.begin_step()
    assert early.report == "after the step: some parameters are not initialized"


def test_what_gets_its_shape_in_the_first_step_is_seen(link, averaging):
    early = EarlyGradients(averaging, True)
    with link.init_scope():
        link.later = chainer.Parameter()
    assert len(early.begin_step()) == 3
    link.later.initialize((2,))
    early.end_step([link.later, link.b, link.W], "")
    assert averaging.agree(averaging.parameters())
    assert averaging.order == ["/later", *ORDER]
    assert len(early.begin_step()) == 3


def test_only_the_order_is_seen_without_overlap(link, averaging):
    early = EarlyGradients(averaging, False)
    assert len(early.begin_step()) == 2
    early.open(4)
    early.end_step([link.b, link.W], "")
    averaging.agree(averaging.parameters())
    assert averaging.order == ORDER
    assert not early.begin_step()
    assert early.report == "after the step: overlap=False"

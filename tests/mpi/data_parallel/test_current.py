"""The communicator of an exchange that is dropped in the middle."""

import numpy as np
from mpi4py import MPI

from data_parallel import Exchange
from divisible.communication import communicators


def drop(change):
    """Returns whether the communicator of an exchange may be freed once it is gone."""
    before = {*communicators._held, *communicators._dropped}
    exchange = Exchange(MPI.COMM_SELF, exchange_dtype="fp32", minimum=0)
    (name,) = {*communicators._held} - before
    change(exchange)
    del exchange
    assert name not in communicators._held
    return name in communicators._dropped


def run(exchange):
    exchange.mean([np.ones(3, np.float32)])


def begin(exchange):
    exchange.start([np.ones(3, np.float32)])


def test_an_exchange_that_is_over_lets_its_communicator_go():
    assert drop(run)


def test_messages_of_an_exchange_in_the_middle_meet_no_other():
    # What is freed MPI gives to the next one, which would receive them.
    assert not drop(begin)

"""Snapshots pass between one replica and two."""

import numpy as np
from chainer import optimizers
from mpi4py import MPI

from tests.support.mpiexec import assert_on_ranks
from tests.support.replicas import (
    CODED,
    N_STEPS,
    assert_alike,
    assert_close,
    make_batches,
    make_model,
    parts_of,
    read,
    replicate,
    written,
)


def trained(model, optimizer, batches, own=slice(None)):
    for x, t in batches:
        optimizer.update(model, x[own], t[own])


def moved(comm, before, after, **options):
    """Trains on one communicator, loads the snapshot on another, and trains on."""
    batches, snapshot = make_batches(N_STEPS, 4), None
    for part, used in ((before, batches[:3]), (after, batches[3:])):
        model = make_model()
        optimizer = replicate(part, model, **options)
        if snapshot is not None:
            read(model, snapshot[0])
            read(optimizer, snapshot[1])
        own = parts_of([4 // part.size] * part.size, part.rank)
        trained(model, optimizer, used, own)
        assert optimizer.t == len(batches[:3]) + (snapshot is not None) * len(used)
        snapshot = comm.bcast((written(model), written(optimizer)))
        optimizer.close()
    assert_alike(comm, model)
    return model


def between_one_and_two(comm):
    expected = make_model()
    serial = optimizers.MomentumSGD(0.1).setup(expected)
    trained(expected, serial, make_batches(N_STEPS, 4))
    for before, after in ((MPI.COMM_SELF, comm), (comm, MPI.COMM_SELF)):
        assert_close(moved(comm, before, after), expected)
        # In 8 bits, whose roundings add up over steps.
        coded = moved(comm, before, after, error_feedback=True, **CODED)
        for param, exact in zip(coded.params(), expected.params()):
            np.testing.assert_allclose(param.array, exact.array, atol=0.05)


def test_snapshots_of_one_replica_load_on_two_and_back():
    assert_on_ranks(2, between_one_and_two)

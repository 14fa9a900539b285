"""Gradients that are exchanged during backward have the same means."""

from tests.support.mpiexec import assert_on_ranks
from tests.support.replicas import (
    CODED,
    N_STEPS,
    assert_alike,
    make_batches,
    make_model,
    parts_of,
    read,
    replicate,
    values_of,
    written,
)


def during_backward(comm):
    """Exchanges in several buckets, and compares with exchanges after backward."""
    (x, t), *_ = make_batches(1, 4 * comm.size)
    own = parts_of([4] * comm.size, comm.rank)
    reached = []
    for overlap in (True, False):
        model = make_model()
        options = {**CODED, "bucket_bytes": 64, "overlap": overlap}
        optimizer = replicate(comm, model, exempt=None, **options)
        for i in range(N_STEPS):
            if i == 5 and comm.rank == 0:
                # An update whose gradients are there already.
                model.cleargrads()
                model(x[own], t[own]).backward()
                optimizer.update()
            else:
                optimizer.update(model, x[own], t[own])
        reached.append(values_of(model))
        assert_alike(comm, model)
        # The order in which gradients were complete is part of a snapshot.
        order = optimizer._averaging.order
        assert len(order) == (overlap and len(list(model.params())))
        again = replicate(comm, make_model(), exempt=None, **options)
        read(again, written(optimizer))
        assert again._averaging.order == order
        again.close()
        optimizer.close()
    assert reached[0] == reached[1]


def test_an_exchange_during_backward_changes_nothing():
    assert_on_ranks(2, during_backward)

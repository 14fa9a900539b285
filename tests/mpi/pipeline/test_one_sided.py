"""Pipelines whose messages are put into common memory, beside those over MPI."""

import gc
from pathlib import Path

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np

from divisible import Divisible
from divisible.communication import transport
from pipeline import Pipeline, load_snapshot, rebalance, save_snapshot
from tests.support.equivalence import make_batches
from tests.support.mpiexec import assert_on_ranks


def make():
    np.random.seed(3)
    return Divisible(
        L.Linear(6, 8),
        F.tanh,
        L.BatchNormalization(8),
        L.Linear(8, 7),
        F.dropout,
        L.Linear(7, 4),
    )


def train(comm, way, folder, **options):
    """Steps, an evaluation, a move of layers, and a snapshot that is loaded."""
    found = []
    (x, t), (small, small_t) = make_batches([8, 3])
    pipe = Pipeline(make(), comm, n_microbatches=4, transport=way, **options)
    with pipe:
        optimizer = pipe.setup(chainer.optimizers.Adam())

        def step(*batch):
            found.append(pipe.step(*batch)["loss"])
            optimizer.update()

        step(x, t)
        if way == "rma":
            check_windows(pipe)
        step(small, small_t)
        found.append(pipe.evaluate(x, t)["loss"])
        # An output that lies in the memory may stay longer than the pipeline.
        kept = pipe.predict(x)
        rebalance(pipe, optimizer, [0, 2, 6], make)
        step(x, t)
        if way == "rma":
            check_windows(pipe)
        path = f"{folder}/{way}"
        save_snapshot(path, pipe, optimizer)
        step(x, t)
        load_snapshot(path, pipe, optimizer)
        step(x, t)
        assert found[-1] == found[-2]
        params = [p.array.copy() for s in pipe.stages.values() for p in s.params()]
    return [*map(np.float64, found), kept, *params]


def check_windows(pipe):
    """All messages are put into windows, and none is sent."""
    runner = pipe.internals.step.runner
    ends = [*runner._senders.values(), *runner._receivers.values()]
    assert ends and all(end._window is not None for end in ends)
    assert not pipe.message_shapes.varying


def same_bits(comm, folder):
    held = {"hold_in": folder, "schedule": "zb_h1"}
    for options in ({}, {"message_dtype": "int8"}, held):
        first, second = (train(comm, way, folder, **options) for way in ("mpi", "rma"))
        for a, b in zip(first, second):
            np.testing.assert_array_equal(a, b)


def test_bits_are_those_of_messages_over_mpi(tmp_path):
    assert_on_ranks(2, same_bits, str(tmp_path))


def nothing_is_sent(comm):
    """In the steady state, no message of MPI carries an activation or a gradient."""
    (x, t), larger = make_batches([8, 16])
    with Pipeline(make(), comm, n_microbatches=4, transport="rma") as pipe:
        pipe.step(x, t)
        # Larger messages go by MPI, and the next ones are described.
        pipe.evaluate(*larger)
        pipe.step(x, t)
        sent, start = [], transport.Sender._start
        transport.Sender._start = lambda *args: sent.append(args) or start(*args)
        try:
            for _ in range(3):
                pipe.step(x, t)
        finally:
            transport.Sender._start = start
        assert not sent


def test_messages_of_a_step_are_all_put():
    assert_on_ranks(2, nothing_is_sent)


def n_maps():
    return Path("/proc/self/maps").read_text().count("/memfd:divisible-")


def closes(comm):
    """The memory is given back with the pipeline, not when Python collects cycles."""
    ((x, t),) = make_batches([8])
    gc.collect()
    before = n_maps()
    gc.disable()
    try:
        with Pipeline(make(), comm, n_microbatches=4, transport="rma") as pipe:
            pipe.step(x, t)
            assert n_maps() == before + 2
        assert n_maps() == before
    finally:
        gc.enable()


def test_a_closed_pipeline_has_no_memory():
    assert_on_ranks(2, closes)

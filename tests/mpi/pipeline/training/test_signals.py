"""A signal to one rank of a grid stops all, and the run goes on bit for bit."""

import os
import signal

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer.training import Trainer, make_extension

from data_parallel import Grid, ReplicaIterator, create_multi_node_optimizer
from divisible import Divisible, Plan
from pipeline import Pipeline, PipelineUpdater, Snapshot, StopOnSignal, snapshot
from pipeline.training import signals
from tests.support.equivalence import make_batches
from tests.support.mpiexec import assert_on_ranks

TIMEOUT = 20
N_ITERATIONS = 10
SAMPLES = [(x, t) for batch in make_batches([20]) for x, t in zip(*batch)]
CODED = {
    "exchange_dtype": "int8",
    "minimum": 0,
    "local_size": 1,
    "error_feedback": True,
}


def train(comm, placement, out, when=None, resume=None):
    """Trains on a grid; rank 3 may get a signal.

    Returns:
        The numbers of iterations and of the signal, and parameters, as bytes.
    """
    with Grid(comm, 2, placement=placement) as grid:
        np.random.seed(11 + comm.rank)
        model = Divisible(
            L.Linear(6, 8), F.dropout, L.BatchNormalization(8), L.Linear(8, 4)
        )
        stage = model.divide(*Plan([0, 2, 4]).range(grid.pipeline.rank))
        optimizer = create_multi_node_optimizer(
            chainer.optimizers.Adam(0.01), grid.data, timeout=TIMEOUT, **CODED
        ).setup(stage)
        pipe = Pipeline(stage, grid, n_microbatches=2, timeout=TIMEOUT, seed=5)
        iterator = None
        if pipe.is_first:
            serial = chainer.iterators.SerialIterator(SAMPLES, 8)
            iterator = ReplicaIterator(serial, grid)
        updater = PipelineUpdater(iterator, optimizer, pipe)
        trainer = Trainer(updater, (N_ITERATIONS, "iteration"), str(out))

        @make_extension(trigger=(1, "iteration"))
        def happen(trainer):
            if comm.rank == 3 and updater.iteration == when:
                os.kill(os.getpid(), signal.SIGUSR1)

        trainer.extend(happen)
        stop = StopOnSignal()
        trainer.extend(stop)
        never = (1000, "epoch")
        trainer.extend(snapshot("stopped", resume=resume), trigger=never)
        trainer.run()
        pipe.close()
        arrays = {path: param.array for path, param in stage.namedparams()}
        return (
            updater.iteration,
            stop.signal,
            {path: array.tobytes() for path, array in arrays.items()},
        )


def stops_and_goes_on(comm, placement, folder):
    with pytest.MonkeyPatch.context() as patch:
        # The ranks serve other tests as well.
        patch.setattr(signals, "_has_stopped", False)
        *_, expected = train(comm, placement, f"{folder}/undisturbed")
        assert not os.path.exists(f"{folder}/undisturbed/stopped")
        out = f"{folder}/disturbed"
        iteration, number, _ = train(comm, placement, out, when=4)
        # Known to all one minibatch later.
        assert comm.allgather((iteration, number)) == [(5, signal.SIGUSR1)] * 4
        assert signals.has_stopped()
        found = Snapshot.open(f"{out}/stopped")
        assert (found.n_steps, found.n_replicas, found.n_ranks) == (5, 2, 2)
        resumed = train(comm, placement, out, resume=f"{out}/stopped")
        assert resumed == (N_ITERATIONS, 0, expected)


@pytest.mark.parametrize("placement", ["stages_together", "replicas_together"])
def test_a_signal_to_one_of_four_ranks(placement, tmp_path):
    assert_on_ranks(4, stops_and_goes_on, placement, str(tmp_path))

"""A trainer on several ranks stops and goes on, there or on other ranks."""

import json
from pathlib import Path

import numpy as np
from chainer.training import extensions
from mpi4py import MPI

from pipeline import snapshot
from tests.support.mpiexec import assert_on_ranks
from tests.support.snapshot_training import small_trainer


def train(comm, out, n_epochs):
    """Returns the parameters and the log of a run, resumed if there is one."""
    trainer, stage = small_trainer(comm, out, (n_epochs, "epoch"))
    trainer.extend(extensions.LogReport())
    trainer.extend(extensions.ExponentialShift("alpha", 0.9), trigger=(5, "iteration"))
    trainer.extend(snapshot(resume="auto", n_retains=2), trigger=(4, "iteration"))
    trainer.run()
    everyone = comm.allgather({p: v.array for p, v in stage.namedparams()})
    log = json.loads(Path(out, "log").read_text())
    losses = [entry["main/loss"] for entry in log]
    return {p: v for params in everyone for p, v in params.items()}, losses


def stop_and_go_on(comm, folder):
    two = comm.Split(0 if comm.rank < 2 else MPI.UNDEFINED)
    if two != MPI.COMM_NULL:
        expected = train(two, f"{folder}/undisturbed", 5)
        for n_epochs in (2, 3, 5):
            actual = train(two, f"{folder}/disturbed", n_epochs)
        assert actual[1] == expected[1]
        for path, array in expected[0].items():
            np.testing.assert_array_equal(actual[0][path], array, path)
        train(two, f"{folder}/moved", 3)
    comm.Barrier()
    params, losses = train(comm, f"{folder}/moved", 5)
    # Once more: nothing is left to do.
    again = train(comm, f"{folder}/moved", 5)
    assert again[1] == losses
    for path, array in params.items():
        np.testing.assert_array_equal(again[0][path], array, path)
    if two != MPI.COMM_NULL:
        assert losses == expected[1]
        for path, array in expected[0].items():
            np.testing.assert_array_equal(params[path], array, path)


def test_a_trainer_goes_on(tmp_path):
    output = assert_on_ranks(3, stop_and_go_on, str(tmp_path))
    assert output.count("nothing is left to do") == 1

"""A snapshot and a run are compared on all ranks together, and all are told."""

import warnings

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer.link_hooks import SpectralNormalization
from chainer.training import Trainer, extensions
from mpi4py import MPI

from divisible import Divisible, Plan
from pipeline import (
    Pipeline,
    PipelineUpdater,
    SnapshotError,
    load_snapshot,
    save_snapshot,
    snapshot,
)
from tests.support.equivalence import make_batches
from tests.support.mpiexec import assert_on_ranks

((X, T),) = make_batches([24])


class Run:
    """Four layers on the ranks of a communicator; the last may be without a bias."""

    def __init__(self, comm, nobias=False, optimizer=chainer.optimizers.Adam, seed=1):
        np.random.seed(seed)
        model = Divisible(
            L.Linear(None, 6).add_hook(SpectralNormalization()),
            L.BatchNormalization(axis=0),
            F.tanh,
            L.Linear(None, 4, nobias=nobias),
        )
        model = model.divide(*Plan.uniform(4, comm.size).range(comm.rank))
        self.pipe = Pipeline(model, comm, n_microbatches=2, timeout=20)
        self.optimizer = optimizer().setup(model)

    def step(self):
        loss = self.pipe.step(X[:6], T[:6])["loss"]
        self.optimizer.update()
        return loss

    def save(self, path, state=None):
        save_snapshot(path, self.pipe, self.optimizer, state=state)

    def load(self, path, state=None, **options):
        return load_snapshot(path, self.pipe, self.optimizer, state=state, **options)


def refusal(comm, run, path, state=None):
    """Returns the error, the same on each rank."""
    with pytest.raises(SnapshotError) as caught:
        run.load(path, state)
    messages = comm.allgather(str(caught.value))
    assert len(set(messages)) == 1
    return messages[0]


def on_the_same_ranks(comm, folder):
    """Only one rank sees what differs."""
    run = Run(comm)
    run.step()
    run.save(f"{folder}/biased")
    message = refusal(comm, Run(comm, nobias=True), f"{folder}/biased")
    assert "of the model 3/b is left over; of the optimizer 3/b is left" in message
    other = Run(comm, nobias=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = other.load(f"{folder}/biased", strict=False).differences
    told = [str(w.message) for w in caught if "3/b is left over" in str(w.message)]
    assert len(told) == (comm.rank == 0)
    assert found.left_over == ("model/3/b", "optimizer/3/b") and not found.missing
    other.step()
    other.save(f"{folder}/plain")
    assert "it has no 3/b;" in refusal(comm, Run(comm), f"{folder}/plain")
    kinds = chainer.optimizers.Adam, chainer.optimizers.AdaBound
    message = refusal(comm, Run(comm, optimizer=kinds[comm.rank]), f"{folder}/biased")
    assert "it is of the optimizer Adam, but AdaBound is here" in message


def on_other_ranks(comm, folder):
    """Saved on two and loaded on one, and the other way round."""
    alone = comm.Split(0 if comm.rank == 0 else MPI.UNDEFINED)
    generator = np.random.RandomState(comm.rank)
    state = {"of_last": generator} if comm.rank == 1 else {}
    run = Run(comm)
    run.step()
    run.save(f"{folder}/two", state)
    losses = [run.step() for _ in range(2)], comm.bcast(generator.rand(), 1)
    # Not called yet, and called with other numbers.
    for n_steps in (0, 1) if comm.rank == 0 else ():
        for path in (f"{folder}/two", f"{folder}/one"):
            one = Run(alone, seed=2)
            for _ in range(n_steps):
                one.step()
            # What only one rank had goes on where it is asked for.
            state = {"of_last": np.random.RandomState(7)}
            if path.endswith("one") and n_steps == 0:
                one.load(f"{folder}/two", state)
                one.save(path, state)
            one.load(path, state)
            assert state["of_last"].rand() == losses[1]
            np.testing.assert_allclose([one.step() for _ in range(2)], losses[0], 1e-5)
        assert "random states of_last is left" in refusal(
            alone, Run(alone), f"{folder}/two"
        )
        message = refusal(alone, Run(alone, nobias=True), f"{folder}/two")
        assert "3/b is left over" in message
    comm.Barrier()
    two = Run(comm, seed=3)
    assert "of_last is left over" in refusal(comm, two, f"{folder}/one")
    # It is enough if one rank has it.
    state = {"of_last": generator} if comm.rank == 0 else {}
    two.load(f"{folder}/one", state)
    assert [two.step() for _ in range(2)] == losses[0]
    other = refusal(comm, Run(comm, nobias=True), f"{folder}/one", state)
    assert "3/b is left over" in other


def train(comm, out, n_epochs, names, **options):
    run = Run(comm)
    iterator = None
    if run.pipe.is_first:
        data = chainer.datasets.TupleDataset(X, T)
        iterator = chainer.iterators.SerialIterator(data, 8)
    updater = PipelineUpdater(iterator, run.optimizer, run.pipe)
    trainer = Trainer(updater, (n_epochs, "epoch"), out=out)
    extension = snapshot(resume="auto", **options)
    trainer.extend(extension, trigger=(2, "iteration"))
    # As ChainerMN's scripts do.
    for name in names if comm.rank == 0 else ():
        trainer.extend(extensions.LogReport(trigger=(1, "iteration")), name=name)
    trainer.run()
    model = {path: p.array for path, p in run.pipe.stages[comm.rank].namedparams()}
    log = trainer.get_extension(names[0]).log if comm.rank == 0 else []
    return model, [entry["main/loss"] for entry in log]


def trainers(comm, folder):
    names = ["LogReport"]
    expected = train(comm, f"{folder}/undisturbed", 3, names)
    train(comm, f"{folder}/trained", 1, names)
    with pytest.raises(SnapshotError, match="state trainer/extensions/LogReport is"):
        train(comm, f"{folder}/trained", 2, [])
    both = ["new", "LogReport"]
    with pytest.raises(SnapshotError, match="state it has no trainer/extensions/new;?"):
        train(comm, f"{folder}/trained", 2, both)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        train(comm, f"{folder}/trained", 2, both, strict=False)
        found = train(comm, f"{folder}/trained", 3, ["LogReport", "new"])
    assert found[1] == expected[1]
    for path, array in expected[0].items():
        np.testing.assert_array_equal(found[0][path], array, path)


def everything(comm, folder):
    on_the_same_ranks(comm, f"{folder}/same")
    on_other_ranks(comm, f"{folder}/other")
    trainers(comm, folder)


def test_what_differs_is_told_to_all(tmp_path):
    assert_on_ranks(2, everything, str(tmp_path))

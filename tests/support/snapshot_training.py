"""A small training run that has all a snapshot must keep, for tests on ranks."""

from __future__ import annotations

import os

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
from chainer.training import Trainer

from divisible import Divisible, Plan
from pipeline import Pipeline, PipelineUpdater, Snapshot, load_snapshot, save_snapshot
from pipeline.snapshots.arrays import position
from pipeline.snapshots.directories import LOCK
from tests.support.equivalence import make_batches, stages_of_rank

N_LAYERS = 8
BATCHES = make_batches([16, 16, 13, 16, 16, 9], n_in=8)

# By name the number of ranks, the schedule and the number of stages.
LAYOUTS = {
    "1": (1, "1f1b", 1),
    "2": (2, "1f1b", 2),
    "3": (3, "1f1b", 3),
    "4": (4, "1f1b", 4),
    "interleaved": (2, "interleaved", 4),
    "interleaved_4": (4, "interleaved", 8),
    "zb_v": (2, "zb_v", 4),
}


def names_in(folder):
    """Returns the sorted names in a folder, without the file that is locked."""
    return sorted({*os.listdir(folder)} - {LOCK})


def make_model(seed=3):
    """Ties across layers, running averages, random numbers, layers of no parameters."""
    np.random.seed(seed)
    model = Divisible(
        L.Linear(8, 8),
        L.BatchNormalization(8),
        F.dropout,
        L.Linear(8, 8),
        F.tanh,
        L.Linear(8, 8),
        F.relu,
        L.Linear(8, 4),
    )
    model.tie("/0/W", "/3/W")
    model.tie("/0/W", "/5/W", transpose=True)
    return model


def adam():
    return chainer.optimizers.Adam(0.01)


class Run:
    """A pipeline and its optimizers on some ranks."""

    def __init__(self, comm, layout, seed=3, make_optimizer=adam, timeout=20):
        _, schedule, n_stages = LAYOUTS[layout]
        model, plan = make_model(seed), Plan.uniform(N_LAYERS, n_stages)
        numbers = stages_of_rank(comm, n_stages, schedule)
        self.stages = [model.divide(*plan.range(number)) for number in numbers]
        self.optimizers = [make_optimizer().setup(stage) for stage in self.stages]
        for optimizer in self.optimizers:
            optimizer.add_hook(chainer.optimizer_hooks.WeightDecay(1e-3))
        self.pipe = Pipeline(
            self.stages, comm, n_microbatches=4, schedule=schedule, timeout=timeout
        )

    def step(self, i):
        x, t = BATCHES[i % len(BATCHES)]
        loss = self.pipe.step(x, t)["loss"]
        for optimizer in self.optimizers:
            optimizer.update()
        return loss

    def save(self, path, state=None, **options):
        save_snapshot(path, self.pipe, self.optimizers, state=state, **options)

    def load(self, path, state=None):
        return load_snapshot(path, self.pipe, self.optimizers, state=state)

    def arrays(self):
        """Returns copies of this rank's state, read from the objects themselves."""
        found = {}
        for stage, optimizer in zip(self.stages, self.optimizers):
            found["optimizer/t"] = optimizer.t
            found.update(state_of(stage))
        return found


def state_of(model):
    """Returns copies of parameters, persistents and update rules' states by key."""
    found = {}
    for path, param in model.namedparams():
        found[f"model{path}"] = param.array.copy()
        rule = param.update_rule
        found[f"optimizer{path}/t"] = rule.t
        for name, value in (rule.state or {}).items():
            found[f"optimizer{path}/{name}"] = value.copy()
    for path, link in model.namedlinks():
        for name in link._persistent:
            found[f"model{path}/{name}"] = np.array(getattr(link, name))
    return found


def saved_arrays(path):
    """Returns every array of a snapshot's layers, whatever file it is in."""
    found = {}
    snapshot = Snapshot.open(path)
    for name in snapshot.files:
        if name != "common.npz":
            with np.load(snapshot.path / name, allow_pickle=False) as arrays:
                for key in arrays:
                    assert key not in found or position(key[10:]) is None, key
                    found[key] = arrays[key]
    return found


def small_trainer(comm, out, stop):
    """Returns a trainer of a small model, cut evenly, with dropout; and its stage."""
    np.random.seed(3)
    return trainer_of(comm, out, stop, small_model(), adam())


def small_model():
    """Returns the model of :func:`small_trainer`."""
    return Divisible(
        L.Linear(6, 8), F.dropout, F.tanh, L.Linear(8, 8), F.tanh, L.Linear(8, 4)
    )


def trainer_of(comm, out, stop, model, optimizer):
    """Returns a trainer of a model, cut evenly; and its stage."""
    stage = model.divide(*Plan.uniform(len(model), comm.size).range(comm.rank))
    optimizer.setup(stage)
    pipe = Pipeline(stage, comm, n_microbatches=4, timeout=60)
    ((x, t),) = make_batches([50])
    iterator = None
    if pipe.is_first:
        data = chainer.datasets.TupleDataset(x, t)
        iterator = chainer.iterators.SerialIterator(data, 8)
    updater = PipelineUpdater(iterator, optimizer, pipe)
    return Trainer(updater, stop, out=out), stage

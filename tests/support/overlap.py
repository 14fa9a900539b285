"""Pipelines for tests of minibatches that overlap."""

from __future__ import annotations

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np

from divisible import Divisible
from divisible.schedules.catalogue import CATALOGUE
from pipeline import Pipeline
from tests.support.equivalence import stages_of_rank

N_MICROBATCHES = 4


def deep_mlp(width=8):
    """Returns a model of 15 layers, with ``width`` inputs and 4 classes."""
    layers = [layer for _ in range(7) for layer in (L.Linear(width, width), F.tanh)]
    return Divisible(*layers, L.Linear(width, 4))


def cut(comm, schedule, model=None):
    """Returns the stages of this rank, by the schedule's placement."""
    model = deep_mlp() if model is None else model
    n_stages = comm.size * CATALOGUE[schedule].stages_per_rank
    cuts = np.linspace(0, len(model), n_stages + 1).astype(int)
    return [
        model.divide(cuts[i], cuts[i + 1])
        for i in stages_of_rank(comm, n_stages, schedule)
    ]


def make(comm, schedule="zb_h1", model=None, rule=None, **options):
    """Returns a pipeline of the model, and an optimizer for the rank's stages."""
    np.random.seed(0)
    stages = cut(getattr(comm, "pipeline", comm), schedule, model)
    options = {"n_microbatches": N_MICROBATCHES, "timeout": 60, **options}
    pipe = Pipeline(stages, comm, schedule=schedule, **options)
    return pipe, pipe.setup(rule or chainer.optimizers.SGD(0.1))


def hold_up(pipe, wait):
    """Makes a rank call ``wait`` once, within its W of the last microbatch."""
    (stage,) = pipe.internals.step.stages.values()
    backward_weight = stage.backward_weight

    def held_up(microbatches):
        if N_MICROBATCHES - 1 in microbatches:
            del stage.backward_weight
            wait()
        backward_weight(microbatches)

    stage.backward_weight = held_up

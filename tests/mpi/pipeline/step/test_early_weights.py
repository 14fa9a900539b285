"""Weight gradients that run while a rank waits for a slow neighbour."""

import itertools
import time

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np

from divisible import Divisible, Plan
from divisible.schedules.actions import Action
from pipeline import Pipeline
from tests.support.equivalence import make_batches
from tests.support.mpiexec import assert_on_ranks

N_STEPS = 4


class Late(chainer.FunctionNode):
    """The identity, which takes long in some microbatches, forward and backward."""

    def __init__(self, number):
        self._number = number

    def forward(self, inputs):
        time.sleep(0.01 * (self._number % 3 == 1))
        return inputs

    def backward(self, indexes, gradients):
        time.sleep(0.03 * (self._number % 3 == 2))
        return gradients


def slow():
    count = itertools.count()
    return lambda x: Late(next(count)).apply((x,))[0]


def train(comm, schedule, fills_waits, **options):
    """Returns all gradients of some steps, and the timeline of the last one."""
    np.random.seed(0)
    late = slow()
    layers = [L.Linear(6, 6), F.tanh, L.Linear(6, 6), L.Linear(6, 6)]
    model = Divisible(*layers, late, L.Linear(6, 6), F.tanh, L.Linear(6, 4))
    n_stages = 2 * comm.size if schedule == "zb_v" else comm.size
    plan = Plan.uniform(len(model), n_stages)
    stages = [comm.rank]
    if schedule == "zb_v":
        stages.append(n_stages - 1 - comm.rank)
    mine = [model.divide(*plan.range(stage)) for stage in stages]
    found = []
    pipe = Pipeline(mine, comm, n_microbatches=6, schedule=schedule, **options)
    with pipe:
        pipe.internals.step.runner.fills_waits &= fills_waits
        for x, t in make_batches([12] * N_STEPS):
            pipe.step(x, t)
            for stage in mine:
                found += [param.grad.copy() for _, param in sorted(stage.namedparams())]
        return found, pipe.timeline()


def actions_in_time(timeline):
    """Returns the actions of each rank in the order of their starts."""
    return [
        [
            event.what
            for event in timeline
            if event.rank == rank and isinstance(event.what, Action)
        ]
        for rank in range(timeline.n_ranks)
    ]


def same_bits(comm):
    n_reordered = 0
    for schedule, options in (
        ("zb_h1", {}),
        ("zb_h2", {}),
        ("zb_v", {}),
        ("zb_h1", {"weight_groups": 2}),
        ("zb_h1", {"recompute": "always"}),
        ("zb_h1", {"message_dtype": "fp16"}),
        ("zb_h2", {"hold_dtype": "bfloat16", "hold_in": "disk"}),
    ):
        expected, in_order = train(comm, schedule, fills_waits=False, **options)
        gradients, timeline = train(comm, schedule, fills_waits=True, **options)
        for ours, theirs in zip(gradients, expected):
            np.testing.assert_array_equal(ours, theirs)
        n_reordered += actions_in_time(timeline) != actions_in_time(in_order)
    assert n_reordered > 0


def test_late_messages_change_the_order_but_no_bits():
    assert_on_ranks(3, same_bits)

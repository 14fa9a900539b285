"""Microbatches of a minibatch that differ: in what they use, in users, in shapes.

Beside plain Chainer, which sees the same microbatches one after the other.
"""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from data_parallel import Grid, create_multi_node_optimizer
from divisible import Divisible, Plan, pop, stash
from pipeline import Pipeline
from tests.support.equivalence import (
    STAGES_PER_RANK,
    assert_close,
    from_first,
    stages_of_rank,
    train_in_microbatches,
)
from tests.support.mpiexec import assert_on_ranks

N_IN, N_CLASSES = 6, 4


def is_odd(h):
    """Whether a microbatch is to be treated otherwise; its first sample decides."""
    return float(h.array.ravel()[0]) > 0


class Branch(chainer.Chain):
    """One of two layers."""

    def __init__(self):
        super().__init__(left=L.Linear(8, 8), right=L.Linear(8, 8))

    def forward(self, h):
        return self.left(h) if is_odd(h) else self.right(h)


class Gate(chainer.Link):
    """Lets no gradient through, of some microbatches."""

    def forward(self, h):
        return chainer.Variable(h.array) if is_odd(h) else h


class HalfGate(chainer.Link):
    """The same, of one of two tensors."""

    def forward(self, h):
        return h, chainer.Variable(2 * h.array) if is_odd(h) else 2 * h


class Sometimes(chainer.Chain):
    """A layer that some microbatches pass by, and one that none uses."""

    def __init__(self):
        super().__init__(linear=L.Linear(8, 8), never=L.Linear(8, 8))

    def forward(self, h, other):
        return h + other if is_odd(h) else self.linear(h) - other


def branches():
    return Divisible(
        L.Linear(N_IN, 8),
        F.tanh,
        Branch(),
        Gate(),
        L.Linear(8, 8),
        HalfGate(),
        Sometimes(),
        L.Linear(8, N_CLASSES),
    )


class Frozen(chainer.Chain):
    """A layer of which no microbatch, or not every one, needs the input's gradient."""

    def __init__(self):
        super().__init__(linear=L.Linear(8, 8))

    def forward(self, h):
        return self.linear(h.array if is_odd(h) else h)


def skipped_branches():
    """The gradient of what is stashed comes by two ways, by one, or by none."""
    return Divisible(
        L.Linear(N_IN, 8),
        stash("early"),
        Branch(),
        Frozen(),
        F.tanh,
        pop("early", lambda h, early: h * early if is_odd(h) else h),
        Gate(),
        L.Linear(8, N_CLASSES),
    )


class Twice(chainer.Link):
    def forward(self, h):
        return h, h


class Again(chainer.Chain):
    """Uses one tensor in two ways, and hands it on."""

    def __init__(self):
        super().__init__(linear=L.Linear(8, 8))

    def forward(self, first, second):
        return self.linear(first) * F.sigmoid(first), second, first


def several_users():
    return Divisible(
        L.Linear(N_IN, 8),
        stash("once"),
        stash("twice"),
        Twice(),
        Again(),
        lambda a, b, c: (a + b, c),
        lambda a, b: a * b + b,
        pop("once", F.add),
        L.Linear(8, 8),
        pop("twice", lambda h, twice: F.tanh(h + twice) * twice),
        L.Linear(8, N_CLASSES),
    )


class Steps(chainer.Link):
    """As many steps as the longest sample of a microbatch has; the others are zero."""

    def forward(self, x):
        n_steps = int(np.flatnonzero(x.any(axis=0)).max()) + 1
        return F.expand_dims(chainer.as_variable(x)[:, :n_steps], 2)


class Pairs(chainer.Link):
    """Two tensors, or one where there are few steps, of float32 or float64."""

    def forward(self, h):
        if h.shape[1] < 4:
            return h
        return h, F.cast(h[:, 1:], "float64")


class Sums(chainer.Link):
    def forward(self, h, more=None):
        total = F.sum(h, axis=1)
        return total if more is None else total + F.cast(F.max(more, axis=1), "f")


class EachStep(chainer.Chain):
    def __init__(self):
        super().__init__(linear=L.Linear(1, 8))

    def forward(self, h):
        return self.linear(h, n_batch_axes=2)


def shapes():
    return Divisible(
        Steps(),
        EachStep(),
        F.tanh,
        Pairs(),
        Sums(),
        L.Linear(8, 8),
        F.relu,
        L.Linear(8, N_CLASSES),
    )


MODELS = {
    each.__name__: each for each in (branches, skipped_branches, several_users, shapes)
}


def minibatches(sizes):
    random = np.random.RandomState(2)
    for n in sizes:
        x = random.normal(size=(n, N_IN)).astype(np.float32)
        # Of samples next to each other the lengths differ most.
        x[np.arange(N_IN) > random.randint(0, N_IN, (n, 1))] = 0
        x[:, 0] += 0.1
        yield x, random.randint(0, N_CLASSES, n).astype(np.int32)


def make(name):
    np.random.seed(4)
    return MODELS[name]()


def as_in_microbatches(comm, n_stages, name, schedule, sizes, options):
    grid = Grid(comm, n_stages)
    per_rank = STAGES_PER_RANK[schedule]
    model = make(name)
    plan = Plan.uniform(len(model), per_rank * n_stages)
    row = grid.pipeline
    numbers = stages_of_rank(row, plan.n_stages, schedule)
    stages = [model.divide(*plan.range(number)) for number in numbers]
    n_microbatches, n_replicas = 4, grid.n_replicas
    pipe = Pipeline(
        stages,
        grid if n_replicas > 1 else comm,
        n_microbatches=n_microbatches,
        schedule=schedule,
        timeout=20,
        **options,
    )
    optimizers = []
    for stage in stages:
        optimizer = chainer.optimizers.MomentumSGD(0.1)
        if n_replicas > 1:
            optimizer = create_multi_node_optimizer(optimizer, grid.data, pipeline=pipe)
        optimizers.append(optimizer.setup(stage))
    batches, losses = list(minibatches(sizes)), []
    with pipe:
        for x, t in batches:
            rows = np.array_split(np.arange(len(x)), n_replicas)[grid.replica]
            losses.append(pipe.step(x[rows], t[rows])["loss"])
            for optimizer in optimizers:
                optimizer.update()
    n_parts = n_microbatches * n_replicas
    means, expected = from_first(comm, undivided, name, batches, n_parts)
    label = f"{name}, {schedule}, {options}"
    assert_close(losses, means[:, 0], 1e-5, what=label)
    for stage in stages:
        for path, param in stage.namedparams():
            assert_close(param.array, expected[path], 1e-4, 1e-6, label + path)


def undivided(name, batches, n_microbatches):
    means, params = train_in_microbatches(make(name), batches, n_microbatches)
    return means, {path: param.array for path, param in params.items()}


CASES = [
    (1, 1, ["1f1b"]),
    (2, 1, ["gpipe"]),
    (2, 2, ["zb_h1"]),
    (3, 3, ["zb_h2"]),
    (4, 2, ["interleaved"]),
    *(
        pytest.param(*case, marks=pytest.mark.matrix)
        for case in (
            (1, 1, ["gpipe", "1f1b"]),
            (2, 2, ["zb_h1", "zb_v"]),
            (3, 3, ["gpipe", "zb_h2"]),
            (4, 2, ["interleaved", "1f1b"]),
            (2, 2, ["1f1b", "interleaved"]),
            (4, 2, ["zb_v"]),
        )
    ),
]
OPTIONS = [
    {},
    {"recompute": "always"},
    {"recompute": "except_last", "hold_in": "disk"},
]


def all_models(comm, n_stages, schedules):
    for number, schedule in enumerate(schedules):
        for name in MODELS:
            # Replicas get equal shares, so their microbatches are those of the whole.
            sizes = [8 * comm.size // n_stages] * 4
            if comm.size == n_stages:
                sizes += [7, 3]
            options = OPTIONS[(number + len(name)) % len(OPTIONS)]
            as_in_microbatches(comm, n_stages, name, schedule, sizes, options)


@pytest.mark.parametrize("n_ranks, n_stages, schedules", CASES)
def test_microbatches_that_differ(n_ranks, n_stages, schedules):
    assert_on_ranks(n_ranks, all_models, n_stages, schedules)


@pytest.mark.parametrize("name", ["branches", "skipped_branches"])
def test_microbatches_of_these_models_are_treated_differently(name, monkeypatch):
    """Otherwise the tests above show nothing."""
    decisions = []

    def noting(h):
        decisions.append(bool(h.array.ravel()[0] > 0))
        return decisions[-1]

    monkeypatch.setitem(globals(), "is_odd", noting)
    train_in_microbatches(make(name), minibatches([8] * 4), 4)
    n_places = len(decisions) // 16
    of_microbatches = np.reshape(decisions, (4, 4, n_places))
    # In each place, within at least one of four minibatches.
    differs = of_microbatches.any(axis=1) & ~of_microbatches.all(axis=1)
    assert differs.any(axis=0).all(), differs

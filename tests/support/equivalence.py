"""What tests of invariant 1 share: a pipeline trains as the undivided model does."""

from __future__ import annotations

import functools
import pickle
import time
from typing import Any, Callable, NamedTuple

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np

from divisible import Divisible, Plan, RandomKey, keyed_random_state
from divisible.schedules.automatic import AUTO
from divisible.schedules.catalogue import CATALOGUE, Placement
from pipeline import Pipeline

N_STEPS = 5
#: Tag of the messages of `from_first`.
_TAG = 83

#: Every schedule that a pipeline knows by name, and how many stages a rank gets. Those
#: with two weight versions are left out, because they train another way.
STAGES_PER_RANK = {
    **{
        name: entry.stages_per_rank
        for name, entry in CATALOGUE.items()
        if entry.weight_versions == 1
    },
    AUTO: 1,
}


class Measures(NamedTuple):
    """What is computed of a model's output; the first one is learned by."""

    lossfun: Callable = F.softmax_cross_entropy
    accfun: Callable = F.accuracy


CLASSIFICATION = Measures()


def set_up(model, lr, frozen=()):
    """Returns an optimizer for a model or stage, with layers that are not updated."""
    optimizer = chainer.optimizers.MomentumSGD(lr).setup(model)
    for path, link in model.namedlinks():
        if path in frozen:
            link.disable_update()
    return optimizer


def train_serially(model, batches, lr=0.1, frozen=(), measures=CLASSIFICATION):
    optimizer = set_up(model, lr, frozen)
    losses = []
    for x, t in batches:
        y = model(x)
        loss = measures.lossfun(y, t)
        model.cleargrads()
        loss.backward()
        optimizer.update()
        losses.append((float(loss.array), float(measures.accfun(y, t).array)))
    return np.array(losses), dict(model.namedparams())


def train_in_microbatches(
    model, batches, n_microbatches, lr=0.1, measures=CLASSIFICATION, seed=0
):
    """As `train_serially` by plain Chainer, but the model sees microbatches.

    Random layers draw what they draw in a pipeline.
    """
    optimizer = chainer.optimizers.MomentumSGD(lr).setup(model)
    means = []
    for step, (x, t) in enumerate(batches):
        model.cleargrads()
        mean = np.zeros(2)
        parts = zip(*(np.array_split(a, n_microbatches) for a in (x, t)))
        for microbatch, (x_part, t_part) in enumerate(parts):
            if len(x_part) == 0:
                continue
            with keyed_random_state(RandomKey(seed, step, microbatch)):
                y = model(x_part)
            loss = measures.lossfun(y, t_part)
            weight = len(x_part) / len(x)
            loss.grad = np.full_like(loss.array, weight)
            loss.backward()
            accuracy = measures.accfun(y, t_part)
            mean += weight * np.array([float(loss.array), float(accuracy.array)])
        optimizer.update()
        means.append(mean)
    return np.array(means), dict(model.namedparams())


def train_on(comm, stages, batches, lr=0.1, frozen=(), **options):
    optimizers = [set_up(part, lr, frozen) for part in stages]
    losses = []
    with Pipeline(stages, comm, **{"timeout": 20, **options}) as pipe:
        for x, t in batches:
            result = pipe.step(
                x if pipe.is_first else None, t if pipe.is_last else None
            )
            for optimizer in optimizers:
                optimizer.update()
            losses.append((result["loss"], result["accuracy"]))
    return np.array(losses)


def check_equal(
    comm,
    make_model,
    cuts,
    batches,
    rtol=1e-5,
    atol=1e-6,
    lr=0.1,
    serially_in_microbatches=False,
    frozen=(),
    measures=CLASSIFICATION,
    **options,
):
    """Trains on all ranks and serially.

    Stages lie on the ranks as the schedule wants them; in turn, if it wants nothing.
    """
    np.random.seed(3)
    model = make_model()
    plan = Plan(cuts)
    stages = [
        model.divide(*plan.range(i))
        for i in stages_of_rank(comm, plan.n_stages, options.get("schedule"))
    ]
    del model
    losses = train_on(
        comm, stages, batches, lr, frozen, **measures._asdict(), **options
    )
    microbatches = None
    if serially_in_microbatches:
        microbatches = options["n_microbatches"], options.get("seed", 0)
    expected_losses, expected = from_first(
        comm,
        _undivided,
        make_model,
        pickle.dumps(batches),
        lr,
        tuple(frozen),
        measures,
        microbatches,
        (chainer.config.dtype, chainer.config.train),
    )
    assert_close(losses, expected_losses, rtol=rtol)
    for stage in stages:
        for path, param in stage.namedparams():
            assert_close(param.array, expected[path], rtol, atol, path)


# Schedules and cuts in a row are compared with the same run, which takes as long as all
# stages together.
@functools.lru_cache(maxsize=1)
def _undivided(
    make_model: Callable,
    pickled_batches: bytes,
    lr: float,
    frozen: tuple[str, ...],
    measures: Measures,
    microbatches: tuple[int, int] | None,
    config: Any,
):
    """Trains the undivided model.

    Args:
        make_model: Returns the model.
        pickled_batches: Minibatches, as bytes, by which they are compared.
        lr: Learning rate.
        frozen: Paths of layers that are not updated.
        measures: Loss and accuracy of the output.
        microbatches: Number of microbatches that the model sees one by one, and the
            seed of what random layers draw; None for whole minibatches.
        config: Values of the configuration on which the result depends.
    """
    del config
    batches = pickle.loads(pickled_batches)
    np.random.seed(3)
    if microbatches is None:
        found = train_serially(make_model(), batches, lr, frozen, measures)
    else:
        n, seed = microbatches
        found = train_in_microbatches(make_model(), batches, n, lr, measures, seed)
    losses, params = found
    return losses, {path: param.array for path, param in params.items()}


def from_first(comm, function, *args):
    """Returns on all ranks what ``function(*args)`` returns on rank 0."""
    if comm.rank == 0:
        found = function(*args)
        for rank in range(1, comm.size):
            comm.send(found, rank, _TAG)
        return found
    # A wait in MPI computes all the time, which would take a core from rank 0.
    while not comm.iprobe(0, _TAG):
        time.sleep(0.002)
    return comm.recv(source=0, tag=_TAG)


def shared(comm, tasks):
    """Calls each of the functions on one of the ranks.

    Args:
        comm: The ranks.
        tasks: Functions without arguments, the same on all ranks.

    Returns:
        What they return, on every rank.
    """
    mine = [task() for task in tasks[comm.rank :: comm.size]]
    by_rank = comm.allgather(mine)
    return [by_rank[i % comm.size][i // comm.size] for i in range(len(tasks))]


def stages_of_rank(comm, n_stages, schedule=None):
    """Returns the numbers of this rank's stages, as the schedule wants them."""
    entry = CATALOGUE.get(schedule)
    placement = Placement.LOOP if entry is None else entry.placement
    ranks = placement.ranks(comm.size, n_stages)
    return [stage for stage, rank in enumerate(ranks) if rank == comm.rank]


def assert_close(actual, expected, rtol=1e-5, atol=0, what=""):
    """As NumPy's, but a number that is no number equals nothing.

    Chainer's gradients begin as NaN, which NumPy would find equal to each other.
    """
    assert np.isfinite(expected).all(), what
    np.testing.assert_allclose(
        actual, expected, rtol=rtol, atol=atol, equal_nan=False, err_msg=what
    )


def make_batches(sizes, n_in=6, n_classes=4, dtype=np.float32):
    """Minibatches of samples of ``n_in`` numbers, or of that shape."""
    rng = np.random.RandomState(0)
    shape = n_in if isinstance(n_in, tuple) else (n_in,)
    return [
        (
            rng.normal(size=(n, *shape)).astype(dtype),
            rng.randint(0, n_classes, n).astype(np.int32),
        )
        for n in sizes
    ]


class Split(chainer.Link):
    """A variable, one that is not used later, an array, and an integer variable."""

    def forward(self, x):
        signs = (x.array > 0).astype(np.int32)
        return x * 2, F.sum(x, axis=1), signs, chainer.Variable(signs)


class Merge(chainer.Link):
    def forward(self, doubled, total, signs, same_signs):
        del total
        np.testing.assert_array_equal(signs, same_signs.array)
        return doubled + signs.astype(np.float32)


def tuple_model():
    return Divisible(L.Linear(6, 8), Split(), Merge(), L.Linear(8, 4))

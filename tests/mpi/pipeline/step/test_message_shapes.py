"""Shapes of messages are known before the first step, where they can be."""

import contextlib
import gc
import random
import weakref
from unittest import mock

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from divisible import Divisible, Plan, carry_state
from divisible.communication import transport
from pipeline import Pipeline
from pipeline.step.runner import Runner
from tests.mpi.pipeline import test_models, test_real_networks
from tests.support.equivalence import (
    CLASSIFICATION,
    check_equal,
    make_batches,
    tuple_model,
)
from tests.support.mpiexec import assert_on_ranks

PIECE, SIGNATURE, NEW_PIECE = range(3)


@contextlib.contextmanager
def counted():
    """Yields the kind and the bytes of each message since shapes have been found."""
    sent, isend, expect = [], transport.Sender._isend, Runner.expect

    def noted(sender, piece, tag):
        sent.append((tag - sender._data_tag, piece.size))
        return isend(sender, piece, tag)

    def begin(*args):
        expect(*args)
        del sent[:]

    with (
        mock.patch.object(transport.Sender, "_isend", noted),
        mock.patch.object(Runner, "expect", begin),
    ):
        yield sent


def train(comm, make, batches, measures=CLASSIFICATION, **options):
    """Returns the messages of each step, and the pipeline."""
    np.random.seed(3)
    model = make()
    options = {"n_microbatches": 3, "timeout": 30, **options}
    found = []
    with Pipeline(model, comm, **measures._asdict(), **options) as pipe:
        optimizer = pipe.setup(chainer.optimizers.SGD(0.01))
        for x, t in batches:
            with counted() as sent:
                pipe.step(x if pipe.is_first else None, t if pipe.is_last else None)
            optimizer.update()
            found.append(list(sent))
        return found, pipe.message_shapes


def examples(comm, names):
    """No example describes a message: not in its first step, nor in a smaller one."""
    for name in names:
        case = test_models.MODELS[name]
        with chainer.using_config("dtype", np.dtype(np.float64)):
            x, t = case.batches()[0]
            batches = [(x, t), (x, t), (x[:5], t[:5]), (x[:2], t[:2]), (x, t)]
            steps, shapes = train(comm, case.make, batches, case.measures)
        assert len(shapes) >= 2 and not shapes.varying, f"{name}\n{shapes}"
        assert "n" in shapes[0].shapes, shapes
        for number, sent in enumerate(steps):
            kinds = {kind for kind, _ in sent}
            assert kinds <= {PIECE}, (name, number, sent)
            # As many messages as in any other step.
            assert len(sent) == len(steps[0]), (name, number)
        assert steps[0] == steps[1] == steps[4], name


EXAMPLES = ["mlp", "autoencoder", "language_model", "unet", "tuples"]


def test_first_and_smaller_steps_describe_no_messages():
    assert_on_ranks(2, examples, EXAMPLES)


@pytest.mark.matrix
@pytest.mark.parametrize("n_ranks", [2, 3, 4])
def test_no_example_describes_messages(n_ranks):
    assert_on_ranks(n_ranks, examples, list(test_models.MODELS), timeout=120)


def networks(comm):
    for name, make in test_real_networks.MODELS.items():
        steps, shapes = train(comm, make, test_real_networks.BATCHES)
        assert not shapes.varying, f"{name}\n{shapes}"
        assert all(kind == PIECE for sent in steps for kind, _ in sent), name


def test_real_networks_describe_no_messages():
    assert_on_ranks(2, networks)


def positive(x):
    """Rows by the values of the samples."""
    return x[x[:, 0] > 0]


def by_values():
    return Divisible(positive, L.Linear(6, 5), F.tanh, L.Linear(5, 4))


def data_dependent(comm):
    batches = make_batches([9, 9, 5, 9])
    for x, _ in batches:
        x[:, 0] = np.resize([1, 1, -1], len(x))
    # A loss that accepts any number of rows.
    lossfun = lambda y, t: F.sum(y * y) / 8  # noqa: E731
    options = {"lossfun": lossfun, "accfun": None, "n_microbatches": 3}
    np.random.seed(3)
    with Pipeline(by_values(), comm, plan=Plan([0, 2, 4], 3), **options) as pipe:
        assert str(pipe.message_shapes).count("\n") == 0
        for x, t in batches:
            pipe.step(x, t)
        (activations, gradients) = pipe.message_shapes
        assert "array 0 has the shape" in activations.reason, pipe.message_shapes
        assert gradients.reason and pipe.message_shapes.varying
        text = "shapes of messages are not static, activations of stage 0: array 0"
        assert text in str(pipe)


def few_large_samples(comm):
    """A pass of five samples would need more memory than microbatches of two."""
    x, t = np.ones((6, 1100), np.float32), np.zeros(6, np.int32)
    for width, way, reason in (
        (1100, "mpi", "microbatches have fewer than the 5 samples of a trial"),
        (1000, "mpi", ""),
        # Windows are made for shapes that are known.
        (1100, "rma", ""),
    ):
        model = Divisible(L.Linear(width, 5), L.Linear(5, 4))
        plan = Plan([0, 1, 2], 3)
        with Pipeline(model, comm, plan=plan, transport=way) as pipe:
            pipe.step(x[:, :width], t)
            reasons = {channel.reason for channel in pipe.message_shapes}
            assert reasons == {reason}, pipe.message_shapes


def test_shapes_that_depend_on_values():
    assert_on_ranks(2, data_dependent)


def test_microbatches_of_few_large_samples_take_no_more_memory_for_shapes():
    assert_on_ranks(2, few_large_samples)


def after_an_evaluation(comm):
    """Messages of an evaluation are not taken for those of a few samples."""
    model = Divisible(carry_state(L.LSTM(6, 5)), L.Linear(5, 4))
    ((x, t),) = make_batches([12])
    with Pipeline(model, comm, plan=Plan([0, 1, 2], 6)) as pipe:
        pipe.evaluate(x, t)
        pipe.step(x, t)
        reasons = {channel.reason for channel in pipe.message_shapes}
        assert reasons == {"layers carry states"}, pipe.message_shapes


def test_an_evaluation_before_the_first_step():
    assert_on_ranks(2, after_an_evaluation)


class Picky(chainer.Link):
    """Refuses few samples, and remembers how many it has seen."""

    def __init__(self, least):
        super().__init__()
        self.least, self.n_seen, self.sizes = least, 0, []

    def forward(self, x):
        self.n_seen += len(x)
        self.sizes.append(len(x))
        if len(x) < self.least:
            raise ValueError(f"{len(x)} samples are too few")
        return x


def failing(comm):
    """A layer that fails on few samples fails nowhere else."""
    batches = make_batches([12, 12])

    def make():
        return Divisible(L.Linear(6, 5), Picky(4), F.tanh, L.Linear(5, 4))

    for cut in (1, 2):
        check_equal(comm, make, [0, cut, 4], batches, n_microbatches=3)
        stage = make().divide(*Plan([0, cut, 4]).range(comm.rank))
        with Pipeline(stage, comm, n_microbatches=3) as pipe:
            pipe.step(*batches[0])
            # What came before the layer is known.
            varying = pipe.message_shapes.varying
            assert len(varying) == cut, pipe.message_shapes
            reason = "layer 1, Picky(), failed on a few samples with ValueError: 2"
            for channel in varying:
                assert channel.reason.startswith(reason), channel


def test_a_layer_that_fails_on_few_samples():
    assert_on_ranks(2, failing)


class Shared(list):
    """A list that copies of layers have in common."""

    def __deepcopy__(self, memo):
        return self


class Drawing(chainer.Link):
    """Draws from Python's generator, and counts outputs that are still held."""

    def __init__(self):
        super().__init__()
        self.outputs, self.n_held = Shared(), Shared()

    def forward(self, x):
        random.random()
        self.n_held.append(sum(output() is not None for output in self.outputs))
        y = x + 0
        self.outputs.append(weakref.ref(chainer.as_array(y)))
        return y


def n_instances(kind):
    return sum(type(each) is kind for each in gc.get_objects())


def no_trace(comm):
    """Layers, random numbers and hooks are as if shapes were not looked for."""
    np.random.seed(5)
    model = Divisible(
        Drawing(),
        L.BatchNormalization(6),
        Picky(0),
        F.dropout,
        L.Linear(None, 5),
        L.Linear(5, 4),
    )
    stage = model.divide(*Plan([0, 4, 6]).range(comm.rank))
    ((x, t),) = make_batches([9])
    np.random.seed(7)
    random.seed(8)
    with Pipeline(stage, comm, n_microbatches=3) as pipe:
        gc.collect()
        gc.disable()
        n_layers = n_instances(Picky)
        pipe.step(x, t)
        # Copies are freed at once.
        assert n_instances(Picky) == n_layers
        gc.enable()
        assert not pipe.message_shapes.varying
    assert np.random.randint(1 << 30) == np.random.RandomState(7).randint(1 << 30)
    if comm.rank == 0:
        # Each of the few microbatches ends before the next one begins.
        assert stage[0].n_held[:3] == [0, 0, 0]
        draws = random.Random(8)
        assert random.random() == [draws.random() for _ in range(4)][-1]
        expected = L.BatchNormalization(6)
        expected(x)
        np.testing.assert_allclose(stage[1].avg_mean, expected.avg_mean, rtol=1e-5)
        assert (stage[2].n_seen, stage[2].sizes) == (9, [3, 3, 3])


def test_layers_keep_no_trace():
    assert_on_ranks(2, no_trace)


def table(comm):
    with Pipeline(tuple_model(), comm, n_microbatches=2) as pipe:
        pipe.step(*make_batches([4])[0])
        if comm.rank == 0:
            print(pipe.message_shapes)


def test_a_table_of_shapes():
    text = assert_on_ranks(2, table)
    assert "activations of stage 0  (n, 8) float32, (n,) float32" in text, text
    assert "gradients of stage 1    (n, 8) float32, " in text, text

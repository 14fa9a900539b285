"""Bad input is refused on every rank, with a message that says what to do."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from divisible import Divisible, Plan, pop, stash
from divisible.schedules import Schedule
from pipeline import DisagreementError, Pipeline
from pipeline.start import versions
from pipeline.training.minibatches import MinibatchReader, iterators_of_rank
from tests.support.mpiexec import assert_on_ranks, mpiexec, on_ranks, refused_on_ranks

DEADLINE = 10


def model(n_classes=3):
    return Divisible(L.Linear(4, 5), F.relu, L.Linear(5, 5), L.Linear(5, n_classes))


def stage_of(comm, whole=None):
    whole = model() if whole is None else whole
    return whole.divide(*Plan.uniform(len(whole), comm.size).range(comm.rank))


X = np.ones((6, 4), np.float32)
T = np.zeros(6, np.int32)


def slice_out_of_range(comm):
    Pipeline(model().divide(comm.rank, comm.rank + 3), comm, n_microbatches=2)


def layers_left_out(comm):
    Pipeline(model().divide(2 * comm.rank, 2 * comm.rank + 1), comm, n_microbatches=2)


def layers_twice(comm):
    Pipeline(model().divide(comm.rank, comm.rank + 3), comm, n_microbatches=2)


def different_models(comm):
    Pipeline(stage_of(comm, model(3 + comm.rank)), comm, n_microbatches=2)


def different_depths(comm):
    whole = model()
    if comm.rank:
        whole.append(F.relu)
    Pipeline(stage_of(comm, whole), comm, n_microbatches=2)


def different_versions(comm):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(versions, "version", lambda: f"divisible {comm.rank}")
        Pipeline(stage_of(comm), comm, n_microbatches=2)


class Moved:
    """A class that only rank 0 can import, as after it was moved."""


def versions_of_other_classes(comm):
    with pytest.MonkeyPatch.context() as patch:
        if comm.rank:
            patch.delitem(globals(), Moved.__name__)
        else:
            # An older version pickled classes of its own.
            patch.setattr(versions, "sealed", lambda words: Moved())
        Pipeline(stage_of(comm), comm, n_microbatches=2)


def different_microbatches(comm):
    Pipeline(stage_of(comm), comm, n_microbatches=2 + comm.rank)


def different_schedules(comm):
    Pipeline(
        stage_of(comm), comm, n_microbatches=2, schedule=["gpipe", "1f1b"][comm.rank]
    )


def different_transports(comm):
    Pipeline(
        stage_of(comm),
        comm,
        n_microbatches=2,
        transport=["mpi", "chainermn"][comm.rank],
    )


def different_widths(comm):
    Pipeline(
        stage_of(comm), comm, n_microbatches=2, message_dtype=[None, "fp16"][comm.rank]
    )


def different_bits_while_waiting(comm):
    dtype = ["float32", "bfloat16"][comm.rank]
    Pipeline(stage_of(comm), comm, n_microbatches=2, hold_dtype=dtype)


def different_accuracies(comm):
    Pipeline(
        stage_of(comm), comm, n_microbatches=2, accfun=[None, F.accuracy][comm.rank]
    )


def unknown_schedule(comm):
    Pipeline(stage_of(comm), comm, n_microbatches=2, schedule="2f2b")


def no_microbatches(comm):
    Pipeline(stage_of(comm), comm, n_microbatches=0)


def not_a_stage(comm):
    Pipeline(chainer.Sequential(F.relu), comm, n_microbatches=2)


def not_a_communicator(comm):
    Pipeline(stage_of(comm), "world", n_microbatches=2)


def missing_x(comm):
    Pipeline(stage_of(comm), comm, n_microbatches=2).step(None, T)


def missing_t(comm):
    Pipeline(stage_of(comm), comm, n_microbatches=2).step(X, None)


def empty_batch(comm):
    Pipeline(stage_of(comm), comm, n_microbatches=2).step(X[:0], T[:0])


def untrainable_dtype(comm):
    Pipeline(stage_of(comm), comm, n_microbatches=2).step(X.astype(np.complex64), T)


def double_into_single(comm):
    Pipeline(stage_of(comm), comm, n_microbatches=2).step(X.astype(np.float64), T)


def label_too_large(comm):
    Pipeline(stage_of(comm), comm, n_microbatches=2).step(X, T + 3)


def label_negative(comm):
    pipe = Pipeline(stage_of(comm), comm, n_microbatches=2)
    pipe.step(X, T - 1)  # -1 is the label to ignore
    pipe.step(X, T - 2)


def fewer_targets(comm):
    Pipeline(stage_of(comm), comm, n_microbatches=2).step(X, T[:4])


def fewer_samples_than_microbatches(comm):
    Pipeline(stage_of(comm), comm, n_microbatches=4).step(X[:2], T[:3])


def different_calls(comm):
    pipe = Pipeline(stage_of(comm), comm, n_microbatches=2)
    pipe.step(X, T)
    (pipe.evaluate if comm.rank == 0 else pipe.step)(X, T)


def timeline_of_one_rank(comm):
    pipe = Pipeline(stage_of(comm), comm, n_microbatches=2)
    pipe.step(X, T)
    pipe.timeline()
    if comm.rank == 0:
        pipe.timeline()
    pipe.step(X, T)


def left_out_call(comm):
    pipe = Pipeline(stage_of(comm), comm, n_microbatches=2)
    for i in range(3):
        if i == 1 and pipe.is_last:
            # It refuses its targets, and its script goes on as if nothing had been.
            with pytest.raises(TypeError, match="t is None"):
                pipe.step(X, None)
            pipe._calls.has_failed = False
        else:
            pipe.step(X, T)


def after_a_caught_error(comm):
    pipe = Pipeline(stage_of(comm), comm, n_microbatches=2)
    pipe.step(X, T)
    try:
        pipe.step(X, None if pipe.is_last else T)
    except TypeError:
        pipe.step(X, T)


def unknown_wire(comm):
    Pipeline(stage_of(comm), comm, n_microbatches=2, message_dtype=("int8", "int9"))


def wide_parameters(comm):
    with chainer.using_config("dtype", np.float64):
        stage = stage_of(comm)
    Pipeline(stage, comm, n_microbatches=2, message_dtype="int8")


def wide_activations(comm):
    whole = model()
    whole.insert(2, lambda x: F.cast(x, "float64"))
    whole.insert(3, lambda x: F.cast(x, "float32"))
    stage = whole.divide(*[(0, 3), (3, 6)][comm.rank])
    Pipeline(stage, comm, n_microbatches=2, message_dtype="int8").step(X, T)


def repeated_averages(comm):
    norm = L.BatchNormalization(4)
    Pipeline(
        stage_of(comm, Divisible(norm, F.relu, norm, F.relu)), comm, n_microbatches=2
    )


def wrong_recomputation(comm):
    Pipeline(stage_of(comm), comm, n_microbatches=2, recompute="often")


def other_seed(comm):
    Pipeline(stage_of(comm), comm, n_microbatches=2, seed=comm.rank)


def negative_seed(comm):
    Pipeline(stage_of(comm), comm, n_microbatches=2, seed=-1)


def popped_before(comm):
    layers = pop("a", F.add), L.Linear(4, 4), stash("a"), L.Linear(4, 4)
    Pipeline(stage_of(comm, Divisible(*layers)), comm, n_microbatches=2)


def unequal_skips(comm):
    layers = [stash("a"), L.Linear(4, 4), pop("a", F.add), L.Linear(4, 4)]
    if comm.rank == 1:
        layers[:3] = [L.Linear(4, 4), F.relu, F.relu]
    Pipeline(stage_of(comm, Divisible(*layers)), comm, n_microbatches=2)


def unequal_ties(comm):
    model = Divisible(L.Linear(4, 4), F.relu, L.Linear(4, 4), F.relu)
    model.tie("/0/W", "/2/W", transpose=comm.rank == 0)
    if comm.rank == 1:
        model[2].b = model[0].b
    Pipeline(stage_of(comm, model), comm, n_microbatches=2)


def shared_without_shape(comm):
    linear = L.Linear(None, 4)
    stage = Divisible(F.relu, linear, linear).divide(comm.rank, comm.rank + 1)
    Pipeline(stage, comm, n_microbatches=2)


def closure(comm):
    """A weight of the first stage, used in the second one."""
    first = L.Linear(4, 4)
    model = Divisible(first, F.relu, L.Linear(4, 4), lambda x: F.linear(x, first.W))
    pipe = Pipeline(stage_of(comm, model), comm, n_microbatches=2)
    pipe.step(np.ones((4, 4), np.float32), np.zeros(4, np.int32))


def closure_of_the_loss(comm):
    loss = chainer.Chain(first=L.Linear(4, 4))
    model = Divisible(loss.first, F.relu, L.Linear(4, 4), F.relu)
    Pipeline(stage_of(comm, model), comm, n_microbatches=2, lossfun=loss)


def own_forward(comm):
    class Doubled(Divisible):
        def forward(self, x):
            return 2 * super().forward(x)

    Pipeline(Doubled(*model()), comm, n_microbatches=2)


def unfit_skip(comm):
    layers = stash("a"), L.Linear(4, 3), pop("a", F.add), L.Linear(3, 4)
    pipe = Pipeline(stage_of(comm, Divisible(*layers)), comm, n_microbatches=2)
    pipe.step(np.ones((4, 4), np.float32), np.zeros(4, np.int32))


class Tagged(np.ndarray):
    """Arithmetic of which a message knows nothing."""


def subclass_returned(comm):
    def layer(x):
        return x, np.ma.masked_less(x.array, 0)

    model = Divisible(L.Linear(4, 5), layer, lambda x, y: x, L.Linear(5, 3))
    Pipeline(stage_of(comm, model), comm, n_microbatches=2).step(X, T)


def subclass_in_a_variable(comm):
    def layer(x):
        return chainer.Variable(np.asmatrix(x.array))

    model = Divisible(L.Linear(4, 5), layer, F.relu, L.Linear(5, 3))
    Pipeline(stage_of(comm, model), comm, n_microbatches=2).step(X, T)


def subclass_skipped(comm):
    def layer(x):
        return chainer.as_array(x).view(Tagged)

    model = Divisible(layer, stash("a"), np.asarray, F.relu, F.relu, pop("a", F.add))
    Pipeline(stage_of(comm, model), comm, n_microbatches=2).predict(X)


def list_skipped(comm):
    def layer(x):
        return [x]

    rest = F.relu, F.relu, pop("a", lambda x, y: x)
    model = Divisible(layer, stash("a"), lambda x: x[0], *rest)
    Pipeline(stage_of(comm, model), comm, n_microbatches=2).predict(X)


def subclass_of_gradient(comm):
    class Scaled(chainer.FunctionNode):
        def forward(self, inputs):
            return (np.asarray(inputs[0]) * 2,)

        def backward(self, indexes, gradients):
            return (chainer.Variable(np.asmatrix(2 * gradients[0].array)),)

    def layer(x):
        return Scaled().apply((x,))[0]

    model = Divisible(L.Linear(4, 5), F.relu, layer, L.Linear(5, 3))
    Pipeline(stage_of(comm, model), comm, n_microbatches=2).step(X, T)


def subclass_as_target(comm):
    def masked(batch, device):
        return X, np.ma.masked_less(T, 0)

    iterator = chainer.iterators.SerialIterator(list(zip(X, T)), 6)
    pipe = Pipeline(stage_of(comm), comm, n_microbatches=2)
    MinibatchReader(pipe, masked).next(iterators_of_rank(iterator, pipe)["main"])


def nothing_returned(comm):
    model = Divisible(L.Linear(4, 5), lambda x: (), L.Linear(5, 5), L.Linear(5, 3))
    Pipeline(stage_of(comm, model), comm, n_microbatches=2).step(X, T)


def nothing_returned_in_the_end(comm):
    model = Divisible(L.Linear(4, 5), F.relu, F.relu, lambda x: ())
    Pipeline(stage_of(comm, model), comm, n_microbatches=2).predict(X)


def none_before_a_cut(comm):
    def layer(x):
        return F.dropout(x, return_mask=True)

    model = Divisible(L.Linear(4, 5), layer, lambda x, mask: x, L.Linear(5, 3))
    Pipeline(stage_of(comm, model), comm, n_microbatches=2).evaluate(X, T)


def no_backward(comm):
    Pipeline(stage_of(comm), comm, schedule=Schedule([["0F0"], ["1F0"]]))


def other_rank_first(comm):
    Pipeline(
        model().divide(*Plan([0, 2, 4]).range(1 - comm.rank)), comm, n_microbatches=2
    )


def not_an_array(comm):
    whole = Divisible(lambda x: [x], L.Linear(4, 3))
    Pipeline(stage_of(comm, whole), comm, n_microbatches=2).step(X, T)


def not_a_loss(comm):
    pipe = Pipeline(
        stage_of(comm), comm, n_microbatches=2, lossfun=lambda y, t: y, accfun=None
    )
    pipe.step(X, T)


def wrong_width(comm):
    Pipeline(stage_of(comm), comm, n_microbatches=2).step(X[:, :3], T)


@pytest.mark.parametrize(
    "n_ranks, function, words",
    [
        (3, slice_out_of_range, ["divide(2, 5)", "out of range"]),
        (2, layers_left_out, ["rank 1 has the layers 2 to 2, but layer 1 comes next"]),
        (2, layers_twice, ["rank 1 has the layers 1 to 3, but layer 3 comes next"]),
        (2, different_models, ["rank 0 and rank 1 built different models: layer 3"]),
        (2, different_depths, ["rank 0 divided a model of 4 layers, rank 1 one of 5"]),
        (
            2,
            different_versions,
            ["runs divisible 0", "runs divisible 1. Install"],
        ),
        (
            2,
            versions_of_other_classes,
            ["rank 1 runs divisible", "cannot read", "Install the same version"],
        ),
        (2, different_microbatches, ["n_microbatches differs"]),
        (2, different_schedules, ["schedule differs between rank 0 and rank 1"]),
        (2, different_transports, ["transport differs", "chainermn"]),
        (2, different_widths, ["message_dtype differs"]),
        (2, different_bits_while_waiting, ["hold_dtype differs"]),
        (2, different_accuracies, ["lossfun and accfun give differs"]),
        (2, unknown_schedule, ["2f2b", "1f1b"]),
        (2, no_microbatches, ["n_microbatches"]),
        (2, not_a_stage, ["stage must be a Divisible or a list of them, not Seq"]),
        (2, not_a_communicator, ["comm must be a ChainerMN communicator"]),
        (2, missing_x, ["x is None on rank 0"]),
        (2, missing_t, ["t is None on rank 1"]),
        (2, empty_batch, ["no samples"]),
        (2, untrainable_dtype, ["complex64, which Chainer cannot train on"]),
        (2, double_into_single, ["x is float64", "astype('float32')"]),
        (2, label_too_large, ["microbatch 0 has the label 3", "3 outputs"]),
        (2, label_negative, ["ValueError: t has the label -2: labels start at 0"]),
        (2, fewer_targets, ["x and t must be of the same minibatch"]),
        (2, fewer_samples_than_microbatches, ["x has 2 samples, but t has 3"]),
        (2, different_calls, ["some ranks call step and others evaluate"]),
        (2, timeline_of_one_rank, ["some ranks call step and others timeline"]),
        (3, left_out_call, ["a rank left a call out"]),
        (2, after_a_caught_error, ["an earlier call failed on rank 1"]),
        (2, unknown_wire, ["message_dtype of gradients must be one of", "not 'int9'"]),
        (2, wide_parameters, ["message_dtype is int8", "parameters of float64"]),
        (2, wide_activations, ["0F0", "on rank 0", "float64 cannot travel in 'int8'"]),
        (
            2,
            repeated_averages,
            ["the layers 0 and 2 have /0 in common", "running averages", "Cut so that"],
        ),
        (2, wrong_recomputation, ["recompute must be one of never", "not 'often'"]),
        (2, other_seed, ["seed differs between rank 0 and rank 1"]),
        (2, negative_seed, ["seed must be from 0"]),
        (2, popped_before, ["layer 2: stash('a') is a skip into the earlier layer 0"]),
        (2, unequal_skips, ["layer 0 is stash('a') on rank 0"]),
        (2, unequal_ties, ["rank 0 and rank 1 built different models", "ties"]),
        (3, shared_without_shape, ["/1/W is shared by the stages 1, 2", "all sizes"]),
        (2, closure, ["layers 2 to 3 uses /0/W"]),
        (2, closure_of_the_loss, ["the loss uses /0/"]),
        (2, own_forward, ["Doubled.forward replaces the pass through the layers"]),
        (2, unfit_skip, ["1F0 failed on rank 1", "layer 2, pop('a', add)"]),
        (2, no_backward, ["has no backward"]),
        (2, other_rank_first, ["wants the stages on the ranks [0, 1]"]),
        (2, subclass_returned, ["in layer 1, ", "returned a MaskedArray"]),
        (2, subclass_in_a_variable, ["in layer 1, ", "returned a matrix"]),
        (2, subclass_skipped, ["in layer 1, stash", "handed over a Tagged"]),
        (2, list_skipped, ["in layer 1, stash", "handed over list"]),
        (2, subclass_of_gradient, ["1B0 failed on rank 1", "but one is a matrix"]),
        (2, subclass_as_target, ["a target is a MaskedArray"]),
        (2, nothing_returned, ["in layer 1, ", "returned an empty tuple"]),
        (2, nothing_returned_in_the_end, ["in layer 3, ", "returned an empty tuple"]),
        (2, none_before_a_cut, ["in layer 1, ", "returned NoneType"]),
        (2, not_an_array, ["0F0 failed on rank 0", "returned list"]),
        (2, not_a_loss, ["lossfun must return a scalar"]),
        (2, wrong_width, ["0F0 failed on rank 0", "layer 0, Linear(in_size=4"]),
    ],
)
def test_bad_input(n_ranks, function, words):
    outcomes, output = refused_on_ranks(n_ranks, function)
    assert "done" not in outcomes
    for word in words:
        assert word in output


def test_a_bad_argument_of_one_rank_ends_all():
    """In a script that does not call abort_on_error itself."""
    program = (
        "from mpi4py import MPI\n"
        "from pipeline import Pipeline\n"
        "from tests.mpi.pipeline.test_bad_input import stage_of\n"
        "comm = MPI.COMM_WORLD\n"
        "Pipeline(stage_of(comm), comm, n_microbatches=2, seed=-comm.rank)\n"
    )
    result = mpiexec(2, ["-c", program], timeout=DEADLINE)
    assert result.returncode != 0
    assert "seed must be from 0" in result.stdout


def test_an_error_of_all_ranks_is_printed_once():
    result = on_ranks(3, different_depths, timeout=DEADLINE)
    assert result.stdout.count("Traceback") == 1


def refusal(comm):
    """A script may go on: no message is left, and nobody waits."""
    for options in ({"seed": -1}, {"timeout": 0}, {"transport": "tcp"}):
        if comm.rank == 1:
            with pytest.raises(ValueError, match="must be") as caught:
                Pipeline(stage_of(comm), comm, n_microbatches=2, **options)
            assert not isinstance(caught.value, DisagreementError)
        else:
            message = f"rank 1 refuses to start: ValueError: {next(iter(options))} must"
            with pytest.raises(DisagreementError, match=message):
                Pipeline(stage_of(comm), comm, n_microbatches=2, timeout=100)
    with Pipeline(stage_of(comm), comm, n_microbatches=2) as pipe:
        pipe.step(X, T)


def test_the_others_learn_why_a_rank_refuses():
    assert_on_ranks(3, refusal, timeout=DEADLINE)

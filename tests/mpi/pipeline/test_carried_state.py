"""Truncated back-propagation through time: as a serial script that unchains."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer.datasets import TupleDataset
from chainer.iterators import SerialIterator
from chainer.serializers import DictionarySerializer, NpzDeserializer
from mpi4py import MPI

from data_parallel import Grid, create_multi_node_optimizer
from divisible import Divisible, carry_state, deferred_init
from divisible.communication.flight_record import ACTION, SEND, own_flight_record
from mixed_precision import MixedPrecision, to_float16
from pipeline import (
    DisagreementError,
    Pipeline,
    PipelineEvaluator,
    SnapshotError,
    load_snapshot,
    predict,
    rebalance,
    save_snapshot,
)
from tests.support.matrix import matrix
from tests.support.mpiexec import assert_on_ranks

N_WORDS, N_UNITS, LENGTH = 20, 6, 4


class Recurrent(chainer.Chain):
    """Reads (samples, positions, units) from where it was."""

    def __init__(self, kind):
        super().__init__()
        with self.init_scope():
            self.cell = carry_state(kind(N_UNITS, N_UNITS))

    def forward(self, x):
        return F.stack([self.cell(x[:, i]) for i in range(x.shape[1])], axis=1)


class Scores(L.Linear):
    def forward(self, x):
        return F.swapaxes(super().forward(x, n_batch_axes=2), 1, 2)


def model_of(kind=L.LSTM):
    with deferred_init(seed=4):
        layers = [L.EmbedID(N_WORDS, N_UNITS), Recurrent(kind), F.tanh]
        layers += [Recurrent(kind), Scores(N_UNITS, N_WORDS)]
        return Divisible(*layers)


CUTS = {1: [0, 5], 2: [0, 2, 5], 3: [0, 1, 3, 5], 4: [0, 1, 2, 4, 5]}


def minibatches(n, size, seed=0):
    random = np.random.RandomState(seed)
    for _ in range(n):
        x, t = random.randint(0, N_WORDS, (2, size, LENGTH)).astype("i")
        yield x, t


class Serial:
    """What a script of Chainer's does, with the state in the links."""

    def __init__(self, kind=L.LSTM):
        self.model = model_of(kind).divide()
        self.optimizer = chainer.optimizers.Adam(0.05).setup(self.model)

    def steps(self, batches):
        losses = []
        for x, t in batches:
            loss = F.softmax_cross_entropy(self.model(x), t)
            self.model.cleargrads()
            loss.backward()
            loss.unchain_backward()
            self.optimizer.update()
            losses.append(float(loss.array))
        return losses


class Run:
    def __init__(self, comm, n_microbatches, kind=L.LSTM, n_chunks=1, **options):
        n_stages = comm.size * n_chunks
        cuts, model = CUTS[n_stages], model_of(kind)
        numbers = range(comm.rank, n_stages, comm.size)
        self.stages = [model.divide(*cuts[i : i + 2]) for i in numbers]
        stages = self.stages if n_chunks > 1 else self.stages[0]
        self.pipe = Pipeline(stages, comm, n_microbatches=n_microbatches, **options)
        self.optimizers = [
            chainer.optimizers.Adam(0.05).setup(stage) for stage in self.stages
        ]

    def steps(self, batches):
        losses = []
        for x, t in batches:
            losses.append(self.pipe.step(x, t)["loss"])
            for optimizer in self.optimizers:
                optimizer.update()
        return losses


def trains(comm, schedule, n_microbatches, recompute, n_chunks, kind):
    kind = getattr(L, kind)
    batches = [*minibatches(6, 7)]
    wanted = Serial(kind).steps(batches)
    # What it would be if each began anew.
    assert abs(wanted[1] - fresh_loss(kind, batches)) > 1e-6
    options = {"schedule": schedule, "recompute": recompute}
    run = Run(comm, n_microbatches, kind, n_chunks, **options)
    np.testing.assert_allclose(run.steps(batches), wanted, rtol=2e-5)


def fresh_loss(kind, batches):
    serial = Serial(kind)
    serial.steps(batches[:1])
    for link in serial.model.links():
        if hasattr(link, "reset_state"):
            link.reset_state()
    return serial.steps(batches[1:2])[0]


@pytest.mark.parametrize(
    "n_ranks, schedule, n_microbatches, recompute, n_chunks, kind",
    [
        (1, "gpipe", 1, "never", 1, "StatefulGRU"),
        (2, "gpipe", 3, "always", 1, "LSTM"),
        (2, "interleaved", 4, "except_last", 2, "LSTM"),
        (3, "zb_h1", 9, "never", 1, "StatefulPeepholeLSTM"),
    ],
)
def test_trains_as_a_serial_script(
    n_ranks, schedule, n_microbatches, recompute, n_chunks, kind
):
    assert_on_ranks(
        n_ranks, trains, schedule, n_microbatches, recompute, n_chunks, kind
    )


def goes_on(comm, folder):
    batches = [*minibatches(9, 6)]
    serial, run = Serial(), Run(comm, 2)
    wanted = serial.steps(batches)
    np.testing.assert_allclose(run.steps(batches[:3]), wanted[:3], rtol=2e-5)
    # Evaluation has a state of its own, which begins anew after a step.
    x, t = batches[0]
    losses = [run.pipe.evaluate(x, t)["loss"] for _ in range(2)]
    assert losses[0] != losses[1]
    run.pipe.internals.step.reset_states(of_training=False)
    assert run.pipe.evaluate(x, t)["loss"] == losses[0]
    assert run.pipe.predict(x).shape == (6, N_WORDS, LENGTH)
    save_snapshot(folder, run.pipe, run.optimizers)
    # On another number of microbatches, and other cuts.
    other = Run(comm, 3)
    load_snapshot(folder, other.pipe, other.optimizers)
    rebalance(other.pipe, other.optimizers, [0, 4, 5], model_of)
    for each in (run, other):
        np.testing.assert_allclose(each.steps(batches[3:6]), wanted[3:6], rtol=2e-5)
    rebalance(other.pipe, other.optimizers, [0, 1, 5], model_of)
    np.testing.assert_allclose(other.steps(batches[6:]), wanted[6:], rtol=2e-5)
    # A smaller minibatch leaves the states of the others.
    smaller = [*minibatches(1, 4, seed=1), *minibatches(1, 6, seed=2)]
    again = Run(comm, 2)
    load_snapshot(folder, again.pipe, again.optimizers)
    again.steps(batches[3:])
    wanted = serial.steps(smaller)
    np.testing.assert_allclose(again.steps(smaller), wanted, rtol=2e-5)
    for each in (run, other):
        each.pipe.reset_states()
    assert all(link.carried_h is None for link in cells(run.stages))


def cells(stages):
    return [
        link for stage in stages for link in stage.links() if hasattr(link, "carried_h")
    ]


def test_goes_on_from_a_snapshot_and_elsewhere(tmp_path):
    assert_on_ranks(2, goes_on, str(tmp_path / "a"))


def evaluates(comm):
    run, (x, t) = Run(comm, 2), next(minibatches(1, 12))
    run.steps(minibatches(1, 6))
    dataset = TupleDataset(x, t)

    def evaluator(**options):
        iterator = SerialIterator(dataset, 6, repeat=False, shuffle=False)
        return PipelineEvaluator(iterator, run.pipe, **options)

    found = [evaluator()()["main/loss"] for _ in range(2)]
    run.pipe.internals.step.reset_states(of_training=False)
    wanted = [run.pipe.evaluate(x[i : i + 6], t[i : i + 6])["loss"] for i in (0, 6)]
    assert found == pytest.approx([np.mean(wanted)] * 2)
    with pytest.raises(ValueError, match="/1/cell carries a state from one of"):
        evaluator(at_once=2)


def test_an_evaluation_begins_anew_and_goes_through_batches_in_order():
    assert_on_ranks(2, evaluates)


def predicts(comm, n_microbatches, size):
    run, (x, _) = Run(comm, n_microbatches), next(minibatches(1, 3 * size))
    iterator = SerialIterator(list(x), size, repeat=False, shuffle=False)
    found = predict(run.pipe, iterator)
    run.pipe.reset_states()
    parts = [run.pipe.predict(x[i : i + size]) for i in range(0, 3 * size, size)]
    np.testing.assert_array_equal(found, np.concatenate(parts))


@pytest.mark.parametrize("n_microbatches, size", [(1, 6), (2, 6), (2, 2)])
def test_predictions_of_a_data_set_are_those_of_its_batches(n_microbatches, size):
    assert_on_ranks(2, predicts, n_microbatches, size)


def mixes(comm, n_replicas):
    """Replicas have the states of their own samples; float16 states stay float16."""
    batches = [*minibatches(4, 8)]
    grid = Grid(comm, comm.size // n_replicas)
    serial, model = Serial(), model_of()
    rank, n = grid.pipeline.rank, grid.n_pipeline
    stage = model.divide(*CUTS[n][rank : rank + 2])
    pipe = Pipeline(stage, grid, n_microbatches=2)
    optimizer = create_multi_node_optimizer(
        chainer.optimizers.Adam(0.05), grid.data, pipeline=pipe
    ).setup(stage)
    half = slice(4 * grid.replica, 4 * grid.replica + 4)
    for (x, t), wanted in zip(batches, serial.steps(batches)):
        assert pipe.step(x[half], t[half])["loss"] == pytest.approx(wanted, rel=2e-5)
        optimizer.update()
    stage = to_float16(model_of().divide())
    optimizer = MixedPrecision(chainer.optimizers.Adam(0.05)).setup(stage)
    with Pipeline(
        stage, MPI.COMM_SELF, n_microbatches=2, loss_scale=optimizer.loss_scale
    ) as pipe:
        found = []
        for x, t in batches:
            found.append(pipe.step(x, t)["loss"])
            optimizer.update()
    np.testing.assert_allclose(found, Serial().steps(batches), rtol=0.02)
    assert {link.carried_h.dtype.name for link in cells([stage])} == {"float16"}


def smaller_minibatches(comm):
    """A replica would go on from the states of samples of another one."""
    with Grid(comm, 1) as grid:
        model = model_of().divide()
        pipe = Pipeline(model, grid, n_microbatches=2)

        def step(*sizes):
            start = sum(sizes[: grid.replica])
            x, t = next(minibatches(1, sum(sizes)))
            mine = slice(start, start + sizes[grid.replica])
            pipe.step(x[mine], t[mine])

        step(3, 3)
        # Places stay where they are if only the last replica has fewer samples.
        step(3, 1)
        step(3, 3)
        pipe.reset_states()
        step(2, 2)
        words = "first sample of replica 1 is 1, and /1/cell carries the states from"
        with pytest.raises(DisagreementError, match=f"{words} sample 2 on"):
            step(1, 1)


def test_replicas_refuse_samples_in_other_places():
    assert_on_ranks(2, smaller_minibatches)


def test_replicas_and_mixed_precision():
    assert_on_ranks(2, mixes, 2)


def replica_of(comm, n_replicas):
    """Returns a pipeline of one stage, its optimizer, and its part of a minibatch."""
    grid, stage = Grid(comm, 1), model_of().divide()
    pipe = Pipeline(stage, grid, n_microbatches=2)
    optimizer = create_multi_node_optimizer(
        chainer.optimizers.Adam(0.05), grid.data, pipeline=pipe
    ).setup(stage)
    n = 8 // n_replicas
    return pipe, optimizer, slice(n * grid.replica, n * grid.replica + n)


def goes_on_elsewhere(comm, folder):
    """Two replicas go on as one, and one as two."""
    batches, serial = [*minibatches(6, 8)], Serial()
    wanted = serial.steps(batches)

    def goes_on(found, numbers, after):
        pipe, optimizer, part = found
        if numbers[0]:
            load_snapshot(f"{folder}/{numbers[0]}", pipe, optimizer)
        for i in numbers:
            x, t = batches[i]
            loss = pipe.step(x[part], t[part])["loss"]
            assert loss == pytest.approx(wanted[i], rel=2e-5)
            optimizer.update()
        if after is not None:
            save_snapshot(f"{folder}/{after}", pipe, optimizer)

    goes_on(replica_of(comm, 2), (0, 1), 2)
    alone = comm.Split(comm.rank)
    if comm.rank == 0:
        goes_on(replica_of(alone, 1), (2, 3), 4)
    comm.Barrier()
    goes_on(replica_of(comm, 2), (4, 5), None)
    alone.Free()


def test_other_numbers_of_replicas_share_the_states(tmp_path):
    assert_on_ranks(2, goes_on_elsewhere, str(tmp_path))


def cannot_be_shared(comm, folder):
    run = Run(comm, 2)
    run.steps(minibatches(1, 7))
    save_snapshot(folder, run.pipe, run.optimizers)


def two_of_seven(comm, folder):
    pipe, optimizer, _ = replica_of(comm, 2)
    words = "/1/cell.c was carried by 7 samples of 1 replicas, .* among 2"
    with pytest.raises(SnapshotError, match=words):
        load_snapshot(folder, pipe, optimizer, strict=False)


def test_states_that_cannot_be_shared_are_refused(tmp_path):
    assert_on_ranks(1, cannot_be_shared, str(tmp_path / "a"))
    assert_on_ranks(2, two_of_seven, str(tmp_path / "a"))


LARGER = "x has 8 samples, but .*: /1/cell carries the state of 4. .* reset_states"


def refuses(comm, call):
    run = Run(comm, 2)
    run.steps(minibatches(1, 4))
    if call != "step":
        ((x, _),) = minibatches(1, 4)
        run.pipe.predict(x)
    ((x, t),) = minibatches(1, 8)
    given = (x,) if call == "predict" else (x, t)
    with pytest.raises(DisagreementError, match=LARGER):
        getattr(run.pipe, call)(*given)
    assert not done_in_last_call()


def done_in_last_call():
    """Returns the actions and messages of this rank in the last call."""
    now = own_flight_record.pipeline, own_flight_record.call
    entries = own_flight_record.log().entries
    made = [each for each in entries if (each.pipeline, each.call) == now]
    return [each.text for each in made if each.kind in (ACTION, SEND)]


@pytest.mark.parametrize(
    "call, n_ranks",
    [
        ("step", 3),
        ("evaluate", 1),
        ("predict", 3),
        *matrix(("step", 1), ("evaluate", 3), ("predict", 1)),
    ],
)
def test_a_larger_minibatch_is_refused_on_all_ranks(n_ranks, call):
    assert_on_ranks(n_ranks, refuses, call)


def refuses_after_a_snapshot(comm, folder, n_between):
    run = Run(comm, 2)
    if comm.size == 1:
        run.steps(minibatches(1, 4))
        save_snapshot(folder, run.pipe, run.optimizers)
        return
    load_snapshot(folder, run.pipe, run.optimizers)
    run.steps(minibatches(n_between, 3))
    with pytest.raises(DisagreementError, match=LARGER):
        run.steps(minibatches(1, 8))
    assert not done_in_last_call()


@pytest.mark.parametrize("n_between", [0, 1])
def test_a_larger_minibatch_is_refused_after_a_snapshot(n_between, tmp_path):
    # Of three ranks the first has no layer with a state.
    for n_ranks in (1, 3):
        folder = str(tmp_path / "a")
        assert_on_ranks(n_ranks, refuses_after_a_snapshot, folder, n_between)


def refuses_after_a_move(comm):
    run = Run(comm, 2)
    run.steps(minibatches(1, 4))
    rebalance(run.pipe, run.optimizers, [0, 1, 5], model_of)
    with pytest.raises(DisagreementError, match=LARGER):
        run.steps(minibatches(1, 8))
    assert not done_in_last_call()


def test_a_larger_minibatch_is_refused_where_layers_have_moved():
    assert_on_ranks(2, refuses_after_a_move)


def begins_anew(comm, folder):
    run = Run(comm, 2)
    if comm.size == 1:
        run.steps(minibatches(1, 4))
        save_snapshot(folder, run.pipe, run.optimizers)
        return
    load_snapshot(folder, run.pipe, run.optimizers)
    run.pipe.reset_states()
    run.steps(minibatches(1, 8))
    assert {len(link.carried_h) for link in cells(run.stages)} <= {8}


def test_after_a_reset_a_larger_minibatch_begins_anew(tmp_path):
    for n_ranks in (1, 3):
        assert_on_ranks(n_ranks, begins_anew, str(tmp_path / "a"))


@pytest.mark.parametrize("saved, loaded", [([4, 3], 7), ([5], 5), (None, None)])
def test_samples_of_all_replicas_that_there_were_are_this_ones(saved, loaded):
    with Pipeline(model_of().divide(), MPI.COMM_SELF, n_microbatches=2) as pipe:
        pipe.step(*next(minibatches(1, 8)))
        read = {"n_steps": np.array(1)}
        if saved is not None:
            read["n_carried"] = np.array(saved)
        pipe.serialize(NpzDeserializer(read))
        written = DictionarySerializer()
        pipe.serialize(written)
    # Earlier versions have not saved any.
    assert written.target.get("n_carried") == loaded


def refuses_in_one_replica(comm):
    pipe, _, _ = replica_of(comm, 2)
    pipe.step(*next(minibatches(1, 4)))
    x, t = next(minibatches(1, 8 if pipe.replica == 1 else 4))
    with pytest.raises(DisagreementError, match="8 samples in replica 1, .*cell"):
        pipe.step(x, t)


def test_a_larger_minibatch_of_a_replica_is_refused_on_all_ranks():
    assert_on_ranks(2, refuses_in_one_replica)


def goes_on_from_what_was_declared_late(comm):
    layers = [L.EmbedID(N_WORDS, 3), L.LSTM(3, 3), L.Linear(3, N_WORDS)]
    stage = Divisible(*layers).divide(*[(0, 2), (2, 3)][comm.rank])
    if comm.rank == 0:
        carry_state(layers[1])
    pipe = Pipeline(stage, comm, n_microbatches=2)
    words = np.arange(4, dtype="i")
    losses = [pipe.step(words, words)["loss"] for _ in range(2)]
    assert losses[0] != losses[1]


def test_a_state_may_be_declared_once_the_model_is_cut():
    assert_on_ranks(2, goes_on_from_what_was_declared_late)


def resets_on_one_rank(comm):
    run = Run(comm, 2)
    run.steps(minibatches(1, 4))
    with pytest.raises(DisagreementError, match="reset"):
        if comm.rank == 0:
            run.pipe.reset_states()
        else:
            run.steps(minibatches(1, 4))


def test_a_reset_is_a_call_of_all_ranks():
    assert_on_ranks(2, resets_on_one_rank)

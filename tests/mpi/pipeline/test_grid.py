"""Replicas of a pipeline train as the undivided model does, and fail together."""

import os
import re
import signal

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from click.testing import CliRunner
from mpi4py import MPI

from data_parallel import Grid, ReplicaIterator, create_multi_node_optimizer
from divisible import Divisible, Plan
from divisible.communication.errors import DisagreementError
from divisible.communication.flight_files import VARIABLE
from divisible.planning.shares import integer_shares
from mixed_precision import MixedPrecision, StaticLossScale, to_float16
from pipeline import Pipeline, PipelineEvaluator, PipelineUpdater
from pipeline.command_line.main import main
from tests.support.equivalence import (
    assert_close,
    make_batches,
    train_in_microbatches,
    train_serially,
)
from tests.support.loaded_python import loaded_project
from tests.support.matrix import matrix
from tests.support.mpiexec import assert_on_ranks, refused_on_ranks, worker
from tests.support.processes import launcher, running

TIMEOUT = 20
N_STEPS = 8


def exchanged(optimizer, grid, **options):
    options = {"timeout": TIMEOUT, **options}
    return create_multi_node_optimizer(optimizer, grid.data, **options)


def mlp():
    return Divisible(L.Linear(6, 8), F.relu, L.Linear(8, 8), F.tanh, L.Linear(8, 4))


def part(grid, batch, shares=None):
    """This replica's part of a minibatch."""
    x, t = batch
    sizes = integer_shares(shares or [1] * grid.n_replicas, len(x), 0)
    start = sum(sizes[: grid.replica])
    end = start + sizes[grid.replica]
    return (x[start:end], t[start:end]) if end > start else ((), ())


def stage_on(grid, make_model=mlp):
    np.random.seed(3)
    model = make_model()
    plan = Plan.uniform(len(model), grid.n_pipeline)
    return model.divide(*plan.range(grid.pipeline.rank))


def train_on(grid, make_model, batches, shares=None, set_up=None, **options):
    """Trains on a grid; returns the stage, and losses and accuracies."""
    stage = stage_on(grid, make_model)
    means = []
    with Pipeline(stage, grid, **{"timeout": TIMEOUT, **options}) as pipe:
        inner = chainer.optimizers.MomentumSGD(0.1)
        optimizer = exchanged(inner, grid, pipeline=pipe).setup(stage)
        for batch in batches:
            result = pipe.step(*part(grid, batch, shares))
            optimizer.update()
            means.append((result["loss"], result["accuracy"]))
    return stage, np.array(means)


def check(stage, means, expected_means, expected):
    assert_close(means, expected_means)
    for path, param in stage.namedparams():
        assert_close(param.array, expected[path].array, 1e-5, 1e-6, path)


def equals_serial(comm, n_pipeline, placement, sizes, shares, options):
    batches = make_batches((sizes * N_STEPS)[:N_STEPS])
    with Grid(comm, n_pipeline, placement=placement) as grid:
        trained = train_on(grid, mlp, batches, shares, **options)
        np.random.seed(3)
        check(*trained, *train_serially(mlp(), batches))


@pytest.mark.parametrize(
    "n_pipeline, placement, sizes, shares, options",
    [
        (2, "replicas_together", [10, 10, 3, 1], [1, 3], {"n_microbatches": 3}),
        (1, "stages_together", [9, 2], None, {"n_microbatches": 2}),
        *matrix(
            (2, "stages_together", [12], None, {"n_microbatches": 2}),
            (4, "replicas_together", [12, 5], None, {"n_microbatches": 4}),
        ),
    ],
)
def test_equals_serial_training(n_pipeline, placement, sizes, shares, options):
    arguments = n_pipeline, placement, sizes, shares, options
    assert_on_ranks(4, equals_serial, *arguments)


def averages_of_each_replica(comm):
    with Grid(comm, 1) as grid:
        model = Divisible(L.Linear(6, 4), L.BatchNormalization(4))
        words = "deferred_batch_norm=False does not go together with replicas.*of /1"
        with pytest.raises(ValueError, match=words):
            Pipeline(model, grid, n_microbatches=2, deferred_batch_norm=False)


def test_averages_that_each_replica_would_move_are_refused():
    assert_on_ranks(2, averages_of_each_replica)


def dropout_model():
    return Divisible(
        L.Linear(6, 8), F.dropout, L.Linear(8, 8), F.dropout, L.Linear(8, 4)
    )


def has_masks_of_one_pipeline(comm):
    """Each of two replicas has half of the microbatches."""
    batches = make_batches([16] * 5)
    with Grid(comm, 2) as grid:
        options = {"n_microbatches": 2, "seed": 7}
        trained = train_on(grid, dropout_model, batches, **options)
        np.random.seed(3)
        check(*trained, *train_in_microbatches(dropout_model(), batches, 4, seed=7))


def test_random_numbers_go_by_the_microbatch_among_those_of_all():
    assert_on_ranks(4, has_masks_of_one_pipeline)


def tied_model():
    model = Divisible(L.Linear(6, 6), F.tanh, L.Linear(6, 4), F.relu, L.Linear(4, 6))
    model.tie("/2/W", "/4/W", transpose=True)
    return model


def clips_ties_once(comm, is_mixed):
    """Clips by a norm that all gradients exceed, in a model with a tied parameter."""
    batches = make_batches([9, 4] * 10, n_classes=6)

    def clipped(optimizer):
        optimizer.add_hook(chainer.optimizer_hooks.GradientClipping(0.01))
        return optimizer

    def optimizer_of(comm):
        rule = chainer.optimizers.MomentumSGD(0.1)
        if not is_mixed:
            return rule
        return MixedPrecision(rule, comm=comm, loss_scale=StaticLossScale(64))

    np.random.seed(3)
    serial = tied_model()
    inner = clipped(chainer.optimizers.MomentumSGD(0.1).setup(serial))
    for x, t in batches:
        inner.update(lambda x, t: F.softmax_cross_entropy(serial(x), t), x, t)
    with Grid(comm, 2) as grid:
        # Replicas that are seeded differently begin alike.
        np.random.seed(3 + grid.replica)
        model = tied_model()
        stage = model.divide(*Plan([0, 3, 5]).range(grid.pipeline.rank))
        optimizer = clipped(exchanged(optimizer_of(grid.world), grid).setup(stage))
        scale = optimizer.loss_scale if is_mixed else None
        with Pipeline(
            stage, grid, n_microbatches=2, timeout=TIMEOUT, loss_scale=scale
        ) as pipe:
            pipe.global_hooks(optimizer)
            for batch in batches:
                pipe.step(*part(grid, batch, [2, 1]))
                optimizer.n_samples = pipe.n_samples
                optimizer.update()
        expected = dict(serial.namedparams())
        for path, param in stage.namedparams():
            assert_close(param.array, expected[path].array, 1e-5, 1e-6, path)


@pytest.mark.parametrize("is_mixed", [False, True])
def test_clipping_counts_a_parameter_once(is_mixed):
    assert_on_ranks(4, clips_ties_once, is_mixed)


def four_layers():
    return Divisible(L.Linear(6, 8), L.Linear(8, 8), L.Linear(8, 8), L.Linear(8, 4))


def clips_several_by_one_norm(comm, is_told, overlap):
    """A rank's optimizers of two stages clip by the means, before each has updated."""
    batches = make_batches([9, 4] * 5)

    def clipped(optimizer):
        optimizer.add_hook(chainer.optimizer_hooks.WeightDecay(0.01))
        optimizer.add_hook(chainer.optimizer_hooks.GradientClipping(0.01))
        return optimizer

    np.random.seed(3)
    serial = four_layers()
    inner = clipped(chainer.optimizers.MomentumSGD(0.1).setup(serial))
    for x, t in batches:
        inner.update(lambda x, t: F.softmax_cross_entropy(serial(x), t), x, t)
    with Grid(comm, 2) as grid:
        np.random.seed(3)
        model = four_layers()
        stages = [model.divide(i, i + 1) for i in range(grid.pipeline.rank, 4, 2)]
        options = {"schedule": "interleaved", "timeout": TIMEOUT}
        with Pipeline(stages, grid, n_microbatches=2, **options) as pipe:
            options = {"pipeline": pipe, "overlap": overlap} if is_told else {}
            optimizers = [
                clipped(
                    exchanged(
                        chainer.optimizers.MomentumSGD(0.1), grid, **options
                    ).setup(stage)
                )
                for stage in stages
            ]
            pipe.global_hooks(optimizers)
            for batch in batches:
                pipe.step(*part(grid, batch, [2, 1]))
                for optimizer in optimizers:
                    optimizer.n_samples = pipe.n_samples
                for optimizer in optimizers:
                    optimizer.update()
        expected = dict(serial.namedparams())
        for stage in stages:
            for path, param in stage.namedparams():
                assert_close(param.array, expected[path].array, 1e-5, 1e-6, path)


@pytest.mark.parametrize(
    "is_told, overlap", [(True, None), (False, None), *matrix((True, False))]
)
def test_several_optimizers_of_a_rank_clip_by_the_means(is_told, overlap):
    assert_on_ranks(4, clips_several_by_one_norm, is_told, overlap)


def one_replica_loads(comm, is_mixed):
    """One replica loads the state of one of its stages' optimizers."""
    with Grid(comm, 1) as grid:
        model = mlp()
        stages = [model.divide(*Plan([0, 2, 5]).range(i)) for i in range(2)]
        options = {"schedule": "looped_bfs", "timeout": TIMEOUT}
        with Pipeline(stages, grid, n_microbatches=2, **options) as pipe:

            def made():
                groups = [stages] if is_mixed else stages
                found = []
                for group in groups:
                    inner = chainer.optimizers.Adam()
                    if is_mixed:
                        inner = MixedPrecision(inner, loss_scale=1, comm=grid.world)
                    found.append(exchanged(inner, grid, pipeline=pipe).setup(group))
                return found

            optimizers = made()
            x, t = make_batches([8])[0]
            pipe.step(*part(grid, (x, t)))
            for optimizer in optimizers:
                optimizer.update()
            *_, last = optimizers
            state = chainer.serializers.DictionarySerializer({})
            last.actual_optimizer.serialize(state)
            optimizers = made()
            *others, last = optimizers
            if grid.replica == 1:
                last.serialize(chainer.serializers.NpzDeserializer(state.target))
            pipe.step(*part(grid, (x, t)))
            for optimizer in others:
                optimizer.update()
            words = "t is 0 on rank 0, but 1 on rank 1, and"
            with pytest.raises(DisagreementError, match=words):
                last.update()


@pytest.mark.parametrize("is_mixed", [False, True])
def test_a_replica_that_alone_loads_a_state_is_refused(is_mixed):
    assert_on_ranks(2, one_replica_loads, is_mixed)


def ties_are_coded_otherwise(comm, options):
    """One stage's bucket is coded, and that of the other one is too small."""
    with Grid(comm, 2) as grid:
        np.random.seed(3)
        model = Divisible(L.Linear(6, 8), F.tanh, L.Linear(8, 8), L.Linear(8, 8))
        model.tie("/2/W", "/3/W")
        stage = model.divide(*Plan([0, 3, 4]).range(grid.pipeline.rank))
        with Pipeline(stage, grid, n_microbatches=2, timeout=TIMEOUT) as pipe:
            optimizer = exchanged(
                chainer.optimizers.MomentumSGD(0.1),
                grid,
                pipeline=pipe,
                exchange_dtype="int8",
                local_size=1,
                minimum=100,
                **options,
            ).setup(stage)
            for batch in make_batches([8, 6, 8, 8], n_classes=8):
                pipe.step(*part(grid, batch))
                optimizer.update()
            # Compares the copies, in the next step as well.
            copies = comm.allgather(dict(stage.namedparams())["/2/W"].array)
            assert all((copy == copies[0]).all() for copy in copies)


@pytest.mark.parametrize("options", [{}, {"double_buffering": True}])
def test_copies_of_a_tied_parameter_get_one_mean(options):
    assert_on_ranks(4, ties_are_coded_otherwise, options)


def decays_ties_once(comm, is_backwards, exchange_dtype):
    """Two optimizers of a rank change the gradients of copies, one after the other."""
    batches = make_batches([8, 6, 8, 8], n_in=8, n_classes=8)

    def make_model():
        np.random.seed(3)
        model = Divisible(*(L.Linear(8, 8) for _ in range(6)))
        model.tie("/0/W", "/2/W")  # on one rank, of two optimizers
        model.tie("/1/W", "/4/W", transpose=True)  # on two ranks
        return model

    def with_decay(optimizer, target):
        optimizer.setup(target).add_hook(chainer.optimizer_hooks.WeightDecay(0.1))
        return optimizer

    expected = make_model()
    alone = with_decay(chainer.optimizers.MomentumSGD(0.1), expected)
    for x, t in batches:
        loss = F.softmax_cross_entropy(expected(x), t)
        expected.cleargrads()
        loss.backward()
        alone.update()
    with Grid(comm, 2) as grid:
        model, plan, rank = make_model(), Plan([0, 1, 2, 4, 6]), grid.pipeline.rank
        stages = [model.divide(*plan.range(i)) for i in (rank, rank + 2)]
        with Pipeline(
            stages, grid, n_microbatches=2, schedule="looped_bfs", timeout=TIMEOUT
        ) as pipe:
            optimizers = []
            for stage in stages:
                inner = chainer.optimizers.MomentumSGD(0.1)
                options = {
                    "exchange_dtype": exchange_dtype,
                    "local_size": 1,
                    "minimum": 0,
                }
                optimizer = exchanged(inner, grid, pipeline=pipe, **options)
                optimizers.append(with_decay(optimizer, stage))
            for batch in batches:
                pipe.step(*part(grid, batch))
                for optimizer in optimizers[:: -1 if is_backwards else 1]:
                    optimizer.update()
            # Compares the copies.
            pipe.step(*part(grid, batches[0]))
        weights = dict(expected.namedparams())
        tolerance = 1e-5 if exchange_dtype == "fp32" else 0.1
        for stage in stages:
            for path, param in stage.namedparams():
                array = weights[path].array
                assert_close(param.array, array, tolerance, tolerance, path)


@pytest.mark.parametrize(
    "is_backwards, exchange_dtype",
    [
        (True, "fp32"),
        (False, "int8"),
        pytest.param(False, "fp32", marks=pytest.mark.matrix),
        pytest.param(True, "int8", marks=pytest.mark.matrix),
    ],
)
def test_hooks_change_the_mean_of_a_tied_parameter_once(is_backwards, exchange_dtype):
    assert_on_ranks(4, decays_ties_once, is_backwards, exchange_dtype)


def overflows_on_one(comm):
    """Lets one gradient of four ranks overflow: nobody takes that step."""
    with Grid(comm, 2) as grid:
        stage = stage_on(grid)
        rule = chainer.optimizers.MomentumSGD(0.1)
        mixed = MixedPrecision(rule, comm=grid.world)
        optimizer = exchanged(mixed, grid).setup(stage)
        with Pipeline(
            stage, grid, n_microbatches=2, timeout=TIMEOUT, loss_scale=mixed.loss_scale
        ) as pipe:
            for i, batch in enumerate(make_batches([8] * 3)):
                before = {p: param.array.copy() for p, param in stage.namedparams()}
                scale = float(mixed.loss_scale)
                pipe.step(*part(grid, batch))
                if i == 1 and comm.rank == 3:
                    next(stage.params()).grad[0] = np.inf
                optimizer.update()
                assert (
                    comm.allgather(float(mixed.loss_scale))
                    == [scale / 2 if i == 1 else scale] * 4
                )
                for path, param in stage.namedparams():
                    same = (param.array == before[path]).all()
                    assert same == (i == 1), (i, path)


def test_an_overflow_on_one_rank_skips_the_step_on_all():
    assert_on_ranks(4, overflows_on_one)


def several_stages_in_float16(comm):
    """Trains replicas in mixed precision, with one stage on each rank and with two."""
    found = []
    for schedule, cuts in (("1f1b", [0, 5]), ("looped_bfs", [0, 2, 5])):
        np.random.seed(3)
        model, plan = mlp(), Plan(cuts)
        stages = [model.divide(*plan.range(i)) for i in range(len(cuts) - 1)]
        stages = [to_float16(stage) for stage in stages]
        with Grid(comm, 1) as grid:
            rule = chainer.optimizers.MomentumSGD(0.1)
            mixed = MixedPrecision(rule, comm=grid.world)
            with Pipeline(
                stages,
                grid,
                n_microbatches=2,
                schedule=schedule,
                timeout=TIMEOUT,
                loss_scale=mixed.loss_scale,
            ) as pipe:
                optimizer = exchanged(mixed, grid, pipeline=pipe).setup(stages)
                losses = []
                for batch in make_batches([8, 6, 8]):
                    losses.append(pipe.step(*part(grid, batch))["loss"])
                    optimizer.update()
        weights = [dict(stage.namedparams()) for stage in stages]
        found.append(
            (losses, {p: w.array for each in weights for p, w in each.items()})
        )
    (losses, expected), (others, weights) = found
    assert losses == others
    assert expected.keys() == weights.keys()
    for path, array in expected.items():
        np.testing.assert_array_equal(weights[path], array, err_msg=path)


def test_replicas_of_several_stages_on_a_rank_train_in_float16():
    assert_on_ranks(2, several_stages_in_float16)


def normalizing_model():
    return Divisible(L.Linear(6, 8), L.BatchNormalization(8), F.relu, L.Linear(8, 4))


def averages_move_alike(comm, sizes):
    """Compares running averages with those of one pipeline of all microbatches."""
    batches = make_batches(sizes)
    with Grid(comm, 2) as grid:
        stage, _ = train_on(grid, normalizing_model, batches, n_microbatches=2)
        links = [each for each in stage if isinstance(each, L.BatchNormalization)]
        mine = [(link.avg_mean, link.avg_var, link.N) for link in links]
        for theirs in grid.data.allgather(mine):
            for ours, others in zip(mine, theirs):
                for a, b in zip(ours, others):
                    assert np.array_equal(a, b)
        assert all(np.abs(mean).max() > 0 for mean, _, _ in mine)
    if 1 in sizes:
        return
    np.random.seed(3)
    with Pipeline(
        normalizing_model(), MPI.COMM_SELF, n_microbatches=4, timeout=TIMEOUT
    ) as whole:
        (model,) = whole.stages.values()
        optimizer = chainer.optimizers.MomentumSGD(0.1).setup(model)
        for x, t in batches:
            whole.step(x, t)
            optimizer.update()
    if links:
        assert_close(mine[0][0], model[1].avg_mean, 1e-4, 1e-5)
        assert_close(mine[0][1], model[1].avg_var, 1e-4, 1e-5)


@pytest.mark.parametrize("sizes", [[8, 1, 8], *matrix([8, 12, 8])])
def test_running_averages_are_of_all_replicas(sizes):
    assert_on_ranks(4, averages_move_alike, sizes)


SAMPLES = [(x, t) for batch in make_batches([23]) for x, t in zip(*batch)]


class Counting:
    """A data set that notes what is read."""

    def __init__(self, samples):
        self.samples, self.read = samples, []

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, i):
        self.read.append(int(i))
        return self.samples[i]


def trains_by_trainer(comm, shares, folder):
    """Compares a trainer's log with that of a serial script, validation included."""

    def iterator(samples, seed, repeat=True):
        np.random.seed(seed)
        return chainer.iterators.SerialIterator(samples, 6, repeat, shuffle=repeat)

    np.random.seed(3)
    model = L.Classifier(mlp())
    serial = chainer.optimizers.MomentumSGD(0.1).setup(model)
    updater = chainer.training.updaters.StandardUpdater(iterator(SAMPLES, 5), serial)
    trainer = chainer.training.Trainer(updater, (3, "epoch"), out=folder)
    held = chainer.training.extensions.Evaluator
    expected = log_of(trainer, held(iterator(SAMPLES[:13], 0, False), model))
    with Grid(comm, 2, placement="replicas_together") as grid:
        stage = stage_on(grid)
        rule = chainer.optimizers.MomentumSGD(0.1)
        optimizer = exchanged(rule, grid).setup(stage)
        pipe = Pipeline(stage, grid, n_microbatches=2, timeout=TIMEOUT)
        data, validation = Counting(SAMPLES), Counting(SAMPLES[:13])
        reads = [None, None]
        if pipe.is_first:
            # The order of replica 0 counts, whatever the others have drawn.
            reads = [
                ReplicaIterator(iterator(data, 5 + grid.replica), grid, shares=shares),
                ReplicaIterator(iterator(validation, 0, False), grid, shares=shares),
            ]
        updater = PipelineUpdater(reads[0], optimizer, pipe)
        trainer = chainer.training.Trainer(updater, (3, "epoch"), out=folder)
        log = log_of(trainer, PipelineEvaluator(reads[1], pipe, mean="batches"))
        assert len(log) == len(expected) > 0
        for ours, theirs in zip(log, expected):
            for name in theirs:
                if "loss" in name or name == "epoch":
                    assert_close(ours[name], theirs[name], 1e-4, what=name)
        result = PipelineEvaluator(reads[1], pipe)()
        with chainer.using_config("train", False):
            loss = model(*chainer.dataset.concat_examples(SAMPLES[:13]))
        assert_close(result["main/loss"], loss.array, 1e-4)
        assert len(set(comm.allgather(result["main/loss"]))) == 1
        everything = grid.data.gather(data.read)
        if pipe.is_first and grid.replica == 0:
            once, again = map(len, everything)
            assert once + again == 3 * len(SAMPLES) + 3, everything
            assert (once < again) == (shares is not None)
        pipe.close()


def log_of(trainer, evaluator):
    """Returns what a trainer's log would have, by epoch."""
    log = chainer.training.extensions.LogReport(filename=None)
    evaluator.name = "validation"
    trainer.extend(evaluator, name="validation")
    trainer.extend(log)
    trainer.run()
    return log.log


@pytest.mark.parametrize("shares", [[1, 2], *matrix(None)])
def test_a_trainer_logs_what_a_serial_script_logs(shares, tmp_path):
    assert_on_ranks(4, trains_by_trainer, shares, str(tmp_path))


def differs(comm, what):
    """Makes replicas that are not alike."""
    with Grid(comm, 2) as grid:
        cuts = [0, 2, 5] if what == "cuts" and grid.replica else [0, 3, 5]
        stage = mlp().divide(*Plan(cuts).range(grid.pipeline.rank))
        options = {}
        if what == "schedule":
            options["schedule"] = ["1f1b", "gpipe"][grid.replica]
        if what == "seed":
            options["seed"] = grid.replica
        if what == "one refuses" and comm.rank == 3:
            options["recompute"] = "seldom"
        where = comm if what == "no grid" and comm.rank == 2 else grid
        Pipeline(stage, where, n_microbatches=2, timeout=60, **options)


@pytest.mark.parametrize(
    "what, message",
    [
        (
            "cuts",
            r"rank 0 \(replica 0, rank 0 of its pipeline\) has the layers 0 to 2, but"
            r" rank 2 \(replica 1, rank 0 of its pipeline\) has the layers 0 to 1",
        ),
        ("schedule", r"schedule differs between rank 0 and rank 2:\n *E? *1f1b\n *gp"),
        ("seed", "seed differs between rank 0 and rank 2"),
        ("one refuses", r"rank 3 \(replica 1\) refuses to start: ValueError"),
        ("no grid", "number of ranks in a pipeline differs between rank 0 and rank 2"),
    ],
)
def test_replicas_that_differ_are_refused(what, message):
    output = refused_on_ranks(4, differs, what).output
    assert re.search(message, output), output


def wrong_parts(comm, shares, replica_of_others):
    with Grid(comm, 2) as grid:
        given = shares if grid.replica == 0 else replica_of_others
        samples = chainer.iterators.SerialIterator(SAMPLES, 4)
        next(ReplicaIterator(samples, grid, shares=given, timeout=60))


@pytest.mark.parametrize(
    "shares, of_others, message",
    [
        ([1, 0], [1, 0], "share 1 is 0: it must be positive"),
        ([1, -2], [1, -2], "share 1 must .*-2|share 1 is -2"),
        ([1], [1], r"there are 1 shares, \[1\], for 2 replicas"),
        ([1, 2], [1, 1], r"shares is \[1, 2\] in replica 0, and \[1, 1\] in replica 1"),
    ],
)
def test_shares_that_are_none_are_refused(shares, of_others, message):
    output = refused_on_ranks(4, wrong_parts, shares, of_others).output
    assert re.search(message, output), output
    assert len(re.findall("rank . of 4 failed", output)) == 4, output


class Gate(chainer.Link):
    """Does something when it is told to."""

    does = staticmethod(lambda x: x)

    def forward(self, x):
        return self.does(x)


def spill(x):
    raise ArithmeticError("it spills")


def goes_wrong(comm, how):
    """Trains until a layer on rank 3 fails, or does not come back."""
    with Grid(comm, 2) as grid:
        np.random.seed(3)
        model = Divisible(L.Linear(6, 8), F.relu, Gate(), L.Linear(8, 4))
        stage = model.divide(*Plan([0, 2, 4]).range(grid.pipeline.rank))
        optimizer = exchanged(chainer.optimizers.SGD(0.1), grid).setup(stage)
        batches = make_batches([8] * 1000)
        # What the first step loads may take longer than others are to wait.
        with Pipeline(stage, grid, n_microbatches=2, timeout=60) as pipe:
            pipe.step(*part(grid, batches[0]))
            optimizer.update()
        pipe = Pipeline(stage, grid, n_microbatches=2, timeout=8)
        for i, batch in enumerate(batches):
            if i == 3 and comm.rank == 3:
                stage[0].does = {
                    "raise": spill,
                    "kill": lambda x: os.kill(os.getpid(), signal.SIGKILL),
                    "stop": lambda x: os.kill(os.getpid(), signal.SIGSTOP),
                }[how]
            pipe.step(*part(grid, batch))
            optimizer.update()


@pytest.mark.parametrize(
    "how", ["kill", "stop", pytest.param("raise", marks=pytest.mark.matrix)]
)
def test_what_ends_a_rank_of_a_replica_ends_all(how, tmp_path):
    command = [launcher(), "-n", "4", *loaded_project(), *worker(goes_wrong, how)]
    with running(command, {VARIABLE: str(tmp_path)}) as program:
        assert program.wait(60) != 0
        output = program.output
    if how == "raise":
        words = r"1F0 failed on rank 3 \(replica 1\) \(forward .* stage 1 with the lay"
        assert re.search(words, output), output
    if how == "stop":
        # Whoever gives up first names whom it waits for.
        assert re.search(r"replica 1, stage 1(; rank 3 of all)?\) does not", output), (
            output
        )
    # Also of a rank that was killed, and could say nothing.
    (job,) = tmp_path.iterdir()
    record = CliRunner().invoke(main, ["flight-record", str(job)])
    # The stage is the first number of an action.
    did = "failed" if how == "raise" else r"began 1F0, and did not end it"
    # The first one was closed.
    where = r"in call 4 of pipeline \w+, step, in replica 1"
    words = rf"rank 3 is behind: {where}, it {did}"
    # A terminal breaks lines between words.
    assert re.search(words, " ".join(record.output.split())), record.output

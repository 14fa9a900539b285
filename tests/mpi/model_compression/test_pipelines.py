"""Pruning gives the same zeros on any cut, schedule and number of replicas."""

import functools
import os

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer.training import Trainer
from chainer.training.trigger import get_trigger
from mpi4py import MPI

from data_parallel import Grid, ReplicaIterator, create_multi_node_optimizer
from divisible import Divisible, Plan
from mixed_precision import MixedPrecision, float32_loss, to_float16
from model_compression import Compress, CompressionPlan, Prune, Quantize
from pipeline import (
    DisagreementError,
    Pipeline,
    PipelineUpdater,
    load_snapshot,
    rebalance,
    save_snapshot,
)
from tests.support.equivalence import assert_close, make_batches, stages_of_rank
from tests.support.matrix import matrix
from tests.support.mpiexec import assert_on_ranks

N_LAYERS, END = 8, 12
PLAN = CompressionPlan(
    [
        Prune("magnitude", layers="/0", to=0.8, end=(9, "iteration"), steps=4),
        Prune("taylor", layers="/3", to=0.5, granularity="row", begin=(4, "iteration")),
        Prune(
            "l2",
            layers=["/5", "/7"],
            to=0.6,
            granularity=(2, 3),
            begin=(2, "iteration"),
            end=(6, "iteration"),
            steps=2,
        ),
    ]
)


FEW_BITS = CompressionPlan(
    [
        Prune("magnitude", layers="/3", to=0.5, begin=(2, "iteration")),
        Quantize(
            "int4", layers=["/0", "/3"], targets=["weight", "input"], freeze_after=6
        ),
        Quantize("codebook3", layers=["/5", "/7"], begin=(3, "iteration")),
        Quantize(
            "int8", layers=["/5", "/7"], targets=["bias", "output"], percentile=98
        ),
    ]
)
PLANS = {"pruned": PLAN, "few bits": FEW_BITS}


def build():
    np.random.seed(3)
    model = Divisible(
        L.Linear(8, 12),
        L.BatchNormalization(12),
        F.relu,
        L.Linear(12, 9),
        F.tanh,
        L.Linear(9, 9),
        F.relu,
        L.Linear(9, 9),
    )
    model.tie("/5/W", "/7/W", transpose=True)
    return model


def data(half):
    ((x, t),) = make_batches([48], n_in=8, n_classes=9)
    x = x.astype(np.float16) if half else x
    return chainer.datasets.TupleDataset(x, t)


def parameters(stage):
    return {path: param.array for path, param in stage.namedparams()}


class Run:
    """A trainer on some ranks, which prunes."""

    def __init__(
        self,
        comm,
        cuts,
        schedule="1f1b",
        half=False,
        grid=None,
        plan=PLAN,
        is_late=False,
    ):
        where = comm if grid is None else grid.pipeline
        cut, model = Plan(cuts), build()
        numbers = stages_of_rank(where, cut.n_stages, schedule)
        self.stages = [model.divide(*cut.range(number)) for number in numbers]
        targets = self.stages
        if half:
            # One MixedPrecision updates all stages of a rank.
            targets = [[to_float16(stage) for stage in self.stages]]
        self.optimizers = [self._optimizer(comm, half, grid) for _ in targets]
        for optimizer, target in zip(self.optimizers, targets):
            optimizer.setup(target)
        self.pipe = Pipeline(
            self.stages,
            comm if grid is None else grid,
            n_microbatches=4,
            schedule=schedule,
            loss_scale=128.0 if half else None,
            lossfun=float32_loss(F.softmax_cross_entropy),
            timeout=30,
        )
        iterator = None
        if self.pipe.is_first:
            iterator = chainer.iterators.SerialIterator(data(half), 8, shuffle=False)
            if grid is not None:
                iterator = ReplicaIterator(iterator, grid)
        names = dict(zip(["main", "other"], self.optimizers))
        updater = PipelineUpdater(iterator, names, self.pipe)
        given = {"pipeline": self.pipe} if is_late else {}
        self.compress = Compress(plan, self.optimizers, **given)
        self.trainer = Trainer(updater, (END, "iteration"), out=os.devnull)
        self.trainer.extend(self.compress)

    def _optimizer(self, comm, half, grid):
        optimizer = chainer.optimizers.MomentumSGD(0.05)
        if half:
            optimizer = MixedPrecision(optimizer, loss_scale=128.0, comm=comm)
        if grid is not None:
            optimizer = create_multi_node_optimizer(
                optimizer, grid.data, exchange_dtype="int8", exempt=None
            )
        return optimizer

    def train(self, end=END):
        self.trainer.stop_trigger = get_trigger((end, "iteration"))
        self.trainer.run()
        return self.weights()

    def weights(self, of_stage=parameters):
        """Returns the parameters of the whole model, or what else stages have."""
        here = {k: v for stage in self.stages for k, v in of_stage(stage).items()}
        found = {}
        for theirs in self.pipe.internals.gather(here, "compress"):
            for path, array in theirs.items():
                # Of tied layers, and of replicas.
                np.testing.assert_array_equal(found.setdefault(path, array), array)
        return found


def check_few(weights):
    """The few values of weights, and the zeros among those that are quantized."""
    assert len(np.unique(weights["/5/W"])) <= 8
    assert (weights["/3/W"] == 0).sum() == 54


def check_zeros(weights):
    """The degrees at the end, of each rule's weights."""
    assert (weights["/0/W"] == 0).sum() == int(0.8 * 96 + 0.5)
    assert (weights["/3/W"] == 0).all(axis=1).sum() == int(0.5 * 9 + 0.5)
    blocks = weights["/5/W"].reshape(9, 3, 3) == 0
    pairs = [blocks[i : i + 2].all(axis=(0, 2)) for i in range(0, 9, 2)]
    assert sum(pair.sum() for pair in pairs) == int(0.6 * 15 + 0.5)


def check_alike(found, expected):
    """The same zeros, and the same weights but for the order of additions."""
    for path, array in found.items():
        np.testing.assert_array_equal(array == 0, expected[path] == 0, err_msg=path)
        assert_close(array, expected[path], atol=1e-6, what=path)


CHECKS = {"pruned": check_zeros, "few bits": check_few}


def check_as_alone(comm, found, **options):
    """Trains on rank 0 alone. This comes last, so that no other rank waits for it."""
    if comm.rank == 0:
        alone = Run(MPI.COMM_SELF, [0, N_LAYERS], **options)
        with alone.pipe:
            check_alike(found, alone.train())


def equal_to_one_rank(comm, cuts, schedule, half, name="pruned"):
    run = Run(comm, cuts, schedule, half, plan=PLANS[name])
    with run.pipe:
        found = run.train()
        words = run.compress.sparsity, run.compress.bits
        said = run.pipe.internals.gather(words, "compress")
    assert len({*said}) == 1 and said[0][0] >= 0.5
    CHECKS[name](found)
    check_as_alone(comm, found, half=half, plan=PLANS[name])


@pytest.mark.parametrize(
    "n, cuts, schedule, half",
    [
        pytest.param(2, [0, 4, 8], "1f1b", False, marks=pytest.mark.matrix),
        (2, [0, 1, 8], "zb_h1", True),
        (3, [0, 3, 6, 8], "gpipe", False),
        *matrix(
            (2, [0, 2, 4, 6, 8], "interleaved", False),
            (2, [0, 1, 5, 7, 8], "zb_v", False),
        ),
        (2, [0, 2, 4, 5, 8], "interleaved", True),
    ],
)
def test_any_cut_and_schedule_prunes_as_one_rank_does(n, cuts, schedule, half):
    assert_on_ranks(n, equal_to_one_rank, cuts, schedule, half)


@pytest.mark.parametrize(
    "n, cuts, schedule, half",
    [(3, [0, 1, 6, 8], "1f1b", True), *matrix((2, [0, 4, 8], "zb_h1", False))],
)
def test_any_cut_and_schedule_computes_with_the_same_few_bits(n, cuts, schedule, half):
    assert_on_ranks(n, equal_to_one_rank, cuts, schedule, half, "few bits")


def on_replicas(comm, cuts, half, name):
    grid = Grid(comm, n_pipeline=len(cuts) - 1)
    run = Run(comm, cuts, half=half, grid=grid, plan=PLANS[name])
    with run.pipe:
        CHECKS[name](run.train())
        run.weights(lambda stage: dict(ranges(stage)))


def ranges(stage):
    for path, link in stage.namedlinks():
        for name in link._persistent:
            if name.endswith("_range"):
                yield f"{path}/{name}", getattr(link, name)


@pytest.mark.parametrize(
    "cuts, half, name",
    [
        pytest.param([0, 8], False, "pruned", marks=pytest.mark.matrix),
        ([0, 5, 8], True, "pruned"),
        ([0, 8], False, "few bits"),
    ],
)
def test_replicas_that_exchange_in_8_bits_stay_alike(cuts, half, name):
    assert_on_ranks(2 * (len(cuts) - 1), on_replicas, cuts, half, name)


def saves_halfway(comm, cuts, folder, name):
    run = Run(comm, cuts, plan=PLANS[name])
    with run.pipe:
        run.train(5)
        state = {"trainer": run.trainer}
        save_snapshot(f"{folder}/halfway", run.pipe, run.optimizers, state=state)
        halfway = run.weights()
        assert name != "pruned" or 0 < (halfway["/0/W"] == 0).sum() < int(0.8 * 96)


def goes_on(comm, cuts, folder, is_same_cut, name):
    run = Run(comm, cuts, plan=PLANS[name])
    with run.pipe:
        state = {"trainer": run.trainer}
        load_snapshot(f"{folder}/halfway", run.pipe, run.optimizers, state=state)
        found = run.train()
    straight = Run(comm, cuts, plan=PLANS[name])
    with straight.pipe:
        expected = straight.train()
    CHECKS[name](found)
    check_alike(found, expected)
    if is_same_cut:
        for path, array in found.items():
            np.testing.assert_array_equal(array, expected[path], err_msg=path)


@pytest.mark.parametrize(
    "before, after, name",
    [
        ([0, 8], [0, 4, 8], "few bits"),
        ([0, 2, 6, 8], [0, 8], "pruned"),
        *(
            pytest.param(*each, marks=pytest.mark.matrix)
            for each in [
                ([0, 8], [0, 4, 8], "pruned"),
                ([0, 2, 6, 8], [0, 8], "few bits"),
                ([0, 4, 8], [0, 4, 8], "few bits"),
                ([0, 4, 8], [0, 4, 8], "pruned"),
            ]
        ),
    ],
)
def test_a_snapshot_within_a_course_resumes_on_other_stages(
    before, after, name, tmp_path
):
    folder = str(tmp_path)
    assert_on_ranks(len(before) - 1, saves_halfway, before, folder, name)
    assert_on_ranks(len(after) - 1, goes_on, after, folder, before == after, name)


def layers_move(comm, name, cuts, layers):
    def build_anew():
        return PLANS[name].prepare(build())

    run = Run(comm, [0, 4, 8], plan=PLANS[name])
    with run.pipe:
        expected = run.train()
    run, moved = Run(comm, [0, 4, 8], plan=PLANS[name]), []
    with run.pipe:
        run.trainer.extend(
            lambda _: moved.append(
                rebalance(run.pipe, run.optimizers, cuts, build_anew).layers
            ),
            name="move",
            trigger=(5, "iteration"),
        )
        found = run.train()
    assert moved == [tuple(layers), ()]
    CHECKS[name](found)
    for path, array in found.items():
        np.testing.assert_array_equal(array, expected[path], err_msg=path)


@pytest.mark.parametrize(
    "name, cuts, layers",
    [("pruned", [0, 2, 8], [2, 3]), ("few bits", [0, 1, 8], [1, 2, 3])],
)
def test_layers_move_with_what_they_keep(name, cuts, layers):
    assert_on_ranks(2, layers_move, name, cuts, layers)


def ranges_that_move_go_on(comm):
    """A layer whose range moves comes to a rank that had none of them."""
    plan = CompressionPlan(
        [Quantize("int8", layers="/3", targets="input", freeze_after=8)]
    )
    found = []
    for cuts in ([0, 4, 8], [0, 2, 8]):
        run = Run(comm, [0, 4, 8], plan=plan)
        move = functools.partial(
            rebalance, run.pipe, run.optimizers, cuts, lambda: plan.prepare(build())
        )
        with run.pipe:
            run.trainer.extend(
                lambda _, move=move: move(), name="move", trigger=(5, "iteration")
            )
            run.train()
            found.append(run.weights(lambda stage: dict(ranges(stage))))
    np.testing.assert_array_equal(*(each["/3/input_range"] for each in found))


def test_ranges_go_on_moving_on_another_rank():
    assert_on_ranks(2, ranges_that_move_go_on)


def quantized_layers_do_not_move(comm):
    run = Run(comm, [0, 4, 8], plan=FEW_BITS)
    with run.pipe:
        run.train(3)
        with pytest.raises(ValueError, match="is_quantized.*CompressionPlan.prepare"):
            rebalance(run.pipe, run.optimizers, [0, 3, 8], build)


def test_quantized_layers_are_not_moved_without_their_rules():
    assert_on_ranks(2, quantized_layers_do_not_move)


def means_no_layer(comm):
    plan = CompressionPlan([Prune("l1", layers="/1*"), Prune("l1", layers="/4")])
    run = Run(comm, [0, 4, 8], plan=plan)
    with run.pipe, pytest.raises(ValueError, match="'/1\\*' means no layer with"):
        run.train()


def test_every_rank_refuses_a_pattern_that_means_no_layer_of_the_model():
    assert_on_ranks(2, means_no_layer)


def plans_differ(comm):
    plan = CompressionPlan([Prune("l1", layers="/0", to=0.5 + comm.rank / 10)])
    run = Run(comm, [0, 4, 8], plan=plan)
    with run.pipe, pytest.raises(DisagreementError, match="rank 0 and rank 1 differ"):
        run.train()


def test_plans_that_differ_are_refused():
    assert_on_ranks(2, plans_differ)


def without_a_pipeline(comm):
    stage = build().divide(*Plan.uniform(N_LAYERS, comm.size).range(comm.rank))
    optimizer = chainer.optimizers.SGD().setup(stage)
    compress = Compress(PLAN, optimizer)
    with pytest.raises(RuntimeError, match="pipeline=pipe"):
        compress.advance(1, 0.0)
    with Pipeline(stage, comm, n_microbatches=2, timeout=30) as pipe:
        optimizer = chainer.optimizers.SGD().setup(stage)
        compress = Compress(PLAN, optimizer, pipeline=pipe)
        for param in stage.params():
            param.grad = np.ones_like(param.array)
        # What prunes by gradients needs an update.
        optimizer.update()
        compress.advance(100, 0.0)
        assert compress.degrees == [0.8, 0.5, 0.6]


def test_a_loop_of_ones_own_gives_the_pipeline():
    assert_on_ranks(2, without_a_pipeline)


CHANNELS = CompressionPlan(
    [
        Prune(
            "l2",
            layers="/0",
            to=0.5,
            granularity="channel",
            end=(8, "iteration"),
            steps=2,
        )
    ]
)


def channels_on_another_rank(comm, cuts):
    run = Run(comm, cuts, plan=CHANNELS, is_late=True)
    with run.pipe:
        found = run.train()
    gone = (found["/0/W"] == 0).all(axis=1)
    assert gone.sum() == 6
    for path in ("/0/b", "/1/gamma", "/1/beta"):
        np.testing.assert_array_equal(found[path] == 0, gone, err_msg=path)
    check_as_alone(comm, found, plan=CHANNELS, is_late=True)


@pytest.mark.parametrize(
    "cuts", [pytest.param([0, 1, 8], marks=pytest.mark.matrix), [0, 1, 3, 8]]
)
def test_normalization_on_another_rank_goes_with_its_channels(cuts):
    assert_on_ranks(len(cuts) - 1, channels_on_another_rank, cuts)


def channels_of_a_stage(comm):
    with pytest.raises(ValueError, match="give Compress"):
        Run(comm, [0, 4, 8], plan=CHANNELS)


def test_channels_need_the_pipeline():
    assert_on_ranks(2, channels_of_a_stage)


def ranges_of_recomputed(comm, recompute, marked):
    model, rng = Divisible(), np.random.default_rng(0)
    for _ in range(2):
        layer = L.Linear(6, 6, nobias=True, initialW=np.eye(6))
        model.append(layer, recompute=marked)
        model.append(F.relu)
    stage = model.divide(2 * comm.rank, 2 * comm.rank + 2)
    optimizer = chainer.optimizers.SGD(0.0).setup(stage)
    plan = CompressionPlan(
        [Quantize("int8", layers="/2", targets="input", percentile=95)]
    )
    expected = []
    with Pipeline(
        stage, comm, n_microbatches=4, schedule="gpipe", recompute=recompute, timeout=30
    ) as pipe:
        compress = Compress(plan, optimizer, pipeline=pipe)
        compress.advance(0, 0.0)
        for iteration in range(1, 4):
            # Its microbatches have 4, 3, 3 and 3 samples.
            x = rng.normal(size=(13, 6)).astype(np.float32) * iteration
            pipe.step(x, np.arange(13, dtype=np.int32) % 6)
            optimizer.update()
            compress.advance(iteration, 0.0)
            ends = np.percentile(np.maximum(x, 0), [5, 95])
            expected = 0.9 * expected + 0.1 * ends if iteration > 1 else ends
    if comm.rank:
        found = next(stage.children()).input_range
        np.testing.assert_allclose(found, expected, rtol=2e-3, atol=1e-6)


@pytest.mark.parametrize(
    "recompute, marked",
    [("never", False), ("never", True), ("always", False), ("except_last", False)],
)
def test_ranges_count_a_recomputed_microbatch_once(recompute, marked):
    assert_on_ranks(2, ranges_of_recomputed, recompute, marked)


def ranges_of_replicas(comm, overflows):
    """Two rules of layers that read the same: another begins when one has frozen."""

    class Beside(chainer.ChainList):
        def forward(self, x):
            return self[0](x) + self[1](x)

    plan = CompressionPlan(
        [
            Quantize("int8", layers="/0/0", targets="input", freeze_after=2),
            Quantize(
                "int8",
                layers="/0/1",
                targets="input",
                begin=(6, "iteration"),
                freeze_after=3,
            ),
        ]
    )
    grid, rng = Grid(comm, n_pipeline=1), np.random.default_rng(0)
    model = to_float16(Divisible(Beside(L.Linear(6, 3), L.Linear(6, 3))))
    optimizer = MixedPrecision(chainer.optimizers.SGD(0.01), comm=comm)
    optimizer = create_multi_node_optimizer(optimizer, grid.data).setup(model)
    scale = optimizer.actual_optimizer.loss_scale
    options = {"lossfun": float32_loss(F.softmax_cross_entropy), "loss_scale": scale}
    seen = []
    with Pipeline(model, grid, n_microbatches=2, **options, timeout=30) as pipe:
        compress = Compress(plan, optimizer, pipeline=pipe)
        compress.advance(0, 0.0)
        for iteration in range(1, 12):
            x = rng.normal(size=(8, 6)).astype(np.float16)
            if iteration in overflows:
                # On one replica alone.
                x[7] = np.nan
            mine = slice(4 * comm.rank, 4 * comm.rank + 4)
            t = np.arange(8, dtype=np.int32)[mine] % 3
            pipe.step(x[mine], t)
            optimizer.update()
            compress.advance(iteration, 0.0)
            seen.append((x.min(), x.max()))
    assert optimizer.n_skipped == len(overflows)
    first = [s for i, s in enumerate(seen, 1) if i not in overflows][:2]
    second = [s for i, s in enumerate(seen, 1) if i not in overflows and i > 6][:3]
    for link, shown in zip(model[0], (first, second)):
        expected = np.array(shown[0], np.float64)
        for ends in shown[1:]:
            expected = 0.9 * expected + 0.1 * np.array(ends, np.float64)
        assert link.input_n_seen[0] == len(shown)
        np.testing.assert_allclose(link.input_range, expected, rtol=1e-5)


@pytest.mark.parametrize(
    "overflows", [pytest.param([], marks=pytest.mark.matrix), [1, 8]]
)
def test_replicas_calibrate_each_rule_by_the_minibatches_that_update(overflows):
    assert_on_ranks(2, ranges_of_replicas, overflows)

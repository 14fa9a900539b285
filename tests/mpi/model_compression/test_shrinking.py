"""Channels go from a running pipeline, on whichever ranks their layers are."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from mpi4py import MPI

from data_parallel import Grid, create_multi_node_optimizer
from divisible import Divisible, LayerCost, Plan, Profile
from divisible.communication.errors import DisagreementError
from mixed_precision import MixedPrecision, float32_loss, to_float16
from model_compression import Compress, CompressionPlan, Prune, Quantize
from model_compression.shrinking import Left
from pipeline import (
    Pipeline,
    PipelineUpdater,
    Rebalance,
    SnapshotError,
    load_snapshot,
    rebalance,
    save_snapshot,
    snapshot,
)
from pipeline.rebalancing.log import read_log
from tests.support.equivalence import assert_close, stages_of_rank
from tests.support.matrix import matrix
from tests.support.mpiexec import assert_on_ranks
from tests.support.told_times import SECONDS, Clock

N_LAYERS, END = 8, 10
PLAN = CompressionPlan(
    [
        Prune(
            "l2",
            layers="/0",
            to=0.5,
            granularity="channel",
            begin=(1, "iteration"),
            end=(3, "iteration"),
            steps=2,
        ),
        Prune(
            "taylor", layers="/4", to=0.4, granularity="channel", begin=(4, "iteration")
        ),
        Prune("magnitude", layers="/6", to=0.5, begin=(2, "iteration")),
        Quantize(
            "int4", layers=["/4", "/6"], begin=(2, "iteration"), per_channel=False
        ),
    ]
)


def build(use_gamma=True):
    np.random.seed(3)
    return Divisible(
        L.Linear(8, 12, nobias=True),
        L.BatchNormalization(12, use_gamma=use_gamma),
        F.relu,
        F.tanh,
        L.Linear(12, 10),
        F.relu,
        L.Linear(10, 9),
        F.sigmoid,
    )


def minibatch(iteration):
    rng = np.random.default_rng(iteration)
    x = rng.normal(size=(32, 8)).astype(np.float32)
    return x, np.minimum(np.abs(x[:, 0]) * 3, 8).astype(np.int32)


class Run:
    """A loop of one's own on some ranks, which prunes channels."""

    def __init__(
        self, comm, cuts, schedule="1f1b", shrink=True, kind="adam", grid=None, **built
    ):
        where = comm if grid is None else grid.pipeline
        cut, model = Plan(cuts), build(**built)
        numbers = stages_of_rank(where, cut.n_stages, schedule)
        self.stages = [model.divide(*cut.range(number)) for number in numbers]
        self.half = kind in ("mixed", "together")
        if self.half:
            self.stages = [to_float16(stage) for stage in self.stages]
        targets = [self.stages] if kind == "together" else self.stages
        self.optimizers = [self._optimizer(comm, kind, grid) for _ in targets]
        for optimizer, target in zip(self.optimizers, targets):
            optimizer.setup(target)
        self.pipe = Pipeline(
            self.stages,
            comm if grid is None else grid,
            n_microbatches=4,
            schedule=schedule,
            loss_scale=128.0 if self.half else None,
            lossfun=float32_loss(F.softmax_cross_entropy),
            timeout=30,
        )
        self.grid = grid
        self.compress = Compress(
            PLAN, self.optimizers, pipeline=self.pipe, shrink=shrink
        )

    def _optimizer(self, comm, kind, grid):
        if kind == "adam":
            optimizer = chainer.optimizers.Adam(0.01)
        else:
            optimizer = chainer.optimizers.MomentumSGD(0.05)
        if self.half:
            optimizer = MixedPrecision(optimizer, loss_scale=128.0, comm=comm)
        if grid is not None:
            optimizer = create_multi_node_optimizer(
                optimizer, grid.data, exchange_dtype="fp32", error_feedback=False
            )
        return optimizer

    def train(self, start=0, end=END):
        losses = []
        for iteration in range(start + 1, end + 1):
            x, t = minibatch(iteration)
            if self.half:
                x = x.astype(np.float16)
            if self.grid is not None:
                mine = np.array_split(np.arange(len(x)), self.grid.n_replicas)
                x, t = (each[mine[self.grid.replica]] for each in (x, t))
            losses.append(self.pipe.step(x, t)["loss"])
            for optimizer in self.optimizers:
                optimizer.update()
            self.compress.advance(iteration, iteration / 5)
        return losses

    def arrays(self):
        """Returns parameters, averages and states of the whole model by name."""
        here = {}
        for stage in self.stages:
            for path, param in stage.namedparams():
                here[path] = param.array
                for name, value in (param.update_rule.state or {}).items():
                    here[f"{path}:{name}"] = value
                if (master := param.update_rule._fp32_param) is not None:
                    here[f"{path}:master"] = master.array
            for path, link in stage.namedlinks():
                if isinstance(link, L.BatchNormalization):
                    here[f"{path}:avg_var"] = link.avg_var
        found = {}
        for theirs in self.pipe.internals.gather(here, "compress"):
            for path, array in theirs.items():
                np.testing.assert_array_equal(found.setdefault(path, array), array)
        return found


def cut_out(arrays):
    """Returns the arrays of a masked model without the channels that are zero."""
    first = (arrays["/0/W"] != 0).any(axis=1)
    second = (arrays["/4/W"] != 0).any(axis=1)
    left = {"/0": (first,), "/1": (first,), "/4": (second, first), "/6": (None, second)}
    found = {}
    for name, array in arrays.items():
        for axis, kept in enumerate(left[name[:2]]):
            if kept is not None and axis < np.ndim(array):
                array = np.compress(kept, array, axis)
        found[name] = array
    return found


def equal_to_masked(comm, cuts, schedule, kind, n_replicas=1):
    grid = None if n_replicas == 1 else Grid(comm, n_pipeline=len(cuts) - 1)
    masked = Run(comm, cuts, schedule, False, kind, grid)
    with masked.pipe:
        expected, arrays = masked.train(), cut_out(masked.arrays())
    run = Run(comm, cuts, schedule, True, kind, grid)
    with run.pipe:
        losses, found = run.train(), run.arrays()
    rtol = 1e-2 if run.half else 1e-5
    np.testing.assert_allclose(losses, expected, rtol=rtol)
    assert losses[-1] < losses[0]
    assert found["/0/W"].shape == (6, 8) and found["/4/W"].shape == (6, 6)
    assert (found["/6/W"] == 0).any() and found["/6/W"].shape == (9, 6)
    for name, array in found.items():
        assert np.shape(array) == np.shape(arrays[name]), name
        if not run.half:
            assert_close(array, arrays[name], atol=1e-5, what=name)


@pytest.mark.parametrize(
    "cuts, schedule, kind",
    [
        # What follows a layer whose channels go is on another rank: the next pruned
        # layer, the normalization and the last layer, or the normalization alone.
        ([0, 1, 5, 8], "1f1b", "momentum"),
        ([0, 1, 8], "zb_h1", "mixed"),
        ([0, 1, 3, 5, 8], "interleaved", "together"),
        *matrix(([0, 4, 8], "1f1b", "adam")),
        *(
            pytest.param(*each, marks=pytest.mark.matrix)
            for each in [
                *(([0, cut, 8], "1f1b", "adam") for cut in (1, 2, 3, 5, 6, 7)),
                ([0, 1, 3, 5, 8], "interleaved", "momentum"),
            ]
        ),
    ],
)
def test_losses_are_those_of_the_masked_model_on_any_cut(cuts, schedule, kind):
    n = 2 if schedule == "interleaved" else len(cuts) - 1
    assert_on_ranks(n, equal_to_masked, cuts, schedule, kind)


@pytest.mark.parametrize(
    "cuts, kind",
    [
        pytest.param([0, 8], "momentum", marks=pytest.mark.matrix),
        ([0, 1, 8], "momentum"),
        ([0, 8], "mixed"),
    ],
)
def test_channels_go_from_all_replicas(cuts, kind):
    assert_on_ranks(2 * (len(cuts) - 1), equal_to_masked, cuts, "1f1b", kind, 2)


def predicts_as_masked(comm):
    x, _ = minibatch(0)
    outputs = []
    for shrink in (False, True):
        run = Run(comm, [0, 1, 8], shrink=shrink, use_gamma=False)
        with run.pipe:
            run.train()
            outputs.append(run.pipe.predict(x))
    if comm.rank == 1:
        assert_close(outputs[1], outputs[0], atol=1e-5, what="outputs")
        norm = run.stages[0][0]
        assert norm.gamma is None and len(norm.avg_mean) == 6


def test_a_normalization_without_gamma_predicts_as_the_masked_model():
    assert_on_ranks(2, predicts_as_masked)


def equal_to_one_rank(comm):
    run = Run(comm, [0, 1, 8])
    with run.pipe:
        losses = run.train()
    alone = Run(MPI.COMM_SELF, [0, 8])
    with alone.pipe:
        np.testing.assert_allclose(losses, alone.train(), rtol=1e-5)


def test_two_ranks_train_as_one_does():
    assert_on_ranks(2, equal_to_one_rank)


def saves_halfway(comm, cuts, folder, kind):
    run = Run(comm, cuts, kind=kind)
    with run.pipe:
        run.train(end=6)
        state = {"compress": run.compress}
        save_snapshot(f"{folder}/halfway", run.pipe, run.optimizers, state=state)


def goes_on(comm, cuts, folder, is_same_cut, kind):
    straight = Run(comm, cuts, kind=kind)
    with straight.pipe:
        straight.train(end=6)
        expected, arrays = straight.train(6), straight.arrays()
    run = Run(comm, cuts, kind=kind)
    with run.pipe:
        # Where the other run was then, channels were still there.
        run.train(end=2)
        state = {"compress": run.compress}
        load_snapshot(f"{folder}/halfway", run.pipe, run.optimizers, state=state)
        losses, found = run.train(6), run.arrays()
        assert run.compress.shrink() == {}
    for name, array in found.items():
        assert_close(array, arrays[name], atol=1e-5, what=name)
    if is_same_cut:
        assert losses == expected
        for name, array in found.items():
            np.testing.assert_array_equal(array, arrays[name], err_msg=name)


@pytest.mark.parametrize(
    "before, after, kind",
    [
        ([0, 1, 8], [0, 8], "mixed"),
        ([0, 2, 8], [0, 2, 8], "adam"),
        *matrix(([0, 8], [0, 4, 8], "adam")),
    ],
)
def test_a_snapshot_without_the_channels_resumes_on_other_stages(
    before, after, kind, tmp_path
):
    folder = str(tmp_path)
    assert_on_ranks(len(before) - 1, saves_halfway, before, folder, kind)
    assert_on_ranks(len(after) - 1, goes_on, after, folder, before == after, kind)


def goes_back_to_all_channels(comm, folder):
    run = Run(comm, [0, 4, 8])
    state = {"compress": run.compress}
    with run.pipe:
        save_snapshot(f"{folder}/first", run.pipe, run.optimizers, state=state)
        first = run.train()
        load_snapshot(f"{folder}/first", run.pipe, run.optimizers, state=state)
        assert run.arrays()["/0/W"].shape == (12, 8)
        assert run.train() == first


def test_a_snapshot_with_the_channels_brings_them_back(tmp_path):
    assert_on_ranks(2, goes_back_to_all_channels, str(tmp_path))


def refuses_a_snapshot(comm, folder):
    run = Run(comm, [0, 4, 8])
    with run.pipe:
        run.train(end=6)
        state = {"compress": run.compress}
        save_snapshot(f"{folder}/small", run.pipe, run.optimizers, state=state)
    run = Run(comm, [0, 4, 8])
    with run.pipe:
        run.train(end=2)
        before = run.arrays()
        with pytest.raises(SnapshotError, match="has_shrunk"):
            # Without what the snapshot has of the extension.
            load_snapshot(f"{folder}/small", run.pipe, run.optimizers)
        for name, array in run.arrays().items():
            np.testing.assert_array_equal(array, before[name], err_msg=name)
        run.train(2)
        assert run.arrays()["/0/W"].shape == (6, 8)


def test_a_snapshot_that_is_refused_leaves_the_channels(tmp_path):
    assert_on_ranks(2, refuses_a_snapshot, str(tmp_path))


def layers_move(comm, cuts):
    straight = Run(comm, [0, 4, 8])
    with straight.pipe:
        expected, arrays = straight.train(), straight.arrays()
    run = Run(comm, [0, 4, 8])
    with run.pipe:
        losses = run.train(end=6)
        with pytest.raises(ValueError, match="build\\(\\) makes .*Compress.prepare"):
            rebalance(run.pipe, run.optimizers, cuts, build)
        rebalance(run.pipe, run.optimizers, cuts, lambda: run.compress.prepare(build()))
        losses += run.train(6)
        found = run.arrays()
    np.testing.assert_array_equal(losses, expected)
    for name, array in found.items():
        np.testing.assert_array_equal(array, arrays[name], err_msg=name)


@pytest.mark.parametrize("cuts", [[0, 1, 8], *matrix([0, 7, 8])])
def test_layers_without_channels_move_to_other_ranks(cuts):
    assert_on_ranks(2, layers_move, cuts)


def trained(comm, cuts, folder, end, extensions=lambda run: ()):
    """Trains by a trainer, which goes on from the newest snapshot in the folder."""
    run = Run(comm, cuts)
    iterator = None
    if run.pipe.is_first:
        x, t = (np.concatenate(each) for each in zip(*map(minibatch, range(1, END))))
        data = chainer.datasets.TupleDataset(x, t)
        iterator = chainer.iterators.SerialIterator(data, 32, shuffle=False)
    with run.pipe:
        updater = PipelineUpdater(iterator, run.optimizers[0], run.pipe)
        trainer = chainer.training.Trainer(updater, (end, "iteration"), out=folder)
        trainer.extend(run.compress)
        trainer.extend(snapshot(resume="auto"), trigger=(6, "iteration"))
        for each in extensions(run):
            trainer.extend(each)
        trainer.run()
        return run.arrays(), run.compress.sparsity


def goes_on_by_a_trainer(comm, cuts, folder):
    expected, sparsity = trained(comm, cuts, f"{folder}/straight", END)
    trained(comm, cuts, f"{folder}/resumed", 6)
    found, again = trained(comm, cuts, f"{folder}/resumed", END)
    assert found["/4/W"].shape == (6, 6) and again == sparsity > 0.5
    for name, array in found.items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name)


@pytest.mark.parametrize("cuts", [[0, 1, 8], *matrix([0, 8])])
def test_a_trainer_resumes_without_the_channels(cuts, tmp_path):
    assert_on_ranks(len(cuts) - 1, goes_on_by_a_trainer, cuts, str(tmp_path))


def layers_leave_a_slow_host(comm, folder):
    cost = LayerCost(SECONDS, SECONDS / 2, SECONDS / 2)
    profile = Profile([cost] * N_LAYERS, n_samples=8)
    watches = []

    def extensions(run):
        def prepared():
            return run.compress.prepare(build())

        watches.append(Rebalance(prepared, every=2, profile=profile))
        return Clock(1, 5, END), *watches

    found, _ = trained(comm, [0, 3, 8], f"{folder}/moved", END, extensions)
    # Both layers had lost channels by then.
    assert watches[0].moves and found["/4/W"].shape == (6, 6)
    expected, _ = trained(comm, [0, 3, 8], f"{folder}/straight", END)
    for name, array in found.items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name)


def test_layers_without_channels_leave_a_slow_host(tmp_path):
    assert_on_ranks(2, layers_leave_a_slow_host, str(tmp_path))


def cost_without_channels(stage):
    """Of layers 0 to 4, the cost falls when channels of layer 0 have gone."""
    start, end = stage.layer_range
    # Only the first stage, which has layer 0, is ever asked after it.
    each = 0.2 if start == 0 and len(stage[0].W.array) < 12 else 1.0
    return sum(each if i < 5 else 1.0 for i in range(start, end))


def layers_come_to_small_ones(comm, folder):
    cost = LayerCost(SECONDS, SECONDS / 2, SECONDS / 2)
    profile = Profile([cost] * N_LAYERS, n_samples=8)
    watches = []

    def extensions(run):
        def prepared():
            return run.compress.prepare(build())

        watches.append(Rebalance(prepared, every=2, profile=profile))
        return Clock(0, 0, 0, cost_without_channels), *watches

    # The check at 4 finds other layers, the one at 6 has measured them.
    trained(comm, [0, 5, 8], folder, 7, extensions)
    (moved,) = watches[0].moves
    assert min(moved.layers) == 5
    if comm.rank == 0:
        (check,) = read_log(f"{folder}/rebalancing.jsonl")
        assert check.iteration == 6 and check.speeds == pytest.approx([1, 1])


def test_layers_that_became_small_make_no_host_slow(tmp_path):
    output = assert_on_ranks(2, layers_come_to_small_ones, str(tmp_path))
    assert "the parameters of 4 layers have other sizes than before" in output
    assert "from layer 0 to layer 6: the costs of layers are measured again" in output
    assert "about as fast as each other, but their layers cost unequally; " in output
    assert "of the speed of others" not in output


def beside_an_unsized_layer(comm, folder):
    def run(start, end, path=None):
        np.random.seed(0)
        model = Divisible(
            L.Linear(8, 6),
            L.BatchNormalization(axis=0),
            F.relu,
            L.Linear(6, 5),
            L.Linear(None, 9),
        )
        stage = model.divide()
        optimizer = chainer.optimizers.Adam().setup(stage)
        with Pipeline(stage, comm, n_microbatches=2) as pipe:
            plan = CompressionPlan(
                [Prune("l2", layers="/0", to=0.5, granularity="channel")]
            )
            compress = Compress(plan, optimizer, pipeline=pipe, shrink=True)
            state = {"compress": compress}
            if path is not None:
                load_snapshot(path, pipe, optimizer, state=state)
            for iteration in range(start + 1, end + 1):
                loss = pipe.step(*minibatch(iteration))["loss"]
                optimizer.update()
                compress.advance(iteration, 0.0)
            if end < END:
                save_snapshot(f"{folder}/{end}", pipe, optimizer, state=state)
        return loss

    run(0, 3)
    assert run(3, END, f"{folder}/3") == run(0, END)


def test_a_snapshot_is_loaded_before_other_layers_are_sized(tmp_path):
    assert_on_ranks(1, beside_an_unsized_layer, str(tmp_path))


def fails_on_one_rank(comm):
    run = Run(comm, [0, 4, 8], shrink=False)
    with run.pipe:
        run.train(end=6)
        params = [p for s in run.stages for p in s.params() if comm.rank == 1]
        for param in params:
            param.update_rule.state["odd"] = np.zeros(3, np.float32)
        with pytest.raises(ValueError, match="keeps odd of"):
            run.compress.shrink()
        for param in params:
            del param.update_rule.state["odd"]
        # Nobody has changed anything, and all ranks go on.
        run.train(6, 7)
        before = run.arrays()
        real, words = Left.of, "rank 1: MemoryError: no room"
        if comm.rank == 1:
            Left.of = no_room
        error = MemoryError if comm.rank == 1 else DisagreementError
        with pytest.raises(error, match="no room" if comm.rank == 1 else words):
            run.compress.shrink()
        Left.of = real
        for name, array in run.arrays().items():
            np.testing.assert_array_equal(array, before[name], err_msg=name)
        with pytest.raises(RuntimeError, match="changed nothing.* shrink.. again"):
            run.train(6)
        assert run.compress.shrink() == {"/0": 6, "/4": 4}
        run.train(6)


def no_room(part, array):
    raise MemoryError("no room")


def test_where_one_rank_has_no_room_all_ranks_keep_the_channels():
    assert_on_ranks(2, fails_on_one_rank)

"""Layers of other types in a pipeline: any cut trains as one rank does."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from mpi4py import MPI

from divisible import Divisible, pop, stash
from mixed_precision import LayerTypes, MixedPrecision, to_float16
from pipeline import Pipeline, load_snapshot, rebalance, save_snapshot
from tests.support.equivalence import make_batches
from tests.support.matrix import matrix
from tests.support.mpiexec import assert_on_ranks, refused_on_ranks

BATCHES = make_batches([8] * 4)
N_LAYERS = 9
KEEP = {
    0: "float32",
    3: LayerTypes(backward_type="float32"),
    5: LayerTypes(forward_math="float16", backward_math="float16"),
    "/7/second": LayerTypes(forward_type="float32"),
    8: "float32",
}


class Pair(chainer.Chain):
    def __init__(self):
        super().__init__(first=L.Linear(6, 6), second=L.Linear(6, 6))

    def forward(self, x):
        return x + self.second(F.relu(self.first(x)))


def build():
    np.random.seed(3)
    return Divisible(
        L.Linear(6, 6),
        L.BatchNormalization(6),
        stash("x"),
        L.Linear(6, 6),
        F.relu,
        L.Linear(6, 6),
        pop("x", F.add),
        Pair(),
        L.Linear(6, 4),
    )


class Run:
    def __init__(
        self, comm, model, start=0, end=N_LAYERS, cast_first=True, schedule="1f1b"
    ):
        if cast_first:
            stage = to_float16(model, keep=KEEP).divide(start, end)
        else:
            stage = to_float16(model.divide(start, end), keep=KEEP)
        optimizer = MixedPrecision(
            chainer.optimizers.Adam(0.01), loss_scale=1000, comm=comm, timeout=20
        )
        self.pipe = Pipeline(
            stage,
            comm,
            n_microbatches=3,
            schedule=schedule,
            loss_scale=optimizer.loss_scale,
            timeout=20,
        )
        self.optimizer = self.pipe.setup(optimizer)
        self.stage = stage

    def step(self, i):
        loss = self.pipe.step(*BATCHES[i])["loss"]
        self.optimizer.update()
        return loss

    def weights(self):
        named = dict(self.stage.namedparams())
        arrays = {path: param.array for path, param in named.items()}
        return {**arrays, **self.optimizer.masters()}


def assert_same(found, expected):
    for path, array in found.items():
        assert array.dtype == expected[path].dtype
        np.testing.assert_array_equal(array, expected[path], path)


def every_cut(comm, cuts):
    whole = Run(MPI.COMM_SELF, build())
    losses = [whole.step(i) for i in range(4)]
    expected, x = whole.weights(), BATCHES[0][0]
    outputs = whole.pipe.predict(x)
    assert {"/3/W", "/7/second/W"}.isdisjoint(whole.optimizer.masters())
    assert {"/5/W", "/7/first/W"} <= {*whole.optimizer.masters()}
    assert outputs.dtype == np.float32
    for cut in cuts:
        run = Run(comm, build(), *((0, cut), (cut, N_LAYERS))[comm.rank], cut % 2 == 0)
        assert [run.step(i) for i in range(4)] == losses
        assert_same(run.weights(), expected)
        found = run.pipe.predict(x)
        if found is not None:
            np.testing.assert_array_equal(found, outputs)
        run.pipe.close()


@pytest.mark.parametrize("cuts", [[1, 4, 7], *matrix([*range(1, N_LAYERS)])])
def test_every_cut_is_one_rank_bit_for_bit(cuts):
    assert_on_ranks(2, every_cut, cuts)


def schedules(comm):
    whole = Run(MPI.COMM_SELF, build())
    losses = [whole.step(i) for i in range(4)]
    for schedule in ("gpipe", "zb_h1"):
        run = Run(comm, build(), *((0, 5), (5, 9))[comm.rank], True, schedule=schedule)
        assert [run.step(i) for i in range(4)] == losses
        assert_same(run.weights(), whole.weights())


def test_schedules_that_split_the_backward():
    assert_on_ranks(2, schedules)


def snapshots(comm, folder):
    mine = ((0, 4), (4, N_LAYERS))[comm.rank]
    run = Run(comm, build(), *mine)
    for i in range(2):
        run.step(i)
    save_snapshot(folder, run.pipe, run.optimizer)
    losses = [run.step(i) for i in (2, 3)]
    expected = {}
    for each in comm.allgather(run.weights()):
        expected.update(each)
    whole = Run(MPI.COMM_SELF, build())
    other = Run(comm, build(), *((0, 7), (7, N_LAYERS))[comm.rank])
    for again in whole, other:
        load_snapshot(folder, again.pipe, again.optimizer)
        assert [again.step(i) for i in (2, 3)] == losses
        assert_same(again.weights(), expected)


def test_snapshots_go_to_other_cuts(tmp_path):
    assert_on_ranks(2, snapshots, str(tmp_path))


def moved(comm):
    expected = Run(MPI.COMM_SELF, build())
    run = Run(comm, build(), *((0, 4), (4, N_LAYERS))[comm.rank])
    for i, cuts in enumerate(([0, 4, 9], [0, 2, 9], [0, 8, 9], [0, 3, 9])):
        rebalance(run.pipe, run.optimizer, cuts, lambda: to_float16(build(), keep=KEEP))
        assert run.step(i) == expected.step(i)
    assert_same(run.weights(), expected.weights())


def test_layers_that_move_keep_their_types():
    assert_on_ranks(2, moved)


def without_types(comm):
    run = Run(comm, build(), *((0, 4), (4, N_LAYERS))[comm.rank])
    rebalance(run.pipe, run.optimizer, [0, 2, 9], build)


def test_a_model_without_types_cannot_be_moved_in():
    words = refused_on_ranks(2, without_types).output
    assert "/3 has types of its own, which build() does not give it" in words


FUSED, RECOMPUTED = {"fuse": "auto"}, {"recompute": "always"}


@pytest.mark.parametrize(
    "keep, options",
    [
        (KEEP, FUSED),
        ([3, 5], RECOMPUTED),
        *matrix(
            (KEEP, RECOMPUTED),
            ([3, 5], FUSED),
            *(
                (keep, o)
                for keep in (["/5"], {0: "float16"})
                for o in (FUSED, RECOMPUTED)
            ),
        ),
    ],
)
def test_options_that_change_no_bit(keep, options):
    """Chains of functions in float32 may be fused; what has types is not."""
    losses = []
    for each in {}, options:
        model = to_float16(build(), keep=keep)
        optimizer = MixedPrecision(chainer.optimizers.SGD(0.1), loss_scale=1000)
        optimizer.setup(model)
        with Pipeline(
            model,
            MPI.COMM_SELF,
            n_microbatches=2,
            loss_scale=optimizer.loss_scale,
            **each,
        ) as pipe:
            losses.append([])
            for x, t in BATCHES:
                losses[-1].append(pipe.step(x, t)["loss"])
                optimizer.update()
            losses[-1].append(pipe.evaluate(*BATCHES[0])["loss"])
    assert losses[0] == losses[1]


def inputs_are_not_rounded(comm):
    """The first layer is float32, and so are its inputs."""
    x = np.full((4, 6), 1 + 2.0**-20, np.float32)
    stage = to_float16(Divisible(L.Linear(6, 2, initialW=1), F.identity), keep=[0])
    part = stage.divide(comm.rank, comm.rank + 1)
    with Pipeline(part, comm, n_microbatches=2, loss_scale=4) as pipe:
        found = pipe.predict(x)
        if found is not None:
            np.testing.assert_allclose(found, 6 + 6 * 2.0**-20, rtol=1e-7)


def one_kept_layer(comm):
    """A stage that keeps nothing casts what a kept layer before it returns."""
    np.random.seed(0)
    x, model = BATCHES[0][0], Divisible(L.Linear(6, 6), F.relu, L.Linear(6, 4))
    expected = to_float16(model.copy("copy"), keep=[0])(x)
    assert expected.dtype == np.float16
    stage = to_float16(model.divide(*((0, 2), (2, 3))[comm.rank]), keep=[0])
    with Pipeline(stage, comm, n_microbatches=1, loss_scale=4) as pipe:
        found = pipe.predict(x)
        if found is not None:
            np.testing.assert_array_equal(found, expected.array)


def test_a_stage_after_a_kept_layer_casts():
    assert_on_ranks(2, one_kept_layer)


def test_inputs_of_a_kept_layer_are_not_rounded():
    assert_on_ranks(2, inputs_are_not_rounded)


def ties(comm, keep):
    np.random.seed(0)
    model = Divisible(L.Linear(6, 4), F.relu, L.Linear(4, 6), L.Linear(6, 4))
    model.tie("/0/W", "/3/W")
    stage = to_float16(model.divide(*((0, 2), (2, 4))[comm.rank]), keep=keep)
    optimizer = MixedPrecision(
        chainer.optimizers.SGD(0.1), loss_scale=1000, comm=comm, timeout=20
    )
    with Pipeline(
        stage, comm, n_microbatches=2, loss_scale=optimizer.loss_scale, timeout=20
    ) as pipe:
        optimizer = pipe.setup(optimizer)
        for x, t in BATCHES:
            pipe.step(x, t)
            optimizer.update()


def test_tied_layers_have_one_type():
    assert_on_ranks(2, ties, [0, 3])
    words = refused_on_ranks(2, ties, [0]).output
    assert "/0/W is float32 on rank 0 and float16 on rank 1" in words

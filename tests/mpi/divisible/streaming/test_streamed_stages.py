"""Pipelines of streamed layers: as resident ones, and their snapshots fit both ways."""

import errno
import os
import re

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer.optimizer_hooks import GradientClipping, WeightDecay

from data_parallel import Grid, create_multi_node_optimizer
from divisible import Divisible, Plan, deferred_init
from divisible.communication.errors import DisagreementError
from divisible.streaming import StoreError, Streamed, mapped, segments, stream
from mixed_precision import MixedPrecision, to_float16
from pipeline import (
    Pipeline,
    load_snapshot,
    rebalance,
    save_snapshot,
)
from tests.support.matrix import matrix
from tests.support.mpiexec import assert_on_ranks, refused_on_ranks

CUTS = [0, 2, 5]


def model_of(segment):
    streamed = segment is not None
    with deferred_init(seed=3):
        first, second = L.Linear(50, 40), L.Linear(40, 30)
        if streamed:
            first = Streamed(first, activation=F.relu, segment=segment)
            second = Streamed(second, activation=F.tanh, segment=segment)
        between = [F.identity, F.identity] if streamed else [F.relu, F.tanh]
        last = L.Linear(30, 5)
        return Divisible(first, between[0], second, between[1], last)


class Run:
    """A pipeline with its optimizer."""

    def __init__(self, comm, segment, schedule):
        self.stage = model_of(segment).divide(*CUTS[comm.rank : comm.rank + 2])
        self.optimizer = chainer.optimizers.Adam().setup(self.stage)
        self.pipe = Pipeline(self.stage, comm, n_microbatches=4, schedule=schedule)

    def steps(self, n, seed):
        random, losses = np.random.RandomState(seed), []
        for _ in range(n):
            x = random.randn(14, 50).astype("f")
            t = random.randint(0, 5, 14).astype("i")
            losses.append(self.pipe.step(x, t)["loss"])
            self.optimizer.update()
        return losses


def trains(comm, folder, schedule, debug):
    with chainer.using_config("debug", debug):
        resident, streamed = (Run(comm, each, schedule) for each in (None, 7))
        wanted, found = resident.steps(8, 0), streamed.steps(8, 0)
        np.testing.assert_allclose(found, wanted, rtol=1e-5)
        for number, run in enumerate((resident, streamed)):
            save_snapshot(f"{folder}/{number}", run.pipe, run.optimizer)
        others = [Run(comm, each, schedule) for each in (None, 7)]
        for number, run in enumerate(others):
            # What streams loads what did not, and the other way round.
            load_snapshot(f"{folder}/{1 - number}", run.pipe, run.optimizer)
        wanted = resident.steps(3, 1)
        for run in (streamed, *others):
            np.testing.assert_allclose(run.steps(3, 1), wanted, rtol=1e-5)


@pytest.mark.parametrize(
    "schedule, debug", [("zb_h1", True), *matrix(("1f1b", True), ("zb_h1", False))]
)
def test_trains_as_resident_stages(tmp_path, schedule, debug):
    assert_on_ranks(2, trains, str(tmp_path), schedule, debug)


def embeds(comm, folder, schedule):
    def run(streamed):
        with deferred_init(seed=1):
            words = L.EmbedID(40, 8, ignore_label=-1)
            words = Streamed(words, segment=9) if streamed else words
            model = Divisible(words, L.Linear(24, 10), F.tanh, L.Linear(10, 5))
        stage = model.divide(*[0, 1, 4][comm.rank : comm.rank + 2])
        optimizer = chainer.optimizers.Adam().setup(stage)
        return Pipeline(stage, comm, n_microbatches=3, schedule=schedule), optimizer

    def losses(run, seed):
        random, found = np.random.RandomState(seed), []
        for _ in range(4):
            x = random.randint(-1, 40, (7, 3)).astype("i")
            t = random.randint(0, 5, 7).astype("i")
            found.append(run[0].step(x, t)["loss"])
            run[1].update()
        return found

    resident, streamed, other = run(False), run(True), run(True)
    assert losses(streamed, 0) == losses(resident, 0)
    save_snapshot(folder, *streamed)
    load_snapshot(folder, *other)
    assert losses(other, 1) == losses(resident, 1)


@pytest.mark.parametrize("schedule", ["zb_h1", *matrix("1f1b")])
def test_embeddings_train_bit_for_bit_as_in_memory(tmp_path, schedule):
    assert_on_ranks(2, embeds, str(tmp_path / "a"), schedule)


def mixes(comm, folder, hooks):
    def run(streamed, seed=1):
        with deferred_init(seed=seed):
            words, layer = L.EmbedID(40, 8), L.Linear(24, 30)
            if streamed:
                words, layer = Streamed(words, segment=9), Streamed(layer, segment=7)
            model = Divisible(words, layer, F.relu, L.Linear(30, 5))
        stage = to_float16(model.divide(*[0, 2, 4][comm.rank : comm.rank + 2]))
        optimizer = MixedPrecision(chainer.optimizers.Adam(), comm=comm).setup(stage)
        for hook in hooks:
            optimizer.add_hook(hook)
        scale = optimizer.loss_scale
        return (
            Pipeline(stage, comm, n_microbatches=3, loss_scale=scale),
            optimizer,
            stage,
        )

    def losses(run, seed):
        random, found = np.random.RandomState(seed), []
        for i in range(6):
            x = random.randint(0, 40, (7, 3)).astype("i")
            t = random.randint(0, 5, 7).astype("i")
            found.append(run[0].step(x, t)["loss"])
            if i == 2 and comm.rank == 0:
                # A step that is skipped, on all ranks.
                run[2][1].b.grad[0] = np.inf
            run[1].update()
        return found

    resident, streamed, other = run(False), run(True), run(True, seed=2)
    np.testing.assert_allclose(losses(streamed, 0), losses(resident, 0), rtol=2e-3)
    norms = [each[1].gradient_norm for each in (streamed, resident)]
    assert norms[0] == pytest.approx(norms[1], rel=0.01)
    assert streamed[1].n_skipped == 1
    save_snapshot(folder, *streamed[:2])
    load_snapshot(folder, *other[:2])
    assert losses(other, 1) == losses(streamed, 1)
    for param in streamed[2].params():
        assert param.dtype == ("f4" if getattr(param, "is_streamed", False) else "f2")


@pytest.mark.parametrize(
    "hooks",
    [
        (),
        (WeightDecay(1e-3), GradientClipping(0.1)),
        *matrix(((GradientClipping(0.1),),)),
    ],
)
def test_weights_on_disk_are_masters(tmp_path, hooks):
    assert_on_ranks(2, mixes, str(tmp_path / "a"), hooks)


def chooses(comm, folder):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "LEAST_BYTES", 1000)
        run, resident = Run(comm, "auto", "1f1b"), Run(comm, None, "1f1b")
        other, fixed = Run(comm, "auto", "1f1b"), Run(comm, 7, "1f1b")
    wanted = resident.steps(6, 0)
    np.testing.assert_allclose(run.steps(6, 0), wanted, rtol=1e-5)
    (layer,) = (each for each in run.stage if isinstance(each, Streamed))
    assert len(layer.segment_seconds) == [4, 3][comm.rank]
    # The ranks have chosen, each for its own layer, what the others need not know.
    layer.W.trial.choose([5, 10][comm.rank])
    save_snapshot(folder, run.pipe, run.optimizer)
    wanted = run.steps(3, 1)
    # Where layers have no segments, or others, nothing is left over.
    for each in (other, fixed, resident):
        load_snapshot(folder, each.pipe, each.optimizer)
        found = each.steps(3, 1)
        np.testing.assert_allclose(found, wanted, rtol=1e-5)
        if each is other:
            assert found == wanted
    (layer,) = (each for each in other.stage if isinstance(each, Streamed))
    assert layer.segment == [5, 10][comm.rank] and not layer.segment_seconds


def test_segments_that_were_chosen_are_in_the_snapshot(tmp_path):
    assert_on_ranks(2, chooses, str(tmp_path))


class Replica:
    """A replica of a pipeline, whose model begins with an embedding."""

    def __init__(self, comm, n_pipeline, streamed, make, **options):
        self.grid = Grid(comm, n_pipeline)
        with deferred_init(seed=1):
            words, layer = L.EmbedID(40, 8), L.Linear(24, 10)
            if streamed:
                words = Streamed(words, segment=9)
            if streamed == 1:
                layer = Streamed(layer, segment=3)
            model = Divisible(words, layer, F.tanh, L.Linear(10, 5))
        cuts = [0, 4] if n_pipeline == 1 else [0, 1, 4]
        rank = self.grid.pipeline.rank
        self.stage = model.divide(*cuts[rank : rank + 2])
        if streamed and self.grid.replica:
            for param in self.stage.params():
                param.array[...] = 0
        self.pipe = Pipeline(self.stage, self.grid, n_microbatches=2)
        self.optimizer = create_multi_node_optimizer(
            make(), self.grid.data, pipeline=self.pipe, **options
        ).setup(self.stage)

    def losses(self, seed, n=4):
        random, found = np.random.RandomState(seed), []
        for _ in range(n):
            x = random.randint(0, 40, (8, 3)).astype("i")
            t = random.randint(0, 5, 8).astype("i")
            half = slice(0, 5) if self.grid.replica else slice(5, 8)
            found.append(self.pipe.step(x[half], t[half])["loss"])
            self.optimizer.update()
        return found


OPTIMIZERS = {
    "sgd": lambda: chainer.optimizers.SGD(0.1),
    "adam": chainer.optimizers.Adam,
}


def replicates(comm, n_pipeline, name, folder):
    resident, streamed, other = (
        Replica(comm, n_pipeline, each, OPTIMIZERS[name]) for each in (0, 1, 1)
    )
    np.testing.assert_allclose(streamed.losses(0), resident.losses(0), rtol=1e-5)
    save_snapshot(folder, streamed.pipe, streamed.optimizer)
    load_snapshot(folder, other.pipe, other.optimizer)
    assert other.losses(1) == streamed.losses(1)
    for mine in streamed.stage.params():
        assert np.abs(mine.array).max() > 0
        np.testing.assert_array_equal(streamed.grid.data.bcast(mine.array), mine.array)
    resident.losses(1)
    for run in (streamed, other):
        for mine, theirs in zip(run.stage.params(), resident.stage.params()):
            np.testing.assert_allclose(mine.array, theirs.array, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("n_ranks, n_pipeline, name", [(2, 1, "sgd"), (4, 2, "adam")])
def test_replicas_exchange_gradients_where_they_lie(
    tmp_path, n_ranks, n_pipeline, name
):
    folder = str(tmp_path / "a")
    assert_on_ranks(n_ranks, replicates, n_pipeline, name, folder)


COPYING = (
    {"double_buffering": True},
    {"error_feedback": True},
    {"overlap": True},
    {"strategy": "oyama2017", "exchange_dtype": "fp8"},
)


def refuses(comm):
    """Where one replica alone streams a layer, all refuse before any gradient."""
    adam = chainer.optimizers.Adam
    for copying in COPYING:
        multi = create_multi_node_optimizer(adam(), comm, **copying)
        stage = model_of(None if comm.rank else 7).divide()
        multi.setup(stage)
        before = [param.array.copy() for param in stage.params()]
        error = DisagreementError if comm.rank else ValueError
        words = ["^", "rank 0: "][comm.rank] + "/0/W is streamed .* keeps a copy of"
        with pytest.raises(error, match=words):
            multi.update()
        for param, array in zip(stage.params(), before):
            np.testing.assert_array_equal(param.array, array)
        # The next one is none the worse.
        multi.setup(model_of(None).divide())
        assert not multi.refusal
        multi.close()


def refuses_in_pipelines(comm):
    """Also the ranks whose stage streams nothing refuse, before the first message."""
    with pytest.raises((ValueError, DisagreementError)) as caught:
        run = Replica(
            comm, 2, "words", chainer.optimizers.SGD, exchange_dtype="int8", minimum=0,
            local_size=1, error_feedback=True,
        )  # fmt: skip
        run.losses(0, 1)
    assert "W is streamed from disk, and error_feedback=True keeps" in str(caught.value)
    run = Replica(comm, 2, False, chainer.optimizers.SGD, double_buffering=True)
    if run.grid.pipeline.rank == 0:
        # Set up anew, later, with what one rank streams alone.
        run.optimizer.refusal = "its stage has changed"
    with pytest.raises((ValueError, DisagreementError), match="its stage has changed"):
        run.losses(0, 1)


def moves(comm):
    run, other = Run(comm, 7, "1f1b"), Run(comm, 7, "1f1b")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mapped, "_PART", 1000)
        for number, cuts in enumerate(([0, 3, 5], [0, 1, 5], [0, 2, 5])):
            assert run.steps(2, number) == other.steps(2, number)
            # Of 40 and 30 rows of 50 and 40 numbers, and the same of Adam's state.
            moved = rebalance(run.pipe, run.optimizer, cuts, lambda: model_of(7))
            n_elements = [1200 + 30, 1200 + 30, 0][number]
            assert 12 * n_elements <= moved.bytes <= 12 * n_elements + 5000
            for param in run.stage.params():
                state = param.update_rule.state.values()
                on_disk = {mapped.mapped_array(x) is not None for x in state}
                assert on_disk == {getattr(param, "is_streamed", False)}
    assert run.steps(2, 5) == other.steps(2, 5)


def test_layers_move_from_disk_to_disk():
    assert_on_ranks(2, moves)


def streams_what_does_not_fit(comm):
    def model():
        with deferred_init(seed=0):
            widths = (1100, 1300, 1300, 5)
            links = map(L.Linear, widths, widths[1:])
            return Divisible(*links)

    def losses(model):
        stage = model.divide(*plan.cuts[comm.rank : comm.rank + 2])
        optimizer = chainer.optimizers.MomentumSGD(0.01).setup(stage)
        pipe, found = Pipeline(stage, comm, n_microbatches=2), []
        random = np.random.RandomState(0)
        for _ in range(3):
            x = random.randn(8, 1100).astype("f")
            found.append(pipe.step(x, np.arange(8, dtype="i") % 5)["loss"])
            optimizer.update()
        return found, stage

    streamed = model()
    plan = Plan([0, 1, 3], n_microbatches=2, schedule="1f1b")
    rule = chainer.optimizers.MomentumSGD()
    memory = [10**9, 2**24 + 2**20]
    report = stream(streamed, memory=memory, plan=plan, optimizer=rule, show=False)
    assert report.streamed == (1,)
    found, stage = losses(streamed)
    assert [type(layer) is Streamed for layer in stage] == [[False], [True, False]][
        comm.rank
    ]
    np.testing.assert_allclose(found, losses(model())[0], rtol=1e-5)


def test_each_rank_streams_what_does_not_fit():
    assert_on_ranks(2, streams_what_does_not_fit)


def fills(comm, folder):
    run, other = (Run(comm, 7, "1f1b") for _ in range(2))
    run.steps(2, 0)
    save_snapshot(folder, run.pipe, run.optimizer)
    if comm.rank == 0:
        print("then", [loss.hex() for loss in run.steps(2, 1)], flush=True)
    else:
        run.steps(2, 1)

    def full(descriptor, start, n_bytes):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    # The other one's gradients have no files yet.
    with pytest.MonkeyPatch.context() as patch:
        if comm.rank == 1:
            patch.setattr(os, "posix_fallocate", full)
        other.steps(1, 0)


def resumes(comm, folder):
    run = Run(comm, 7, "1f1b")
    load_snapshot(folder, run.pipe, run.optimizer)
    losses = run.steps(2, 1)
    if comm.rank == 0:
        print("then", [loss.hex() for loss in losses], flush=True)


def test_a_disk_that_fills_ends_the_run_and_its_snapshot_loads(tmp_path):
    output = refused_on_ranks(2, fills, str(tmp_path)).output
    words = r"/2/W, Linear\(30, 40\), gradient: .* 4800 bytes .* \(ENOSPC\).* free some"
    assert re.search(words, output), output
    assert "with the layers 2 to 4" in output
    (wanted,) = re.findall(r"then \[.*\]", output)
    assert wanted in assert_on_ranks(2, resumes, str(tmp_path))


def test_what_takes_whole_arrays_is_refused():
    assert_on_ranks(2, refuses)


def test_what_takes_whole_arrays_is_refused_by_all_ranks_of_a_grid():
    assert_on_ranks(4, refuses_in_pipelines)


def moves_in_float16(comm):
    def build():
        with deferred_init(seed=0):
            streamed = Streamed(L.Linear(4, 5, nobias=True), segment=2)
            return Divisible(L.Linear(3, 4), streamed, F.relu, L.Linear(5, 4))

    def run(build_again):
        stage = to_float16(build().divide(*[0, 1, 4][comm.rank : comm.rank + 2]))
        optimizer = MixedPrecision(
            chainer.optimizers.SGD(0.1), loss_scale=128, comm=comm
        ).setup(stage)
        random, losses = np.random.RandomState(0), []
        with Pipeline(
            stage, comm, n_microbatches=2, loss_scale=optimizer.loss_scale
        ) as pipe:
            for step in range(4):
                x = random.normal(size=(8, 3)).astype("f")
                t = random.randint(0, 4, 8).astype("i")
                losses.append(pipe.step(x, t)["loss"])
                optimizer.update()
                if build_again is not None and step < 2:
                    cuts = [[0, 3, 4], [0, 1, 4]][step]
                    rebalance(pipe, optimizer, cuts, build_again)
        for position, layer in enumerate(stage, stage.layer_range[0]):
            assert position != 1 or layer.output_dtype == "float16"
        return losses

    stayed = run(None)
    for build_again in build, lambda: to_float16(build()):
        assert run(build_again) == stayed


def test_streamed_layers_in_float16_move_whatever_the_dtype_they_are_built_in():
    assert_on_ranks(2, moves_in_float16)


def breaks(comm, folder):
    """A disk that does not take what an update has written, on rank 1."""
    run, twin = (Run(comm, 7, "1f1b") for _ in range(2))
    for each in run, twin:
        each.steps(2, 0)
    save_snapshot(folder, run.pipe, run.optimizer)
    expected = twin.steps(2, 1)

    def broken(file, first, last, wait):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def release(array, start, stop, written):
        # Without looking whether the rows have pages of their own.
        array._map.write_back(start, stop, wait=False)

    x, t = np.ones((14, 50), "f"), np.zeros(14, "i")
    run.pipe.step(x, t)
    with pytest.MonkeyPatch.context() as patch:
        if comm.rank == 1:
            patch.setattr(mapped._File, "_write_back", broken)
            patch.setattr(mapped.MappedArray, "release", release)
            words = r"/2/W, Linear\(30, 40\), .* bytes of the file in /.* \(EIO\)"
            with pytest.raises(StoreError, match=words):
                run.optimizer.update()
        else:
            run.optimizer.update()
    if comm.rank == 1:
        uses = [
            lambda: run.pipe.step(x, t),
            lambda: run.pipe.evaluate(x, t),
            lambda: save_snapshot(f"{folder}/half", run.pipe, run.optimizer),
            lambda: run.stage(np.ones((1, 40), "f")),
            run.optimizer.update,
        ]
        for use in uses:
            with pytest.raises(StoreError, match="/2/W, .* has failed, .* load a snap"):
                use()
    assert not os.path.exists(f"{folder}/half")
    load_snapshot(folder, run.pipe, run.optimizer)
    assert run.steps(2, 1) == expected


def test_a_model_whose_update_failed_is_used_only_after_a_load(tmp_path):
    assert_on_ranks(2, breaks, str(tmp_path / "a"))

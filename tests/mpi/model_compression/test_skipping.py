"""Ranks that measure differently skip the same blocks, and train as one rank."""

import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer.optimizers import MomentumSGD
from mpi4py import MPI

from chainer_kernels import block_choice
from data_parallel import Grid, create_multi_node_optimizer
from divisible import Divisible, Plan
from model_compression import Compress, CompressionPlan, Prune, block_report
from pipeline import Pipeline, load_snapshot, rebalance, save_snapshot
from tests.support.equivalence import assert_close, make_batches
from tests.support.matrix import matrix
from tests.support.mpiexec import assert_on_ranks

RULE = Prune("l2", layers=["/0", "/2"], to=0.5, granularity=(8, 8), skip_blocks=True)
PLAN = CompressionPlan([RULE])
BATCHES = make_batches([8] * 8, n_in=16, n_classes=9)


def build():
    np.random.seed(3)
    return Divisible(
        L.Linear(16, 24), F.relu, L.Linear(24, 16), F.relu, L.Linear(16, 9)
    )


class Run:
    """A pipeline that prunes, and skips blocks where a rank is told it is faster."""

    def __init__(self, comm, cuts, grid=None):
        where = comm if grid is None else grid.pipeline
        self.stage = build().divide(*Plan(cuts).range(where.rank))
        optimizer = MomentumSGD(0.05)
        if grid is not None:
            optimizer = create_multi_node_optimizer(optimizer, grid.data)
        self.optimizer = optimizer.setup(self.stage)
        self.pipe = Pipeline(
            self.stage,
            comm if grid is None else grid,
            n_microbatches=2,
            lossfun=F.softmax_cross_entropy,
            timeout=30,
        )
        self.compress = Compress(PLAN, self.optimizer, pipeline=self.pipe)

    def train(self, start, end):
        for iteration in range(start, end):
            self.pipe.step(*BATCHES[iteration])
            self.optimizer.update()
            self.compress.advance(iteration + 1, 0.0)
        return self

    def gathered(self, mine):
        return self.pipe.internals.gather(mine, "compress")

    def weights(self):
        """The parameters of all stages, of which replicas have the same bits."""
        found = {}
        here = {path: param.array for path, param in self.stage.namedparams()}
        for theirs in self.gathered(here):
            for path, array in theirs.items():
                np.testing.assert_array_equal(found.setdefault(path, array), array)
        return found


def told(is_faster):
    return lambda layer, W, shape: block_choice.BlockChoice(shape, 1.0, 1.5 - is_faster)


def skips_alike(comm, cuts, n_pipeline, folder):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_choice, "measured", told(False))
        if comm.rank == 0:
            dense = Run(MPI.COMM_SELF, [0, 5])
            with dense.pipe:
                expected = dense.train(0, 8).weights()
        patch.setattr(block_choice, "measured", told(comm.rank == 0))
        grid = None if n_pipeline is None else Grid(comm, n_pipeline=n_pipeline)
        run = Run(comm, cuts, grid)
        with run.pipe:
            run.train(0, 5)
            state = {"compress": run.compress}
            save_snapshot(folder, run.pipe, [run.optimizer], state=state)
            found = run.train(5, 8).weights()
            reports = run.gathered(block_report(run.stage))
        again = Run(comm, cuts, grid)
        with again.pipe:
            state = {"compress": again.compress}
            load_snapshot(folder, again.pipe, [again.optimizer], state=state)
            resumed = again.train(5, 8).weights()
    words = {line[:10] for each in reports for line in each.splitlines()}
    if n_pipeline is None:
        # Each rank has measured a layer of its own.
        assert words == {"/0: skips ", "/2: comput"}
    else:
        assert words == {"/0: skips ", "/2: skips "}
    for path, array in found.items():
        np.testing.assert_array_equal(array, resumed[path], err_msg=path)
        if comm.rank == 0:
            np.testing.assert_array_equal(array == 0, expected[path] == 0)
            assert_close(array, expected[path], atol=1e-6, what=path)


@pytest.mark.parametrize("cuts, n_pipeline", [([0, 2, 5], None), ([0, 5], 1)])
def test_ranks_that_measure_differently_skip_alike(cuts, n_pipeline, tmp_path):
    assert_on_ranks(2, skips_alike, cuts, n_pipeline, str(tmp_path / "snapshot"))


def goes_on_at_another_cut(comm, moment, folder):
    def ended(run):
        found = {}
        for stage in run.pipe.stages.values():
            found.update({path: p.array for path, p in stage.namedparams()})
        reports = [block_report(stage) for stage in run.pipe.stages.values()]
        texts = [text for theirs in run.gathered(reports) for text in theirs]
        lines = "\n".join(texts).splitlines()
        return found, {line[:10] for line in lines if line}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_choice, "measured", told(True))
        straight = Run(comm, [0, 2, 5])
        with straight.pipe:
            straight.train(0, 6)
            expected = straight.weights()
        run = Run(comm, [0, 2, 5])
        with run.pipe:
            run.train(0, moment)
            state = {"compress": run.compress}
            save_snapshot(folder, run.pipe, [run.optimizer], state=state)
            cuts = [0, 3, 5]
            rebalance(run.pipe, [run.optimizer], cuts, lambda: PLAN.prepare(build()))
            moved = ended(run.train(moment, 6))
        again = Run(comm, [0, 3, 5])
        with again.pipe:
            state = {"compress": again.compress}
            load_snapshot(folder, again.pipe, [again.optimizer], state=state)
            resumed = ended(again.train(moment, 6))
    for found, lines in (moved, resumed):
        assert lines == {"/0: skips ", "/2: skips "}
        for path, array in found.items():
            np.testing.assert_array_equal(array, expected[path], err_msg=path)


@pytest.mark.parametrize("moment", [4, *matrix(1)])
def test_layers_that_skip_blocks_go_on_at_another_cut(moment, tmp_path):
    assert_on_ranks(2, goes_on_at_another_cut, moment, str(tmp_path / "snapshot"))

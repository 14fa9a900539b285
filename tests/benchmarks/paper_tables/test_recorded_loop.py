"""The paper's loop trains as without its record, and the record is complete."""

import chainer
import chainermn
import numpy as np

from benchmarks.common.perceptron import cut, mlp, paper_loop
from benchmarks.paper_tables.recorded_loop import RecordedLoop
from divisible.schedules.generators import gpipe
from tests.support.mpiexec import assert_on_ranks

BATCH, UNITS, N_MICROBATCHES = 6, 8, 3


def stage_and_optimizer(comm):
    np.random.seed(comm.rank)
    stage = cut(mlp(UNITS, 4), comm.size, comm.rank)
    return stage, chainer.optimizers.SGD(0.1).setup(stage)


def trains_alike(comm):
    x = np.random.RandomState(1).randn(BATCH, UNITS).astype(np.float32)
    t = np.arange(BATCH, dtype=np.int32)
    stage, optimizer = stage_and_optimizer(comm)
    loop = RecordedLoop(comm, stage, N_MICROBATCHES)
    plain, plain_optimizer = stage_and_optimizer(comm)
    backward = chainer.Variable.backward
    for _ in range(2):
        # The first forward draws the weights of all layers but the last one.
        np.random.seed(comm.rank)
        stage.cleargrads()
        loop.step(x, t, optimizer.update)
        np.random.seed(comm.rank)
        plain.cleargrads()
        paper_loop().train_minibatch(
            chainermn.create_communicator("naive", comm),
            *(plain, x, t, BATCH, BATCH // N_MICROBATCHES),
        )
        plain_optimizer.update()
    assert chainer.Variable.backward is backward
    for one, other in zip(stage.params(), plain.params()):
        np.testing.assert_array_equal(one.array, other.array)
    check_record(loop.timeline())


def check_record(timeline):
    assert timeline.start.min() == 0
    actions = gpipe(timeline.n_ranks, N_MICROBATCHES).actions
    for rank in range(timeline.n_ranks):
        events = timeline.rank_events(rank)
        by_category = {}
        for event in events:
            by_category.setdefault(event.category, []).append(str(event.what))
        assert by_category["F"] + by_category["B"] == [str(a) for a in actions[rank]]
        assert by_category["update"] == ["update"] == [events[-1].what]
        assert all(a.end <= b.start for a, b in zip(events, events[1:]))
        neighbours = (rank > 0) + (rank < timeline.n_ranks - 1)
        for category in ("send", "wait"):
            found = by_category.get(category, [])
            assert len(found) == len(set(found)) == neighbours * N_MICROBATCHES
        if rank:
            assert f"{rank - 1}F0<{rank - 1}" in by_category["wait"]
            assert f"{rank}B0>{rank - 1}" in by_category["send"]


def test_two_ranks():
    assert_on_ranks(2, trains_alike)


def test_one_rank():
    assert_on_ranks(1, trains_alike)

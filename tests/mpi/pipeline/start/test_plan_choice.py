"""Ranks that measure and plan together: ``plan='auto'``."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np

from data_parallel import Grid
from divisible import Divisible, Machine, Plan, deferred_init
from divisible.deferred.array import DeferredArray
from divisible.streaming import Streamed
from pipeline import Pipeline
from tests.support.equivalence import assert_close
from tests.support.mpiexec import assert_on_ranks
from tests.support.planned_runs import make_minibatch, make_model, serial_losses

TIMEOUT = 60
#: Options of a pipeline that leave few plans to choose from.
FEW = {"schedule": "1f1b", "recompute": "never", "weight_groups": 1}


def train(pipe, n_samples=16):
    optimizer = pipe.setup(chainer.optimizers.MomentumSGD(0.1))
    losses = []
    for _ in range(2):
        batch = pipe.my_part(*make_minibatch(n_samples))
        losses.append(pipe.step(*batch)["loss"])
        optimizer.update()
    return losses


def chooses_a_plan(comm, directory):
    """Rank 0 alone has data; the others take its plan, and make their own layers."""
    x, t = make_minibatch(16)
    first = {"x": x, "t": t} if comm.rank == 0 else {}
    model = make_model()
    pipe = Pipeline(
        model, comm, plan="auto", directory=directory, timeout=TIMEOUT, **first
    )
    plans = comm.allgather(pipe.plan)
    assert all(plan == plans[0] for plan in plans)
    assert pipe.plan.n_ranks == comm.size and pipe.plan.conditions.batch == 16
    assert pipe.plan.conditions.machine.memory is not None
    assert np.isfinite(pipe.plan.conditions.machine.network.bandwidth).all()
    others = set(range(6)).difference(
        *(range(*s.layer_range) for s in pipe.stages.values())
    )
    for position in others:
        if isinstance(model[position], L.Linear):
            assert isinstance(model[position].W.array, DeferredArray)
    assert_close(train(pipe), serial_losses(6, 16), rtol=1e-5)
    pipe.close()

    # A resumed run takes the same, without data; what is given besides wins.
    with Pipeline(make_model(), comm, plan="auto", directory=directory) as again:
        assert again.plan == plans[0]
    # On other ranks it is another run.
    alone = comm.Split(comm.rank)
    if comm.rank == 0:
        arguments = {"x": x, "t": t, "machine": Machine(1), **FEW}
        with Pipeline(
            make_model(), alone, plan="auto", directory=directory, **arguments
        ) as other:
            assert other.plan.cuts == [0, 6]
    comm.Barrier()


def test_chooses_a_plan(tmp_path):
    output = assert_on_ranks(2, chooses_a_plan, str(tmp_path))
    path = tmp_path / "plan.json"
    lines = [line for line in output.splitlines() if line.strip()]
    assert sum(line.startswith("plan='auto': rank 0 measured") for line in lines) == 2
    assert f"plan='auto': as in {path}: " in output
    assert "is for 2 ranks, but there are 1" in output
    assert Plan.load(path).n_ranks == 1


def keeps_a_grid(comm):
    x, t = make_minibatch(16)
    given = {"x": x, "t": t, "machine": Machine(4), "n_microbatches": 2, **FEW}
    with (
        Grid(comm, 2) as grid,
        Pipeline(make_model(), grid, plan="auto", timeout=TIMEOUT, **given) as pipe,
    ):
        assert (pipe.plan.replicas, pipe.plan.n_microbatches) == (2, 2)
        assert_close(train(pipe), serial_losses(6, 16), rtol=1e-5)


def test_keeps_a_grid():
    assert_on_ranks(4, keeps_a_grid)


def large_model():
    with deferred_init(0):
        return Divisible(*[L.Linear(1000, 1000) for _ in range(3)], L.Linear(1000, 9))


def streams_without_being_told(comm):
    """On hosts that are too small."""
    x = np.ones((4, 1000), np.float32)
    t = np.zeros(4, np.int32)
    given = {"x": x, "t": t, "machine": Machine(2, memory=2.6e7), **FEW}
    with Pipeline(large_model(), comm, plan="auto", timeout=TIMEOUT, **given) as pipe:
        streamed = [
            position
            for stage in pipe.stages.values()
            for position, layer in enumerate(stage, stage.layer_range[0])
            if isinstance(layer, Streamed)
        ]
        assert sorted(sum(comm.allgather(streamed), [])) == list(pipe.plan.streamed)
        assert pipe.plan.streamed
        loss = pipe.step(x, t)["loss"]
    serial = large_model().divide()
    expected = float(F.softmax_cross_entropy(serial(x), t).array)
    assert_close(loss, expected, rtol=1e-5)


def test_streams_without_being_told():
    output = assert_on_ranks(2, streams_without_being_told)
    assert "as memory alone does not suffice" in output

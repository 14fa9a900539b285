"""Gradients of several steps before an update."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from mpi4py import MPI

from data_parallel import Grid
from divisible import Divisible, Plan
from mixed_precision import MixedPrecision, to_float16
from pipeline import DisagreementError, Pipeline
from tests.support.equivalence import assert_close, make_batches
from tests.support.mpiexec import assert_on_ranks, refused_on_ranks

PARTS = make_batches([8, 5, 3, 6, 6, 2])


def build():
    np.random.seed(3)
    model = Divisible(L.Linear(6, 6), F.tanh, L.Linear(6, 6), F.tanh, L.Linear(6, 4))
    model.tie("/0/W", "/2/W")
    return model


def serially():
    model = build()
    optimizer = chainer.optimizers.MomentumSGD(0.05).setup(model)
    losses = []
    for number, (x, t) in enumerate(PARTS):
        if number % 3 == 0:
            model.cleargrads()
        loss = F.softmax_cross_entropy(model(x), t)
        loss.backward()
        losses.append(float(loss.array))
        if number % 3 == 2:
            optimizer.update()
    return losses, {path: param.array for path, param in model.namedparams()}


def accumulates(comm, schedule, is_half, overlap):
    expected, params = serially()
    n_stages = comm.size * (2 if schedule == "zb_v" else 1)
    cuts = Plan.uniform(5, n_stages).cuts if n_stages < 5 else [0, 1, 2, 3, 5]
    optimizer = chainer.optimizers.MomentumSGD(0.05)
    options = {"overlap_minibatches": overlap}
    model = build()
    if is_half:
        model = to_float16(model)
        optimizer = MixedPrecision(optimizer, loss_scale=64, comm=comm)
        options["loss_scale"] = optimizer.loss_scale
    plan = Plan(cuts, 3, schedule, stages_per_rank=n_stages // comm.size)
    with Pipeline(model, comm, plan=plan, timeout=30, **options) as pipe:
        optimizer = pipe.setup(optimizer)
        losses = []
        for number, (x, t) in enumerate(PARTS):
            losses.append(pipe.step(x, t, accumulate=number % 3 > 0)["loss"])
            if number % 3 == 2:
                optimizer.update()
        pipe.confirm_update()
        tolerance = 2e-2 if is_half else 1e-5
        assert_close(losses, expected, rtol=tolerance)
        for stage in pipe.stages.values():
            for path, param in stage.namedparams():
                assert_close(param.array, params[path], tolerance, tolerance, path)


@pytest.mark.parametrize(
    "n, schedule, is_half, overlap",
    [
        (1, "gpipe", False, "auto"),
        (2, "1f1b", False, "auto"),
        (2, "zb_v", False, False),
        (3, "zb_h1", True, "auto"),
    ],
)
def test_as_a_serial_script_without_cleargrads(n, schedule, is_half, overlap):
    assert_on_ranks(n, accumulates, schedule, is_half, overlap)


class LearnedLoss(chainer.Chain):
    """A loss with parameters."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.last = L.Linear(4, 4, initialW=np.eye(4, dtype=np.float32))

    def forward(self, y, t):
        return F.softmax_cross_entropy(self.last(y), t)


def test_gradients_of_a_loss_accumulate():
    model, serial, loss, own = build(), build(), LearnedLoss(), LearnedLoss()
    own.cleargrads()
    with Pipeline(model, MPI.COMM_SELF, n_microbatches=2, lossfun=loss) as pipe:
        for number, (x, t) in enumerate(PARTS[:3]):
            pipe.step(x, t, accumulate=number > 0)
            own(serial(x), t).backward()
    for path, param in own.namedparams():
        assert_close(dict(loss.namedparams())[path].grad, param.grad, 1e-5, 1e-6, path)


def is_refused(comm):
    stage = Divisible(L.Linear(6, 6), L.Linear(6, 4)).divide(comm.rank, comm.rank + 1)
    with Pipeline(stage, comm, n_microbatches=2, timeout=30) as pipe:
        with pytest.raises(ValueError, match="adds to the gradients of the step befo"):
            pipe.step(*PARTS[0], accumulate=True)
        pipe.step(*PARTS[0])
        pipe.step(*PARTS[0], accumulate=True)
    with Grid(comm, 1) as grid:
        model = Divisible(L.Linear(6, 4))
        with Pipeline(model, grid, n_microbatches=1, timeout=30) as pipe:
            pipe.step(*PARTS[0])
            with pytest.raises(
                ValueError, match=r"accumulate=True\) does not.*replica"
            ):
                pipe.step(*PARTS[0], accumulate=True)


def test_what_is_refused():
    assert_on_ranks(2, is_refused)


def one_rank_accumulates(comm):
    stage = Divisible(L.Linear(6, 6), L.Linear(6, 4)).divide(comm.rank, comm.rank + 1)
    pipe = Pipeline(stage, comm, n_microbatches=2, timeout=60)
    pipe.step(*PARTS[0])
    try:
        pipe.step(*PARTS[0], accumulate=comm.rank == 1)
    except DisagreementError as error:
        assert "step(accumulate=True)" in str(error)
        raise


def test_ranks_that_disagree_are_told():
    _, output = refused_on_ranks(2, one_rank_accumulates)
    assert "some ranks call step and others step(accumulate=True)" in output

"""One optimizer for all stages of a rank, as the plan of their pipeline wants it."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from data_parallel import Grid, MultiNodeOptimizer, create_multi_node_optimizer
from divisible import Plan, from_chain
from mixed_precision import MixedPrecision
from pipeline import Pipeline
from tests.support.equivalence import assert_close
from tests.support.mpiexec import assert_on_ranks
from tests.support.planned_runs import make_minibatch, make_model, serial_losses


def one_for_all_stages(comm):
    """With a hook that looks at the whole model, as in serial training."""
    plan = Plan([0, 1, 3, 5, 6], 2, "zb_v", stages_per_rank=2)
    clipping = chainer.optimizer_hooks.GradientClipping(0.05)
    with Pipeline(make_model(), comm, plan=plan, timeout=20) as pipe:
        sgd = chainer.optimizers.MomentumSGD(0.1)
        optimizer = pipe.setup(sgd)
        assert optimizer is sgd
        optimizer.add_hook(clipping)
        params = {id(p) for stage in pipe.stages.values() for p in stage.params()}
        assert {id(p) for p in optimizer.target.params()} == params
        x, t = make_minibatch(8)
        for _ in range(3):
            loss = pipe.step(x, t)["loss"]
            optimizer.update()
    serial = make_model().divide()
    expected = chainer.optimizers.MomentumSGD(0.1).setup(serial)
    expected.add_hook(clipping)
    for _ in range(3):
        wanted = chainer.functions.softmax_cross_entropy(serial(x), t)
        expected.update(lambda y=wanted: y)
    assert_close(loss, float(wanted.array), rtol=1e-5)


def test_one_for_all_stages():
    assert_on_ranks(2, one_for_all_stages)


def one_that_exchanges(comm):
    """An exchange of the user's own stays, whatever the plan says."""
    plan = Plan(
        [0, 6], 2, "1f1b", replicas=2, exchange_dtype="int8", error_feedback=True
    )
    with Grid(comm, 1) as grid:
        pipe = Pipeline(make_model(), grid, plan=plan, timeout=20)
        own = create_multi_node_optimizer(
            chainer.optimizers.SGD(0.1), grid.data, pipeline=pipe, exchange_dtype="fp16"
        )
        assert pipe.setup(own) is own
        by_plan = pipe.setup(chainer.optimizers.SGD(0.1))
        assert isinstance(by_plan, MultiNodeOptimizer)
        pipe.step(*pipe.my_part(*make_minibatch(8)))
        by_plan.update()
        pipe.close()


def test_one_that_exchanges():
    assert_on_ranks(2, one_that_exchanges)


def stage_alone(comm):
    """Without replicas it is the user's own, set up with the stage."""
    with Pipeline(make_model(), comm, n_microbatches=2, timeout=20) as pipe:
        (stage,) = pipe.stages.values()
        mixed = MixedPrecision(chainer.optimizers.SGD(0.1), comm=comm)
        assert pipe.setup(mixed) is mixed and mixed.target is stage
        optimizer = pipe.setup(chainer.optimizers.MomentumSGD(0.1))
        losses = []
        for _ in range(2):
            losses.append(pipe.step(*make_minibatch(8))["loss"])
            optimizer.update()
        for wrong, words in (
            ([optimizer], "one optimizer"),
            (np.ones(2), r"such as Adam\(\), not ndarray"),
            (chainer.optimizers.SGD, "not the class SGD"),
        ):
            with pytest.raises(TypeError, match=words):
                pipe.setup(wrong)
        optimizer.add_hook(chainer.optimizer_hooks.WeightDecay(0.1))
        with pytest.raises(ValueError, match="has the hooks WeightDecay, which setup"):
            pipe.setup(optimizer)
    assert_close(losses, serial_losses(6, 8), rtol=1e-5)


def test_a_stage_alone():
    assert_on_ranks(2, stage_alone)


class Net(chainer.Chain):
    def __init__(self):
        super().__init__(a=L.Linear(6, 9), b=L.Linear(9, 9), c=L.Linear(9, 4))

    def forward(self, x):
        return self.c(F.tanh(self.b(F.tanh(self.a(x)))))


def set_up_with_a_chain():
    """A classifier and its optimizer, which has hooks; one layer is frozen."""
    np.random.seed(0)
    model = L.Classifier(Net())
    optimizer = chainer.optimizers.MomentumSGD(0.1).setup(model)
    optimizer.add_hook(chainer.optimizer_hooks.WeightDecay(0.1))
    optimizer.add_hook(chainer.optimizer_hooks.GradientClipping(0.05))
    model.predictor.b.disable_update()
    return model, optimizer


def keeps_its_hooks(comm):
    x = np.random.RandomState(1).rand(8, 6).astype(np.float32)
    t = np.arange(8, dtype=np.int32) % 4
    model, optimizer = set_up_with_a_chain()
    expected = []
    for _ in range(3):
        optimizer.update(model, x, t)
        expected.append(float(model.loss.array))
    model, optimizer = set_up_with_a_chain()
    layers = from_chain(model.predictor, x)
    with Pipeline(layers, comm, n_microbatches=2, timeout=20) as pipe:
        assert pipe.setup(optimizer) is optimizer
        (stage,) = pipe.stages.values()
        assert optimizer.target is stage
        losses = []
        for _ in range(3):
            losses.append(pipe.step(x, t)["loss"])
            optimizer.update()
    assert_close(losses, expected, rtol=1e-5)


def test_an_optimizer_that_was_set_up_with_the_chain_keeps_its_hooks():
    assert_on_ranks(2, keeps_its_hooks)

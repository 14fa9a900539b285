"""What one rank sees alone."""

import chainer
import chainer.functions as F
import numpy as np
import pytest

from heterogeneous.arguments import check_optimizer, check_targets, name_of
from mixed_precision import LARS, LARSHook


def test_labels_of_samples_that_losses_leave_out_are_refused():
    check_targets(np.array([0, 2, 1]), 3, None)
    with pytest.raises(ValueError, match="t has negative labels"):
        check_targets(np.array([0, -1, 1]), 3, None)
    # Of a regression.
    check_targets(np.array([0.0, -1.0, 1.0]), 3, None)


class Model(chainer.Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.W = chainer.Parameter(np.zeros((2, 3), "f"))


def test_hooks_of_single_parameters_count():
    model = Model()
    optimizer = chainer.optimizers.SGD().setup(model)
    optimizer.add_hook(chainer.optimizer_hooks.WeightDecay(0.1))
    optimizer.add_hook(chainer.optimizer_hooks.GradientHardClipping(-1, 1))
    check_optimizer(optimizer, model)
    model.W.update_rule.add_hook(chainer.optimizer_hooks.GradientLARS())
    with pytest.raises(ValueError, match="the hook GradientLARS would change"):
        check_optimizer(optimizer, model)


@pytest.mark.parametrize("kind", ["hook", "hook of a rule", "rule"])
def test_layer_wise_rates_are_refused(kind):
    model = Model()
    if kind == "rule":
        optimizer = LARS(0.1).setup(model)
    else:
        optimizer = chainer.optimizers.MomentumSGD(0.1).setup(model)
        check_optimizer(optimizer, model)
        owner = optimizer if kind == "hook" else model.W.update_rule
        owner.add_hook(LARSHook())
    with pytest.raises(ValueError, match="LARS.* would change the copies of a hidden"):
        check_optimizer(optimizer, model)


@pytest.mark.parametrize("name", ["SGD", "Adam", "MSVAG", "AMSGrad"])
def test_what_treats_each_element_by_itself_is_accepted(name):
    class Mine(chainer.UpdateRule):
        """A rule of a script that knows of no mark."""

    model = Model()
    optimizer = getattr(chainer.optimizers, name)().setup(model)
    check_optimizer(optimizer, model)
    model.W.update_rule = Mine()
    check_optimizer(optimizer, model)


def test_functions_are_compared_by_name():
    assert name_of(F.sigmoid) == "sigmoid"
    assert name_of(Model()) == "Model"

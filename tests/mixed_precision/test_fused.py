"""The catalogue of kernels: of which rules, and used where they are."""

import pathlib

import chainer
import numpy as np
import pytest
from chainer import optimizer_hooks as hooks
from chainer import optimizers

from chainer_kernels import formulas
from mixed_precision import MixedPrecision, MomentumSGD16, fused, to_float16
from tests.support.mixed_precision import OPTIMIZERS

HOWTO = pathlib.Path(__file__).parents[2] / "docs" / "howto" / "mixed_precision.rst"


def rule_of(make_optimizer):
    return make_optimizer().create_update_rule()


def test_every_kernel_is_compared_with_its_rule():
    """By test_every_optimizer of test_step, and for ours by its own tests."""
    compared = {type(rule_of(make)) for make in [*OPTIMIZERS, MomentumSGD16]}
    assert fused.KERNELS.keys() <= compared


@pytest.mark.parametrize("rule", fused.KERNELS)
def test_every_kernel_is_in_the_documentation(rule):
    optimizer = rule.__name__.removesuffix("Rule")
    section = HOWTO.read_text().split("Update rules with a kernel\n")[1]
    assert f"\n``{optimizer}``\n    " in section.split("\nSaving\n")[0]


@pytest.mark.parametrize("rule", fused.KERNELS)
def test_every_kernel_can_be_written_for_a_gpu(rule):
    assert "weight" in formulas.as_cuda(fused.KERNELS[rule].formula)


@pytest.mark.parametrize("rule", fused.KERNELS)
def test_states_of_a_formula_are_those_of_the_rule(rule):
    made = rule()
    made._init_states(chainer.Parameter(np.ones(3, np.float32)))
    assert (*made.state,) == formulas.state_names(fused.KERNELS[rule].formula)


@pytest.mark.parametrize(
    "make_optimizer, has_kernel",
    [
        (optimizers.SGD, True),
        (optimizers.Adam, True),
        (optimizers.AdamW, True),
        (optimizers.AMSGrad, False),
        (optimizers.AdaBound, False),
        (optimizers.SMORMS3, False),
        (MomentumSGD16, True),
    ],
)
def test_what_is_planned(make_optimizer, has_kernel):
    """All parameters in one call, or each by its own rule."""
    assert fused.has_kernel(rule_of(make_optimizer)) == has_kernel
    model = to_float16(chainer.links.Linear(3, 2))
    optimizer = MixedPrecision(make_optimizer(), loss_scale=1).setup(model)
    for param in model.params():
        param.grad = np.ones_like(param.array)
    optimizer.update()
    groups = optimizer._masters.buffers.groups
    runs, others = fused.plan(groups)
    if has_kernel:
        assert (runs, others) == ([fused.Run(groups[0], 0, 1, False)], [])
    else:
        assert not runs
        assert {id(p) for p in others} == {id(p) for p in model.params()}
    model.b.update_rule.add_hook(hooks.WeightDecay(0.1))
    if has_kernel:
        runs, _ = fused.plan(groups)
        assert sorted(run.has_hooks for run in runs) == [False, True]


def test_a_subclass_has_no_kernel():
    class Negative(optimizers.sgd.SGDRule):
        def update_core(self, param):
            param.array += self.hyperparam.lr * param.grad

    assert not fused.has_kernel(Negative())

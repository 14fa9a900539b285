"""What holds of the update rule of a first change. Runs in a copy that has it."""

from pathlib import Path

import chainer
import numpy as np

from chainer_kernels import update_rules
from mixed_precision import MixedPrecision, fused, to_float16
from tests.support.processes import ROOT


def test_the_rule_has_a_kernel():
    model = to_float16(chainer.links.Linear(3, 2))
    optimizer = MixedPrecision(chainer.optimizers.AdaGrad(), loss_scale=1).setup(model)
    for param in model.params():
        param.grad = np.ones_like(param.array)
    optimizer.update()
    runs, others = fused.plan(optimizer._masters.buffers.groups)
    assert (len(runs), others) == (1, [])
    # It is that of the copy, not that of an installed package.
    assert Path(update_rules.__file__).is_relative_to(ROOT)

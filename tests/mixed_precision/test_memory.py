"""The memory of updates is what is planned for."""

import chainer.links as L
import numpy as np
import pytest
from chainer import optimizer_hooks as hooks

from divisible import Divisible
from mixed_precision import MixedPrecision, MomentumSGD16, to_float16
from tests.support.mixed_precision import HOOKS, OPTIMIZERS


@pytest.mark.parametrize("name", ["none", "decay", "clipping"])
@pytest.mark.parametrize("make_optimizer", [*OPTIMIZERS, MomentumSGD16])
def test_bytes_of_updates(make_optimizer, name):
    """What is planned for is what there is."""
    # Nothing that has to be padded.
    layers = L.Linear(8, 16, nobias=True), L.BatchNormalization(64)
    model = to_float16(Divisible(*layers))
    optimizer = MixedPrecision(make_optimizer()).setup(model)
    for hook in [hooks.GradientClipping(1.0)] if name == "clipping" else HOOKS[name]:
        optimizer.add_hook(hook)
    planned = sum(map(optimizer.update_bytes, model.params()))
    for param in model.params():
        param.grad = np.ones_like(param.array)
        param._loss_scale = float(optimizer.loss_scale)
    optimizer.update()
    held = 0
    for group in optimizer._masters.buffers.groups:
        # Weights of float32 are their own master.
        copies = [group._unscaled, group._float32 if group.is_half else None]
        held += sum(array.nbytes for array in copies if array is not None)
    for param in model.params():
        states = (param.update_rule.state or {}).values()
        held += sum(s.nbytes for s in states if isinstance(s, np.ndarray))
    assert planned == held

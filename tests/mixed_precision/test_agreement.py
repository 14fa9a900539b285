"""The ranks step together or not at all, and agree on the parameters."""

import subprocess
import sys

import chainer
import chainer.links as L
import numpy as np
import pytest
from chainer import optimizers

from mixed_precision import MixedPrecision
from tests.support.mixed_precision import give_gradients, pair


@pytest.mark.parametrize("gradient", [1e200, 1.3e154])
def test_float64_gradients_whose_squares_overflow(gradient):
    """Those of each parameter, or their sum over all."""
    with chainer.using_config("dtype", np.float64):
        model = L.Linear(4, 3)
    optimizer = MixedPrecision(optimizers.SGD(), loss_scale=1).setup(model)
    for param in model.params():
        param.grad = np.zeros(param.shape)
        param.grad.flat[0] = gradient
    optimizer.update()
    assert (optimizer.t, optimizer.n_skipped) == (0, 1)


def test_parameter_added_after_the_first_update():
    optimizer, reference = pair(optimizers.SGD, loss_scale=1)
    give_gradients(optimizer, reference, 0)
    optimizer.update()
    with optimizer.target.init_scope():
        optimizer.target.new = chainer.Parameter(np.ones(3, np.float16))
    for _ in range(2):
        with pytest.raises(ValueError, match="/new came after the first update"):
            optimizer.update()
    optimizer.setup(optimizer.target).update()
    assert optimizer.t == 1


WITHOUT_MPI = """
import sys
sys.modules["mpi4py"] = None
import chainer.links as L, chainer.optimizers, numpy as np
from mixed_precision import MixedPrecision
model = L.Linear(2, 2)
optimizer = MixedPrecision(chainer.optimizers.SGD(), loss_scale=1).setup(model)
for param in model.params():
    param.grad = np.ones_like(param.array)
optimizer.update()
optimizer.close()
print(optimizer.t)
"""


def test_one_process_needs_no_mpi():
    command = [sys.executable, "-c", WITHOUT_MPI]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "1"

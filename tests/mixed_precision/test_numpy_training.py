"""Any positive loss scale, beside a version in NumPy of every optimizer."""

import numpy as np
import pytest
from chainer import optimizers

from mixed_precision import MixedPrecision
from tests.support import numpy_training
from tests.support.mixed_precision import make_model, make_named_optimizer

N_STEPS = 5


def test_every_optimizer_of_chainer_has_equations():
    named = vars(optimizers).items()
    assert {name for name, x in named if isinstance(x, type)} <= {*numpy_training.RULES}


@pytest.mark.parametrize("scale", [1000, 100, 0.3])
@pytest.mark.parametrize("name", numpy_training.RULES)
def test_steps_are_those_of_the_equations(name, scale):
    model = make_model(np.float16)
    optimizer = MixedPrecision(make_named_optimizer(name), loss_scale=scale)
    optimizer.setup(model)
    named = dict(model.namedparams())
    rules = {k: numpy_training.begin(name, p, scale) for k, p in named.items()}
    rng = np.random.RandomState(0)
    for _ in range(N_STEPS):
        expected = {}
        for path, param in named.items():
            param.grad = (rng.normal(size=param.shape) * scale).astype(param.dtype)
            param._loss_scale = scale
            expected[path] = rules[path].send(param.grad.astype(np.float64) / scale)
        optimizer.update()
    assert (optimizer.t, optimizer.n_skipped) == (N_STEPS, 0)
    masters = optimizer.masters()
    # M-SVAG subtracts squares that are nearly the same.
    most = 1e-4 if name == "MSVAG" else 2e-6
    for path, param in named.items():
        if path in masters or param.dtype == np.float32:
            weights = masters.get(path, param.array)
            np.testing.assert_allclose(weights, expected[path], most, most)
            np.testing.assert_array_equal(param.array, weights.astype(param.dtype))
        else:
            np.testing.assert_array_equal(param.array, expected[path], path)

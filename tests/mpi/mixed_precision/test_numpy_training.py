"""Two stages with a loss scale of 1000, beside a version in NumPy."""

import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from divisible import Divisible
from mixed_precision import MixedPrecision, to_float16
from pipeline import Pipeline
from tests.support import numpy_training
from tests.support.equivalence import make_batches
from tests.support.mixed_precision import make_named_optimizer
from tests.support.mpiexec import assert_on_ranks

PATHS = ("/0/W", "/0/b", "/2/W", "/2/b")


def trained_by_both(comm, names, scale):
    batches = make_batches([8] * 4)
    for name in names:
        np.random.seed(0)
        model = to_float16(Divisible(L.Linear(6, 8), F.relu, L.Linear(8, 4)))
        for param in model.params():
            # Gradients of biases of zero have a rate of their own in LARS.
            param.array[...] += np.float16(0.125)
        named = dict(model.namedparams())
        rules = [numpy_training.begin(name, named[path], scale) for path in PATHS]
        weights = [named[path].array.astype(np.float64) for path in PATHS]
        before = weights
        losses = []
        for x, t in batches:
            rounded = [numpy_training.as_half(w) for w in weights]
            loss, scaled = numpy_training.gradients(rounded, x, t, scale)
            losses.append(loss)
            weights = [rule.send(g / scale) for rule, g in zip(rules, scaled)]

        stage = model.divide(*((0, 2), (2, 3))[comm.rank])
        optimizer = MixedPrecision(
            make_named_optimizer(name), loss_scale=scale, comm=comm, timeout=20
        ).setup(stage)
        with Pipeline(
            stage, comm, n_microbatches=3, loss_scale=optimizer.loss_scale, timeout=20
        ) as pipe:
            for (x, t), loss in zip(batches, losses):
                found = pipe.step(x, t)["loss"]
                np.testing.assert_allclose(found, loss, rtol=1e-4)
                optimizer.update()
        assert optimizer.n_skipped == 0
        expected = dict(zip(PATHS, weights))
        moved = {
            path: np.abs(expected[path] - old).max() for path, old in zip(PATHS, before)
        }
        masters = optimizer.masters()
        for path, param in stage.namedparams():
            # A sum in another order may be rounded to the next number of float16.
            difference = np.abs(masters.get(path, param.array) - expected[path]).max()
            most = 2**-10 if path not in masters else 0
            assert difference < 0.01 * moved[path] + most, (name, path)


@pytest.mark.parametrize("scale", [1000, pytest.param(100, marks=pytest.mark.matrix)])
def test_every_optimizer(scale):
    assert_on_ranks(2, trained_by_both, [*numpy_training.RULES], scale)

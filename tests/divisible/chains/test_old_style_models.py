"""Models in the style of public code become layers, and compute the same when cut."""

import chainer
import numpy as np
import pytest

from divisible import from_chain
from tests.support.old_style_models import MODELS


def gradients(chain, outputs):
    chain.cleargrads()
    y = outputs()
    y.grad = np.cos(np.arange(y.size)).reshape(y.shape).astype(y.dtype)
    y.backward()
    return y.array, {path: param.grad for path, param in chain.namedparams()}


def in_two(model, x, cut):
    h, skipped = model.divide(0, cut).run(x, {})
    return model.divide(cut, None).run(h, skipped)[0]


@pytest.mark.parametrize("name", MODELS)
def test_a_model_computes_the_same_undivided_and_in_two(name):
    make, x = MODELS[name]
    chain = make()
    model = from_chain(chain, x)
    assert {id(p) for p in model.params()} == {id(p) for p in chain.params()}
    # Other samples, and fewer of them, as in a microbatch.
    x = x[:0:-1]
    expected, theirs = gradients(chain, lambda: chain(x))
    cuts = {1, len(model) // 2, len(model) - 1}
    for run in [lambda: model(x), *(lambda c=c: in_two(model, x, c) for c in cuts)]:
        y, mine = gradients(chain, run)
        np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)
        for path, gradient in theirs.items():
            if gradient is None:
                assert mine[path] is None
                continue
            np.testing.assert_allclose(mine[path], gradient, rtol=1e-4, atol=1e-5)
    with chainer.using_config("train", False):
        np.testing.assert_allclose(model(x).array, chain(x).array, rtol=1e-5, atol=1e-6)

"""Classes of functions compute what the functions of today do."""

import inspect

import chainer
import chainer.functions as F
import numpy as np
import pytest

from chainer_compat import _function_classes
from chainer_compat._function_classes import CLASSES, Function, MaxPooling2D
from tests.chainer_compat.test_scripts import done, run

SCRIPT = """
    import numpy as np
    import chainer
    import chainer.functions as F

    x = np.random.RandomState(0).rand(2, 3, 8, 8).astype("f")
    pool = F.MaxPooling2D(2, 2)
    y = pool(x)
    assert (y.array == F.max_pooling_2d(x, 2, 2).array).all()
    up = F.upsampling_2d(
        y, pool.indexes, ksize=(pool.kh, pool.kw), stride=(pool.sy, pool.sx),
        pad=(pool.ph, pool.pw), outsize=x.shape[2:],
    )
    maxima = up.array != 0
    assert maxima.sum() == y.size and (up.array[maxima] == x[maxima]).all()
    assert (F.ReLU().apply((x - 0.5,))[0].array == F.relu(x - 0.5).array).all()
    pyramid = F.spatial_pyramid_pooling_2d(x, 2, F.MaxPooling2D)
    assert (pyramid.array == F.spatial_pyramid_pooling_2d(x, 2, "max").array).all()
    assert not hasattr(F, "Convolution2D") and not hasattr(F, "nothing")
    print("done")
"""


def test_a_script_finds_the_classes(tmp_path):
    result = done(run(tmp_path, SCRIPT, "-m", "chainer_compat", "run"))
    assert result.stdout == "done\n"
    told = [line for line in result.stderr.splitlines() if "RuntimeWarning" in line]
    assert len(told) == 1 and "script.py:7" in told[0], told


@pytest.mark.parametrize("name", sorted(set(CLASSES.values())))
def test_there_is_a_function_for_each_class(name):
    assert inspect.isfunction(getattr(F, name))


def test_arguments_come_behind_the_inputs():
    x = np.linspace(-1, 1, 6, dtype="f").reshape(2, 3)
    clip = Function("clip", (-0.5, 0.5), {})
    assert (clip(x).array == np.clip(x, -0.5, 0.5)).all()
    assert Function("concat", (), {"axis": 0})(x, x).shape == (4, 3)
    assert len(Function("split_axis", (3, 1), {}).apply((x,))) == 3
    assert _function_classes.function_class("Sum")(axis=1)(x).shape == (2,)


def test_indexes_are_those_of_the_last_call_and_may_be_cut():
    pool = MaxPooling2D((2, 3), 2, (0, 1))
    assert (pool.kh, pool.kw, pool.sy, pool.sx, pool.ph, pool.pw) == (2, 3, 2, 2, 0, 1)
    assert pool.indexes is None
    random = np.random.RandomState(0)
    for _ in range(2):
        x = chainer.Variable(random.rand(1, 2, 4, 6).astype("f"))
        y = pool(x)
        arguments = (2, 3), 2, (0, 1), True, True
        _, expected = F.max_pooling_2d(x, *arguments)
        assert (pool.indexes == expected).all()
        pool.indexes = pool.indexes[:, :, :1]
        assert pool.indexes.shape[2] == 1 and y.creator is not None

"""The kinds of models train on two ranks as they do serially, and their page says."""

import importlib.util

import chainer
import numpy as np

from pipeline import Pipeline
from tests.support.mpiexec import assert_on_ranks
from tests.support.processes import ROOT


def kinds():
    """Returns the module, run again, so that its arrays are the same each time."""
    path = ROOT / "docs" / "programs" / "kinds.py"
    spec = importlib.util.spec_from_file_location("kinds_of_models", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def made(make):
    np.random.seed(1)
    return make()


def as_tuple(arrays):
    return arrays if isinstance(arrays, tuple) else (arrays,)


def serially(make):
    model, lossfun, x, t = made(make)
    optimizer = chainer.optimizers.Adam(0.01).setup(model)
    losses = []
    for _ in range(3):
        y = model(*as_tuple(x))
        loss = lossfun(*as_tuple(y), *as_tuple(t))
        model.cleargrads()
        loss.backward()
        optimizer.update()
        losses.append(float(loss.array))
    return losses, {path: param.array for path, param in model.namedparams()}


def divided(comm, make):
    model, lossfun, x, t = made(make)
    pipe = Pipeline(model, comm, n_microbatches=3, lossfun=lossfun, accfun=None)
    optimizer = pipe.setup(chainer.optimizers.Adam(0.01))
    losses = []
    for _ in range(3):
        losses.append(pipe.step(x, t)["loss"])
        optimizer.update()
    (stage,) = pipe.stages.values()
    return losses, {path: param.array for path, param in stage.namedparams()}


def check_kinds(comm):
    names = [make.__name__ for make in kinds().KINDS]
    for name in names:
        expected, weights = serially(getattr(kinds(), name))
        losses, mine = divided(comm, getattr(kinds(), name))
        assert losses[0] != losses[-1], name
        np.testing.assert_allclose(losses, expected, 1e-5, err_msg=name)
        assert mine.keys() <= weights.keys()
        for path, array in mine.items():
            np.testing.assert_allclose(
                array, weights[path], 1e-3, 1e-5, err_msg=f"{name} {path}"
            )


def test_each_kind_trains_on_two_ranks_as_serially():
    assert_on_ranks(2, check_kinds)


def test_the_page_shows_each_of_them():
    page = (ROOT / "docs" / "howto" / "kinds.rst").read_text()
    assert page.count("literalinclude:: ../programs/kinds.py") == len(kinds().KINDS)

"""The kinds of models train on two ranks as they do serially, and their page says."""

import importlib.util

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np

from divisible import Divisible, RandomKey, keyed_random_state
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


class Draw(chainer.Chain):
    def forward(self, h):
        mean, ln_var = F.split_axis(h, 2, axis=1)
        return F.gaussian(mean, ln_var), mean, ln_var


class Decode(chainer.Chain):
    def __init__(self):
        super().__init__(fc=L.Linear(2, 6))

    def forward(self, z, mean, ln_var):
        return self.fc(z), mean, ln_var


def negative_elbo(y, mean, ln_var, x):
    total = F.bernoulli_nll(x, y) + F.gaussian_kl_divergence(mean, ln_var)
    return total / len(x), len(x)


def autoencoder():
    np.random.seed(2)
    pixels = np.random.rand(8, 6).astype(np.float32)
    model = Divisible(L.Linear(6, 4), Draw(), Decode())
    return model, pixels, chainer.optimizers.MomentumSGD(0.1)


def check_noise(comm):
    """The serial script takes the keys of the noise, as the page about losses says."""
    model, pixels, optimizer = autoencoder()
    optimizer.setup(model)
    expected = []
    for step in range(3):
        loss = 0
        for i, part in enumerate(np.split(pixels, 4)):
            with keyed_random_state(RandomKey(seed=3, step=step, microbatch=i)):
                loss += negative_elbo(*model(part), part)[0] / 4
        model.cleargrads()
        loss.backward()
        optimizer.update()
        expected.append(float(loss.array))
    model, pixels, optimizer = autoencoder()
    pipe = Pipeline(
        model, comm, n_microbatches=4, lossfun=negative_elbo, accfun=None, seed=3
    )
    optimizer = pipe.setup(optimizer)
    losses = []
    for _ in range(3):
        losses.append(pipe.step(pixels, pixels)["loss"])
        optimizer.update()
    np.testing.assert_allclose(losses, expected, 1e-5)


def check_all(comm):
    check_kinds(comm)
    check_noise(comm)


def test_each_kind_trains_on_two_ranks_as_serially():
    assert_on_ranks(2, check_all)


def test_the_page_shows_each_of_them():
    page = (ROOT / "docs" / "howto" / "kinds.rst").read_text()
    assert page.count("literalinclude:: ../programs/kinds.py") == len(kinds().KINDS)

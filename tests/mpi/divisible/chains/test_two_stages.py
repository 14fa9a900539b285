"""Converted chains of old code train on two ranks as they do undivided."""

import copy

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np

from divisible import from_chain
from pipeline import Pipeline
from tests.support.mpiexec import assert_on_ranks
from tests.support.old_style_models import MODELS, numbers


class ActorCritic(chainer.Chain):
    """Two heads, which both go into the loss."""

    def __init__(self):
        super().__init__(
            body=L.Linear(8, 6), policy=L.Linear(6, 3), value=L.Linear(6, 1)
        )

    def __call__(self, x):
        h = F.relu(self.body(x))
        return F.softmax(self.policy(h)), self.value(h)


def loss_of(*outputs):
    *ys, t = outputs
    return sum(F.mean(y * F.tanh(y + 1)) for y in ys) * F.mean(t)


def steps(step, optimizer):
    """Returns the losses of three steps."""
    losses = []
    for _ in range(3):
        losses.append(float(step()))
        optimizer.update()
    return losses


def serial(chain, x, t):
    def step():
        chain.cleargrads()
        y = chain(x)
        loss = loss_of(*(y if isinstance(y, tuple) else (y,)), t)
        loss.backward()
        return loss.array

    return steps(step, chainer.optimizers.SGD(0.1).setup(chain))


def divided(comm, model, x, t):
    half = len(model) // 2
    stage = model.divide(*[0, half, len(model)][comm.rank :][:2])
    # Batch normalization sees microbatches.
    has_norm = any(isinstance(i, L.BatchNormalization) for i in model.links())
    options = {"lossfun": loss_of, "accfun": None, "n_microbatches": 2 - has_norm}
    pipe = Pipeline(stage, comm, **options)
    optimizer = chainer.optimizers.SGD(0.1).setup(stage)
    return stage, steps(lambda: pipe.step(x, t)["loss"], optimizer)


def check_models(comm, names):
    for name in names:
        make, x = {**MODELS, "actor_critic": (ActorCritic, numbers(4, 8))}[name]
        np.random.seed(0)
        chain = make()
        model = from_chain(chain, x)
        whole, t = copy.deepcopy(chain), np.ones(len(x), np.float32)
        expected = serial(whole, x, t)
        stage, found = divided(comm, model, x, t)
        np.testing.assert_allclose(found, expected, rtol=1e-5, err_msg=name)
        params = dict(whole.namedparams())
        for path, param in stage.namedparams():
            theirs = params[model.chain_names.in_chain(path)]
            np.testing.assert_allclose(
                param.array, theirs.array, rtol=1e-4, atol=1e-6, err_msg=name
            )


def test_losses_and_weights_are_the_serial_ones():
    names = "actor_critic capsules char_cnn dcgan highway seq2seq transformer wavenet"
    assert_on_ranks(2, check_models, names.split(), timeout=120)

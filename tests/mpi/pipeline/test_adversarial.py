"""Two models that learn against each other, with layers in common, on any ranks."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from divisible import Divisible, Plan
from pipeline import Pipeline, PipelineUpdater
from tests.support.equivalence import assert_close
from tests.support.mpiexec import assert_on_ranks

N_STEPS, BATCH = 6, 8


def build():
    """Returns the generator with the discriminator behind it, and this one alone."""
    np.random.seed(4)
    generator = [L.Linear(3, 8), F.relu, L.Linear(8, 6), F.tanh]
    discriminator = [
        L.Linear(6, 8),
        F.leaky_relu,
        L.Linear(8, 7),
        F.tanh,
        L.Linear(7, 1),
    ]
    return Divisible(*generator, *discriminator), Divisible(*discriminator)


def fools(y):
    return F.mean(F.softplus(-y))


def tells(y, t):
    # 1 for real samples, -1 for those that were made.
    return F.mean(F.softplus(-y * t))


def minibatches():
    rng = np.random.default_rng(0)
    for _ in range(N_STEPS):
        real = rng.normal(1, 0.5, (BATCH, 6)).astype(np.float32)
        yield real, rng.normal(size=(2, BATCH, 3)).astype(np.float32)


SIGNS = np.repeat([1, -1], BATCH).astype(np.float32)[:, None]


def serially():
    both, discriminator = build()
    generator = both.divide(0, 4)
    optimizers = [
        chainer.optimizers.Adam(0.01).setup(m) for m in (generator, discriminator)
    ]
    losses = []
    for real, (z1, z2) in minibatches():
        made = generator(z1).array
        loss_d = tells(discriminator(np.concatenate([real, made])), SIGNS)
        discriminator.cleargrads()
        loss_d.backward()
        optimizers[1].update()
        loss_g = fools(both(z2))
        both.cleargrads()
        loss_g.backward()
        optimizers[0].update()
        losses.append((float(loss_d.array), float(loss_g.array)))
    return losses, {path: param.array for path, param in both.namedparams()}


def serially_at_once():
    """Both models learn from the same images, and are updated after that."""
    both, _ = build()
    generator, discriminator = both.divide(0, 4), both.divide(4, 9)
    optimizers = [
        chainer.optimizers.Adam(0.01).setup(m) for m in (generator, discriminator)
    ]
    losses = []
    for real, (z, _) in minibatches():
        made = generator(z)
        loss_g = fools(discriminator(made))
        generator.cleargrads()
        loss_g.backward()
        x = np.concatenate([real, made.array])
        loss_d = tells(discriminator(x), SIGNS)
        discriminator.cleargrads()
        loss_d.backward()
        for optimizer in optimizers:
            optimizer.update()
        losses.append((float(loss_d.array), float(loss_g.array)))
    return losses, {path: param.array for path, param in both.namedparams()}


class AdversarialUpdater(PipelineUpdater):
    """Its main pipeline is that of both models."""

    def __init__(self, pipes, *args):
        super().__init__(*args, label_key=None)
        self.pipes = pipes

    def step(self, x, t):
        assert t is None and (x is not None) == self.pipeline.is_first
        real, z = x or (None, None)
        made = self.pipes["generator"].predict(z)
        loss_g = self.pipeline.step(z)["loss"]
        x = np.concatenate([real, made]) if self.pipeline.is_first else None
        loss_d = self.pipes["discriminator"].step(x, SIGNS)["loss"]
        return {"d/loss": loss_d, "g/loss": loss_g}


def make_pipelines(comm):
    both, discriminator = build()
    generator = both.divide(0, 4)
    n, rank = comm.size, comm.rank
    # Each rank has a part of both: G0 D0 on rank 0, G1 D1 on rank 1.
    of_g, of_d = Plan.uniform(4, n).range(rank), Plan.uniform(5, n).range(rank)
    stages = {
        "generator": Divisible(*generator).divide(*of_g),
        "discriminator": discriminator.divide(*of_d),
        "both": [both.divide(*of_g), both.divide(of_d[0] + 4, of_d[1] + 4)],
    }
    schedules = {"both": "interleaved" if n > 1 else "looped_bfs"}
    losses_of = {"both": fools, "discriminator": tells, "generator": fools}
    pipes = {
        name: Pipeline(
            stage,
            comm,
            n_microbatches=4,
            schedule=schedules.get(name, "1f1b"),
            lossfun=losses_of[name],
            accfun=None,
            timeout=30,
        )
        for name, stage in stages.items()
    }
    return stages, pipes


def assert_ends(stages, pipes, weights):
    for stage in stages["both"]:
        for path, param in stage.namedparams():
            assert_close(param.array, weights[path], rtol=1e-3, atol=1e-5, what=path)
    for pipe in pipes.values():
        pipe.close()


def in_pipelines(comm):
    expected, weights = serially()
    stages, pipes = make_pipelines(comm)
    optimizers = {
        name: chainer.optimizers.Adam(0.01).setup(stages[name])
        for name in ("generator", "discriminator")
    }
    losses = []
    for real, (z1, z2) in minibatches():
        made = pipes["generator"].predict(z1)
        found = pipes["discriminator"].step(np.concatenate([real, made]), SIGNS)
        optimizers["discriminator"].update()
        other = pipes["both"].step(z2)
        optimizers["generator"].update()
        losses.append((found["loss"], other["loss"]))
    assert_close(losses, expected, rtol=1e-4)
    assert_ends(stages, pipes, weights)


def with_an_updater(comm):
    expected, weights = serially_at_once()
    stages, pipes = make_pipelines(comm)
    samples = [pair for real, (z, _) in minibatches() for pair in zip(real, z)]
    iterator = chainer.iterators.SerialIterator(samples, BATCH, shuffle=False)
    optimizers = [chainer.optimizers.Adam(0.01).setup(s) for s in stages["both"]]
    updater = AdversarialUpdater(pipes, iterator, optimizers, pipes["both"])
    losses = []
    for _ in range(N_STEPS):
        observation = {}
        with chainer.Reporter().scope(observation):
            updater.update()
        losses.append((observation["d/loss"], observation["g/loss"]))
    assert_close(losses, expected, rtol=1e-4)
    assert_ends(stages, pipes, weights)


@pytest.mark.parametrize("n", [1, 2])
def test_two_models_learn_against_each_other_as_serially(n):
    assert_on_ranks(n, in_pipelines)


@pytest.mark.parametrize("n", [1, 2])
def test_an_updater_does_the_steps_of_both_models(n):
    assert_on_ranks(n, with_an_updater)

"""The recipes print on two ranks what serial Chainer computes, and their page says."""

import re
import runpy

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer.training.updaters import StandardUpdater

from divisible import deferred_init
from tests.support.mpiexec import mpiexec
from tests.support.processes import ROOT

PROGRAMS = ROOT / "docs" / "programs"


def printed(name):
    """Returns the lines of numbers that a recipe prints, and that the page shows."""
    argv = [PROGRAMS / f"{name}.py"]
    result = mpiexec(2, argv, env={"PYTHONPATH": str(ROOT)}, has_project=True)
    assert result.returncode == 0, result.stdout
    shown = (PROGRAMS / f"{name}.txt").read_text()
    assert rows(result.stdout) == pytest.approx(rows(shown), rel=0.02, abs=1e-3)
    return result.stdout


def rows(text):
    return np.array(
        [
            [float(number) for number in re.findall(r"\d+(?:\.\d+)?", line)]
            for line in text.replace("\x1b[J", "").splitlines()
            if re.match(r"(step +)?\d", line)
        ]
    )


def serial(make, optimizer):
    """Returns the model of a recipe as a serial script has it, ready to be trained."""
    with deferred_init(seed=0):
        model = make()
    model = model.divide()
    classifier = L.Classifier(model)
    optimizer.setup(classifier)
    np.random.seed(0)
    return model, classifier


def test_warm_up_and_cosine():
    recipe = runpy.run_path(str(PROGRAMS / "warmup.py"))
    optimizer = chainer.optimizers.MomentumSGD()
    serial(recipe["Net"], optimizer)
    iterator = chainer.iterators.SerialIterator(recipe["digits"](), 100)
    trainer = recipe["train"](StandardUpdater(iterator, optimizer))
    names = "iteration", "lr", "main/loss"
    log = trainer.get_extension("LogReport").log
    expected = np.array([[entry[name] for name in names] for entry in log])
    assert len(expected) == 6
    for iteration, rate, _ in expected:
        # The first update has the first step of the line, the 16th one the peak.
        cosine = 0.1 * (1 + np.cos(np.pi * (iteration - 16) / 45))
        wanted = 0.2 * iteration / 15 if iteration < 16 else cosine
        assert rate == pytest.approx(wanted, rel=1e-5, abs=1e-9)
    assert rows(printed("warmup")) == pytest.approx(expected, rel=1e-4, abs=1e-9)


def test_moving_averages_of_weights():
    recipe = runpy.run_path(str(PROGRAMS / "moving_average.py"))
    optimizer = chainer.optimizers.MomentumSGD(0.2)
    model, classifier = serial(recipe["Net"], optimizer)
    train, test = recipe["digits"]()
    x, t = chainer.dataset.concat_examples(test)
    iterator = chainer.iterators.SerialIterator(train, 100)
    updater = StandardUpdater(iterator, optimizer)
    weights = [param.array.copy() for param in model.params()]

    def loss_with(arrays):
        kept = [param.array for param in model.params()]
        for param, array in zip(model.params(), arrays):
            param.array = array
        with chainer.using_config("train", False), chainer.no_backprop_mode():
            loss = F.softmax_cross_entropy(model(x), t)
        for param, array in zip(model.params(), kept):
            param.array = array
        return float(loss.array)

    expected = []
    for epoch in range(1, 5):
        for _ in range(15):
            updater.update()
            weights = [
                0.9 * old + 0.1 * param.array
                for old, param in zip(weights, model.params())
            ]
        own = [param.array for param in model.params()]
        expected.append([epoch, loss_with(own), loss_with(weights)])
    assert rows(printed("moving_average")) == pytest.approx(
        np.array(expected), rel=1e-3
    )


def test_deep_q_learning():
    recipe = runpy.run_path(str(PROGRAMS / "dqn.py"))
    optimizer = chainer.optimizers.Adam(0.003)
    online, _ = serial(recipe["QNet"], optimizer)
    target = online.copy("copy")

    def step(x, t):
        loss = recipe["lossfun"](online(x), *t)
        online.cleargrads()
        loss.backward()
        optimizer.update()
        return float(loss.array)

    def predict(model):
        return lambda x: model(x).array

    losses = recipe["play"](
        predict(online), predict(target), step, lambda: target.copyparams(online)
    )
    expected = [
        [first, np.mean(losses[first : first + 40])]
        for first in range(0, len(losses), 40)
    ]
    output = printed("dqn")
    assert rows(output) == pytest.approx(np.array(expected), abs=1e-4)
    assert "goes to ['right', 'right', 'right', 'right', 'right', 'right']" in output

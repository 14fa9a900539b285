"""Chainer's trainer on a pipeline does what it does on one process."""

import io
import json
import os

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer import training
from chainer.training import extensions, triggers

from divisible import Divisible, Plan
from pipeline import Pipeline, PipelineEvaluator, PipelineUpdater
from tests.support.matrix import matrix
from tests.support.mpiexec import assert_on_ranks

N_SAMPLES, BATCH = 50, 16
KEYS = [
    f"{prefix}main/{name}"
    for prefix in ("", "validation/")
    for name in ("loss", "accuracy")
]


def samples(n=N_SAMPLES, seed=0):
    rng = np.random.RandomState(seed)
    x = rng.normal(size=(n, 6)).astype(np.float32)
    return chainer.datasets.TupleDataset(x, rng.randint(0, 3, n).astype(np.int32))


class Net(chainer.Chain):
    """As a user of Chainer has it, before."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.l1, self.l2 = L.Linear(6, 8), L.Linear(8, 8)
            self.l3, self.l4 = L.Linear(8, 8), L.Linear(8, 3)

    def layers(self):
        return [self.l1, F.relu, self.l2, F.relu, self.l3, F.relu, self.l4]

    def forward(self, x):
        for layer in self.layers():
            x = layer(x)
        return x


class Reads:
    """A data set that counts what is read of it."""

    def __init__(self, base):
        self.base, self.n = base, 0

    def __len__(self):
        return len(self.base)

    def __getitem__(self, i):
        self.n += 1
        return self.base[i]


ITERATORS = {
    "serial": chainer.iterators.SerialIterator,
    "thread": lambda data, n: chainer.iterators.MultithreadIterator(
        data, n, n_threads=2
    ),
    "process": lambda data, n: chainer.iterators.MultiprocessIterator(
        data, n, n_processes=2, shared_mem=1000
    ),
}


def make_iterators(kind="serial", data=None):
    return (
        ITERATORS[kind](samples() if data is None else data, BATCH),
        chainer.iterators.SerialIterator(
            samples(23, 1), 5, repeat=False, shuffle=False
        ),
    )


def extend(trainer, evaluator, printed):
    """What the scripts of Chainer's examples have."""
    trainer.extend(evaluator, call_before_training=True)
    trainer.extend(extensions.ExponentialShift("lr", 0.5), trigger=(1, "epoch"))
    trainer.extend(extensions.observe_lr(), trigger=(1, "iteration"))
    trainer.extend(extensions.FailOnNonNumber())
    trainer.extend(
        extensions.LogReport(trigger=(1, "iteration")), call_before_training=True
    )
    trainer.extend(
        extensions.PlotReport(["main/loss"], "iteration", filename="loss.png")
    )
    trainer.extend(extensions.PrintReport(["epoch", *KEYS, "lr"], out=printed))
    trainer.extend(extensions.ProgressBar(update_interval=1))


def train_serially(out, stop_trigger=(3, "epoch"), kind="serial"):
    np.random.seed(1)
    model = L.Classifier(Net())
    optimizer = chainer.optimizers.MomentumSGD(0.1).setup(model)
    iterator, test_iterator = make_iterators(kind)
    updater = training.updaters.StandardUpdater(iterator, optimizer)
    trainer = training.Trainer(updater, stop_trigger(), out=out)
    extend(trainer, extensions.Evaluator(test_iterator, model), io.StringIO())
    trainer.run()
    return model.predictor, trainer


def train_divided(comm, out, stop_trigger, kind="serial", data=None, **options):
    np.random.seed(1)
    net = Net()
    layers = net.layers()
    plan = Plan.uniform(len(layers), comm.size)
    stage = Divisible(*layers).divide(*plan.range(comm.rank))
    optimizer = chainer.optimizers.MomentumSGD(0.1).setup(stage)
    iterator, test_iterator = make_iterators(kind, data)
    pipe = Pipeline(stage, comm, n_microbatches=3, timeout=20)
    if comm.rank == 1:
        iterator = test_iterator = None
        np.random.seed(99)
    updater = PipelineUpdater(iterator, optimizer, pipe, **options)
    trainer = training.Trainer(updater, stop_trigger(), out=out)
    evaluator = PipelineEvaluator(test_iterator, pipe, mean="batches")
    printed = io.StringIO()
    extend(trainer, evaluator, printed)
    trainer.run()
    # Whatever it prints to, which may be one file for all.
    assert (printed.getvalue() != "") == (comm.rank == 0)
    return stage, trainer


def log_of(trainer):
    return trainer.get_extension("LogReport").log


def three_epochs():
    return training.get_trigger((3, "epoch"))


def early_stopping():
    return triggers.EarlyStoppingTrigger(
        monitor="validation/main/loss", patience=1, max_trigger=(40, "epoch")
    )


STOPS = {"epochs": three_epochs, "early": early_stopping}


def check_log(comm, out, kind, stop):
    data = Reads(samples())
    stage, trainer = train_divided(comm, out, STOPS[stop], kind, data)
    net, expected = train_serially(out + "/serial", STOPS[stop], kind)
    log, expected_log = log_of(trainer), log_of(expected)
    assert len(log) == len(expected_log)
    assert log[-1]["iteration"] == trainer.updater.iteration
    for entry, other in zip(log, expected_log):
        assert set(other) <= set(entry), set(other) - set(entry)
        for name, value in other.items():
            if name != "elapsed_time":
                np.testing.assert_allclose(entry[name], value, rtol=2e-5, err_msg=name)
    for path, param in stage.namedparams():
        layer = net.layers()[int(path.split("/")[1])]
        name = path.split("/")[2]
        np.testing.assert_allclose(
            param.array, getattr(layer, name).array, rtol=1e-4, atol=1e-6
        )
    # The same floats everywhere, wherever the numbers come from.
    deterministic = [
        {k: v for k, v in entry.items() if k != "elapsed_time"} for entry in log
    ]
    assert len(set(comm.allgather(json.dumps(deterministic)))) == 1
    # Processes count for themselves.
    if kind != "process":
        assert (data.n > 0) == (comm.rank == 0), data.n
    for name in ("samples_per_second", "bubble", "communication", "process_memory"):
        assert 0 <= log[-1][f"pipeline/{name}"] < np.inf
    assert log[-1]["pipeline/bubble"] < 1
    assert log[-1]["pipeline/process_memory"] > 1e7


@pytest.mark.parametrize(
    "kind, stop",
    [("thread", "early"), ("process", "epochs"), *matrix(("serial", "epochs"))],
)
def test_a_trainer_gives_the_log_of_serial_training(kind, stop, tmp_path):
    output = assert_on_ranks(3, check_log, str(tmp_path), kind, stop)
    # One bar of the pipeline's rank 0; the serial trainers have their own, all three.
    assert "Warning" not in output
    assert sorted(os.listdir(tmp_path)) == ["log", "loss.png", "serial"]

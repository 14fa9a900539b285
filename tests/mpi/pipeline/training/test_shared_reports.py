"""What extensions report on any rank is in the log of all."""

import json
import warnings

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
from chainer import training
from chainer.training import extensions

from divisible import Divisible, Plan
from pipeline import Pipeline, PipelineEvaluator, PipelineUpdater
from tests.support.mpiexec import assert_on_ranks

X = np.random.RandomState(0).normal(size=(12, 4)).astype(np.float32)
SAMPLES = chainer.datasets.TupleDataset(X, np.arange(12, dtype=np.int32) % 3)


def model():
    np.random.seed(0)
    return Divisible(L.Linear(4, 6), F.tanh, L.Linear(6, 5), F.tanh, L.Linear(5, 3))


def iterator(**options):
    return chainer.iterators.SerialIterator(SAMPLES, 4, shuffle=False, **options)


def run(updater, link, extend, out):
    """Returns the log of two epochs, without times."""
    trainer = training.Trainer(updater, (2, "epoch"), out=out)
    extend(trainer, link)
    trainer.run()
    log = trainer.get_extension("LogReport").log
    # In a classifier the model has a name.
    return [
        {
            k.replace("/predictor", "/None"): v
            for k, v in entry.items()
            if "time" not in k
        }
        for entry in log
    ]


def serial_log(extend, out):
    link = model()
    classifier = L.Classifier(link)
    optimizer = chainer.optimizers.SGD(0.1).setup(classifier)
    updater = training.updaters.StandardUpdater(iterator(), optimizer)
    return run(updater, link, extend, f"{out}/serial")


def divided_log(comm, extend, out, kind=PipelineUpdater):
    link = model()
    stage = link.divide(*Plan.uniform(5, comm.size).range(comm.rank))
    optimizer = chainer.optimizers.SGD(0.1).setup(stage)
    pipe = Pipeline(stage, comm, n_microbatches=2, timeout=20)
    log = run(kind(iterator(), optimizer, pipe), stage, extend, out)
    pipe.close()
    # Decisions that depend on it are taken alike.
    assert len(set(comm.allgather(json.dumps(log, sort_keys=True)))) == 1
    return [
        {k: v for k, v in entry.items() if not k.startswith("pipeline/")}
        for entry in log
    ]


def statistics(trainer, link):
    trainer.extend(extensions.ParameterStatistics(link, prefix="s"))
    trainer.extend(extensions.observe_lr())
    trainer.extend(extensions.LogReport())
    trainer.extend(extensions.PrintReport(["epoch", "s/None/0/W/data/mean"]))


def check_statistics(comm, out):
    log = divided_log(comm, statistics, out)
    expected = serial_log(statistics, out)
    assert [set(entry) for entry in log] == [set(entry) for entry in expected]
    assert any("/4/W/grad/percentile/6" in name for name in log[0])
    for entry, other in zip(log, expected):
        for name, value in other.items():
            np.testing.assert_allclose(entry[name], value, 1e-4, 1e-6, err_msg=name)


@training.make_extension(priority=training.PRIORITY_WRITER)
def two_of_them(trainer):
    chainer.report({"three": np.float32(3)})
    trainer.observation["weighted"] = (trainer.updater.iteration, 2)


def check_one_rank(comm, out):
    """Extensions that one rank has, or calls at times of its own."""
    last = comm.size - 1

    def extend(trainer, stage):
        if comm.rank == last:
            trainer.extend(two_of_them, trigger=(2, "iteration"))
            trainer.extend(
                lambda trainer: chainer.report({"four": 4}),
                name="four",
                trigger=lambda trainer: trainer.updater.iteration == 5,
                priority=300,
            )
        trainer.extend(
            PipelineEvaluator(
                iterator(repeat=False), trainer.updater.pipeline, progress_bar=False
            )
        )
        # As scripts for several ranks have it.
        if comm.rank == 0:
            trainer.extend(extensions.LogReport(trigger=(1, "iteration")))
            trainer.extend(extensions.PlotReport(["three"], filename="plot.png"))

    link = model()
    stage = link.divide(*Plan.uniform(5, comm.size).range(comm.rank))
    optimizer = chainer.optimizers.SGD(0.1).setup(stage)
    pipe = Pipeline(stage, comm, n_microbatches=2, timeout=20)
    trainer = training.Trainer(
        PipelineUpdater(iterator(), optimizer, pipe), (2, "epoch"), out=out
    )
    extend(trainer, stage)
    trainer.run()
    pipe.close()
    if comm.rank == 0:
        log = trainer.get_extension("LogReport").log
        assert [entry.get("three") for entry in log] == [None, 3, None, 3, None, 3]
        assert [entry.get("weighted") for entry in log] == [None, 2, None, 4, None, 6]
        assert [entry.get("four") for entry in log] == [None] * 4 + [4, None]
        assert "validation/main/loss" in log[2]


class Telling(PipelineUpdater):
    """Reports more on one rank, as hooks of optimizers may."""

    def update_core(self):
        super().update_core()
        if self.pipeline.rank == 1:
            chainer.report({"mine": self.iteration})


def check_updater(comm, out):
    log = divided_log(
        comm, lambda trainer, link: trainer.extend(extensions.LogReport()), out, Telling
    )
    assert [entry["mine"] for entry in log] == [1, 4]


def check_differences(comm, out):
    def extend(trainer, link):
        for name, value in (("rank", comm.rank), ("nan", np.nan), ("same", 1)):
            trainer.extend(
                extensions.observe_value(name, lambda trainer, value=value: value),
                name=f"observe {name}",
                trigger=(1, "iteration"),
            )
        trainer.extend(extensions.LogReport())

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        log = divided_log(comm, extend, out)
    assert [(entry["rank"], entry["same"]) for entry in log] == [(0, 1)] * 2
    texts = [str(w.message) for w in caught if "different values" in str(w.message)]
    assert len(texts) == (comm.rank == 0), texts
    for text in texts:
        assert "as 'rank': 0 on rank 0, 1 on rank 1" in text


def count_messages(comm, out):
    """Nothing is sent where nothing is reported, or all report the same."""
    sent = []

    def extend(trainer, link):
        ranks = trainer.updater.pipeline.internals.ranks
        gather, all_gather = ranks.gather, ranks.all_gather
        ranks.gather = lambda values: sent.append(len(values)) or gather(values)
        ranks.all_gather = lambda *args: sent.append("all") or all_gather(*args)
        trainer.extend(extensions.observe_lr(), trigger=(1, "epoch"))
        trainer.extend(extensions.LogReport())

    divided_log(comm, extend, out)
    # Which extensions there are, and their files; whether layers report; then costs and
    # an order to the run, and a digest once an epoch.
    costs = [8] * 3
    assert sent == ["all", "all", "all", *costs, 1, *costs, 1], sent


def check_all(comm, out):
    for check in (
        check_statistics,
        check_one_rank,
        check_updater,
        check_differences,
        count_messages,
    ):
        check(comm, out)


def test_extensions_report_as_in_serial_training_and_on_any_rank(tmp_path):
    output = assert_on_ranks(2, check_all, str(tmp_path))
    # Rank 0 prints, and the serial trainers do.
    assert output.count("epoch       s/None/0/W/data/mean") == 3

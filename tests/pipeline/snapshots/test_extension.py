"""Snapshots of a trainer, one process."""

import copy
import errno
import json
import os
import threading

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer.training import Trainer, extensions, triggers
from chainer.training.updaters import StandardUpdater
from mpi4py import MPI

from divisible import Divisible
from pipeline import (
    Pipeline,
    SeededShuffle,
    Snapshot,
    SnapshotError,
    load_snapshot,
    snapshot,
    wait_for_snapshot,
)
from pipeline.snapshots import writing
from tests.support.equivalence import make_batches
from tests.support.matrix import matrix
from tests.support.snapshot_training import state_of


class Updater(StandardUpdater):
    """As little as is needed for a trainer on a pipeline."""

    def __init__(self, iterator, optimizer, pipe):
        super().__init__(iterator, optimizer)
        self.pipeline = pipe

    def update_core(self):
        x, t = self.converter(self.get_iterator("main").next())
        chainer.report(
            {f"main/{k}": value for k, value in self.pipeline.step(x, t).items()}
        )
        self.get_optimizer("main").update()


def serial_iterator(data, seed):
    order = chainer.iterators.ShuffleOrderSampler(np.random.RandomState(seed))
    return chainer.iterators.SerialIterator(data, 8, order_sampler=order)


def multiprocess_iterator(data, seed):
    return chainer.iterators.MultiprocessIterator(
        data, 8, n_processes=1, n_prefetch=3, order_sampler=SeededShuffle(3)
    )


def multithread_iterator(data, seed):
    return chainer.iterators.MultithreadIterator(
        data, 8, n_threads=1, order_sampler=SeededShuffle(3)
    )


def make_trainer(out, n_epochs, seed=3, make_iterator=serial_iterator, **options):
    np.random.seed(seed)
    stage = Divisible(L.Linear(6, 8), F.dropout, F.tanh, L.Linear(8, 4))
    optimizer = chainer.optimizers.MomentumSGD(0.1).setup(stage)
    pipe = Pipeline(stage, MPI.COMM_SELF, n_microbatches=2)
    ((x, t),) = make_batches([26])
    data = chainer.datasets.TupleDataset(x, t)
    updater = Updater(make_iterator(data, seed), optimizer, pipe)
    trainer = Trainer(updater, (n_epochs, "epoch"), out=str(out))
    trainer.extend(extensions.LogReport(trigger=(2, "iteration")))
    trainer.extend(extensions.ExponentialShift("lr", 0.9), trigger=(3, "iteration"))
    trainer.extend(
        extensions.MultistepShift("momentum", 0.5, [2], 0.9), trigger=(1, "epoch")
    )
    trainer.extend(extensions.observe_lr(), trigger=(1, "iteration"))
    best = triggers.MaxValueTrigger("main/accuracy", trigger=(2, "iteration"))
    trainer.extend(lambda trainer: None, name="best", trigger=best)
    extension = snapshot(**options)
    trainer.extend(extension, trigger=(2, "iteration"))
    return trainer, extension


def log_of(out):
    entries = json.loads((out / "log").read_text())
    return [{k: v for k, v in e.items() if k != "elapsed_time"} for e in entries]


def state(trainer):
    found = state_of(trainer.updater.get_optimizer("main").target)
    return {key: np.asarray(value).tobytes() for key, value in found.items()}


@pytest.mark.parametrize(
    "options",
    [
        {"resume": "auto"},
        {"resume": "auto", "make_iterator": multithread_iterator},
        *matrix({"resume": "auto", "make_iterator": multiprocess_iterator}),
    ],
)
def test_resumed_run_is_the_undisturbed_one(tmp_path, options):
    iterator = {k: options[k] for k in options if k == "make_iterator"}
    undisturbed, _ = make_trainer(tmp_path / "undisturbed", 4, **iterator)
    undisturbed.run()
    disturbed = tmp_path / "disturbed"
    # In the midst of an epoch, and at its end.
    for n_epochs in (1, 3, 4):
        # A wrong seed shows that nothing of it is left.
        seed = 3 if n_epochs == 1 else 5
        trainer, extension = make_trainer(disturbed, n_epochs, seed, **options)
        trainer.run()
        assert (extension.resumed_from is None) == (n_epochs == 1)
    assert state(trainer) == state(undisturbed)
    assert log_of(disturbed) == log_of(tmp_path / "undisturbed")
    for name in ("lr", "momentum"):
        assert getattr(trainer.updater.get_optimizer("main"), name) == getattr(
            undisturbed.updater.get_optimizer("main"), name
        )


def test_names_and_number_kept(tmp_path):
    trainer, _ = make_trainer(tmp_path, 3, n_retains=2)
    trainer.run()
    kept = sorted(path.name for path in tmp_path.iterdir() if path.is_dir())
    assert kept == ["snapshot_iter_10", "snapshot_iter_8"]
    assert Snapshot.open(tmp_path / "snapshot_iter_8").n_steps == 8


def test_one_that_is_named(tmp_path):
    trainer, _ = make_trainer(
        tmp_path, 1, filename=lambda trainer: f"at{trainer.updater.iteration}"
    )
    trainer.run()
    trainer, extension = make_trainer(tmp_path, 1, resume=tmp_path / "at2")
    extension.initialize(trainer)
    assert trainer.updater.iteration == 2
    trainer, _ = make_trainer(tmp_path, 1, resume=tmp_path / "at3")
    with pytest.raises(SnapshotError, match="at3 does not exist"):
        trainer.run()


def test_loaded_before_the_run_as_chainers_scripts_do(tmp_path):
    """The learning rate was lowered before the snapshot, and is again after it."""
    trainer, _ = make_trainer(tmp_path, 3)
    trainer.run()
    expected = state(trainer), trainer.updater.get_optimizer("main").lr
    trainer, _ = make_trainer(tmp_path, 3)
    updater = trainer.updater
    optimizers = list(updater.get_all_optimizers().values())
    # The last one counts.
    for iteration in (2, 8, 4):
        path = tmp_path / f"snapshot_iter_{iteration}"
        load_snapshot(path, updater.pipeline, optimizers, state={"trainer": trainer})
        assert updater.iteration == iteration
    assert optimizers[0].lr == pytest.approx(0.1 * 0.9)
    trainer.run()
    assert (state(trainer), updater.get_optimizer("main").lr) == expected
    assert expected[1] == pytest.approx(0.1 * 0.9**3)


def test_hyperparameters_between_loading_and_running(tmp_path):
    trainer, _ = make_trainer(tmp_path, 3)
    trainer.run()

    def loaded(**options):
        trainer, _ = make_trainer(tmp_path, 3, **options)
        updater = trainer.updater
        optimizers = list(updater.get_all_optimizers().values())
        path = tmp_path / "snapshot_iter_4"
        load_snapshot(path, updater.pipeline, optimizers, state={"trainer": trainer})
        return trainer, optimizers[0]

    # What the script sets counts, until an extension changes it.
    trainer, optimizer = loaded()
    optimizer.lr = 0.5
    seen = []
    trainer.stop_trigger = lambda trainer: trainer.updater.iteration == 5
    trainer.extend(
        lambda trainer: seen.append(optimizer.lr), "seen", trigger=(1, "iteration")
    )
    trainer.run()
    assert seen == [0.5]
    # A snapshot that is loaded when the trainer starts is the newer one.
    trainer, optimizer = loaded(resume=tmp_path / "snapshot_iter_8")
    trainer.stop_trigger = lambda trainer: trainer.updater.iteration == 8
    trainer.run()
    assert optimizer.lr == pytest.approx(0.1 * 0.9**2)


def test_killed_while_replacing_the_only_one(tmp_path):
    """A name without numbers is that of one snapshot."""
    trainer, _ = make_trainer(tmp_path, 1, filename="snapshot")
    trainer.run()
    (tmp_path / "snapshot").rename(tmp_path / "snapshot.replaced")
    trainer, extension = make_trainer(tmp_path, 2, filename="snapshot", resume="auto")
    extension.initialize(trainer)
    assert extension.resumed_from == tmp_path / "snapshot.replaced"
    assert trainer.updater.iteration == 4


def test_names_with_characters_of_patterns(tmp_path):
    """Of another run is what the name would match as a pattern."""
    for name in ("run[1]", "run1"):
        trainer, _ = make_trainer(tmp_path, 1, filename=name + "_{.updater.iteration}")
        trainer.run()
    name = "run[1]_{.updater.iteration}"
    trainer, extension = make_trainer(tmp_path, 2, filename=name, resume="auto")
    extension.initialize(trainer)
    assert extension.resumed_from.name.startswith("run[1]_")


def test_a_failure_stops_or_warns(tmp_path):
    (tmp_path / "snapshot_iter_2").touch()
    trainer, _ = make_trainer(tmp_path, 1)
    with pytest.raises(SnapshotError, match="is no snapshot"):
        trainer.run()
    trainer, _ = make_trainer(tmp_path, 1, on_error="warn")
    with pytest.warns(UserWarning, match="training goes on, but cannot save"):
        trainer.run()
    assert trainer.updater.iteration == 4
    with pytest.raises(ValueError, match="on_error must be"):
        snapshot(on_error="ignore")


def test_a_condition(tmp_path):
    trainer, _ = make_trainer(tmp_path, 1, condition=lambda: False)
    trainer.run()
    assert not list(tmp_path.glob("snapshot*"))


def test_an_updater_without_a_pipeline_is_refused(tmp_path):
    trainer, extension = make_trainer(tmp_path, 1)
    trainer.updater.pipeline = None
    with pytest.raises(TypeError, match="Updater has no attribute 'pipeline'"):
        extension(trainer)


@pytest.fixture
def failing_later(monkeypatch):
    """Lets the files of snapshots fail, but of those whose names are given."""

    def fail(*kept):
        write = writing.write_arrays

        def call(path, arrays):
            if any(path.parent.name.startswith(f"{name}.") for name in kept):
                return write(path, arrays)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(writing, "write_arrays", call)

    return fail


def test_in_the_background(tmp_path):
    trainer, _ = make_trainer(tmp_path, 2, background=True, n_retains=2)
    trainer.run()
    kept = sorted(path.name for path in tmp_path.iterdir() if path.is_dir())
    assert kept == ["snapshot_iter_4", "snapshot_iter_6"]
    options = {"background": True, "resume": "auto"}
    trainer, extension = make_trainer(tmp_path, 4, 5, **options)
    trainer.run()
    assert extension.resumed_from.name == "snapshot_iter_6"
    undisturbed, _ = make_trainer(tmp_path / "undisturbed", 4)
    undisturbed.run()
    assert state(trainer) == state(undisturbed)


def test_processes_that_are_forked_while_it_is_written(tmp_path, monkeypatch):
    """An evaluation copies its iterator, which forks processes of its own."""
    trainer, _ = make_trainer(tmp_path, 1, background=True)
    evaluated, write = threading.Event(), writing.write_arrays

    def write_later(path, arrays):
        assert evaluated.wait(20)
        return write(path, arrays)

    monkeypatch.setattr(writing, "write_arrays", write_later)
    data = np.arange(8, dtype=np.float32)
    iterator = chainer.iterators.MultiprocessIterator(
        data, 4, repeat=False, shuffle=False, n_processes=1
    )

    def evaluate(trainer):
        with copy.copy(iterator) as batches:
            assert [list(batch) for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7]]
        evaluated.set()

    trainer.extend(evaluate, trigger=(2, "iteration"), priority=-200)
    with iterator:
        trainer.run()
    for n in (2, 4):
        Snapshot.open(tmp_path / f"snapshot_iter_{n}").verify()


def test_a_failure_in_the_background_stops_at_the_next_one(tmp_path, failing_later):
    failing_later("snapshot_iter_4")
    trainer, _ = make_trainer(tmp_path, 2, background=True)
    with pytest.raises(SnapshotError, match="snapshot_iter_2: .*No space left"):
        trainer.run()
    # The next one is saved all the same.
    wait_for_snapshot(trainer.updater.pipeline)
    assert trainer.updater.iteration == 4
    assert [path.name for path in tmp_path.glob("snap*")] == ["snapshot_iter_4"]


def test_a_failure_in_the_background_stops_at_the_end(tmp_path, failing_later):
    failing_later("snapshot_iter_2")
    trainer, _ = make_trainer(tmp_path, 1, background=True)
    finalized = []

    def last(trainer):
        """The trainer finalizes it after the snapshot's extension."""

    last.finalize = lambda: finalized.append("last")
    trainer.extend(last, priority=-200)
    trainer.updater.finalize = lambda: finalized.append("updater")
    with pytest.raises(SnapshotError, match="snapshot_iter_4: .*No space left"):
        trainer.run()
    assert finalized == ["last", "updater"]
    trainer, _ = make_trainer(tmp_path, 1, background=True, on_error="warn")
    with pytest.warns(UserWarning, match="goes on, but .*snapshot_iter_4: .*No space"):
        trainer.run()


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt, SystemExit])
def test_nobody_waits_for_others_after_an_error(tmp_path, monkeypatch, error):
    """They are elsewhere."""
    trainer, _ = make_trainer(tmp_path, 1, background=True)

    def fail(trainer):
        if trainer.updater.iteration == 3:
            monkeypatch.setattr("pipeline.snapshots.extension.settle", pytest.fail)
            raise error

    trainer.extend(fail, trigger=(1, "iteration"))
    with pytest.raises(error):
        trainer.run(show_loop_exception_msg=False)
    wait_for_snapshot(trainer.updater.pipeline)
    assert (tmp_path / "snapshot_iter_2").exists()


def test_a_trainer_that_runs_while_an_error_is_handled_waits(tmp_path):
    trainer, _ = make_trainer(tmp_path, 1, background=True)
    try:
        raise ZeroDivisionError
    except ZeroDivisionError:
        trainer.run()
    assert Snapshot.open(tmp_path / "snapshot_iter_4").n_steps == 4


def test_whose_snapshot_has_failed_decides_what_that_means(tmp_path, failing_later):
    failing_later("snapshot_iter_2", "snapshot_iter_4")
    trainer, _ = make_trainer(tmp_path, 1, background=True)
    other = snapshot("other_{.updater.iteration}", background=True, on_error="warn")
    trainer.extend(other, name="other", priority=-90, trigger=(2, "iteration"))
    with pytest.warns(UserWarning, match="training goes on, but .*other_") as caught:
        trainer.run()
    assert len(caught) == 2

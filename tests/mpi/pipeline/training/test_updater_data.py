"""How samples get to the ranks of a pipeline, and what follows optimizers."""

import os
import time

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer import training
from chainer.dataset import concat_examples
from chainer.training import extensions

from divisible import Divisible, Plan
from pipeline import Pipeline, PipelineEvaluator, PipelineUpdater, snapshot
from tests.support.mpiexec import assert_on_ranks, refused_on_ranks


class Scaled(chainer.Link):
    """A layer of two inputs, one of them large integers."""

    def forward(self, x, numbers):
        # Not exact in float32.
        assert numbers.dtype == np.int64
        assert (numbers % 2 == 1).all()
        return x * 1


def error(y, weights, t):
    assert t.dtype == np.float64
    assert weights.dtype == np.uint8
    return F.mean(F.sum((y - t.astype(np.float32)) ** 2, axis=1))


def draw(i):
    """A sample whose input and target depend on the same random number."""
    shift = np.random.rand()
    x = np.full(3, i + shift, np.float32)
    t = np.full(2, i + shift, np.float64)
    return {"x": x, "number": np.int64(2**53 - 1), "t": t, "weight": np.uint8(i)}


def joint(comm):
    np.random.seed(comm.rank)
    data = chainer.datasets.TransformDataset(np.arange(10), draw)
    iterator = chainer.iterators.SerialIterator(data, 4, repeat=False)
    model = Divisible(Scaled(), F.relu, lambda x: x[:, :2])
    stage = model.divide(*Plan.uniform(3, comm.size).range(comm.rank))
    optimizer = chainer.optimizers.SGD(0.1).setup(stage)
    pipe = Pipeline(
        stage, comm, n_microbatches=2, lossfun=error, accfun=None, timeout=20
    )
    updater = PipelineUpdater(
        iterator, optimizer, pipe, label_key=("weight", "t"), converter=concat_examples
    )
    reporter = chainer.Reporter()
    epochs = []
    while True:
        observation = {}
        with reporter.scope(observation):
            try:
                updater.update()
            except StopIteration:
                break
        # The target is what the model returns, if both are of the same draw.
        assert observation["main/loss"] < 1e-9, observation
        epochs.append((updater.epoch, updater.is_new_epoch, updater.epoch_detail))
    assert epochs == [(0, False, 0.4), (0, False, 0.8), (1, True, 1.0)]
    assert comm.allgather(updater.iteration) == [3] * comm.size


def test_inputs_and_targets_are_of_the_same_draw_and_keep_their_dtypes():
    assert_on_ranks(3, joint)


def make_trainer(comm, out, n_epochs, several=True):
    np.random.seed(0)
    n_stages = 2 * comm.size if several else comm.size
    layers = [L.Linear(5, 5) for _ in range(2 * comm.size - 1)] + [L.Linear(5, 3)]
    model = Divisible(*layers)
    plan = Plan.uniform(len(model), n_stages)
    stages = [
        model.divide(*plan.range(i)) for i in range(comm.rank, n_stages, comm.size)
    ]
    optimizers = [chainer.optimizers.MomentumSGD(0.1).setup(part) for part in stages]
    pipe = Pipeline(
        stages,
        comm,
        n_microbatches=2,
        schedule="interleaved" if several else "1f1b",
        timeout=20,
    )
    rng = np.random.RandomState(5)
    x = rng.normal(size=(30, 5)).astype(np.float32)
    t = rng.randint(0, 3, 30).astype(np.int32)
    data = chainer.datasets.TupleDataset(x, t)
    sampler = chainer.iterators.ShuffleOrderSampler(np.random.RandomState(6))
    iterator = chainer.iterators.SerialIterator(data, 8, order_sampler=sampler)
    updater = PipelineUpdater(iterator, optimizers, pipe)
    trainer = training.Trainer(updater, (n_epochs, "epoch"), out=out)
    trainer.extend(extensions.ExponentialShift("lr", 0.1), trigger=(1, "epoch"))
    trainer.extend(extensions.LogReport(trigger=(1, "iteration")))
    return trainer, stages, optimizers, sampler


def several(comm, out):
    trainer, stages, optimizers, _ = make_trainer(comm, out, 3)
    assert sorted(trainer.updater.get_all_optimizers()) == ["main", "main_1"]
    trainer.run()
    # What the extension did to 'main' after the last minibatch, they all follow.
    assert list(trainer.updater.get_all_optimizers().values()) == optimizers
    for optimizer in optimizers:
        np.testing.assert_allclose(optimizer.lr, 1e-4)
        assert optimizer.epoch == 3
    # The same model with one stage, and so one optimizer, on each rank.
    expected, *_ = make_trainer(comm, out, 3, several=False)
    expected.run()
    losses = [
        [entry["main/loss"] for entry in each.get_extension("LogReport").log]
        for each in (trainer, expected)
    ]
    np.testing.assert_allclose(*losses, rtol=1e-5)


def test_hyperparameters_of_several_stages_change_together(tmp_path):
    assert_on_ranks(2, several, str(tmp_path))


def resume(comm, out):
    trainer, stages, _, sampler = make_trainer(comm, out, 3, several=False)
    trainer.run()
    expected = [param.array for part in stages for param in part.params()]

    first, *_ = make_trainer(comm, out, 1, several=False)
    first.run()
    path = f"{out}/{comm.rank}.npz"
    chainer.serializers.save_npz(path, first)
    second, stages, _, sampler = make_trainer(comm, out, 3, several=False)
    # The sampler is the user's, with a state of its own.
    sampler(np.arange(30), 0)
    chainer.serializers.load_npz(path, second)
    second.updater.synchronize()
    assert second.updater.epoch == 1
    assert second.updater.iteration == first.updater.iteration
    assert second.updater.pipeline.n_steps == first.updater.iteration
    second.run()
    for array, param in zip(expected, [p for s in stages for p in s.params()]):
        np.testing.assert_array_equal(array, param.array)


def test_a_trainer_goes_on_from_where_it_was_saved(tmp_path):
    assert_on_ranks(2, resume, str(tmp_path))


def resume_several(comm, out):
    """The rate changes before the snapshot is taken, and after it was loaded."""
    expected, stages, *_ = make_trainer(comm, f"{out}/whole", 3)
    expected.run()
    arrays = [param.array for part in stages for param in part.params()]

    first, *_ = make_trainer(comm, out, 2)
    first.extend(snapshot())
    first.run()
    second, stages, optimizers, sampler = make_trainer(comm, out, 3)
    second.extend(snapshot(resume="auto"))
    # The sampler is the user's, with a state of its own.
    for _ in range(2):
        sampler(np.arange(30), 0)
    second.run()
    assert second.get_extension("snapshot").resumed_from is not None
    second.updater.get_all_optimizers()
    np.testing.assert_allclose([o.lr for o in optimizers], 1e-4)
    for array, param in zip(arrays, [p for s in stages for p in s.params()]):
        np.testing.assert_array_equal(array, param.array)

    # One stage on each rank, and one optimizer: both must have had the same settings.
    whole, *_ = make_trainer(comm, out, 3, several=False)
    whole.extend(snapshot(resume="auto"))
    whole.run()
    assert whole.updater.epoch == 3


def test_several_optimizers_go_on_with_the_same_hyperparameters(tmp_path):
    assert_on_ranks(2, resume_several, str(tmp_path))


def by_the_clock(comm, out):
    """Snapshots and evaluations are on all ranks, though clocks differ."""
    trainer, stages, *_ = make_trainer(comm, out, 6, several=False)
    every = training.triggers.TimeTrigger(0.05)
    trainer.extend(snapshot(), trigger=every)
    evaluator = CountingEvaluator(
        chainer.iterators.SerialIterator(
            trainer.updater.get_iterator("main").dataset, 8, repeat=False, shuffle=False
        )
        if comm.rank == 0
        else None,
        trainer.updater.pipeline,
    )
    trainer.extend(evaluator, trigger=training.triggers.TimeTrigger(0.05))
    # So that their clocks do not start together.
    time.sleep(0.03 * comm.rank)
    trainer.extend(lambda trainer: time.sleep(0.02), trigger=(1, "iteration"))
    trainer.run()
    counts = comm.allgather(evaluator.n_calls)
    assert len(set(counts)) == 1 and counts[0] >= 3
    saved = os.listdir(out)
    assert sum(name.startswith("snapshot_iter_") for name in saved) >= 3


class CountingEvaluator(PipelineEvaluator):
    n_calls = 0

    def evaluate(self):
        self.n_calls += 1
        return super().evaluate()


def test_triggers_that_look_at_a_clock(tmp_path):
    assert_on_ranks(2, by_the_clock, str(tmp_path))


def snapshot_of_one_stage(comm, out):
    trainer, *_ = make_trainer(comm, out, 1, several=False)
    trainer.extend(extensions.snapshot())
    with pytest.raises(ValueError, match=r"Use pipeline.snapshot\(\)"):
        trainer.run()
    assert not os.path.exists(out) or not os.listdir(out)


def test_chainers_snapshot_is_refused_on_several_ranks(tmp_path):
    assert_on_ranks(2, snapshot_of_one_stage, str(tmp_path / "out"))


def one_file_of_two_stages(comm, out):
    def save(filename):
        trainer, stages, *_ = make_trainer(comm, out, 1, several=False)
        trainer.extend(extensions.snapshot_object(stages[0], filename))
        trainer.run()

    with pytest.raises(ValueError, match="ranks 0 and 1 would write one file, model_"):
        save("model_{.updater.epoch}")
    assert not os.path.exists(out) or not os.listdir(out)
    save(f"model_{comm.rank}")
    comm.barrier()
    assert {"model_0", "model_1"} <= {*os.listdir(out)}


def test_ranks_do_not_write_their_stages_into_one_file(tmp_path):
    assert_on_ranks(2, one_file_of_two_stages, str(tmp_path / "out"))


def missing_optimizer(comm):
    stages = [
        Divisible(L.Linear(3, 3), L.Linear(3, 3)).divide(i, i + 1) for i in (0, 1)
    ]
    pipe = Pipeline(stages, comm, n_microbatches=1, schedule="interleaved")
    optimizer = chainer.optimizers.SGD().setup(stages[0])
    iterator = chainer.iterators.SerialIterator([1], 1)
    PipelineUpdater(iterator, optimizer, pipe)


def test_a_stage_without_optimizer_is_refused():
    output = refused_on_ranks(1, missing_optimizer).output
    words = "no optimizer on rank 0 was set up with the stage of the layers 1 to 1"
    assert words in output


def different_triggers(comm):
    from pipeline import PipelineEvaluator

    stage = Divisible(L.Linear(3, 3), L.Linear(3, 3)).divide(comm.rank, comm.rank + 1)
    pipe = Pipeline(stage, comm, n_microbatches=1, timeout=20)
    optimizer = chainer.optimizers.SGD().setup(stage)
    data = [(np.ones(3, np.float32), np.int32(0))] * 4
    iterators = [chainer.iterators.SerialIterator(data, 2, r) for r in (True, False)]
    updater = PipelineUpdater(iterators[0], optimizer, pipe)
    trainer = training.Trainer(updater, (3, "iteration"), out="/dev/null/nowhere")
    trainer.extend(
        PipelineEvaluator(iterators[1], pipe), trigger=(1 + comm.rank, "iteration")
    )
    trainer.run()


def test_an_evaluation_on_some_ranks_is_an_error():
    assert "DisagreementError" in refused_on_ranks(2, different_triggers).output

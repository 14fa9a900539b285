"""A load that fails changes nothing, or the pipeline refuses to go on."""

import random
import warnings

import chainer
import chainer.links as L
import numpy as np
import pytest
from chainer import optimizers
from chainer.iterators import SerialIterator, ShuffleOrderSampler
from chainer.training import Trainer
from chainer.training.extensions import LogReport
from mpi4py import MPI

from divisible import Divisible
from pipeline import (
    Pipeline,
    PipelineUpdater,
    SnapshotError,
    load_snapshot,
    rebalance,
    save_snapshot,
)
from pipeline.snapshots.errors import MismatchError
from tests.support.snapshot_training import names_in

X, T = np.ones((4, 3), "f"), np.zeros(4, "i")


class Layer(L.Linear):
    """A layer that fails when it reads itself, if it is told to."""

    fails = False

    def serialize(self, serializer):
        if self.fails and isinstance(serializer, chainer.Deserializer):
            raise RuntimeError("a layer fails")
        super().serialize(serializer)


class Notes:
    """A user's object: a text that is parsed, and may be refused, and an array."""

    def __init__(self):
        self.names, self.counts, self.refused = ["first"], np.zeros(2), None

    def serialize(self, serializer):
        self.names = serializer("names", " ".join(self.names)).split()
        self.counts = serializer("counts", self.counts)
        if self.names == self.refused:
            raise RuntimeError("the notes fail")


class Run:
    def __init__(self, seed=1):
        np.random.seed(seed)
        random.seed(seed)
        self.layers = Layer(3, 4), Layer(4, 2)
        stage = Divisible(*self.layers)
        self.pipe = Pipeline(stage, MPI.COMM_SELF, n_microbatches=2)
        self.optimizer = optimizers.Adam().setup(stage)
        self.notes = Notes()
        order = ShuffleOrderSampler(np.random.RandomState(seed))
        iterator = SerialIterator(range(9), 4, order_sampler=order)
        self.state = {"iterator": iterator, "notes": self.notes}

    def step(self):
        loss = self.pipe.step(X, T)["loss"]
        self.optimizer.update()
        drawn = self.state["iterator"].next(), np.random.rand(), random.random()
        return loss, *drawn, self.pipe.n_steps

    def save(self, path):
        save_snapshot(path, self.pipe, self.optimizer, state=self.state)

    def load(self, path):
        return load_snapshot(path, self.pipe, self.optimizer, state=self.state)


def test_objects_get_their_state_back(tmp_path):
    run = Run()
    run.notes.names, run.notes.counts = ["second", "third"], np.array([7.0, 8.0])
    run.step()
    run.save(tmp_path / "1")
    expected = Run(2).step()
    other = Run(2)
    other.notes.refused = ["second", "third"]
    with pytest.raises(SnapshotError, match="RuntimeError: the notes fail$"):
        other.load(tmp_path / "1")
    other.notes.refused = None
    left = other.state.pop("iterator")
    with pytest.raises(SnapshotError, match=r"iterator is left over\. strict=False"):
        other.load(tmp_path / "1")
    other.state["iterator"] = left
    assert other.notes.names == ["first"] and other.notes.counts.tolist() == [0, 0]
    assert other.step() == expected


def test_a_model_that_was_changed_in_part_is_refused(tmp_path):
    run, other = Run(), Run(2)
    for name in "12":
        run.step()
        run.save(tmp_path / name)
    expected = run.step()
    other.layers[1].fails = True
    before = other.layers[0].W.array.copy()
    with pytest.raises(SnapshotError, match="a layer fails; the run was changed in"):
        other.load(tmp_path / "1")
    assert (other.layers[0].W.array != before).any()
    calls = [
        lambda: other.pipe.step(X, T),
        lambda: other.pipe.evaluate(X, T),
        lambda: other.pipe.predict(X),
        lambda: other.save(tmp_path / "3"),
    ]
    words = f"the snapshot {tmp_path}/1 could not be loaded: load a complete snapshot"
    # What fails before it has changed anything makes nothing whole either.
    for name, why in (("1", "a layer fails"), ("gone", "gone does not exist")):
        with pytest.raises(SnapshotError, match=why):
            other.load(tmp_path / name)
        for call in calls:
            with pytest.raises(RuntimeError, match=words):
                call()
    assert names_in(tmp_path) == ["1", "2"]
    other.layers[1].fails = False
    other.load(tmp_path / "2")
    assert other.step() == expected
    other.save(tmp_path / "3")


def test_what_objects_cannot_keep_they_cannot_get_back(tmp_path):
    run, other = Run(), Run(2)
    run.save(tmp_path / "1")
    other.notes.counts = [object()]
    other.state["other"] = Notes()
    words = "has no other.*; the run was changed in.*the state of notes .TypeError: "
    with pytest.raises(MismatchError, match=words):
        other.load(tmp_path / "1")
    del other.state["other"]
    other.load(tmp_path / "1")
    assert other.step()[:2] == run.step()[:2]


def test_a_trainer_that_has_not_run_gets_its_state_back(tmp_path):
    def run(seed, n_iterations):
        np.random.seed(seed)
        model = Divisible(L.Linear(3, 4), L.Linear(4, 2))
        pipe = Pipeline(model, MPI.COMM_SELF, n_microbatches=2)
        optimizer = optimizers.MomentumSGD().setup(model)
        iterator = SerialIterator(list(zip(X, T)), 2)
        updater = PipelineUpdater(iterator, optimizer, pipe)
        trainer = Trainer(updater, (n_iterations, "iteration"), tmp_path / "out")
        trainer.extend(LogReport(trigger=(1, "iteration")))
        return trainer, (pipe, optimizer)

    trainer, saved = run(1, 4)
    trainer.run()
    save_snapshot(tmp_path / "1", *saved, state={"trainer": trainer})
    trainer, loaded = run(2, 6)
    pipe, optimizer = loaded
    trainer.extend(LogReport(), name="another")
    weights = [param.array.copy() for param in optimizer.target.params()]
    with pytest.raises(MismatchError, match="another") as caught:
        load_snapshot(tmp_path / "1", *loaded, state={"trainer": trainer})
    assert "in part" not in str(caught.value)
    assert trainer.updater.iteration == 0 and trainer._snapshot_elapsed_time == 0
    assert trainer.get_extension("LogReport").log == []
    for param, before in zip(optimizer.target.params(), weights):
        np.testing.assert_array_equal(param.array, before)
    pipe.step(X, T)
    with pytest.warns(UserWarning, match="loaded in part: .*another"):
        load_snapshot(tmp_path / "1", *loaded, state={"trainer": trainer}, strict=False)
    assert trainer.updater.iteration == 4 and trainer._snapshot_elapsed_time > 0
    # The time of a trainer that runs is not counted twice.
    trainer._start_at = 0.0
    before = trainer._snapshot_elapsed_time
    with pytest.raises(MismatchError, match="another"):
        load_snapshot(tmp_path / "1", *loaded, state={"trainer": trainer})
    assert trainer._snapshot_elapsed_time == before


class Growing:
    """Reads as many arrays as it says that there are."""

    name, call_for_each_param = "Growing", False

    def __init__(self):
        self.arrays = []

    def serialize(self, serializer):
        n = serializer("n", len(self.arrays))
        arrays = self.arrays or [None] * n
        self.arrays = [serializer(str(i), array) for i, array in enumerate(arrays)]

    def __call__(self, optimizer):
        pass


class GrowingLayer(L.Linear):
    def __init__(self):
        super().__init__(3, 2)
        self.growing = Growing()

    def serialize(self, serializer):
        super().serialize(serializer)
        self.growing.serialize(serializer["growing"])


def test_what_code_of_others_reads_is_not_foretold(tmp_path):
    def run():
        stage = Divisible(GrowingLayer())
        optimizer = optimizers.SGD().setup(stage)
        hook = Growing()
        optimizer.add_hook(hook)
        pipe = Pipeline(stage, MPI.COMM_SELF, n_microbatches=2)
        return (pipe, optimizer), hook, stage[0].growing

    first, *grown = run()
    for each in grown:
        each.arrays = [np.arange(3.0), np.ones(2)]
    save_snapshot(tmp_path / "1", *first)
    second, *grown = run()
    load_snapshot(tmp_path / "1", *second)
    for each in grown:
        assert [array.tolist() for array in each.arrays] == [[0, 1, 2], [1, 1]]


class Own(L.Linear):
    """Reads something that is not there before, and cannot do without."""

    extra = None

    def serialize(self, serializer):
        super().serialize(serializer)
        extra = serializer("extra", self.extra)
        if isinstance(serializer, chainer.Deserializer):
            self.extra = extra.copy()


def test_layers_that_a_dry_run_cannot_read_are_loaded(tmp_path):
    def run(optimizer):
        stage = Divisible(Own(3, 2))
        return Pipeline(stage, MPI.COMM_SELF, n_microbatches=2), optimizer().setup(
            stage
        )

    pipe, optimizer = run(optimizers.SGD)
    pipe.stages[0][0].extra = np.arange(3.0)
    save_snapshot(tmp_path / "1", pipe, optimizer)
    other, its_optimizer = run(optimizers.SGD)
    load_snapshot(tmp_path / "1", other, its_optimizer)
    assert other.stages[0][0].extra.tolist() == [0, 1, 2]
    # All the rest is looked at all the same.
    other, its_optimizer = run(optimizers.MomentumSGD)
    weights = other.stages[0][0].W.array.copy()
    with pytest.raises(SnapshotError, match="SGD, but MomentumSGD is here"):
        load_snapshot(tmp_path / "1", other, its_optimizer)
    assert (other.stages[0][0].W.array == weights).all()
    assert other.stages[0][0].extra is None


def test_activations_in_another_dtype_are_reported(tmp_path):
    def run(**arguments):
        model = Divisible(L.Linear(3, 4), L.Linear(4, 2))
        stages = [model.divide(0, 1), model.divide(1, 2)]
        options = dict(n_microbatches=2, schedule="interleaved", **arguments)
        pipe = Pipeline(stages, MPI.COMM_SELF, **options)
        return pipe, pipe.setup(optimizers.SGD())

    narrow = {"hold_dtype": "bfloat16", "message_dtype": ("int8", "bf16")}
    pipe, optimizer = run(**narrow)
    pipe.step(X, T)
    save_snapshot(tmp_path / "s", pipe, optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = load_snapshot(tmp_path / "s", *run(**narrow))
    assert found.schedule["hold_dtype"] == "bfloat16"
    with pytest.warns(UserWarning) as caught:
        load_snapshot(tmp_path / "s", *run())
    waiting, travelling = (str(each.message) for each in caught)
    assert "wait in bfloat16, and this run's wait in float32" in waiting
    assert "in int8 forward, bf16 backward, and this run's are in fp32" in travelling


def without_sizes():
    """Returns a pipeline whose layers get their sizes at their first call."""
    np.random.seed(0)
    model = Divisible(L.Linear(None, 4), L.Linear(None, 2))
    pipe = Pipeline(model, MPI.COMM_SELF, n_microbatches=2)
    return pipe, pipe.setup(optimizers.SGD(0.1))


@pytest.mark.parametrize("first_call", ["evaluate", "step"])
def test_layers_that_a_load_makes_uncalled_draw_the_weights_of_a_first_call(
    tmp_path, first_call
):
    pipe, optimizer = without_sizes()
    expected = pipe.evaluate(X, T)
    pipe, optimizer = without_sizes()
    save_snapshot(tmp_path / "1", pipe, optimizer)
    getattr(pipe, first_call)(X, T)
    load_snapshot(tmp_path / "1", pipe, optimizer)
    assert pipe.internals.step.are_unsized
    # Another call than the first one would draw numbers of evaluations.
    assert pipe.evaluate(X, T) == expected
    assert not pipe.internals.step.are_unsized


def in_two_stages():
    return Divisible(*(L.Linear(3, 3) for _ in range(3)))


@pytest.mark.parametrize("updates", [True, False])
def test_layers_may_move_after_a_load_of_an_earlier_state(tmp_path, updates):
    model = in_two_stages()
    stages = [model.divide(0, 1), model.divide(1, 3)]
    pipe = Pipeline(
        stages, MPI.COMM_SELF, n_microbatches=2, schedule="interleaved", accfun=None
    )
    optimizer = pipe.setup(optimizers.SGD(0.1))
    pipe.step(X, T)
    optimizer.update()
    save_snapshot(tmp_path / "1", pipe, optimizer)
    pipe.step(X, T)
    if updates:
        optimizer.update()
    load_snapshot(tmp_path / "1", pipe, optimizer)
    assert rebalance(pipe, optimizer, [0, 2, 3], in_two_stages).layers == (1,)

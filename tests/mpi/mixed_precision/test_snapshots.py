"""Float32 master weights and the loss scale go from any cut to any other."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
from chainer.iterators import SerialIterator
from chainer.training import Trainer
from chainer.training.updaters import StandardUpdater
from mpi4py import MPI

from divisible import Divisible, Plan
from pipeline import Pipeline, load_snapshot, save_snapshot, snapshot
from tests.support.equivalence import make_batches
from tests.support.mpiexec import assert_on_ranks
from tests.support.snapshot_training import state_of

N_LAYERS = 6
BATCHES = make_batches([16] * 6, n_in=8, dtype=np.float16)


class Run:
    """A pipeline in float16 with one optimizer for all stages of a rank."""

    def __init__(self, comm, n_stages, make_optimizer, seed=3):
        from mixed_precision import DynamicLossScale, MixedPrecision, to_float16

        np.random.seed(seed)
        model = Divisible(
            L.Linear(8, 8),
            L.BatchNormalization(8),
            F.tanh,
            L.Linear(8, 8),
            F.tanh,
            L.Linear(8, 4),
        )
        model, plan = to_float16(model), Plan.uniform(N_LAYERS, n_stages)
        numbers = range(comm.rank, n_stages, comm.size)
        self.stages = [model.divide(*plan.range(number)) for number in numbers]
        self.scale = DynamicLossScale(2.0**14, growth_interval=2)
        optimizer = MixedPrecision(make_optimizer(), loss_scale=self.scale, comm=comm)
        one = len(self.stages) == 1
        self.optimizer = optimizer.setup(self.stages[0] if one else self.stages)
        self.optimizer.add_hook(chainer.optimizer_hooks.GradientClipping(0.5))
        self.pipe = Pipeline(
            self.stages,
            comm,
            n_microbatches=4,
            schedule="1f1b" if one else "interleaved",
            loss_scale=self.scale,
            timeout=20,
        )

    def step(self, i):
        loss = self.pipe.step(*BATCHES[i])["loss"]
        self.optimizer.update()
        return loss

    def state(self):
        writer = chainer.serializers.DictionarySerializer()
        self.optimizer.serialize(writer)
        state = {key: np.array(value) for key, value in writer.target.items()}
        for stage in self.stages:
            state.update(state_of(stage))
        return state


def resume(comm, folder):
    alone = comm.Split(0 if comm.rank == 0 else MPI.UNDEFINED)
    layouts = {"serial": (alone, 1), "two": (comm, 2), "interleaved": (comm, 4)}
    for saved, make_optimizer in (
        ("two", chainer.optimizers.Adam),
        ("interleaved", chainer.optimizers.AdaDelta),
    ):
        path = f"{folder}/{saved}"
        run = Run(*layouts[saved], make_optimizer)
        for i in range(3):
            run.step(i)
        save_snapshot(path, run.pipe, run.optimizer)
        losses = [run.step(i) for i in (3, 4, 5)]
        states = comm.allgather(run.state())
        expected = {k: v for state in states for k, v in state.items()}
        assert any(key.endswith("/master") for key in expected)
        for group, n_stages in layouts.values():
            if group == MPI.COMM_NULL:
                continue
            other = Run(group, n_stages, make_optimizer, seed=4)
            other.step(0)
            load_snapshot(path, other.pipe, other.optimizer)
            assert [other.step(i) for i in (3, 4, 5)] == losses
            for key, value in other.state().items():
                np.testing.assert_array_equal(value, expected[key], key)


class Updater(StandardUpdater):
    """Steps of a run, as minibatches of a trainer."""

    def __init__(self, run):
        super().__init__(SerialIterator(range(16), 4, shuffle=False), run.optimizer)
        self.run, self.pipeline = run, run.pipe

    def update_core(self):
        self.run.step(self.iteration)


def trained(comm, out, n_iterations, **options):
    run = Run(comm, comm.size, chainer.optimizers.MomentumSGD)
    trainer = Trainer(Updater(run), (n_iterations, "iteration"), out=out)
    trainer.extend(snapshot(**options), trigger=(3, "iteration"))
    trainer.run()
    return run.state()


def trainers(comm, folder):
    expected = trained(comm, folder, 5)
    assert any(
        (value != value.astype(np.float16)).any()
        for key, value in expected.items()
        if key.endswith("/master")
    )
    found = trained(comm, folder, 5, resume=f"{folder}/snapshot_iter_3")
    for key, value in found.items():
        np.testing.assert_array_equal(value, expected[key], key)


def test_masters_of_a_trainer_that_goes_on(tmp_path):
    assert_on_ranks(2, trainers, str(tmp_path))


def test_masters_and_loss_scale(tmp_path):
    assert_on_ranks(2, resume, str(tmp_path))

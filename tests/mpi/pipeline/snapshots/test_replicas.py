"""Snapshots of replicas: one model on disk, for any grid."""

import warnings

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from data_parallel import Grid, ReplicaIterator, create_multi_node_optimizer
from divisible import Divisible, Plan
from pipeline import (
    Pipeline,
    PipelineUpdater,
    SnapshotError,
    load_snapshot,
    repartition,
    save_snapshot,
)
from tests.support.equivalence import assert_close, make_batches
from tests.support.matrix import matrix
from tests.support.mpiexec import assert_on_ranks

TIMEOUT = 20
CUTS = {1: [0, 6], 2: [0, 3, 6], 3: [0, 2, 4, 6], 4: [0, 1, 3, 4, 6]}
SAMPLES = [(x, t) for batch in make_batches([20]) for x, t in zip(*batch)]


def noisy_model():
    return Divisible(
        L.Linear(6, 8), F.dropout, L.BatchNormalization(8), L.Linear(8, 8), F.tanh,
        L.Linear(8, 4),
    )  # fmt: skip


def plain_model():
    """Returns one whose losses do not depend on the microbatches."""
    return Divisible(
        L.Linear(6, 8), F.relu, L.Linear(8, 8), L.Linear(8, 8), F.tanh, L.Linear(8, 4)
    )


def run_on(comm, n_pipeline, options, make_model=noisy_model):
    """Returns a pipeline on a grid, its optimizer and its updater."""
    grid = Grid(comm, n_pipeline)
    np.random.seed(11 + comm.rank)
    model = make_model()
    plan = Plan(CUTS[n_pipeline])
    stage = model.divide(*plan.range(grid.pipeline.rank))
    optimizer = create_multi_node_optimizer(
        chainer.optimizers.MomentumSGD(0.05), grid.data, timeout=TIMEOUT, **options
    ).setup(stage)
    pipe = Pipeline(stage, grid, n_microbatches=2, timeout=TIMEOUT, seed=5)
    iterator = None
    if pipe.is_first:
        serial = chainer.iterators.SerialIterator(SAMPLES, 8)
        iterator = ReplicaIterator(serial, grid)
    return grid, pipe, optimizer, PipelineUpdater(iterator, optimizer, pipe)


def losses_of(updater, n):
    """Returns the losses of the next updates."""
    losses = []
    for _ in range(n):
        reporter = chainer.Reporter()
        with reporter.scope({}):
            updater.update()
            losses.append(chainer.get_current_reporter().observation["main/loss"])
    return losses


def state_of(pipe):
    (stage,) = pipe.stages.values()
    arrays = {path: param.array.copy() for path, param in stage.namedparams()}
    for path, link in stage.namedlinks():
        if isinstance(link, L.BatchNormalization):
            arrays[f"{path}/mean"] = link.avg_mean.copy()
    return arrays


def resumes_bit_for_bit(comm, folder, options):
    """Goes on from a snapshot as if there had been none."""
    grid, pipe, optimizer, updater = run_on(comm, 2, options)
    losses_of(updater, 4)
    save_snapshot(f"{folder}/4", pipe, optimizer, state={"updater": updater})
    expected, numbers = losses_of(updater, 4), np.random.rand(3)
    state = state_of(pipe)
    _, other, optimizer, updater = run_on(comm, 2, options)
    snapshot = load_snapshot(
        f"{folder}/4", other, optimizer, state={"updater": updater}
    )
    assert (snapshot.n_ranks, snapshot.n_replicas) == (2, 2)
    assert losses_of(updater, 4) == expected
    assert (np.random.rand(3) == numbers).all()
    for path, array in state_of(other).items():
        assert (array == state[path]).all(), path
    names = set(snapshot.files)
    assert {"stage-0.npz", "stage-1.npz", "common.npz"} <= names
    # What error feedback keeps is of each replica.
    of_replicas = {f"replica-1-stage-{i}.npz" for i in (0, 1)}
    assert of_replicas & names == (of_replicas if options else set())
    pipe.close()
    other.close()


CODED = {"exchange_dtype": "int8", "minimum": 0, "local_size": 1}
FED_BACK = {**CODED, "error_feedback": True}


@pytest.mark.parametrize("options", [FED_BACK, *matrix({})])
def test_resumes_bit_for_bit(options, tmp_path):
    assert_on_ranks(4, resumes_bit_for_bit, str(tmp_path), options)


def save_on_grid(comm, folder):
    _, pipe, optimizer, updater = run_on(comm, 2, {})
    losses_of(updater, 3)
    save_snapshot(f"{folder}/3", pipe, optimizer, state={"updater": updater})
    held = make_batches([12], dtype=np.float32)[0]
    loss = pipe.evaluate(*held)["loss"]
    if comm.rank == 0:
        np.save(f"{folder}/loss.npy", [loss, *losses_without_noise(updater, pipe)])
    else:
        losses_without_noise(updater, pipe)
    pipe.close()


def losses_without_noise(updater, pipe):
    with chainer.using_config("dropout", 0):
        return losses_of(updater, 1)


def load_on_grid(comm, folder, n_pipeline):
    _, pipe, optimizer, updater = run_on(comm, n_pipeline, {})
    load_snapshot(f"{folder}/3", pipe, optimizer, state={"updater": updater})
    assert updater.iteration == 3
    held = make_batches([12], dtype=np.float32)[0]
    losses = np.load(f"{folder}/loss.npy")
    assert_close(pipe.evaluate(*held)["loss"], losses[0])
    losses_of(updater, 2)
    pipe.close()


@pytest.mark.parametrize(
    "n_ranks, n_pipeline", [(4, 1), (3, 3), *matrix((2, 2), (4, 4))]
)
def test_loads_on_another_grid(n_ranks, n_pipeline, tmp_path):
    assert_on_ranks(4, save_on_grid, str(tmp_path))
    assert_on_ranks(n_ranks, load_on_grid, str(tmp_path), n_pipeline)


def save_plain(comm, folder):
    _, pipe, optimizer, updater = run_on(comm, 2, {}, plain_model)
    losses_of(updater, 3)
    save_snapshot(f"{folder}/3", pipe, optimizer, state={"updater": updater})
    losses = losses_of(updater, 5)
    if comm.rank == 0:
        np.save(f"{folder}/losses.npy", losses)
    pipe.close()


def load_plain(comm, folder, n_pipeline):
    _, pipe, optimizer, updater = run_on(comm, n_pipeline, {}, plain_model)
    load_snapshot(f"{folder}/3", pipe, optimizer, state={"updater": updater})
    assert_close(losses_of(updater, 5), np.load(f"{folder}/losses.npy"))
    pipe.close()


def test_goes_on_with_equal_losses_on_other_grids(tmp_path):
    assert_on_ranks(4, save_plain, str(tmp_path))
    for n_ranks, n_pipeline in [(2, 2), (4, 1), (3, 3)]:
        assert_on_ranks(n_ranks, load_plain, str(tmp_path), n_pipeline)


def residuals_of(optimizer):
    return optimizer.exchange.kept.residuals


def save_with_residuals(comm, folder, options):
    grid, pipe, optimizer, updater = run_on(comm, 2, options)
    losses_of(updater, 3)
    save_snapshot(f"{folder}/3", pipe, optimizer, state={"updater": updater})
    residuals = residuals_of(optimizer)
    assert all(residual.any() for name, residual in residuals.items() if "W" in name)
    np.savez(
        f"{folder}/residuals-{grid.replica}-{grid.pipeline.rank}.npz",
        **{name.strip("/"): residual for name, residual in residuals.items()},
    )
    losses = losses_of(updater, 2)
    if comm.rank == 0:
        np.save(f"{folder}/losses.npy", losses)
    pipe.close()


def load_with_residuals(comm, folder, name, n_pipeline, options):
    """Compares what each rank has loaded, by path, with what replicas had saved."""
    grid, pipe, optimizer, updater = run_on(comm, n_pipeline, options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_snapshot(f"{folder}/{name}", pipe, optimizer, state={"updater": updater})
    saved = [{}, {}]
    for replica, place in np.ndindex(2, 2):
        with np.load(f"{folder}/residuals-{replica}-{place}.npz") as file:
            saved[replica].update(file)
    loaded = residuals_of(optimizer)
    (stage,) = pipe.stages.values()
    assert sorted(loaded) == sorted(path for path, _ in stage.namedparams())
    for path, residual in loaded.items():
        each = [of_replica[path.strip("/")] for of_replica in saved]
        expected = each[grid.replica % 2]
        if grid.n_replicas != 2:
            expected = (each[0] + each[1]) / np.float32(2)
        assert (residual == expected).all(), path
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "what error feedback has kept")
        found = losses_of(updater, 2)
    # With 8 bits, and dropout that goes by the replica, they are near.
    assert abs(np.array(found) - np.load(f"{folder}/losses.npy")).max() < 0.5
    pipe.close()


def test_error_feedback_follows_the_parameters(tmp_path):
    assert_on_ranks(4, save_with_residuals, str(tmp_path), FED_BACK)
    for n_ranks, n_pipeline in [(2, 2), (2, 1), (4, 1), (3, 3), (4, 2)]:
        arguments = str(tmp_path), "3", n_pipeline, FED_BACK
        assert_on_ranks(n_ranks, load_with_residuals, *arguments)
    repartition(tmp_path / "3", 3, tmp_path / "cut")
    for n_ranks, n_pipeline in [(4, 2), (3, 3)]:
        arguments = str(tmp_path), "cut", n_pipeline, FED_BACK
        assert_on_ranks(n_ranks, load_with_residuals, *arguments)


def measured_otherwise(comm, folder):
    """Stages that code from other sizes on are put together all the same."""
    grid, pipe, optimizer, updater = run_on(comm, 2, {"local_size": 1})
    layouts = optimizer.exchange._layouts
    layouts.shape = layouts.shape._replace(minimum=100 + grid.pipeline.rank)
    save_snapshot(f"{folder}/3", pipe, optimizer, state={"updater": updater})
    pipe.close()
    _, pipe, optimizer, updater = run_on(comm, 1, {"local_size": 1})
    load_snapshot(f"{folder}/3", pipe, optimizer, state={"updater": updater})
    # That of the first stage.
    assert optimizer.exchange.minimum == 100
    pipe.close()


def test_what_each_stage_has_measured_is_no_obstacle(tmp_path):
    assert_on_ranks(4, measured_otherwise, str(tmp_path))


def refused_load(comm, folder):
    """A snapshot that does not fit leaves what the exchange keeps as it was."""
    _, pipe, optimizer, updater = run_on(comm, 1, FED_BACK)
    losses_of(updater, 1)
    save_snapshot(f"{folder}/1", pipe, optimizer, state={"updater": updater})
    losses_of(updater, 2)
    exchange = optimizer.exchange
    kept = {name: each.copy() for name, each in residuals_of(optimizer).items()}
    before = exchange.kept.n_exchanges, optimizer._agreement.n_updates
    with pytest.raises(SnapshotError, match="it has no more"):
        state = {"updater": updater, "more": np.random.RandomState(0)}
        load_snapshot(f"{folder}/1", pipe, optimizer, state=state)
    assert (exchange.kept.n_exchanges, optimizer._agreement.n_updates) == before
    for name, residual in residuals_of(optimizer).items():
        assert (residual == kept[name]).all(), name
        assert residual.any() == ("W" in name), name
    optimizer.actual_optimizer.add_hook(Counting())
    with pytest.raises(SnapshotError, match="optimizer it has no hooks/C") as e:
        load_snapshot(f"{folder}/1", pipe, optimizer, state={"updater": updater})
    assert "changed in part" not in str(e.value)
    pipe.close()


class Counting:
    """A hook that has a state."""

    name, timing, call_for_each_param, n = "Counting", "pre", False, 0

    def __call__(self, optimizer):
        self.n += 1

    def serialize(self, serializer):
        self.n = serializer("n", self.n)


def test_a_load_that_is_refused_changes_nothing(tmp_path):
    assert_on_ranks(2, refused_load, str(tmp_path))

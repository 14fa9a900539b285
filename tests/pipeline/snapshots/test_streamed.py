"""Snapshots of layers whose weights are on disk, which are never whole in memory."""

import tracemalloc
import warnings

import chainer
import chainer.links as L
import numpy as np
import pytest
from mpi4py import MPI

from divisible import Divisible, deferred_init
from divisible.streaming import Streamed, mapped
from pipeline import (
    Pipeline,
    SnapshotError,
    import_npz,
    load_snapshot,
    save_snapshot,
    wait_for_snapshot,
)

#: Bytes of the weights, in a layer of which 64 KiB are read or written at a time.
N_BYTES = 8 * 1024 * 1024


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(mapped, "_PART", 64 * 1024)


class Run:
    def __init__(self, streamed=True, seed=0, optimizer=chainer.optimizers.Adam):
        with deferred_init(seed=seed):
            layer = L.Linear(1024, N_BYTES // 4096)
            if streamed:
                layer = Streamed(layer, segment=64)
            self.stage = Divisible(layer, L.Linear(N_BYTES // 4096, 3)).divide()
        self.pipe = Pipeline(self.stage, MPI.COMM_SELF, n_microbatches=2)
        self.optimizer = optimizer().setup(self.stage)

    def step(self):
        x, t = np.ones((4, 1024), "f"), np.arange(4, dtype="i") % 3
        loss = self.pipe.step(x, t)["loss"]
        self.optimizer.update()
        return loss

    def state(self):
        rule = self.stage[0].W.update_rule
        return [self.stage[0].W.array, *(rule.state[name] for name in "mv")]


def peak(function, *arguments):
    """Returns the most bytes that a call takes of memory; files do not count."""
    tracemalloc.start()
    try:
        function(*arguments)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_is_written_and_read_in_parts(tmp_path):
    run, other = Run(), Run(seed=1)
    run.step()
    assert peak(save_snapshot, tmp_path / "a", run.pipe, run.optimizer) < N_BYTES / 2
    assert peak(load_snapshot, tmp_path / "a", other.pipe, other.optimizer) < (
        N_BYTES / 2
    )
    for wanted, found in zip(run.state(), other.state()):
        np.testing.assert_array_equal(found, wanted)
        # It was read into the files, and none is made at the next update.
        assert mapped.mapped_array(found) is not None
    assert other.step() == run.step()
    # The same again, into a state that is there already.
    load_snapshot(tmp_path / "a", run.pipe, run.optimizer)
    load_snapshot(tmp_path / "a", other.pipe, other.optimizer)
    assert other.step() == run.step()


@pytest.mark.parametrize("streamed", [True, False])
def test_is_that_of_a_resident_layer(tmp_path, streamed):
    run, other = Run(streamed), Run(not streamed, seed=1)
    run.step()
    save_snapshot(tmp_path / "a", run.pipe, run.optimizer)
    load_snapshot(tmp_path / "a", other.pipe, other.optimizer)
    for wanted, found in zip(run.state(), other.state()):
        np.testing.assert_array_equal(found, wanted)


def test_before_the_first_update_there_is_no_state(tmp_path):
    run, other = Run(), Run(seed=1)
    save_snapshot(tmp_path / "a", run.pipe, run.optimizer)
    other.step()
    load_snapshot(tmp_path / "a", other.pipe, other.optimizer)
    assert other.stage[0].W.update_rule.state is None
    assert other.step() == run.step()


def test_another_optimizer_begins_anew(tmp_path):
    run, other = Run(), Run(seed=1, optimizer=chainer.optimizers.MomentumSGD)
    run.step()
    save_snapshot(tmp_path / "a", run.pipe, run.optimizer)
    with pytest.warns(UserWarning, match="loaded in part"):
        load_snapshot(tmp_path / "a", other.pipe, other.optimizer, strict=False)
    assert other.stage[0].W.update_rule.state is None
    np.testing.assert_array_equal(other.stage[0].W.array, run.stage[0].W.array)


def test_none_is_copied_for_the_background(tmp_path):
    run = Run()
    with pytest.warns(UserWarning, match="rank 0: MemoryError: it streams weights"):
        save_snapshot(tmp_path / "a", run.pipe, run.optimizer, background=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        save_snapshot(tmp_path / "b", run.pipe, run.optimizer, background=True)
    wait_for_snapshot(run.pipe)
    load_snapshot(tmp_path / "b", run.pipe, run.optimizer)


@pytest.mark.parametrize("save", [chainer.serializers.save_npz, "compressed", "double"])
def test_a_serial_file_is_read_in_parts(tmp_path, save):
    run, other = Run(streamed=False), Run(seed=1)
    path = tmp_path / "model.npz"
    if callable(save):
        save(path, run.stage)
    else:
        arrays = {p.lstrip("/"): param.array for p, param in run.stage.namedparams()}
        if save == "double":
            arrays = {key: array.astype("d") for key, array in arrays.items()}
        np.savez_compressed(path, **arrays)
    assert peak(import_npz, path, other.stage) < N_BYTES / 2
    np.testing.assert_array_equal(other.stage[0].W.array, run.stage[0].W.array)


def test_damage_is_found_before_anything_changes(tmp_path):
    run = Run()
    run.step()
    save_snapshot(tmp_path / "a", run.pipe, run.optimizer)
    before = run.stage[0].W.array.copy()
    (path,) = (tmp_path / "a").glob("stage*")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    run.step()
    after = run.stage[0].W.array.copy()
    assert (before != after).any()
    with pytest.raises(SnapshotError, match=path.name):
        load_snapshot(tmp_path / "a", run.pipe, run.optimizer)
    np.testing.assert_array_equal(run.stage[0].W.array, after)


def test_a_load_takes_the_place_of_an_update(tmp_path):
    """A script may load instead of updating, such as when a loss is not finite."""
    run, x, t = Run(), np.ones((4, 1024), "f"), np.arange(4, dtype="i") % 3
    run.step()
    save_snapshot(tmp_path / "a", run.pipe, run.optimizer)
    expected = run.pipe.evaluate(x, t)
    run.pipe.step(x, t, run.optimizer)
    assert run.stage[0].W.is_updated
    load_snapshot(tmp_path / "a", run.pipe, run.optimizer)
    assert run.stage[0].W.grad is None
    assert run.pipe.evaluate(x, t) == expected
    run.pipe.step(x, t, run.optimizer)
    run.optimizer.update()
    assert run.pipe.evaluate(x, t) != expected

"""Snapshots cut anew, exported to and imported from the undivided model's file."""

import tempfile

import chainer
import chainer.links as L
import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from mpi4py import MPI

from divisible import Divisible, Plan
from pipeline import (
    Snapshot,
    SnapshotError,
    export_npz,
    import_npz,
    repartition,
)
from pipeline.command_line.snapshots import export_command, repartition_command
from tests.support.snapshot_training import Run, make_model, saved_arrays, state_of


@pytest.fixture
def run(tmp_path):
    """A run of which a snapshot has been taken after two minibatches."""
    run = Run(MPI.COMM_SELF, "1")
    for i in range(2):
        run.step(i)
    run.save(tmp_path / "1", values={"epoch": 7})
    return run


def invoke(command, *arguments):
    return CliRunner().invoke(command, list(map(str, arguments)))


@pytest.mark.parametrize("cuts", [[0, 8], [0, 3, 8], [0, 1, 2, 3, 4, 5, 6, 7, 8]])
def test_repartition(tmp_path, run, cuts):
    repartition(tmp_path / "1", Plan(cuts), tmp_path / "2")
    before, after = saved_arrays(tmp_path / "1"), saved_arrays(tmp_path / "2")
    assert set(after) == set(before)
    assert all(after[key].tobytes() == before[key].tobytes() for key in before)
    snapshot = Snapshot.open(tmp_path / "2")
    assert list(snapshot.layer_ranges) == list(zip(cuts, cuts[1:]))
    assert snapshot.values == {"epoch": 7} and snapshot.n_steps == 2
    for number, (start, end) in enumerate(snapshot.layer_ranges):
        with np.load(snapshot.path / f"stage-{number}.npz") as arrays:
            positions = {key.split("/")[1] for key in arrays} - {"t", "epoch"}
        assert positions - {"settings"} <= set(map(str, range(start, end)))

    # And back, and the run goes on.
    repartition(tmp_path / "2", 1, tmp_path / "3")
    resumed = Run(MPI.COMM_SELF, "1", seed=4)
    resumed.load(tmp_path / "3")
    assert resumed.step(2) == run.step(2)


@settings(max_examples=15)
@given(chain=st.lists(st.sets(st.integers(1, 7)), min_size=1, max_size=3))
def test_any_chain_of_cuts_keeps_every_array(chain):
    run = Run(MPI.COMM_SELF, "1")
    with tempfile.TemporaryDirectory() as folder:
        run.save(f"{folder}/0")
        before = saved_arrays(f"{folder}/0")
        for i, inner in enumerate(chain):
            plan = Plan([0, *sorted(inner), 8])
            repartition(f"{folder}/{i}", plan, f"{folder}/{i + 1}")
        after = saved_arrays(f"{folder}/{len(chain)}")
        assert set(after) == set(before)
        assert all(after[key].tobytes() == before[key].tobytes() for key in before)


def test_repartition_is_refused(tmp_path, run):
    with pytest.raises(ValueError, match="is of 9 layers, but .* of a model of 8"):
        repartition(tmp_path / "1", Plan([0, 9]), tmp_path / "2")
    with pytest.raises(ValueError, match="is the snapshot to read"):
        repartition(tmp_path / "1", 2, tmp_path / "1")
    with pytest.raises(ValueError, match="is the snapshot to read, or in it"):
        repartition(tmp_path / "1", 2, tmp_path / "1" / "again")
    # Nothing but a snapshot is replaced: here it would be the one that is read.
    with pytest.raises(SnapshotError, match="is there and is no snapshot"):
        repartition(tmp_path / "1", 2, tmp_path)
    assert Snapshot.open(tmp_path / "1").n_layers == 8
    file = tmp_path / "1" / "stage-0.npz"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(SnapshotError, match="stage-0.npz has"):
        repartition(tmp_path / "1", 2, tmp_path / "2")
    assert not (tmp_path / "2").exists()


def test_export_to_a_serial_script(tmp_path, run):
    """The file is the one that Chainer would have written."""
    repartition(tmp_path / "1", 5, tmp_path / "2")
    export_npz(tmp_path / "2", tmp_path / "exported.npz")
    trained = run.stages[0]
    chainer.serializers.save_npz(tmp_path / "expected.npz", trained)
    exported, expected = (
        dict(np.load(tmp_path / name)) for name in ("exported.npz", "expected.npz")
    )
    assert set(exported) == set(expected)
    for key in expected:
        np.testing.assert_array_equal(exported[key], expected[key], key)
    serial = make_model(seed=4)
    chainer.serializers.load_npz(tmp_path / "exported.npz", serial)
    x = np.ones((2, 8), np.float32)
    with chainer.using_config("train", False):
        np.testing.assert_array_equal(serial(x).array, trained(x).array)


def test_import_from_a_serial_script(tmp_path):
    serial, model = make_model(seed=3), make_model(seed=4)
    chainer.serializers.save_npz(tmp_path / "model.npz", serial)
    stages = [model.divide(*Plan.uniform(8, 3).range(i)) for i in range(3)]
    import_npz(tmp_path / "model.npz", stages)
    expected = state_of_model(serial)
    found = {}
    for stage in stages:
        found.update(state_of_model(stage))
    assert set(found) == set(expected)
    for key in expected:
        np.testing.assert_array_equal(found[key], expected[key], key)


def state_of_model(model):
    chainer.optimizers.SGD().setup(model)
    state = state_of(model)
    return {key: value for key, value in state.items() if key.startswith("model")}


def test_import_changes_nothing_if_something_does_not_fit(tmp_path):
    model = make_model()
    before = state_of_model(model)
    np.savez(tmp_path / "empty.npz", a=1)
    with pytest.raises(ValueError, match="has no [0-9]"):
        import_npz(tmp_path / "empty.npz", model)
    chainer.serializers.save_npz(tmp_path / "model.npz", make_model(seed=4))
    with np.load(tmp_path / "model.npz") as arrays:
        arrays = dict(arrays)
    # NumPy would fill the whole bias with it.
    arrays["7/b"] = np.zeros(1, np.float32)
    np.savez(tmp_path / "model.npz", **arrays)
    with pytest.raises(ValueError, match=r"7/b was saved with shape \(1,\)"):
        import_npz(tmp_path / "model.npz", model)
    after = state_of_model(model)
    assert all(np.array_equal(after[key], before[key]) for key in before)


def test_a_folder_of_snapshots_is_none(tmp_path, run):
    run.save(tmp_path / "10")
    run.save(tmp_path / "9")
    (tmp_path / "11.partial").mkdir()
    found = " or ".join(str(tmp_path / name) for name in ("1", "9", "10"))
    for command, *more in ((repartition_command, "--stages", 2), (export_command,)):
        result = invoke(command, tmp_path, *more)
        assert result.exit_code == 1
        message = f"{tmp_path} is a folder of snapshots: name one of them, {found}"
        assert result.output == f"Error: {message}\n"
    with pytest.raises(SnapshotError, match="a folder of snapshots"):
        export_npz(tmp_path, tmp_path / "model.npz")
    (tmp_path / "empty").mkdir()
    assert "is incomplete" in invoke(export_command, tmp_path / "empty").output


def test_commands(tmp_path, run):
    path = tmp_path / "1"
    result = invoke(repartition_command, path, "--stages", 3)
    assert result.exit_code == 0, result.output
    assert "stage 2: layers 6 to 7" in result.output
    assert len(Snapshot.open(tmp_path / "1_on_3_stages").layer_ranges) == 3
    Plan([0, 5, 8]).save(tmp_path / "plan.json")
    for option, value in (("--cuts", "5"), ("--plan", tmp_path / "plan.json")):
        result = invoke(repartition_command, path, option, value, "-o", tmp_path / "2")
        assert result.exit_code == 0, result.output
        assert Snapshot.open(tmp_path / "2").layer_ranges == [(0, 5), (5, 8)]
    result = invoke(repartition_command, path)
    assert result.exit_code == 2 and "give one of" in result.output
    result = invoke(repartition_command, path, "--stages", 9)
    assert result.exit_code == 1 and "cannot be cut into 9" in result.output
    result = invoke(export_command, path, "-o", tmp_path / "model.npz")
    assert result.exit_code == 0, result.output
    chainer.serializers.load_npz(tmp_path / "model.npz", make_model())


def test_a_damaged_file_changes_no_layer(tmp_path):
    """Not even before a layer that is sized at its first call."""
    file = tmp_path / "model.npz"
    trained = Divisible(L.Linear(3, 4), L.Linear(4, 2))
    chainer.serializers.save_npz(file, trained, compression=False)
    content = bytearray(file.read_bytes())
    content[content.index(trained[1].W.array.tobytes()[:16])] ^= 1
    file.write_bytes(content)
    model = Divisible(L.Linear(3, 4), L.Linear(None, 2))
    before = model[0].W.array.copy()
    with pytest.raises(SnapshotError, match="model.npz: 1/W cannot be read"):
        import_npz(file, model)
    assert (model[0].W.array == before).all() and model[1].W.array is None

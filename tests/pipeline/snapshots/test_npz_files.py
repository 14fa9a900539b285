"""Snapshots exported to, and stages loaded from, files of the undivided model."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer.training import StandardUpdater, Trainer, extensions
from click.testing import CliRunner

from divisible import Divisible, Plan
from pipeline import (
    Snapshot,
    SnapshotError,
    export_npz,
    import_npz,
    repartition,
)
from pipeline.command_line.main import main
from pipeline.command_line.snapshots import export_command, repartition_command
from pipeline.snapshots.npz_files import model_prefixes
from tests.support.snapshot_training import make_model, state_of


def invoke(command, *arguments):
    return CliRunner().invoke(command, list(map(str, arguments)))


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


# -- files of serial scripts, as Chainer writes them -----------------------------------


def build():
    return Divisible(L.Linear(5, 6), L.BatchNormalization(6), F.relu, L.Linear(6, 3))


def train(folder, make_optimizer=chainer.optimizers.Adam):
    """Lets Chainer's own trainer write a snapshot after 6 minibatches."""
    np.random.seed(0)
    classifier = L.Classifier(build())
    optimizer = make_optimizer().setup(classifier)
    x = np.random.default_rng(0).normal(size=(24, 5)).astype(np.float32)
    data = chainer.datasets.TupleDataset(x, np.arange(24, dtype=np.int32) % 3)
    iterator = chainer.iterators.SerialIterator(data, 8)
    trainer = Trainer(StandardUpdater(iterator, optimizer), (2, "epoch"), out=folder)
    trainer.extend(extensions.snapshot(filename="snapshot"))
    trainer.extend(extensions.LogReport())
    trainer.run()
    return classifier, optimizer


def test_a_trainers_snapshot_is_read_with_its_optimizer(tmp_path):
    classifier, optimizer = train(tmp_path)
    for cut in [(0, 4), (0, 2), (2, 4)]:
        stage = build().divide(*cut)
        mine = chainer.optimizers.Adam().setup(stage)
        differences = import_npz(tmp_path / "snapshot", stage, optimizer=mine)
        assert not differences
        theirs = dict(classifier.predictor.namedparams())
        for path, param in stage.namedparams():
            np.testing.assert_array_equal(param.array, theirs[path].array)
            state = theirs[path].update_rule.state
            assert {*param.update_rule.state} == {*state} == {"m", "v"}
            for name, value in param.update_rule.state.items():
                np.testing.assert_array_equal(value, state[name])
        assert mine.t == optimizer.t == 6


def test_training_goes_on_from_a_trainers_snapshot_bit_for_bit(tmp_path):
    classifier, optimizer = train(tmp_path)
    model = build()
    mine = chainer.optimizers.Adam().setup(model)
    import_npz(tmp_path / "snapshot", model, optimizer=mine)
    x = np.random.default_rng(1).normal(size=(8, 5)).astype(np.float32)
    t = np.arange(8, dtype=np.int32) % 3
    for each, update in ((classifier.predictor, optimizer), (model, mine)):
        loss = F.softmax_cross_entropy(each(x), t)
        each.cleargrads()
        loss.backward()
        update.update()
    theirs = dict(classifier.predictor.namedparams())
    for path, param in model.namedparams():
        np.testing.assert_array_equal(param.array, theirs[path].array, err_msg=path)
    np.testing.assert_array_equal(model[1].avg_var, classifier.predictor[1].avg_var)


def test_a_classifiers_file_is_read(tmp_path):
    classifier = L.Classifier(build())
    chainer.serializers.save_npz(tmp_path / "model.npz", classifier)
    model = build()
    import_npz(tmp_path / "model.npz", model)
    np.testing.assert_array_equal(model[0].W.array, classifier.predictor[0].W.array)


def test_several_models_are_told_apart(tmp_path):
    pair = chainer.Chain(one=build(), other=build())
    path = tmp_path / "pair.npz"
    chainer.serializers.save_npz(path, pair)
    with pytest.raises(SnapshotError, match="'one/', 'other/': say which by prefix="):
        import_npz(path, build())
    model = build()
    import_npz(path, model, prefix="other")
    np.testing.assert_array_equal(model[3].W.array, pair.other[3].W.array)
    with pytest.raises(SnapshotError, match="no layers below 'third/'; it has some"):
        import_npz(path, build(), prefix="third")


def test_an_optimizer_that_is_not_in_the_file_is_refused(tmp_path):
    classifier, _ = train(tmp_path, chainer.optimizers.MomentumSGD)
    model = build()
    adam = chainer.optimizers.Adam().setup(model)
    with pytest.raises(SnapshotError, match="another optimizer's state: .*0/W/m is"):
        import_npz(tmp_path / "snapshot", model, optimizer=adam)
    chainer.serializers.save_npz(tmp_path / "model.npz", classifier.predictor)
    before = model[0].W.array.copy()
    model[0].W.array += 1
    with pytest.raises(ValueError, match="has no optimizer of the model below ''"):
        import_npz(tmp_path / "model.npz", model, optimizer=adam)
    np.testing.assert_array_equal(model[0].W.array, before + 1)


def test_keys_of_other_parts_are_no_layers():
    keys = ["updater/iterator:main/order", "extensions/LogReport/0/x", "updater/0/a"]
    assert model_prefixes(keys) == []
    assert model_prefixes(["0/W", "10/b"]) == [""]


def test_the_command_shows_what_a_file_holds(tmp_path):
    classifier, _ = train(tmp_path)
    output = tmp_path / "model.npz"
    argv = ["import", str(tmp_path / "snapshot"), "-o", str(output)]
    done = CliRunner().invoke(main, argv)
    assert done.exit_code == 0, done.output
    lines = [" ".join(line.split()) for line in done.output.splitlines()]
    assert "layers below updater/model:main/predictor/:" in lines
    assert "0/W 6 x 5 float32" in lines and "1/avg_var 6 float32" in lines
    (optimizer,) = (line for line in lines if line.startswith("updater/optimizer:main"))
    assert int(optimizer.split()[1]) > 10
    model = build()
    import_npz(output, model)
    np.testing.assert_array_equal(model[0].W.array, classifier.predictor[0].W.array)


def test_the_command_says_if_there_are_no_layers(tmp_path):
    np.savez(tmp_path / "other.npz", conv1=np.ones(3))
    argv = ["import", str(tmp_path / "other.npz"), "-o", str(tmp_path / "model.npz")]
    done = CliRunner().invoke(main, argv)
    assert done.exit_code == 1
    assert (
        "no layers by position" in done.output and "no layers to write" in done.output
    )
    assert not (tmp_path / "model.npz").exists()

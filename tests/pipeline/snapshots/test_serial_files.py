"""Files of serial scripts of Chainer, as they write them."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer.training import StandardUpdater, Trainer, extensions
from click.testing import CliRunner

from divisible import Divisible
from pipeline import SnapshotError, import_npz
from pipeline.command_line.main import main
from pipeline.snapshots.serial_files import model_prefixes


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
    with pytest.raises(SnapshotError, match="has no optimizer of the model below ''"):
        import_npz(tmp_path / "model.npz", model, optimizer=adam)


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

"""Files of weights run no code of those who made them."""

import io
import os
import pickle
import re
import zipfile

import chainer
import chainer.links as L
import numpy as np
import pytest
from chainer import training
from chainer.training import extensions, triggers

from chainer_compat import npz
from chainer_compat.npz import NpzArrays, allow_pickle
from divisible import Divisible, deferred_init
from pipeline import import_npz


class Attack:
    """Makes a directory when it is unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def saved(path, **arrays):
    """Writes a file as save_npz does, with some arrays replaced."""
    chainer.serializers.save_npz(str(path), Divisible(L.Linear(2, 3)))
    with np.load(path) as file:
        content = {**file, **arrays}
    np.savez(path, **content)
    return str(path)


def readers():
    def by_numpy(path):
        # Whatever NumPy was told.
        with np.load(path, allow_pickle=True) as file:
            deserializer = chainer.serializers.NpzDeserializer(file)
            deserializer.load(Divisible(L.Linear(2, 3)))

    def deferred(path):
        with deferred_init(0):
            model = Divisible(L.Linear(2, 3))
        chainer.serializers.load_npz(path, model)
        model.divide()

    return {
        "load_npz": lambda p: chainer.serializers.load_npz(
            p, Divisible(L.Linear(2, 3))
        ),
        "an opened file": lambda p: chainer.serializers.load_npz(
            io.BytesIO(open(p, "rb").read()), Divisible(L.Linear(2, 3))
        ),
        "import_npz": lambda p: import_npz(p, Divisible(L.Linear(2, 3))),
        "NpzDeserializer": by_numpy,
        "deferred_init": deferred,
    }


def attacks(path):
    attack = Attack(path)
    whole = pickle.dumps(attack, 2)
    return {
        "an element": np.array(attack, object),
        "one of many": np.array([[None, attack]], object),
        "within a container": np.array({"a": [attack]}, object),
        "instead of the array": whole,
        "before the end": whole[:-1],
        "beside the array": whole[:-1] + b"0" + pickle.dumps(np.array(None))[2:],
    }


def write(path, attack):
    """Puts an attack in the place of a parameter."""
    if isinstance(attack, np.ndarray):
        return saved(path, **{"0/W": attack})
    entry = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        entry, {"descr": "|O", "fortran_order": False, "shape": ()}
    )
    saved(path)
    with zipfile.ZipFile(path) as file:
        others = {name: file.read(name) for name in file.namelist()}
    with zipfile.ZipFile(path, "w") as file:
        for name, content in {**others, "0/W.npy": entry.getvalue() + attack}.items():
            file.writestr(name, content)
    return str(path)


@pytest.mark.parametrize("kind", attacks(""))
def test_no_code_of_a_file_is_run(tmp_path, kind):
    path = write(tmp_path / "model.npz", attacks(tmp_path / "run")[kind])
    for name, read in readers().items():
        with pytest.raises(ValueError, match=r"model.npz|the file") as caught:
            read(path)
        assert not (tmp_path / "run").exists(), name
        assert f"{os.mkdir.__module__}.mkdir" in str(caught.value), name
        assert "allow_pickle(" in str(caught.value), name


def test_a_pickle_instead_of_a_file(tmp_path):
    path = tmp_path / "model.npz"
    for content in (pickle.dumps(Attack(tmp_path / "run")), b"", b"PK\3\4", b"text"):
        path.write_bytes(content)
        for name in ("load_npz", "import_npz", "deferred_init"):
            with pytest.raises(ValueError, match=r"model.npz is no .npz file"):
                readers()[name](str(path))
            with pytest.raises(ValueError, match=re.escape(f"{path} is no .npz file")):
                readers()[name](path)
    assert not (tmp_path / "run").exists()
    with pytest.raises(FileNotFoundError):
        chainer.serializers.load_npz(str(tmp_path / "none"), L.Linear(2, 3))


class Thing:
    """Something that a user keeps with a link."""

    def __init__(self, value):
        self.value = value


def test_what_a_file_needs_can_be_allowed(tmp_path):
    things = np.array([Thing({1: None}), {"a": 2}, 7], object)
    path = saved(tmp_path / "model.npz", things=things)
    # The rest of it is read without a word.
    readers()["load_npz"](path)
    name = f"{__name__}.Thing"
    needed = {"builtins.dict", "builtins.int", name}
    with pytest.raises(ValueError) as caught, NpzArrays(path) as arrays:
        arrays["things"]
    assert all(repr(each) in str(caught.value) for each in needed)
    for missing in needed:
        others = allow_pickle(*needed - {missing})
        refused = pytest.raises(ValueError, match=missing)
        with others, refused, NpzArrays(path) as arrays:
            arrays["things"]
    with allow_pickle(*needed), NpzArrays(path) as arrays:
        first, *others = arrays["things"]
    assert first.value == {1: None} and others == [{"a": 2}, 7]


class Keeper(L.Linear):
    def __init__(self):
        super().__init__(2, 3)
        self.add_persistent("words", None)


def test_what_was_allowed_holds_for_layers_that_are_made_later(tmp_path):
    words = np.array({"a": 1}, object)
    path = saved(tmp_path / "model.npz", **{"0/words": words})
    with deferred_init(0):
        model = Divisible(Keeper())
    with allow_pickle("builtins.dict"):
        chainer.serializers.load_npz(path, model)
    model.divide()
    assert model[0].words.item() == {"a": 1}


NAMES = b"numpy.core.multiarray", b"numpy._core.multiarray"


@pytest.mark.parametrize(
    "module", [b"numpy.core.multiarray", b"numpy._core.multiarray"]
)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("shape", [(), (2, 3)])
def test_none_of_any_age(tmp_path, module, protocol, shape):
    text = pickle.dumps(np.full(shape, None), protocol)
    if protocol >= 4:
        # Without the frame, whose length would change.
        text = text[:2] + text[11:]
    for name in NAMES:
        if protocol >= 4:
            name, new = (bytes([len(each)]) + each for each in (name, module))
            text = text.replace(name, new)
        else:
            text = text.replace(b"c%s\n" % name, b"c%s\n" % module)
    entry = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        entry, {"descr": "|O", "fortran_order": False, "shape": shape}
    )
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as file:
        file.writestr("a.npy", entry.getvalue() + text)
    with NpzArrays(tmp_path / "a.npz") as arrays:
        assert arrays["a"].shape == shape and (arrays["a"] == None).all()  # noqa: E711


def test_damaged_arrays(tmp_path):
    path = tmp_path / "model.npz"
    saved(path, none=np.array(None), numbers=np.arange(1000.0))
    content = path.read_bytes()
    with NpzArrays(path) as arrays:
        places = {info.filename: info for info in arrays.zip.infolist()}
    for key in ("none", "numbers"):
        start = places[f"{key}.npy"].header_offset + 40
        for at in range(start, start + 300, 17):
            path.write_bytes(content[:at] + b"\xfa\xfb" + content[at + 2 :])
            try:
                with NpzArrays(path) as arrays:
                    arrays[key]
            except ValueError as error:
                assert "model.npz" in str(error)
    with NpzArrays(saved(path)) as arrays, pytest.raises(KeyError, match="0/c"):
        arrays["0/c"]


def make_trainer(out, n_epochs):
    np.random.seed(0)
    model = L.Classifier(Divisible(L.Linear(4, 5), L.BatchNormalization(5)))
    optimizer = chainer.optimizers.MomentumSGD(0.1).setup(model)
    data = [(np.random.rand(4).astype("f"), np.int32(i % 5)) for i in range(12)]
    iterator = chainer.iterators.SerialIterator(data, 5)
    test = chainer.iterators.SerialIterator(data, 5, repeat=False, shuffle=False)
    updater = training.StandardUpdater(iterator, optimizer)
    trainer = training.Trainer(updater, (n_epochs, "epoch"), out=str(out))
    trainer.extend(extensions.Evaluator(test, model))
    trainer.extend(extensions.LogReport())
    trainer.extend(extensions.ExponentialShift("lr", 0.5))
    trainer.extend(extensions.LinearShift("momentum", (0.9, 0.5), (1, 9)))
    trainer.extend(extensions.MultistepShift("lr", 0.1, [20], 0.1))
    trainer.extend(extensions.ParameterStatistics(model))
    for trigger in (
        triggers.MaxValueTrigger("main/accuracy", (1, "iteration")),
        triggers.MinValueTrigger("main/accuracy", (9, "epoch")),
        triggers.ManualScheduleTrigger([1, 2], "epoch"),
        triggers.OnceTrigger(),
        triggers.TimeTrigger(1e9),
    ):
        trainer.extend(lambda trainer: None, name="nothing", trigger=trigger)
    trainer.extend(extensions.snapshot(filename="snapshot"))
    return trainer


def test_trainers_that_chainer_saved_are_read_as_before(tmp_path):
    """They hold objects: what has no value yet, all of it None."""
    make_trainer(tmp_path, 2).run()
    path = str(tmp_path / "snapshot")
    trainer = make_trainer(tmp_path / "other", 1)
    trainer.run()
    chainer.serializers.load_npz(path, trainer)
    again = chainer.serializers.npz.serialize(trainer)
    with np.load(path, allow_pickle=True) as arrays:
        assert set(arrays) == set(again)
        for key in set(arrays) - {"_snapshot_elapsed_time"}:
            np.testing.assert_array_equal(arrays[key], again[key], key)
        objects = [array for array in arrays.values() if array.dtype.hasobject]
        assert objects and all(array.item() is None for array in objects)


PARTS = [(0, 3), (3, 6), (6, 7)]


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("order", "CF")
def test_an_array_is_read_into_another_in_parts(tmp_path, save, order):
    array = np.arange(35, dtype="f").reshape(7, 5)
    save(tmp_path / "a.npz", W=np.asarray(array, order=order), other=np.arange(3))
    out = np.zeros((7, 5), "d")
    with NpzArrays(tmp_path / "a.npz") as arrays:
        npz.check(arrays, "W")
        npz.read_into(arrays, "W", out, PARTS)
        np.testing.assert_array_equal(out, array)
        with pytest.raises(ValueError, match=r"of shape \(3,\), not \(7, 5\)"):
            npz.read_into(arrays, "other", out, PARTS)
        with pytest.raises(KeyError, match="none is not"):
            npz.read_into(arrays, "none", out, PARTS)


@pytest.mark.parametrize("place", ["array", "header"])
def test_damage_is_found_in_parts_as_well(tmp_path, place):
    array = np.random.RandomState(0).randn(7, 5)
    np.savez(tmp_path / "a.npz", W=array)
    content = bytearray((tmp_path / "a.npz").read_bytes())
    where = content.index(array.tobytes() if place == "array" else b"NUMPY")
    content[where] ^= 1
    (tmp_path / "a.npz").write_bytes(content)
    with NpzArrays(tmp_path / "a.npz") as arrays:
        with pytest.raises(ValueError, match="W cannot be read: "):
            npz.read_into(arrays, "W", np.zeros((7, 5)), PARTS)
        with pytest.raises(ValueError, match="W cannot be read: "):
            npz.check(arrays, "W")

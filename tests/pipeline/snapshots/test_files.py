"""Directories of snapshots: which is the newest, which are kept."""

import contextlib
import hashlib
import io
import itertools
import json
import os
import resource
import shutil
import time
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest

from pipeline import (
    Snapshot,
    SnapshotError,
    export_npz,
    import_npz,
    latest_snapshot,
    load_snapshot,
    repartition,
)

FIELDS = [
    "layer_ranges",
    "files",
    "time",
    "n_ranks",
    "n_steps",
    "schedule",
    "versions",
    "values",
]


def test_the_newest_is_chosen_whatever_its_name(tmp_path, save):
    for name in ("iter_9", "iter_10", "best"):
        save(tmp_path / name)
    # A copy of an old one does not become the newest.
    os.utime(tmp_path / "iter_9" / "manifest.json")
    assert latest_snapshot(tmp_path).name == "best"
    assert latest_snapshot(tmp_path, pattern="iter_*").name == "iter_10"
    assert latest_snapshot(tmp_path, pattern="nothing_*") is None
    # It has everything, but may not be on disk yet.
    (tmp_path / "best").rename(tmp_path / "best.partial")
    assert latest_snapshot(tmp_path).name == "iter_10"


def test_a_link_to_a_snapshot_is_replaced(tmp_path, save, names):
    save(tmp_path / "1")
    (tmp_path / "newest").symlink_to(tmp_path / "1")
    for epoch in (2, 3):
        save(tmp_path / "newest", values={"epoch": epoch})
    assert names(tmp_path) == ["1", "newest"]
    assert Snapshot.open(tmp_path / "newest").values == {"epoch": 3}
    assert Snapshot.open(tmp_path / "1").values == {}


@pytest.mark.parametrize("path", [".", "/", "some/.."])
def test_a_place_is_no_name(path, save):
    with pytest.raises(SnapshotError, match="is no name for a snapshot"):
        save(path)


def test_an_error_without_words(tmp_path, save):
    class Failing:
        def serialize(self, serializer):
            raise KeyError

    with pytest.raises(SnapshotError, match="rank 0: KeyError"):
        save(tmp_path / "1", state={"failing": Failing()})


def test_the_last_ones_are_kept(tmp_path, save, names):
    save(tmp_path / "best")
    (tmp_path / "iter_0.partial").mkdir()
    (tmp_path / "best.partial").mkdir()
    (tmp_path / "iter_3").mkdir()
    (tmp_path / "iter_3" / "notes").touch()
    for i in range(10, 15):
        save(tmp_path / f"iter_{i}", n_retains=2)
    # Remains of killed runs go with the series; what is no snapshot stays.
    assert names(tmp_path) == ["best", "best.partial", "iter_13", "iter_14", "iter_3"]


def test_what_killed_runs_left_keeps_no_old_ones(tmp_path, save, names):
    """A run begun anew was killed while it saved what an earlier one had saved."""
    save(tmp_path / "iter_1")
    (tmp_path / "iter_1").rename(tmp_path / "iter_1.replaced")
    save(tmp_path / "iter_10")
    (tmp_path / "iter_10.partial").mkdir()
    (tmp_path / "iter_10.partial" / "stage-0.npz").touch()
    save(tmp_path / "iter_20", n_retains=1)
    assert names(tmp_path) == ["iter_20"]


def test_one_that_cannot_be_removed_keeps_no_others(tmp_path, save, monkeypatch, names):
    rename = Path.rename

    def failing(path, target):
        if path.name == "iter_2":
            raise PermissionError
        return rename(path, target)

    for i in range(1, 4):
        save(tmp_path / f"iter_{i}")
    monkeypatch.setattr(Path, "rename", failing)
    save(tmp_path / "iter_4", n_retains=1)
    assert names(tmp_path) == ["iter_2", "iter_4"]


def test_a_clock_that_was_set_back(tmp_path, save, monkeypatch, names):
    save(tmp_path / "1")
    monkeypatch.setattr(time, "time", lambda: 1000.0)
    save(tmp_path / "2", n_retains=1)
    assert names(tmp_path) == ["2"]


def test_one_of_the_same_name_is_replaced(tmp_path, save, names):
    save(tmp_path / "1", values={"epoch": 1})
    save(tmp_path / "1", values={"epoch": 2})
    assert Snapshot.open(tmp_path / "1").values == {"epoch": 2}
    assert names(tmp_path) == ["1"]


def test_nothing_else_is_replaced(tmp_path, save):
    (tmp_path / "results").mkdir()
    save(tmp_path / "results")  # an empty directory may be one that was made for it
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "precious").write_text("data")
    with pytest.raises(SnapshotError, match="data is there and is no snapshot"):
        save(tmp_path / "data")
    assert (tmp_path / "data" / "precious").read_text() == "data"


@pytest.mark.parametrize("manifest", ['{"name": "a web site"}', "[1]", "no JSON"])
def test_another_manifest_does_not_make_it_a_snapshot(tmp_path, save, manifest, names):
    site = tmp_path / "site"
    site.mkdir()
    (site / "manifest.json").write_text(manifest)
    (site / "index.html").touch()
    with pytest.raises(SnapshotError, match="site is there and is no snapshot"):
        save(site)
    assert names(tmp_path) == ["site"]
    assert names(site) == ["index.html", "manifest.json"]
    with pytest.raises(SnapshotError, match="cannot read .*manifest.json"):
        Snapshot.open(site)
    with pytest.warns(UserWarning, match="passed over: cannot read"):
        assert latest_snapshot(tmp_path) is None


@pytest.mark.parametrize("pattern", ["*", "1"])
def test_killed_while_replacing(tmp_path, save, pattern, names):
    """Between the two renames the old one has another name, and is found."""
    save(tmp_path / "1", values={"epoch": 1})
    os.rename(tmp_path / "1", tmp_path / "1.replaced")
    found = latest_snapshot(tmp_path, pattern=pattern)
    assert load_snapshot(found, save.pipe, save.optimizer).values == {"epoch": 1}
    save(tmp_path / "1", values={"epoch": 2})
    assert Snapshot.open(latest_snapshot(tmp_path, pattern=pattern)).values == {
        "epoch": 2
    }
    assert names(tmp_path) == ["1"]


def test_failing_while_replacing(tmp_path, save, monkeypatch, names):
    """The old one gets its name back."""
    rename = Path.rename

    def failing(path, target):
        if path.name.endswith(".partial"):
            raise OSError("no rename")
        return rename(path, target)

    save(tmp_path / "1", values={"epoch": 1})
    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(SnapshotError, match="no rename"):
        save(tmp_path / "1", values={"epoch": 2})
    assert names(tmp_path) == ["1"]
    assert Snapshot.open(tmp_path / "1").values == {"epoch": 1}


class Killed(BaseException):
    """Nothing that the code would catch."""


def tear(path, **_):
    """Removes a part of a directory, if there is one."""
    for file in list(path.glob("*"))[:1]:
        file.unlink()


@pytest.mark.parametrize("name", ["1", "2"])
def test_killed_at_any_moment(tmp_path, save, name, names):
    """Before each call that changes the disk, and in the midst of removing."""
    for n_calls in itertools.count():
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        save(tmp_path / "run" / "1", values={"epoch": 1})
        left = iter(range(n_calls))

        def dying(function, partly=lambda *_, **__: None, left=left):
            def call(*args, **options):
                if next(left, None) is None:
                    partly(*args, **options)
                    raise Killed
                return function(*args, **options)

            return call

        with pytest.MonkeyPatch.context() as patch, contextlib.suppress(Killed):
            patch.setattr(os, "fsync", dying(os.fsync))
            patch.setattr(Path, "mkdir", dying(Path.mkdir))
            patch.setattr(Path, "rename", dying(Path.rename))
            patch.setattr(shutil, "rmtree", dying(shutil.rmtree, tear))
            save(tmp_path / "run" / name, values={"epoch": 2}, n_retains=1)
            break
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = latest_snapshot(tmp_path / "run")
        values = load_snapshot(found, save.pipe, save.optimizer).values
        assert values["epoch"] in (1, 2)
        save(tmp_path / "run" / name, values={"epoch": 3}, n_retains=1)
        assert names(tmp_path / "run") == [name]
    assert n_calls > 8


@pytest.mark.parametrize("name", ["manifest.json", "common.npz", "stage-0.npz"])
@pytest.mark.parametrize("damage", ["missing", "truncated", "changed"])
def test_damage_is_named(tmp_path, save, name, damage):
    save(tmp_path / "old")
    time.sleep(0.01)
    save(tmp_path / "new")
    file = tmp_path / "new" / name
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(content if damage == "changed" else content[:-9])
    with pytest.raises(SnapshotError, match=name):
        load_snapshot(tmp_path / "new", save.pipe, save.optimizer)
    load_snapshot(tmp_path / "old", save.pipe, save.optimizer)


def test_an_incomplete_one_is_passed_over_with_a_warning(tmp_path, save):
    save(tmp_path / "1")
    time.sleep(0.01)
    save(tmp_path / "2")
    (tmp_path / "2" / "stage-0.npz").write_bytes(b"")
    with pytest.warns(UserWarning, match=r"stage-0.npz has 0 bytes, not \d+"):
        assert latest_snapshot(tmp_path) == tmp_path / "1"


def rewrite(path, change):
    """Changes a manifest as somebody would who knows how it is checked."""
    file = path / "manifest.json"
    content = json.loads(file.read_text())
    del content["sha256"]
    change(content)
    text = json.dumps(content, sort_keys=True).encode()
    content["sha256"] = hashlib.sha256(text).hexdigest()
    file.write_text(json.dumps(content))


def without(name):
    return lambda content: content.pop(name)


def with_value(name, value):
    return lambda content: content.update({name: value})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        *((without(name), rf"{name}' is missing") for name in FIELDS),
        *(
            (with_value(name, None), rf"{name}' must be .*, not None")
            for name in FIELDS
        ),
        (with_value("author", "me"), "'author' is unknown"),
        (with_value("layer_ranges", []), "'layer_ranges' must be"),
        (with_value("layer_ranges", [[0, 1], [2, 3]]), "'layer_ranges' must be"),
        (with_value("layer_ranges", [[0, 1.5]]), "'layer_ranges' must be"),
        (with_value("layer_ranges", [[0, 1], [1, 2]]), "has no file 'stage-1.npz'"),
        (with_value("files", {}), "'files' has no file 'common.npz'"),
        (with_value("files", {"a": {}}), "'files' must be the 'bytes' and"),
        (
            lambda c: c["files"].update({"../a": c["files"]["common.npz"]}),
            "another file",
        ),
        (with_value("time", 10**400), "'time' must be a number of seconds, not 1000"),
        (with_value("time", float("nan")), "'time' must be"),
        (
            with_value("n_ranks", 0),
            "'n_ranks' must be an integer from 1 to 65536",
        ),
        (with_value("n_ranks", 10**10), "'n_ranks' must be .*, not 10000000000"),
        (with_value("n_replicas", 0), "'n_replicas' must be an integer from 1"),
        (with_value("n_replicas", 10**10), "'n_replicas' must be .*, not 10000000000"),
        (with_value("layer_ranges", [[0, 10**12]]), "'layer_ranges' must be .* 2..20"),
        (with_value("n_steps", 2**63), "'n_steps' must be"),
        (with_value("n_steps", True), "'n_steps' must be"),
        (with_value("format", None), "in format None"),
        (without("format"), "in format None"),
    ],
)
def test_fields_of_a_manifest_are_checked(tmp_path, save, change, words):
    rewrite(save(tmp_path / "1"), change)
    with pytest.raises(SnapshotError, match=words) as caught:
        Snapshot.open(tmp_path / "1")
    assert "manifest.json" in str(caught.value) and "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400
    with pytest.warns(UserWarning, match="is passed over"):
        assert latest_snapshot(tmp_path) is None


def test_more_replicas_than_files_that_may_be_open(tmp_path, save):
    """Replicas that had nothing of their own read the files of the first one."""
    saved = [param.array.copy() for param in save.pipe.stages[0].params()]
    rewrite(save(tmp_path / "1"), with_value("n_replicas", 3000))
    for param in save.pipe.stages[0].params():
        param.array[...] = 7
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 1024), hard))
    try:
        load_snapshot(tmp_path / "1", save.pipe, save.optimizer)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    for array, param in zip(saved, save.pipe.stages[0].params()):
        np.testing.assert_array_equal(param.array, array)


def test_a_manifest_that_is_nested_too_deeply(tmp_path, save):
    (save(tmp_path / "1") / "manifest.json").write_text("[" * 100_000)
    with pytest.raises(SnapshotError, match="cannot read .*json: it is nested too"):
        Snapshot.open(tmp_path / "1")


def replace_file(folder, name, content):
    """Replaces a file, with a right checksum; arrays are those of the file but some."""
    file = folder / name
    if isinstance(content, dict):
        with np.load(file) as arrays:
            content = {**arrays, **content}
        np.savez(file, **{k: v for k, v in content.items() if v is not None})
    else:
        file.write_bytes(content)
    data = file.read_bytes()
    entry = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    rewrite(folder, lambda manifest: manifest["files"].update({name: entry}))


def single_array():
    file = io.BytesIO()
    np.save(file, np.zeros(3))
    return file.getvalue()


def archive(**members):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


STAGE, COMMON = "stage-0.npz", "common.npz"


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        (STAGE, b"", "stage-0.npz is no .npz file: File is not a zip file"),
        (STAGE, b"no archive", "stage-0.npz is no .npz file: "),
        (
            STAGE,
            b"PK\x03\x04 no archive",
            "stage-0.npz is no .npz file: File is not a zip file",
        ),
        (STAGE, single_array(), "stage-0.npz is no .npz file: File is not a zip file"),
        (COMMON, b"", "common.npz is no .npz file"),
        (
            STAGE,
            archive(**{"model/0/W": b"text"}),
            "stage-0.npz: model/0/W cannot be read: ValueError: EOF",
        ),
        (
            STAGE,
            archive(**{"model/0/W.npy": single_array()[:-3]}),
            "stage-0.npz: model/0/W cannot be read: ",
        ),
        (
            STAGE,
            {"model/0/W": np.array([None])},
            "0/W was saved with shape .1,. and dtype object",
        ),
        (STAGE, {"optimizer/settings": np.array("{")}, "optimizer/settings: JSON"),
        (STAGE, {"optimizer/settings": np.array("[]")}, "optimizer/settings: Attr"),
        (STAGE, {"optimizer/settings": np.array("[" * 10**5)}, "settings: Recursion"),
        (STAGE, {"optimizer/settings": np.array("{}")}, "settings: KeyError: 'hyperp"),
        (
            STAGE,
            {"optimizer/settings": np.array('{"hyperparam": {"lr": "a"}}')},
            "optimizer/settings: ValueError: 'lr' is 'a', and no number",
        ),
        (STAGE, {"optimizer/0/W/settings": np.array("1")}, "0/W/settings: Attribute"),
        (STAGE, {"optimizer/t": np.array([1, 2])}, "optimizer/t: TypeError"),
        (STAGE, {"optimizer/t": np.array("a")}, "optimizer/t: ValueError"),
        (STAGE, {"optimizer/settings": None}, "has no settings"),
        (STAGE, {"model/0/b": None}, "of the model it has no 0/b"),
        (COMMON, {"random/first": None}, "common.npz: random/first: .* missing"),
        (COMMON, {"random/first": np.array("7")}, "common.npz: random/first: Attr"),
        (
            COMMON,
            {"random/first": np.array('{"numpy": 1, "python": 2}')},
            "common.npz: random/first, numpy: ",
        ),
        (COMMON, {"state/pipeline/n_steps": np.array("a")}, "pipeline/n_steps: Value"),
        (COMMON, {"state/other": np.array(1)}, "of state other is left over"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(tmp_path, save, name, content, words):
    replace_file(save(tmp_path / "1"), name, content)
    with pytest.raises(SnapshotError, match=words) as caught:
        load_snapshot(tmp_path / "1", save.pipe, save.optimizer)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"no archive", single_array()])
def test_tools_name_a_file_that_is_none(tmp_path, save, content, names):
    replace_file(save(tmp_path / "1"), STAGE, content)
    with pytest.raises(SnapshotError, match="/1/stage-0.npz is no .npz file"):
        export_npz(tmp_path / "1", tmp_path / "model.npz")
    with pytest.raises(SnapshotError, match="stage-0.npz is no .npz file"):
        repartition(tmp_path / "1", 1, tmp_path / "2")
    (tmp_path / "model.npz").write_bytes(content)
    with pytest.raises(SnapshotError, match="model.npz is no .npz file"):
        import_npz(tmp_path / "model.npz", save.pipe.stages[0])
    assert names(tmp_path) == ["1", "model.npz"]


def test_another_format_is_refused(tmp_path, save, monkeypatch):
    monkeypatch.setattr("pipeline.snapshots.files._FORMAT", 2)
    save(tmp_path / "1")
    monkeypatch.undo()
    with pytest.raises(SnapshotError, match="in format 2; .* reads .* format 1"):
        Snapshot.open(tmp_path / "1")


def test_equal_states_make_equal_files(tmp_path, save):
    save(tmp_path / "1")
    save(tmp_path / "2")
    assert Snapshot.open(tmp_path / "1").files == Snapshot.open(tmp_path / "2").files

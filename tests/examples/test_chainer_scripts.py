"""Chainer's own scripts, ported by the edits of lessons, give their own logs.

What needs the scripts runs where CHAINER_SRC names a source tree of Chainer 7.8.1.
"""

import json
import re
import sys

import numpy as np
import pytest

from examples.chainer_scripts.port import (
    FILES,
    apply_edits,
    edits_of,
    main,
    read_edits,
)
from tests.support.chainer_scripts import (
    FOLDER,
    assert_logs_equal,
    make_cifar,
    make_mnist,
    needs_chainer,
    originals_and_ported,
    run_port,
    run_script,
)
from tests.support.processes import ROOT


def write_lesson(folder, *blocks):
    """Writes a lesson of such blocks, the first on line 5, and reads its edits."""
    path = folder / "lesson.rst"
    parts = (f".. code-block:: diff\n\n{block}" for block in blocks)
    path.write_text("Why:\n\n" + "\nWhy:\n\n".join(parts))
    return read_edits(path)


def lessons():
    return [(source, target, lesson) for source, target, lesson in FILES if lesson]


@pytest.fixture
def made_up(tmp_path):
    """A source tree that has the old lines of each edit, among others."""
    tree = tmp_path / "made_up"
    for source, _, lesson in FILES:
        path = tree / source
        path.parent.mkdir(parents=True, exist_ok=True)
        edits = edits_of(source, lesson)
        path.write_text("first\n" + "".join("".join(e.old) + "kept\n" for e in edits))
    return tree


def test_edits_are_made_where_their_lines_stand(tmp_path):
    edits = write_lesson(
        tmp_path,
        "   -    c\n   -\n   +    C\n   +        D\n",
        "    a\n   +b\n",
        "   -gone\n",
    )
    assert [edit.origin for edit in edits] == [f"lesson.rst:{n}" for n in (5, 14, 21)]
    # Neither a part of a line nor one with another indentation is a place.
    text = "aa\na\nc\n\ngone\n    c\n\n    c\n        d"
    expected = "aa\na\nb\nc\n\n    C\n        D\n    c\n        d"
    assert apply_edits(edits, text) == expected


def test_an_empty_line_may_be_part_of_a_place(tmp_path):
    edits = write_lesson(tmp_path, "   -a\n\n   -b\n   +c\n")
    assert apply_edits(edits, "a\nb\na\n\nb\n") == "a\nb\n\nc\n"


@pytest.mark.parametrize(
    "text, fault",
    [
        ("a\nx\nb\n", "lesson.rst:5 has no place:\n    a\n    b\n"),
        (
            "a\nb\na\nb\n",
            "lesson.rst:5 has several places, lines 1, 3:\n    a\n    b\n",
        ),
    ],
)
def test_an_edit_without_one_place_is_refused(text, fault, tmp_path):
    edits = write_lesson(tmp_path, "   -a\n   -b\n   +c\n")
    with pytest.raises(ValueError, match=re.escape(fault)):
        apply_edits(edits, text)


def test_places_that_overlap_are_refused(tmp_path):
    edits = write_lesson(tmp_path, "   -a\n   -b\n", "   -b\n   -c\n")
    with pytest.raises(ValueError, match=r"lesson.rst:12 is in the place of another"):
        apply_edits(edits, "a\nb\nc\n")


def test_an_edit_without_old_lines_is_refused(tmp_path):
    edits = write_lesson(tmp_path, "   +c\n")
    with pytest.raises(ValueError, match="several places"):
        apply_edits(edits, "a\nb\n")


def test_sections_have_the_edits_of_other_files(tmp_path):
    path = tmp_path / "train.rst"
    block = ".. code-block:: diff\n\n   +{}\n\n"
    text = block + "net.py\n------\n\n" + block + "Why\n---\n\n" + block
    path.write_text(text.format("a", "b", "c"))
    files = [(edit.file, edit.new) for edit in read_edits(path)]
    assert files == [("train.py", ["a\n"]), ("net.py", ["b\n"]), ("net.py", ["c\n"])]


@pytest.mark.parametrize("lesson", sorted({lesson for _, _, lesson in lessons()}))
def test_every_edit_is_of_a_file_that_is_written(lesson):
    edits = read_edits(FOLDER / lesson)
    sources = [source for source, _, its in FILES if its == lesson]
    assert edits == [edit for source in sources for edit in edits_of(source, lesson)]


def test_all_files_are_ported(made_up, tmp_path):
    out = tmp_path / "new" / "out"
    result = run_port(made_up, out)
    assert result.returncode == 0, result.stderr
    written = {str(p.relative_to(out)) for p in out.rglob("*") if p.is_file()}
    assert written == {target for _, target, _ in FILES}
    for source, target, lesson in FILES:
        text = (out / target).read_text()
        if lesson is None:
            assert text == (made_up / source).read_text()
        else:
            edits = edits_of(source, lesson)
            assert text == "first\n" + "".join("".join(e.new) + "kept\n" for e in edits)


@pytest.mark.parametrize("change", ["lost", "twice"])
@pytest.mark.parametrize("source, target, lesson", lessons())
def test_nothing_is_written_where_an_edit_finds_no_place(
    source, target, lesson, change, made_up, tmp_path, monkeypatch
):
    script = made_up / source
    for edit in edits_of(source, lesson):
        text, old = script.read_text(), "".join(edit.old)
        script.write_text(text.replace(old, "") if change == "lost" else text + old)
        argv = ["port.py", str(made_up), str(tmp_path / "out")]
        with monkeypatch.context() as patch, pytest.raises(SystemExit) as refused:
            patch.setattr(sys, "argv", argv)
            main()
        script.write_text(text)
        said = str(refused.value)
        assert f"{script}: the edit of {edit.origin} has" in said
        assert ("no place" if change == "lost" else "several places") in said
        assert said.count("the edit of") == 1
        assert not (tmp_path / "out").exists()


def test_all_faults_are_named_at_once(made_up, tmp_path):
    scripts = [made_up / source for source, _, lesson in lessons()]
    scripts[0].unlink()
    scripts[1].write_text("import models.VGG\n")
    result = run_port(made_up, tmp_path / "out")
    assert result.returncode == 1
    assert f"{scripts[0]}: there is no such file" in result.stderr
    assert result.stderr.count(f"{scripts[1]}: the edit of") == 1
    assert result.stderr.count("has no place") == 5
    assert not (tmp_path / "out").exists()


def test_nothing_is_overwritten(made_up, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "train_mnist.py").write_text("mine")
    result = run_port(made_up, out)
    assert result.returncode == 1
    assert f"{out}: exists already" in result.stderr
    assert [path.name for path in out.iterdir()] == ["train_mnist.py"]
    assert (out / "train_mnist.py").read_text() == "mine"


def test_the_pages_say_how_many_lines_change():
    text, added, scripts = (FOLDER / "README.md").read_text(), [], {}
    for _, target, lesson in lessons():
        scripts.setdefault(lesson, target)
    for lesson, target in scripts.items():
        marks = re.findall(r"^   ([-+])", (FOLDER / lesson).read_text(), re.MULTILINE)
        added.append(marks.count("+"))
        row = f"| [{target}]({lesson}) | {added[-1]} | {marks.count('-')} |"
        assert row in text
    claim = (
        "MNIST gets {} added lines, CIFAR {}, PTB {}, VAE {}, DCGAN {} and seq2seq {}."
    )
    page = " ".join((ROOT / "docs" / "features.rst").read_text().split())
    assert claim.format(*added) in page
    assert max(added[:2]) <= 15


def thin(script):
    """Divides the width of every layer of VGG by 16."""
    path = script.parent / "models" / "VGG.py"
    width = r"(?<=[( ])(64|128|256|512)(?=[,)])"
    path.write_text(re.sub(width, lambda m: str(int(m[0]) // 16), path.read_text()))


def make_ptb(root):
    """Leaves a text of seven words where Chainer keeps its downloads."""
    folder = root / "pfnet/chainer/ptb"
    folder.mkdir(parents=True)
    for file, n in (("train.npz", 400), ("valid.npz", 60), ("test.npz", 50)):
        np.savez(folder / file, x=np.arange(n, dtype=np.int32) * 3 % 7)


@pytest.fixture
def scripts(tmp_path):
    """The originals, and what the program makes of them, with thin layers."""
    folders = originals_and_ported(tmp_path)
    for folder in folders:
        thin(folder / "train_cifar.py")
    for make in (make_mnist, make_cifar, make_ptb):
        make(tmp_path / "data")
    return folders


@needs_chainer
@pytest.mark.parametrize(
    "name, argv, snapshots, n_entries",
    [
        ("train_mnist", ["--unit", "20", "--batchsize", "20", "-f", "1"], "*iter_*", 3),
        ("train_cifar", ["--batchsize", "8", "--learnrate", "0.01"], "*epoch_1", 2),
    ],
)
def test_a_ported_script_gives_the_log_of_the_original(
    name, argv, snapshots, n_entries, scripts, tmp_path
):
    def run(n, folder, out, n_epochs, *more):
        arguments = ["--epoch", n_epochs, "--out", tmp_path / out, *argv, *more]
        script, data = folder / f"{name}.py", tmp_path / "data"
        printed = run_script(n, script, arguments, data)
        # One rank prints the table.
        assert printed.count("main/loss   validation/main/loss") == 1
        return json.loads((tmp_path / out / "log").read_text())

    originals, ported = scripts
    expected = run(1, originals, "original", 2)
    assert len(expected) == n_entries
    run(2, ported, "begun", 1)
    (saved,) = (tmp_path / "begun").glob(snapshots)
    assert_logs_equal(run(2, ported, "divided", 2), expected)
    assert_logs_equal(run(3, ported, "resumed", 2, "--resume", saved), expected)


@needs_chainer
def test_a_ported_language_model_is_as_perplexed_as_the_original(scripts, tmp_path):
    def run(n, folder, out, n_epochs, *more):
        options = ["--batchsize", "4", "--bproplen", "5", "--unit", "40"]
        options += ["--epoch", n_epochs, "--out", tmp_path / out]
        options += ["--model", tmp_path / f"{out}.npz", *more]
        printed = run_script(n, folder / "train_ptb.py", options, tmp_path / "data")
        found = re.findall(r"test perplexity: ([\d.]+)", printed)
        assert len(found) == n
        return float(found[0])

    originals, ported = scripts
    # In the fourth epoch rounding errors grow a hundredfold, with any kernels.
    expected = run(1, originals, "original", 3)
    assert run(2, ported, "divided", 3) == pytest.approx(expected, rel=1e-5)
    assert run(2, ported, "begun", 1) != pytest.approx(expected, rel=1e-3)
    saved = max((tmp_path / "begun").glob("*iter_*"), key=lambda path: path.name)
    resumed = run(3, ported, "resumed", 3, "--resume", saved)
    assert resumed == pytest.approx(expected, rel=1e-5)

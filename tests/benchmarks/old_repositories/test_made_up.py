"""Data in the place of downloads are found by what reads them."""

import json
import subprocess
import sys

import numpy as np

from benchmarks.old_repositories.made_up import arrays, data_sets, images, texts

SCRIPT = """
import json
from chainer import datasets
print(json.dumps([
    len(datasets.get_mnist()[0]), len(datasets.get_fashion_mnist()[1]),
    list(datasets.get_cifar10(withlabel=False)[0].shape),
    len(datasets.get_cifar100()[1]), len(datasets.get_svhn()[0]),
    len(datasets.get_ptb_words()[0]) > 1000,
]))
"""


def test_chainer_finds_its_data_sets(tmp_path):
    data_sets.write(tmp_path, 50, 10)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={"PATH": "", "CHAINER_DATASET_ROOT": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == [50, 10, [10, 3, 32, 32], 2, 10, True]


def test_files_are_the_same_for_the_same_seed(tmp_path):
    makers = (
        images.pictures("pictures", 2, (16, 24)),
        images.classes("classes", 2, (16, 24), 5),
        images.one_pickle("mnist.pkl", 5, 2),
        images.four_arrays("{part}_{what}.npy", 5, 2),
        images.cifar_batches("batches", 3),
        images.archives("archives", ["train"], 3),
        texts.text("words.txt", 3),
        texts.numbers("numbers.txt", 3),
        texts.tagged_words("tags.txt", "{word} {tag}", 3),
        texts.ranked_lists("lists.txt", 2),
        arrays.array("array.npy", (2, 3), "uint8", 255.9),
        arrays.one_hot_blocks("blocks.npy", 2, 3, [4, 5]),
    )
    for name in "first", "second":
        (tmp_path / name).mkdir()
        for make in makers:
            make(tmp_path / name, np.random.RandomState(1))
    first, second = tmp_path / "first", tmp_path / "second"
    files = [each.relative_to(first) for each in first.rglob("*") if each.is_file()]
    assert len(files) >= len(makers)
    for file in files:
        assert (first / file).read_bytes() == (second / file).read_bytes(), file
    blocks = np.load(first / "blocks.npy").reshape(2, 3, 9)
    assert (blocks.sum(axis=2) == 2).all()


def test_clouds_are_read_by_their_list(tmp_path):
    import h5py

    arrays.clouds("clouds", 3, 10)(tmp_path, np.random.RandomState(1))
    (place,) = (tmp_path / "clouds/train_files.txt").read_text().split()
    with h5py.File(place) as file:
        assert file["data"].shape == (3, 10, 3) and file["label"].shape == (3, 1)

"""Pictures, and pictures of classes of cells."""

from __future__ import annotations

import pickle

import numpy as np

from benchmarks.old_repositories.made_up.data_sets import labelled
from benchmarks.old_repositories.program import MakesData


def pictures(
    path: str, n: int, size: tuple[int, int], suffix: str = "png"
) -> MakesData:
    """Writes pictures ``0000.png`` and so on, each with a rectangle over noise.

    Args:
        path: Folder of the pictures.
        n: How many.
        size: Height and width, in cells.
        suffix: ``png`` or ``jpg``.
    """

    def make(root, random):
        top, left = size[0] // 4, size[1] // 4
        for i in range(n):
            cells = random.randint(0, 256, (*size, 3)).astype(np.uint8)
            cells[top : 2 * top, left : 3 * left] = random.randint(0, 256, 3)
            _save(root / path, f"{i:04d}.{suffix}", cells)

    return make


def classes(path: str, n: int, size: tuple[int, int], n_classes: int) -> MakesData:
    """Writes pictures whose bytes are classes of their cells, in squares of 8 cells."""

    def make(root, random):
        shape = size[0] // 8, size[1] // 8
        for i in range(n):
            coarse = random.randint(0, n_classes, shape).astype(np.uint8)
            _save(root / path, f"{i:04d}.png", coarse.repeat(8, 0).repeat(8, 1))

    return make


def _save(folder, name, cells) -> None:
    from PIL import Image

    folder.mkdir(parents=True, exist_ok=True)
    Image.fromarray(cells).save(folder / name)


def one_pickle(path: str, n_train: int = 60000, n_test: int = 10000) -> MakesData:
    """Writes MNIST as one pickled dictionary of all images and labels.

    Chainer 1's examples kept it in this form.
    """

    def make(root, random):
        images, labels = labelled(random, n_train + n_test, 10, (784,))
        content = {"data": images, "target": labels.astype(np.uint8)}
        _write(root / path, pickle.dumps(content))

    return make


def four_arrays(path: str, n_train: int = 60000, n_test: int = 10000) -> MakesData:
    """Writes MNIST as four arrays: images from 0 to 1, and labels, of both parts.

    Args:
        path: File of an array, such as ``'{part}_{what}.npy'``, of the parts ``train``
            and ``test``, and of ``img`` and ``label``.
        n_train: Images to train with.
        n_test: Images to test with.
    """

    def make(root, random):
        for part, n in ("train", n_train), ("test", n_test):
            images, labels = labelled(random, n, 10, (784,))
            scaled = (images / 255).astype(np.float32)
            for what, values in ("img", scaled), ("label", labels.astype(np.float32)):
                np.save(root / path.format(part=part, what=what), values)

    return make


def cifar_batches(folder: str, n: int = 1000) -> MakesData:
    """Writes CIFAR-10 as it is distributed: six pickled batches of ``n`` images."""

    def make(root, random):
        names = [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]
        for name in names:
            images, labels = labelled(random, n, 10, (3072,))
            content = {"data": images, "labels": [int(label) for label in labels]}
            _write(root / folder / name, pickle.dumps(content))

    return make


def archives(folder: str, names: list[str], n: int = 1000) -> MakesData:
    """Writes archives of ``images`` and ``labels`` of ten classes, 3x32x32 from -1."""

    def make(root, random):
        (root / folder).mkdir(parents=True)
        for name in names:
            images, labels = labelled(random, n, 10, (3072,))
            scaled = (images / 127.5 - 1).astype(np.float32)
            np.savez(root / folder / f"{name}.npz", images=scaled, labels=labels)

    return make


def _write(path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)

"""Chainer's own data sets, where ``chainer.datasets.get_mnist`` finds them."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from benchmarks.old_repositories.made_up.texts import sentences

#: Places within the root of data sets, and shapes of an image.
IMAGES = {
    "pfnet/chainer/mnist": (784,),
    "pfnet/chainer/fashion-mnist": (784,),
}
CIFAR = {"cifar-10": 10, "cifar-100": 100}


def write(root: Path, n_train: int, n_test: int) -> None:
    """Writes MNIST, Fashion-MNIST, CIFAR, SVHN and the Penn Treebank.

    Args:
        root: Chainer's root of data sets, ``CHAINER_DATASET_ROOT``.
        n_train: Images to train with of MNIST; colour images are a fifth of it.
        n_test: Images to test with.
    """
    random = np.random.RandomState(0)
    for place, shape in IMAGES.items():
        for name, n in ("train", n_train), ("test", n_test):
            pictures, labels = labelled(random, n, 10, shape)
            np.savez(_place(root / place / f"{name}.npz"), x=pictures, y=labels)
    for name, n_classes in CIFAR.items():
        arrays = {}
        for part, n in ("train", n_train // 5), ("test", n_test // 5):
            pictures, labels = labelled(random, n, n_classes, (3072,))
            arrays |= {f"{part}_x": pictures, f"{part}_y": labels}
        np.savez(_place(root / "pfnet/chainer/cifar" / f"{name}.npz"), **arrays)
    for name, n in ("train", n_train // 5), ("test", n_test // 5):
        pictures, labels = labelled(random, n, 10, (3, 32, 32))
        place = _place(root / "pfnet/chainer/svhn" / f"{name}.npz")
        # The original has images along the last axis, and 10 as the label of zero.
        np.savez(place, x=pictures.transpose(2, 3, 1, 0), y=labels + 1)
    _treebank(root, random)


def _treebank(root: Path, random: np.random.RandomState) -> None:
    """Writes text as if Chainer had downloaded it."""
    from chainer.datasets import ptb

    for url, n in (ptb._train_url, 3000), (ptb._valid_url, 100), (ptb._test_url, 100):
        digest = hashlib.md5(url.encode()).hexdigest()
        text = sentences(random, n, 1000)
        if url == ptb._train_url:
            # Its words are the vocabulary of the others.
            text += " ".join(f"w{word}" for word in range(1, 1001)) + "\n"
        # One space before each line and its end, as in the original.
        lines = [f" {line} " for line in text.splitlines()]
        _place(root / "_dl_cache" / digest).write_text("\n".join(lines) + "\n")


def labelled(
    random: np.random.RandomState, n: int, n_classes: int, shape: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """Returns noisy images of bytes, of a pattern for each class, and their labels."""
    labels = random.randint(0, n_classes, n).astype(np.int32)
    patterns = random.randint(0, 128, (n_classes, *shape)).astype(np.uint8)
    noise = random.randint(0, 128, (n, *shape)).astype(np.uint8)
    return patterns[labels] + noise, labels


def _place(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path

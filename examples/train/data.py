"""Image data sets, as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import chainer
import numpy as np

DOWNLOADED = ("mnist", "cifar10")
NAMES = ("digits", *DOWNLOADED, "synthetic")


class Images(NamedTuple):
    """Images and their classes.

    Attributes:
        x (array): float32 in ``[0, 1]``, of the shape (samples, channels, height,
            width).
        t (array): int32 class numbers.
    """

    x: np.ndarray
    t: np.ndarray


def load(
    name: str, shape: Sequence[int] = (3, 32, 32), n_samples: int = 1000, seed: int = 0
) -> tuple[Images, Images]:
    """Returns the training and the test set.

    - ``digits``: the 1,797 handwritten digits of 8 x 8 pixels that come with
      scikit-learn. A permutation with the fixed seed 0 takes 360 of them for the
      test, whatever ``seed`` is, so that results can be compared.
    - ``mnist`` and ``cifar10``: Chainer's loaders; they download on first use into
      ``~/.chainer`` or ``$CHAINER_DATASET_ROOT``.
    - ``synthetic``: noise with one pattern per class, to measure speed on any shape.

    Args:
        name (str): One of :data:`NAMES`.
        shape (tuple): Channels, height and width of the synthetic images.
        n_samples (int): Number of synthetic images; a fifth of them for the test.
        seed (int): Seed of the synthetic images.

    Raises:
        ImportError: If scikit-learn is missing and needed.
    """
    if name == "digits":
        return _digits()
    if name == "mnist":
        return _as_images(chainer.datasets.get_mnist(ndim=3))
    if name == "cifar10":
        return _as_images(chainer.datasets.get_cifar10())
    if name == "synthetic":
        return _synthetic(tuple(shape), n_samples, seed)
    raise ValueError(f"no data set {name!r}; there are {', '.join(NAMES)}")


def enlarge(images: Images, n_channels: int, size: int) -> Images:
    """Brings small images to ``size`` x ``size`` pixels and ``n_channels`` channels.

    Every pixel becomes a square of pixels, as large as fits; the rest is a frame of
    zeros. A single channel is repeated::

        digits   1 x 8 x 8    each pixel 4 x 4       3 x 32 x 32
        mnist    1 x 28 x 28  2 pixels all around    3 x 32 x 32
    """
    n, channels, height, width = images.x.shape
    times = size // max(height, width)
    if times == 0 or channels not in (1, n_channels):
        raise ValueError(
            f"images of shape {images.x.shape[1:]} cannot be enlarged to"
            f" {(n_channels, size, size)}"
        )
    top, left = (size - times * height) // 2, (size - times * width) // 2
    x = np.zeros((n, n_channels, size, size), np.float32)
    x[:, :, top : top + times * height, left : left + times * width] = images.x.repeat(
        times, axis=2
    ).repeat(times, axis=3)
    return Images(x, images.t)


def _digits() -> tuple[Images, Images]:
    from sklearn.datasets import load_digits

    pixels, classes = load_digits(return_X_y=True)
    x = (pixels / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    t = classes.astype(np.int32)
    order = np.random.RandomState(0).permutation(len(x))
    test, train = order[:360], order[360:]
    return Images(x[train], t[train]), Images(x[test], t[test])


def _as_images(sets: Sequence[chainer.datasets.TupleDataset]) -> tuple[Images, Images]:
    train, test = (Images(*chainer.dataset.concat_examples(one)) for one in sets)
    return train, test


def _synthetic(
    shape: tuple[int, ...], n_samples: int, seed: int
) -> tuple[Images, Images]:
    rng = np.random.RandomState(seed)
    patterns = rng.uniform(0, 1, (10, *shape))
    t = np.arange(n_samples, dtype=np.int32) % 10
    x = (patterns[t] + rng.uniform(0, 1, (n_samples, *shape))) / 2
    everything = Images(x.astype(np.float32), t)
    n_test = max(1, n_samples // 5)
    return (
        Images(*(a[n_test:] for a in everything)),
        Images(*(a[:n_test] for a in everything)),
    )

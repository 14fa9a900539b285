"""Handwritten digits on photographs, with the pixels that they cover."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from sklearn.datasets import load_digits, load_sample_images

SIZE = 32
N_DIGITS = 3


class Samples(NamedTuple):
    """A data set.

    Attributes:
        x: Images, float32 in ``[0, 1]``, of the shape (samples, 1, 32, 32).
        t: For each pixel whether it belongs to a digit, int32 of the shape (samples,
            32, 32).
    """

    x: np.ndarray
    t: np.ndarray


def load(n_train: int, n_test: int, seed: int = 0) -> tuple[Samples, Samples]:
    """Returns the training and the test set.

    Each image is a piece of one of the two photographs that come with scikit-learn, in
    grey. Three of its handwritten digits are drawn on it in white, of once or twice
    their size. The test set has other digits and other parts of the photographs: the
    training set has the left three quarters, the test set the rest.

    Args:
        n_train (int): Number of training images.
        n_test (int): Number of test images.
        seed (int): Seed of the pieces, the digits and their places.

    Returns:
        tuple: The two sets.

    Raises:
        ImportError: If Pillow is missing.
    """
    photos = [photo.mean(axis=2) / 255 for photo in load_sample_images().images]
    border = photos[0].shape[1] * 3 // 4
    images = (load_digits().images / 16).astype(np.float32)
    images = images[np.random.RandomState(0).permutation(len(images))]
    digits = images[360:], images[:360]
    rng = np.random.RandomState(seed)
    return (
        _draw([photo[:, :border] for photo in photos], digits[0], n_train, rng),
        _draw([photo[:, border:] for photo in photos], digits[1], n_test, rng),
    )


def _draw(
    photos: list[np.ndarray], digits: np.ndarray, n: int, rng: np.random.RandomState
) -> Samples:
    """Draws digits on pieces of photographs."""
    x = np.empty((n, 1, SIZE, SIZE), np.float32)
    t = np.zeros((n, SIZE, SIZE), np.int32)
    for image, is_digit in zip(x[:, 0], t):
        photo = photos[rng.randint(len(photos))]
        top, left = (rng.randint(side - SIZE + 1) for side in photo.shape)
        image[...] = photo[top : top + SIZE, left : left + SIZE]
        for digit in digits[rng.randint(len(digits), size=N_DIGITS)]:
            ink = digit.repeat(rng.randint(1, 3), axis=0)
            ink = ink.repeat(len(ink) // len(digit), axis=1)
            top, left = rng.randint(SIZE - len(ink) + 1, size=2)
            there = slice(top, top + len(ink)), slice(left, left + len(ink))
            image[there] += ink * (1 - image[there])
            is_digit[there] |= ink > 0.5
    return Samples(x, t)

"""The words of a text that comes with Python."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pydoc_data.topics import topics
from typing import NamedTuple

import numpy as np

#: A symbol for words that are not in the vocabulary, whose word 0 it is.
UNKNOWN = "<unknown>"


class Samples(NamedTuple):
    """A data set: word numbers, int32 of the shape (samples, positions).

    Attributes:
        x: The words.
        t: The words that follow them.
    """

    x: np.ndarray
    t: np.ndarray


def load(n_words: int, n_positions: int) -> tuple[list[str], Samples, Samples]:
    """Returns a vocabulary, the training and the test set.

    The text is the language reference that Python's ``help()`` shows, as words in lower
    case and punctuation. Every tenth topic is for the test. Another release of Python
    may have another text.

    Args:
        n_words (int): Size of the vocabulary at most: the most frequent words of the
            training text, and one for all others.
        n_positions (int): Words of a sample.

    Returns:
        tuple: The vocabulary, and the samples of the two sets.

    Raises:
        ValueError: If the text is too short for a single sample.
    """
    texts = [
        re.findall(r"[a-z]+|[.,;:]", text.lower()) for _, text in sorted(topics.items())
    ]
    test = [text for number, text in enumerate(texts) if number % 10 == 0]
    train = [text for number, text in enumerate(texts) if number % 10 > 0]
    counts = Counter(word for text in train for word in text)
    # Equally frequent words are in alphabetical order.
    common = sorted(counts, key=lambda word: (-counts[word], word))[: n_words - 1]
    vocabulary = [UNKNOWN, *common]
    numbers = {word: number for number, word in enumerate(vocabulary)}
    return (
        vocabulary,
        _windows(train, numbers, n_positions),
        _windows(test, numbers, n_positions),
    )


def in_columns(samples: Samples, n_columns: int) -> Samples:
    """Returns samples in another order: consecutive minibatches continue each column.

    The text is divided into as many columns as a minibatch has samples. A minibatch has
    one sample of each column, and the next minibatch has the following samples::

        minibatch 0   words 0..23     words 960..983     words 1920..1943
        minibatch 1   words 24..47    words 984..1007    words 1944..1967

    Args:
        samples (Samples): Samples in the order of the text; the last ones may be left
            out.
        n_columns (int): Samples of a minibatch.

    Raises:
        ValueError: If there are fewer samples than columns.
    """
    n_rows = len(samples.x) // n_columns
    if n_rows == 0:
        n_positions = samples.x.shape[1]
        raise ValueError(
            f"{n_columns} samples of a minibatch are more than the {len(samples.x)} of"
            f" {n_positions} words that there are for training or test: take fewer, or"
            f" shorter ones"
        )
    order = np.arange(n_columns * n_rows).reshape(n_columns, n_rows).T.ravel()
    return Samples(samples.x[order], samples.t[order])


def _windows(
    texts: Sequence[Sequence[str]], numbers: dict[str, int], n_positions: int
) -> Samples:
    """Cuts the texts, one after the other, into samples; drops what is left over."""
    words = np.array([numbers.get(w, 0) for text in texts for w in text], np.int32)
    end = (len(words) - 1) // n_positions * n_positions
    if end == 0:
        raise ValueError(
            f"samples of {n_positions} words are longer than the {len(words)} that"
            f" there are for training or test: take fewer"
        )
    return Samples(
        words[:end].reshape(-1, n_positions),
        words[1 : end + 1].reshape(-1, n_positions),
    )

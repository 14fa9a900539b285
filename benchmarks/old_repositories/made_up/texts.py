"""Lines of words, of numbers, and of settings."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from benchmarks.old_repositories.program import MakesData


def words_of_lines(
    random: np.random.RandomState, n: int, n_words: int
) -> list[list[int]]:
    """Returns lines of numbers of words, of which low ones are frequent."""
    lengths = random.randint(4, 20, n)
    numbers = np.minimum(random.zipf(1.3, int(lengths.sum())), n_words)
    ends = np.cumsum(lengths)[:-1]
    return [list(map(int, line)) for line in np.split(numbers, ends)]


def sentences(random: np.random.RandomState, n: int, n_words: int) -> str:
    """Returns lines of words, such as ``w1 w17 w3``."""
    lines = words_of_lines(random, n, n_words)
    return "\n".join(" ".join(f"w{word}" for word in line) for line in lines) + "\n"


def text(path: str, n: int = 200, n_words: int = 300) -> MakesData:
    """Writes lines of words."""

    def make(root, random):
        _place(root, path).write_text(sentences(random, n, n_words))

    return make


def numbers(path: str, n: int = 200, n_words: int = 200) -> MakesData:
    """Writes lines of numbers of words, from 3 on; those below mark ends."""

    def make(root, random):
        lines = words_of_lines(random, n, n_words - 1)
        rows = [" ".join(str(word + 2) for word in line) for line in lines]
        _place(root, path).write_text("\n".join(rows) + "\n")

    return make


def tagged_words(path: str, form: str, n: int = 200, n_tags: int = 5) -> MakesData:
    """Writes a word and its tag on each line, and an empty line after a sentence.

    Args:
        path: File.
        form: Form of a line, such as ``'{word} x {tag}'``.
        n: Number of sentences.
        n_tags: Number of tags.
    """

    def make(root, random):
        rows = []
        for line in words_of_lines(random, n, 200):
            rows += [form.format(word=f"w{i}", tag=f"t{i % n_tags}") for i in line]
            rows.append("")
        _place(root, path).write_text("\n".join(rows) + "\n")

    return make


def ranked_lists(path: str, n: int = 30, n_features: int = 46) -> MakesData:
    """Writes lists of documents with features and relevances, as LETOR does."""

    def make(root, random):
        rows = []
        for query in range(n):
            for i, relevance in enumerate(random.randint(0, 3, 8)):
                values = random.rand(n_features) + relevance
                pairs = " ".join(f"{k + 1}:{v:.6f}" for k, v in enumerate(values))
                rows.append(f"{relevance} qid:{query} {pairs} #docid = d{query}-{i}")
        _place(root, path).write_text("\n".join(rows) + "\n")

    return make


def named_entities(folder: str, n: int = 100) -> MakesData:
    """Writes sentences of tokens in JSON, with lists of words, letters and labels."""
    labels = ["O", "B-PER", "I-PER", "B-LOC"]

    def make(root, random):
        for part in "train", "dev", "test":
            rows = []
            for line in words_of_lines(random, n, 200):
                words = [f"w{word}" for word in line]
                tokens = [
                    {"raw": word, "surface": word, "target": labels[number % 4]}
                    for word, number in zip(words, line)
                ]
                rows.append(json.dumps(tokens))
            _place(root, f"{folder}/{part}.clean").write_text("\n".join(rows) + "\n")
        for name, items in (
            ("vocab", ["<UNK>", *(f"w{word}" for word in range(1, 201))]),
            ("singleton", ["w200"]),
            ("char", ["<UNK>", *"w0123456789"]),
            ("ner_tags", labels),
        ):
            rows = [f"{item}\t{i}" for i, item in enumerate(items)]
            _place(root, f"{folder}/{name}.txt").write_text("\n".join(rows) + "\n")

    return make


def lines(path: str, content: list[str]) -> MakesData:
    """Writes these lines: settings, or a list of files."""

    def make(root, random):
        _place(root, path).write_text("\n".join(content) + "\n")

    return make


def _place(root: Path, path: str) -> Path:
    place = root / path
    place.parent.mkdir(parents=True, exist_ok=True)
    return place

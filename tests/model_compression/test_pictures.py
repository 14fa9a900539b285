import json

import pytest

from model_compression import plot_progress
from model_compression.pictures import plot_rounds


def write(path, entries):
    path.write_text(json.dumps(entries))
    return path


ENTRIES = [
    {"iteration": i, "compress/sparsity": min(0.9, i / 10), "accuracy": 1 - i / 50}
    | ({"compress/bits": 8.0} if i > 5 else {})
    for i in range(1, 12)
]


def test_the_course_of_a_compression_is_drawn(tmp_path):
    log = write(tmp_path / "log", ENTRIES)
    plot_progress(log, "accuracy", tmp_path / "course.png")
    assert (tmp_path / "course.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "entries, metric, words",
    [
        (ENTRIES, "loss", "has no 'loss'; it has accuracy, compress/bits"),
        ([{"iteration": 1, "loss": 2}], "loss", "has no 'compress/sparsity'"),
    ],
)
def test_a_log_without_it_is_refused(tmp_path, entries, metric, words):
    log = write(tmp_path / "log", entries)
    with pytest.raises(ValueError, match=words):
        plot_progress(log, metric, tmp_path / "course.png")


def test_rounds_and_sizes_are_drawn(tmp_path):
    rounds = [(0.5, 0.97, True), (0.2, None, False), (0.3, 0.9, False)]
    sizes = {"/0": (100, 20.0), "/2": (50, 50)}
    path = tmp_path / "rounds.png"
    plot_rounds(rounds, 0.98, 0.96, "validation/main/accuracy", sizes, path)
    assert path.read_bytes().startswith(b"\x89PNG")

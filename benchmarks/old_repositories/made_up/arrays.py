"""Arrays, and clouds of points."""

from __future__ import annotations

import numpy as np

from benchmarks.old_repositories.program import MakesData


def folder(path: str) -> MakesData:
    """Makes an empty folder."""

    def make(root, random):
        (root / path).mkdir(parents=True, exist_ok=True)

    return make


def array(path: str, shape: tuple[int, ...], dtype: str, high: float = 1) -> MakesData:
    """Writes an array of numbers from 0 to below ``high``."""

    def make(root, random):
        values = random.uniform(0, high, shape)
        np.save(root / path, values.astype(dtype))

    return make


def clouds(path: str, n: int = 16, n_points: int = 2048) -> MakesData:
    """Writes clouds of points with one of 40 classes each, as ModelNet40 in HDF5."""

    def make(root, random):
        import h5py

        place = root / path
        place.mkdir(parents=True)
        for part in "train", "test":
            file = place / f"{part}.h5"
            labels = random.randint(0, 40, (n, 1))
            points = random.normal(size=(n, n_points, 3)) * (1 + labels[:, :, None])
            with h5py.File(file, "w") as data:
                data["data"] = points.astype(np.float32)
                data["label"] = labels.astype(np.uint8)
            (place / f"{part}_files.txt").write_text(f"{file}\n")

    return make


def one_hot_blocks(path: str, n: int, length: int, widths: list[int]) -> MakesData:
    """Writes rows of positions, each with one 1 in every block of its numbers."""

    def make(root, random):
        blocks = [
            np.eye(width)[random.randint(0, width, (n, length))] for width in widths
        ]
        values = np.concatenate(blocks, axis=2)
        np.save(root / path, values.reshape(n, -1).astype(np.float32))

    return make

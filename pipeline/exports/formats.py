"""The formats that a trained model can be exported to.

A file is written aside, read again, and compared; it appears only if it is equal.
"""

from __future__ import annotations

import importlib
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import chainer
import numpy as np

from divisible import Divisible
from divisible.files import written_aside
from pipeline.snapshots.errors import SnapshotError
from pipeline.snapshots.tools import export_npz, import_npz

#: Of the largest output, by how much outputs of two libraries may differ.
TOLERANCE = 1e-4


class Source(NamedTuple):
    """A model to be exported.

    Attributes:
        arrays: The undivided model's parameters and persistent values, by key.
        model: The model with these, if it was given.
        x: Samples to compare outputs for, if a shape was given.
    """

    arrays: Mapping[str, np.ndarray]
    model: Divisible | None
    x: np.ndarray | None


class Format(NamedTuple):
    """A format.

    Attributes:
        ending: Of the file's name.
        needs_model: Whether arrays alone do not do.
        packages: The Python packages that write and compare it.
        write: Writes a file, and returns what was compared, in words.
    """

    ending: str
    needs_model: bool
    packages: tuple[str, ...]
    write: Callable[[Source, str], str]


def export(
    snapshot: str | os.PathLike,
    output: str | os.PathLike,
    to: str = "npz",
    model: Divisible | None = None,
    x: np.ndarray | None = None,
) -> str:
    """Writes the undivided model of a snapshot for another library.

    Args:
        snapshot: The directory of the snapshot.
        output: The file; it appears only when it has been compared.
        to (str): One of :data:`FORMATS`.
        model (Divisible): Of the same layers; it gets the snapshot's values. Needed but
            for ``'npz'`` and ``'safetensors'``.
        x: Samples for the model, with which outputs are compared.

    Returns:
        str: What was compared, in words.

    Raises:
        ValueError: If there is no such format, the model or its input is missing, a
            layer has no equivalent, or the outputs differ.
        ImportError: If a package is missing, with how to install it.
        SnapshotError: If the snapshot cannot be read, or is of another model.
    """
    if to not in FORMATS:
        raise ValueError(f"there is no format {to!r}: choose of {', '.join(FORMATS)}")
    form = FORMATS[to]
    for package in form.packages:
        try:
            importlib.import_module(package)
        except ImportError as error:
            # It may be there, and lack a library that it needs itself.
            raise ImportError(
                f"{to} needs the package {package}, but {error}: pip install"
                f" 'divisible[{to}]'"
            ) from error
    if form.needs_model and (model is None or x is None):
        raise ValueError(f"{to} needs the model and the shape of its input")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.npz"
        export_npz(snapshot, file)
        if model is not None:
            try:
                import_npz(file, model)
            except SnapshotError as error:
                # The file is gone when this is read.
                words = str(error).replace(os.fspath(file), os.fspath(snapshot))
                raise type(error)(words) from error
        with np.load(file) as arrays, written_aside(output) as aside:
            return form.write(Source(dict(arrays), model, x), aside)


def _npz(source: Source, path: str) -> str:
    with open(path, "wb") as file:
        np.savez(file, **source.arrays)
    with np.load(path) as again:
        return _same_arrays(source, again)


def _safetensors(source: Source, path: str) -> str:
    from safetensors.numpy import load_file, save_file

    empty = [key for key, array in source.arrays.items() if array.dtype.hasobject]
    if empty:
        raise ValueError(f"{', '.join(empty)} has no value before the first minibatch")
    # The format has no numbers without dimensions of NumPy's memory order.
    arrays = {k: np.ascontiguousarray(v) for k, v in source.arrays.items()}
    save_file(arrays, path, {"made_by": "divisible"})
    return _same_arrays(source, load_file(path))


def _same_arrays(source: Source, again: Mapping[str, np.ndarray]) -> str:
    same = {*source.arrays} == {*again} and all(
        np.array_equal(array, again[key].reshape(array.shape))
        for key, array in source.arrays.items()
        if not array.dtype.hasobject
    )
    if not same:
        raise ValueError("what was read again is not what was written")
    return f"{len(source.arrays)} arrays, equal to the snapshot's"


def _torch(source: Source, path: str) -> str:
    import torch

    from pipeline.exports.torch_modules import sequential

    made = sequential(source.model, source.x)
    torch.save(made.state_dict(), path)
    # Into a fresh one, as whoever gets the file does.
    other = sequential(source.model, source.x, with_values=False)
    other.load_state_dict(torch.load(path, weights_only=True))
    other.eval()
    with torch.no_grad():
        found = other(torch.from_numpy(source.x)).numpy()
    return f"{_compared(source, found)}\nthe state_dict is of\n{other}"


def _onnx(source: Source, path: str) -> str:
    import onnx_chainer
    from onnx.reference import ReferenceEvaluator

    exported = onnx_chainer.export(source.model, [source.x], filename=path)
    (found,) = ReferenceEvaluator(exported).run(None, {"Input_0": source.x})
    return _compared(source, found)


def _compared(source: Source, found: np.ndarray) -> str:
    with chainer.using_config("train", False), chainer.no_backprop_mode():
        y = source.model(source.x)
    expected = y.array if isinstance(y, chainer.Variable) else y
    if expected.shape != found.shape:
        raise ValueError(
            f"the outputs are of {found.shape}, and the model's of {expected.shape}"
        )
    difference = float(abs(found - expected).max(initial=0))
    if not difference <= TOLERANCE * max(1.0, float(abs(expected).max(initial=0))):
        raise ValueError(f"the outputs differ from the model's by {difference:.1e}")
    return f"outputs for {len(found)} samples, which differ by {difference:.1e} at most"


#: By the word for ``--to``.
FORMATS: dict[str, Format] = {
    "npz": Format("npz", False, (), _npz),
    "safetensors": Format("safetensors", False, ("safetensors",), _safetensors),
    "onnx": Format("onnx", True, ("onnx",), _onnx),
    "torch": Format("pt", True, ("torch",), _torch),
}

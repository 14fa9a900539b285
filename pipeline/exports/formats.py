"""The formats that a trained model can be exported to.

A file is written aside, read again, and compared. It appears only if it is equal.
"""

from __future__ import annotations

import errno
import importlib
import os
import re
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import chainer
import numpy as np

from divisible import Divisible
from divisible.files import why_not, written_aside
from divisible.planning.units import count
from pipeline.snapshots.arrays import opened
from pipeline.snapshots.errors import SnapshotError
from pipeline.snapshots.npz_files import export_npz, import_npz

#: Largest difference between two libraries' outputs, relative to the largest output.
TOLERANCE = 1e-4


class Source(NamedTuple):
    """A model to be exported.

    Attributes:
        arrays: Parameters and persistent values of the undivided model, by key.
        model: The model with these values, if it was given.
        x: Samples whose outputs are compared, if a shape was given.
    """

    arrays: Mapping[str, np.ndarray]
    model: Divisible | None
    x: np.ndarray | None


class Format(NamedTuple):
    """A format of files.

    Attributes:
        ending: Ending of the file's name.
        needs_model: Whether the model is needed, not only its arrays.
        packages: Python packages that write the file and compare it.
        write: Writes a file, and returns a text about what was compared.
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
        snapshot: Directory of the snapshot.
        output: File to write; it appears only once it has been compared.
        to (str): Name of the format, one of :data:`FORMATS`.
        model (Divisible): Model of the same layers, which gets the snapshot's values.
            Formats other than ``'npz'`` and ``'safetensors'`` need it.
        x: Samples for the model; outputs for them are compared.

    Returns:
        str: Text about what was compared.

    Raises:
        ValueError: If the format does not exist, the model or its input is missing, a
            layer has no equivalent, or the outputs differ.
        ImportError: If a package is missing; the message has the command to install it.
        SnapshotError: If the snapshot cannot be read, or belongs to another model; or
            if the file cannot be written, with the free space.
    """
    if to not in FORMATS:
        raise ValueError(f"there is no format {to!r}: choose of {', '.join(FORMATS)}")
    form = FORMATS[to]
    for package in form.packages:
        try:
            importlib.import_module(package)
        except ImportError as error:
            # The package may be there, and lack a library that it needs itself.
            raise ImportError(
                f"{to} needs the package {package}, but {error}: pip install"
                f" 'divisible[{to}]'"
            ) from error
    if form.needs_model and (model is None or x is None):
        raise ValueError(
            f"{to} needs the model and the shape of its input: give both, in a terminal"
            f" as --model MODULE:MODEL --input SHAPE"
        )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.npz"
        export_npz(snapshot, file)
        if model is not None:
            try:
                import_npz(file, model)
            except SnapshotError as error:
                # The temporary file is gone when the message is read.
                words = str(error).replace(os.fspath(file), os.fspath(snapshot))
                raise type(error)(words) from error
        with opened(file) as opened_file:
            arrays = dict(opened_file)
        try:
            with written_aside(output) as aside:
                return form.write(Source(arrays, model, x), aside)
        except OSError as error:
            size = sum(array.nbytes for array in arrays.values())
            raise SnapshotError(
                f"cannot write {os.fspath(output)}: {why_not(error, output)}, and the"
                f" arrays take {size:,}. Free space there, or write elsewhere (--output"
                f" of the command). Nothing was changed"
            ) from error


def _npz(source: Source, path: str) -> str:
    with open(path, "wb") as file:
        np.savez(file, **source.arrays)
    with np.load(path) as again:
        return _same_arrays(source, again)


def _safetensors(source: Source, path: str) -> str:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file, save_file

    empty = [key for key, array in source.arrays.items() if array.dtype.hasobject]
    if empty:
        raise ValueError(
            f"{', '.join(empty)} has no value, which safetensors cannot hold: a layer"
            f" has not run yet, or a state was reset. Export to npz, or take a snapshot"
            f" after a minibatch"
        )
    # The format stores dense arrays with at least one dimension.
    arrays = {k: np.ascontiguousarray(v) for k, v in source.arrays.items()}
    try:
        save_file(arrays, path, {"made_by": "divisible"})
    except SafetensorError as error:
        # The library's own error has the system's number in its text.
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise ValueError(f"safetensors cannot write the arrays: {error}") from error
        code = int(number[1])
        raise OSError(code, os.strerror(code)) from error
    return _same_arrays(source, load_file(path))


def _same_arrays(source: Source, again: Mapping[str, np.ndarray]) -> str:
    same = {*source.arrays} == {*again} and all(
        _is_same(array, again[key].reshape(array.shape))
        for key, array in source.arrays.items()
        if not array.dtype.hasobject
    )
    if not same:
        raise ValueError(
            "the arrays that were read from the file are not those that were written."
            " Write to another disk"
        )
    return f"{len(source.arrays)} arrays, equal to the snapshot's"


def _is_same(array: np.ndarray, other: np.ndarray) -> bool:
    if np.array_equal(array, other):
        return True
    # NaN, as after a training that diverged, is not equal to itself.
    bits = (each.reshape(-1).view(np.uint8) for each in (array, other))
    return array.dtype == other.dtype and np.array_equal(*bits)


def _torch(source: Source, path: str) -> str:
    import torch

    from pipeline.exports.torch_modules import sequential

    made = sequential(source.model, source.x)
    state = made.state_dict()
    names = {key: _name_in_module(source.model, key) for key in state}
    try:
        torch.save({names[key]: value for key, value in state.items()}, path)
    except RuntimeError as error:
        # The library raises this if it cannot write; only the system knows the reason.
        raise OSError(errno.ENOSPC, str(error)) from error
    # A new module, as the receiver of the file makes it.
    other = sequential(source.model, source.x, with_values=False)
    loaded = torch.load(path, weights_only=True)
    other.load_state_dict({key: loaded[name] for key, name in names.items()})
    other.eval()

    def run(x: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return other(torch.from_numpy(x)).numpy()

    return f"{_compared(source, run)}\nthe state_dict is of\n{other}"


def _name_in_module(model: Divisible, key: str) -> str:
    """Returns the key of a layer's array in the module that the layers came from."""
    if not hasattr(model, "torch_state_dict"):
        return key
    position, _, name = key.partition(".")
    return model.chain_names.in_chain(f"{position}/{name}")


def _onnx(source: Source, path: str) -> str:
    import onnx
    from onnx.reference import ReferenceEvaluator

    from pipeline.exports.onnx_graphs import graph

    onnx.save(graph(source.model, source.x), path)
    evaluator = ReferenceEvaluator(path)
    return _compared(source, lambda x: evaluator.run(None, {"Input_0": x})[0])


def _compared(source: Source, run: Callable[[np.ndarray], np.ndarray]) -> str:
    """Compares outputs with the model's, for several numbers of samples.

    Args:
        source: The model and its samples.
        run: Returns the outputs of the written file, for an array of samples.
    """
    largest, x = 0.0, source.x
    sizes = [len(x), 1, len(x) + 3]
    for size in sizes:
        samples = np.resize(x, (size, *x.shape[1:]))
        with chainer.using_config("train", False), chainer.no_backprop_mode():
            y = source.model(samples)
        expected = y.array if isinstance(y, chainer.Variable) else y
        found = run(samples)
        if expected.shape != found.shape:
            raise ValueError(
                f"the outputs for {count(size, 'sample')} have the shape {found.shape},"
                f" and the model's {expected.shape}. Export to npz, and tell us of it"
            )
        difference = float(abs(found - expected).max(initial=0))
        if not difference <= TOLERANCE * max(1.0, float(abs(expected).max(initial=0))):
            raise ValueError(
                f"the outputs for {count(size, 'sample')} differ from the model's by"
                f" {difference:.1e}. Export to npz, and tell us of it"
            )
        largest = max(largest, difference)
    return (
        f"outputs for {sizes[0]}, {sizes[1]} and {sizes[2]} samples, which differ by"
        f" {largest:.1e} at most"
    )


#: Formats by their name, the value of ``--to``.
FORMATS: dict[str, Format] = {
    "npz": Format("npz", False, (), _npz),
    "safetensors": Format("safetensors", False, ("safetensors",), _safetensors),
    "onnx": Format("onnx", True, ("onnx",), _onnx),
    "torch": Format("pt", True, ("torch",), _torch),
}

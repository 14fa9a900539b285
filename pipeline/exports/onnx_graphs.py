"""ONNX graphs of a model, for any number of samples.

A traced graph contains the number of samples in shapes. So a model is traced with two
numbers of samples; what differs between the graphs is the number::

    4 samples   Reshape to [4, -1]       5 samples   Reshape to [5, -1]
                            any number   Reshape to [0, -1]     0: as in the input
    4 samples   Reshape to [28, 8]       5 samples   Reshape to [35, 8]
                            any number   Reshape to [-1, 8]     -1: what is left

The written graph is then compared with the model for several numbers of samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_chainer
from onnx import numpy_helper

#: Name of the axis of samples.
BATCH = "batch"
_CONST = "Constant"
_REMEDY = (
    "Write the layer so that it does not depend on how many samples there are, such as"
    " F.reshape(x, (len(x), -1)), or export to npz"
)


def graph(model: Any, x: np.ndarray) -> onnx.ModelProto:
    """Returns the graph of a model for any number of samples.

    Args:
        model (chainer.Sequential): The model.
        x: Samples for the model, at least one.

    Raises:
        ValueError: If the graph depends on the number of samples by more than shapes;
            the message has the operation.
    """
    one = _traced(model, x)
    try:
        other = _traced(model, np.resize(x, (len(x) + 1, *x.shape[1:])))
    except Exception as error:
        raise ValueError(
            f"the model computes {len(x)} samples and not {len(x) + 1}:"
            f" {type(error).__name__}: {error}. {_REMEDY}"
        ) from error
    _check_nodes(one.graph.node, other.graph.node)
    _free_shapes(one.graph, other.graph, len(x))
    for mine, theirs in zip(one.graph.output, other.graph.output):
        sides = zip(mine.type.tensor_type.shape.dim, theirs.type.tensor_type.shape.dim)
        for side, its in sides:
            if side.dim_value != its.dim_value:
                side.dim_param = BATCH
    return one


def _traced(model: Any, x: np.ndarray) -> onnx.ModelProto:
    return onnx_chainer.export(model, [x], input_shapes=[(BATCH, *x.shape[1:])])


def _check_nodes(ones: Sequence[Any], others: Sequence[Any]) -> None:
    """Refuses operations that differ with the number of samples."""
    ones, others = ([n for n in each if n.op_type != _CONST] for each in (ones, others))
    if len(ones) != len(others):
        raise ValueError(
            f"the model has {len(ones)} operations for some samples and {len(others)}"
            f" for one more. {_REMEDY}"
        )
    for one, other in zip(ones, others):
        if one != other:
            raise ValueError(
                f"the operation {one.op_type} ({one.name}) is another one for each"
                f" number of samples. {_REMEDY}"
            )


def _free_shapes(one: Any, other: Any, n_samples: int) -> None:
    """Removes the number of samples from the constants of a graph."""
    theirs = _constants(other)
    for name, tensor in _constants(one).items():
        array, its = map(numpy_helper.to_array, (tensor, theirs[name]))
        if (array.shape, array.tobytes()) == (its.shape, its.tobytes()):
            continue
        users = [node for node in one.node if name in node.input]
        kinds = {n.op_type if list(n.input)[1:] == [name] else "" for n in users}
        free = None
        if array.shape == its.shape and len(kinds) == 1:
            make = _FREED.get(kinds.pop())
            free = None if make is None else make(array, its, n_samples)
        if free is None:
            names = ", ".join(f"{node.op_type} ({node.name})" for node in users)
            raise ValueError(
                f"the number of samples is in a constant of {names}. {_REMEDY}"
            )
        tensor.CopyFrom(numpy_helper.from_array(free, tensor.name))


def _constants(graph: Any) -> dict[str, Any]:
    """Returns the constant tensors of a graph, by name."""
    found = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == _CONST:
            found[node.output[0]] = next(a.t for a in node.attribute if a.HasField("t"))
    return found


def _reshaped(
    shape: np.ndarray, other: np.ndarray, n_samples: int
) -> np.ndarray | None:
    """Returns a new shape for any number of samples; ``None`` if none exists.

    Args:
        shape: The shape for some samples.
        other: The shape for one sample more.
        n_samples: Number of samples of the first shape.

    Example:
        >>> _reshaped(np.array([4, 6, -1]), np.array([5, 6, -1]), 4).tolist()
        [0, 6, -1]
        >>> _reshaped(np.array([6, 8]), np.array([9, 8]), 2).tolist()
        [-1, 8]
    """
    differing = np.flatnonzero(shape != other)
    free = shape.copy()
    if len(differing) == 1 and -1 not in shape:
        free[differing] = -1
        return free
    if differing.tolist() == [0] and shape[0] == n_samples:
        free[0] = 0
        return free
    return None


def _expanded(
    shape: np.ndarray, other: np.ndarray, n_samples: int
) -> np.ndarray | None:
    """Returns a shape to expand to, for any number of samples, or ``None``.

    The axis of samples is not expanded, because operations on the result broadcast.
    """
    differing = shape != other
    if (shape[differing] != n_samples).any():
        return None
    return np.where(differing, 1, shape)


# Functions by the operation whose second input is a shape.
_FREED = {"Reshape": _reshaped, "Expand": _expanded}

"""ONNX graphs of a model, for any number of samples.

A graph is traced with one number of samples, which ends up in shapes within it. So it
is traced with two, and what differs is the number of samples::

    4 samples   Reshape to [4, -1]       5 samples   Reshape to [5, -1]
                            any number   Reshape to [0, -1]     0: as in the input
    4 samples   Reshape to [28, 8]       5 samples   Reshape to [35, 8]
                            any number   Reshape to [-1, 8]     -1: what is left

What was written is compared with the model for several numbers of samples afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_chainer
from onnx import numpy_helper

#: The name of the axis of samples.
BATCH = "batch"
_CONST = "Constant"
_REMEDY = (
    "Write the layer so that it does not depend on how many samples there are, such as"
    " F.reshape(x, (len(x), -1)), or export to npz"
)


def graph(model: Any, x: np.ndarray) -> onnx.ModelProto:
    """Returns the graph of a model, whose axis of samples is free.

    Args:
        model (chainer.Sequential): The model.
        x: Samples for it, one at least.

    Raises:
        ValueError: If the graph depends on the number of samples otherwise than by
            shapes; the message names the operation.
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
    """Refuses operations that are others with another number of samples."""
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
    """Takes the number of samples out of the constants of a graph."""
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
    """Returns the tensors that a graph brings along, by name."""
    found = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == _CONST:
            found[node.output[0]] = next(a.t for a in node.attribute if a.HasField("t"))
    return found


def _reshaped(
    shape: np.ndarray, other: np.ndarray, n_samples: int
) -> np.ndarray | None:
    """Returns a new shape for any number of samples; ``None`` if there is none.

    Args:
        shape: The shape for some samples.
        other: The shape for one more.
        n_samples: How many samples the first one is for.

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
    """Returns a shape to expand to, for any number of samples, as :func:`_reshaped`.

    The axis of samples is left as it is: operations on what comes of it broadcast.
    """
    differing = shape != other
    if (shape[differing] != n_samples).any():
        return None
    return np.where(differing, 1, shape)


# Functions by the operation that has a shape for its second input.
_FREED = {"Reshape": _reshaped, "Expand": _expanded}

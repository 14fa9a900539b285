"""The tensors that PyTorch's graph of one call keeps for its backward."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.autograd.graph import GradientEdge

from torch_layers.arrays import to_array

# Beginning of the attributes in which an operation shows what it has saved.
_SAVED = "_saved_"


def saved_arrays(
    outputs: Sequence[GradientEdge], parameters: Sequence[torch.Tensor]
) -> Iterator[Any]:
    """Yields the arrays that the graph behind some tensors keeps, some twice.

    Args:
        outputs: The places in the graph of these tensors.
        parameters: The parameters, which do not count.

    Example:
        >>> x = torch.ones(4, 3, requires_grad=True)
        >>> edge = torch.autograd.graph.get_gradient_edge(x.exp().tanh())
        >>> [array.shape for array in saved_arrays([edge], [x])]
        [(12,), (12,)]
    """
    known = {_memory(each) for each in parameters}
    for tensor in saved_tensors(outputs):
        if _memory(tensor) not in known:
            # NumPy has no bfloat16, and its memory must not be copied.
            is_known = tensor.dtype is not torch.bfloat16
            # All of the memory, which the graph keeps for a part of it as well.
            whole = torch.empty(0, dtype=tensor.dtype if is_known else torch.int16)
            yield to_array(whole.set_(tensor.untyped_storage()))


def saved_tensors(outputs: Sequence[GradientEdge]) -> Iterator[torch.Tensor]:
    """Yields the tensors that the graph behind some tensors keeps, some twice.

    Args:
        outputs: The places in the graph of these tensors.
    """
    for node in operations(outputs):
        for tensor in _saved(node):
            if tensor.layout is torch.strided and tensor.numel():
                yield tensor


def operations(outputs: Sequence[GradientEdge]) -> Iterator[Any]:
    """Yields the operations of the graph behind some tensors, each once.

    Args:
        outputs: The places in the graph of these tensors.
    """
    waiting = [edge.node for edge in outputs]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        yield node
        for child, _ in node.next_functions:
            if child is not None and child not in seen:
                seen.add(child)
                waiting.append(child)


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _saved(node: Any) -> Iterator[torch.Tensor]:
    # A function of the user has them under one name.
    found = list(getattr(node, "saved_tensors", ()))
    for name in dir(node):
        if name.startswith(_SAVED):
            value = getattr(node, name)
            found += value if isinstance(value, (tuple, list)) else [value]
    for each in found:
        if torch.is_tensor(each):
            yield each

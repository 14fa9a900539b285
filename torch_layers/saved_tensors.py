"""The tensors that PyTorch's graph of one call keeps for its backward."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.autograd.graph import get_gradient_edge

from torch_layers.arrays import to_array

# Beginning of the attributes in which an operation shows what it has saved.
_SAVED = "_saved_"


def saved_arrays(outputs: Sequence[torch.Tensor]) -> Iterator[Any]:
    """Yields the arrays that the graph behind some tensors keeps, some twice.

    Args:
        outputs: Tensors with a gradient.

    Example:
        >>> x = torch.ones(4, 3, requires_grad=True)
        >>> [array.shape for array in saved_arrays([x.exp().tanh()])]
        [(4, 3), (4, 3)]
    """
    waiting = [get_gradient_edge(y).node for y in outputs]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        for tensor in _saved(node):
            if tensor.layout is torch.strided and tensor.numel():
                yield to_array(tensor)
        for child, _ in node.next_functions:
            if child is not None and child not in seen:
                seen.add(child)
                waiting.append(child)


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

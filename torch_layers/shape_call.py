"""A call of a module without arithmetic, for its shapes and what its graph keeps.

PyTorch's fake tensors have a shape, a dtype and no memory. The module runs on them, and
its graph keeps what it would keep in a call::

    arrays without numbers --> fake tensors --> module --> fake tensors --> arrays
                                                  |                         without
                                                graph: saved tensors ---->  numbers

Arrays that would share memory count as one buffer.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from divisible.planning.shape_arrays import NoNumbersError, ShapeArray
from torch_layers.arrays import to_array
from torch_layers.call import CalledLayer, is_continuous
from torch_layers.halves import edge_of
from torch_layers.saved_tensors import operations, saved_tensors

# The layer of an LSTM on the CPU, which keeps a workspace of unknown size.
_OF_ONEDNN = "MkldnnRnnLayerBackward0"


class ShapeCall:
    """A call of the module of a layer, in place of a :class:`.ModuleCall`.

    Args:
        layer (TorchLayer): The layer.
        label: The name of the layer, for errors.
    """

    def __init__(self, layer: CalledLayer, label: str) -> None:
        self.layers, self.label = [layer], label
        # Arrays by the address of the memory of fake tensors. The memory is kept, so
        # that no address is used twice.
        self._arrays: dict[int, ShapeArray] = {}
        self._memory: list[Any] = []
        self._own: set[int] = set()
        self._kept: list[ShapeArray] = []

    def run(
        self, structure: Any, arrays: Sequence[ShapeArray], needed: Sequence[bool]
    ) -> Any:
        """Calls the module.

        Args:
            structure: See :meth:`.ModuleCall.run`.
            arrays: An array for each leaf.
            needed: For each leaf whether its gradient is needed.

        Returns:
            The result of the module, with fake tensors.
        """
        (layer,) = self.layers
        kinds = [torch.from_numpy(np.empty(0, x.dtype)).dtype for x in arrays]
        with contextlib.ExitStack() as stack:
            stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
            own = stack.enter_context(_without_numbers(layer.module))
            for each in layer.contexts():
                stack.enter_context(each)
            stack.enter_context(torch.enable_grad())
            leaves = [torch.empty(x.shape, dtype=k) for x, k in zip(arrays, kinds)]
            given = [
                leaf.requires_grad_().view_as(leaf)
                if is_needed and is_continuous(leaf)
                else leaf
                for leaf, is_needed in zip(leaves, needed)
            ]
            y = layer.call(structure, given)
        self._own = {self._address(tensor) for tensor in own}
        for leaf, array in zip(leaves, arrays):
            self._arrays[self._address(leaf)] = array
        return y

    def keep_graph(self, outputs: Sequence[torch.Tensor]) -> None:
        """Keeps the arrays that a backward needs; see :meth:`.ModuleCall.keep_graph`.

        Args:
            outputs: The fake tensors of the result that have a gradient.
        """
        edges = [edge_of(y) for y in outputs]
        if any(type(node).__name__ == _OF_ONEDNN for node in operations(edges)):
            raise NoNumbersError(
                f"{self.label} computes by oneDNN, which does not tell how much memory"
                f" a recurrent layer keeps"
            )
        for tensor in saved_tensors(edges):
            if self._address(tensor) not in self._own:
                self._kept.append(self._whole(tensor))

    def retained(self) -> Iterator[ShapeArray]:
        """Yields the arrays that are kept for the backward, some twice."""
        yield from self._kept

    def as_array(self, tensor: torch.Tensor) -> ShapeArray:
        """Returns an array in place of a fake tensor, as :func:`.to_array` does."""
        dtype = dtype_of(tensor.dtype)
        whole = self._whole(tensor)
        if whole.dtype != dtype:
            return ShapeArray(tuple(tensor.shape), dtype)
        return whole.seen_as(tuple(tensor.shape))

    def _whole(self, tensor: torch.Tensor) -> ShapeArray:
        """Returns an array for all of the memory that a tensor is a part of."""
        address = self._address(tensor)
        if address not in self._arrays:
            # The unit of bfloat16 is that of another number with as many bytes.
            is_known = tensor.dtype is not torch.bfloat16
            dtype = dtype_of(tensor.dtype) if is_known else np.dtype(np.uint16)
            n_bytes = tensor.untyped_storage().nbytes()
            self._arrays[address] = ShapeArray(n_bytes // dtype.itemsize, dtype)
        return self._arrays[address]

    def _address(self, tensor: torch.Tensor) -> int:
        """Returns a number that no other memory of this call has."""
        memory = tensor.untyped_storage()
        self._memory.append(memory)
        return memory._cdata


def dtype_of(kind: torch.dtype) -> np.dtype:
    """Returns the dtype of the array that a tensor becomes.

    Example:
        >>> dtype_of(torch.int64), dtype_of(torch.bfloat16)
        (dtype('int64'), dtype('float32'))
    """
    return to_array(torch.empty(0, dtype=kind, device="cpu")).dtype


@contextlib.contextmanager
def _without_numbers(module: nn.Module) -> Iterator[list[torch.Tensor]]:
    """Gives a module fake parameters and buffers for a block, and yields these.

    They are on the CPU, also if those of the module are on the device "meta".
    """
    places = [
        (inner, name, tensor)
        for inner in module.modules()
        for tensors in (inner._parameters, inner._buffers)
        for name, tensor in tensors.items()
        if tensor is not None
    ]
    fakes: dict[int, torch.Tensor] = {}
    try:
        for inner, name, tensor in places:
            if id(tensor) not in fakes:
                fakes[id(tensor)] = _fake(tensor)
            # Recurrent modules follow.
            setattr(inner, name, fakes[id(tensor)])
        yield list(fakes.values())
    finally:
        for inner, name, tensor in places:
            setattr(inner, name, tensor)


def _fake(tensor: torch.Tensor) -> torch.Tensor:
    made = torch.empty(tuple(tensor.shape), dtype=tensor.dtype, device="cpu")
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(made, requires_grad=tensor.requires_grad)
    return made

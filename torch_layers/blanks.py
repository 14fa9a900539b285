"""Parameters of modules that were built on the device "meta", made when needed.

PyTorch builds a module without memory by ``with torch.device('meta')``. Within
:func:`~divisible.deferred_init` its parameters stay so until a rank gets their layer::

    with deferred_init(seed=0), torch.device('meta'):
        model = from_torch(build())             0 bytes, on every rank
    stage = model.divide(7, 15)                 layers 7 to 14 only

The values are those of the module's own ``reset_parameters``, drawn by a key of the
seed and the place of the parameter. So they are the same for any cut.
"""

from __future__ import annotations

import copy
from typing import Any

import chainer
import numpy as np
import torch
from torch import nn

from torch_layers.arrays import to_array

_RESETS = ("reset_parameters", "_reset_parameters")


class Reset:
    """Fills an array as a module fills a parameter or a buffer at its creation.

    Args:
        blank (torch.nn.Module): Copy of the module on the device "meta".
        path (str): Name of the parameter or buffer in it.
        dtype: Dtype of the array.
    """

    def __init__(self, blank: nn.Module, path: str, dtype: np.dtype) -> None:
        self._blank, self._path, self.dtype = blank, path, dtype

    def __call__(self, array: Any) -> None:
        """Fills an array, with numbers drawn after a seed from NumPy's generator."""
        seed = int(np.random.randint(0, 1 << 31))
        module = copy.deepcopy(self._blank).to_empty(device="cpu")
        before = torch.default_generator.get_state()
        torch.default_generator.manual_seed(seed)
        try:
            _reset(module)
        finally:
            torch.default_generator.set_state(before)
        owner, _, name = self._path.rpartition(".")
        array[...] = to_array(getattr(module.get_submodule(owner), name))

    def __deepcopy__(self, memo: dict) -> Reset:
        return self


class Blanks:
    """The modules within a module that can be filled with new values.

    Args:
        module (torch.nn.Module): The module, on the device "meta" or in part.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._copies: dict[str, nn.Module] = {}

    def parameter(self, name: str, tensor: torch.Tensor) -> chainer.Parameter:
        """Returns a parameter that is made when it is needed.

        Args:
            name: Name in the module.
            tensor: The parameter on the device "meta".
        """
        return chainer.Parameter(self._reset_of(name, tensor), tuple(tensor.shape))

    def array(self, name: str, tensor: torch.Tensor) -> Any:
        """Returns an array for a buffer, which is made when it is needed."""
        reset = self._reset_of(name, tensor)
        shape = tuple(tensor.shape)
        return chainer.initializers.generate_array(reset, shape, np, reset.dtype)

    def _reset_of(self, name: str, tensor: torch.Tensor) -> Reset:
        dtype = to_array(torch.empty(0, dtype=tensor.dtype, device="cpu")).dtype
        # The outermost module that fills it decides about its values.
        parts = name.split(".")
        for n in range(len(parts)):
            path = ".".join(parts[:n])
            owner = self._module.get_submodule(path)
            if any(hasattr(type(owner), each) for each in _RESETS):
                if path not in self._copies:
                    self._copies[path] = copy.deepcopy(owner)
                return Reset(self._copies[path], ".".join(parts[n:]), dtype)
        raise ValueError(
            f"{name} of {type(self._module).__name__} is on the device 'meta', and no"
            f" module around it has a method reset_parameters, which would fill it."
            f" Write one, or build the module on the CPU"
        )


def _reset(module: nn.Module) -> None:
    """Fills a module, the inner modules first, as they are when they are created."""
    for child in module.children():
        _reset(child)
    for name in _RESETS:
        if hasattr(type(module), name):
            getattr(module, name)()
            return

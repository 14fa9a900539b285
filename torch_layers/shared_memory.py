"""The memory that a link of Chainer shares with a module of PyTorch.

::

    link                      memory                     module
    '/0/weight' .array   -->  [0.1, 0.7, -0.3]  <--      weight .data

Either side may get other memory: ``load_npz`` of a link without sizes and ``to_device``
replace an array; ``module.half()`` and ``load_state_dict(assign=True)`` replace a
tensor. Before each call of the layer, and before the state of either side is read or
loaded, :meth:`SharedMemory.check` runs. It finds the side that has changed, and gives
its memory to the other side. A forward may replace buffers, so these are checked after
it.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

import chainer
import numpy as np
import torch
from torch import nn

from torch_layers.arrays import address_of, to_array, to_tensor
from torch_layers.blanks import Blanks

# For the identity of each tensor that is a parameter: the tensor, and Chainer's
# parameter. Modules that share the one share the other.
_parameters: dict[int, tuple[weakref.ref, weakref.ref]] = {}


# For copies of modules, which a traced module has around tensors of the other one: the
# module that the user knows.
_originals: weakref.WeakKeyDictionary[nn.Module, weakref.ref] = (
    weakref.WeakKeyDictionary()
)


def stands_for(copy: nn.Module, original: nn.Module) -> None:
    """Records that tensors of a module are those of another one, also replaced ones.

    Args:
        copy (torch.nn.Module): The module of a layer, or within it.
        original (torch.nn.Module): The module that the user knows.
    """
    _originals[copy] = weakref.ref(original)


class _Shared:
    """A parameter or a buffer of a module.

    Args:
        name: Name in the module and the link, such as ``'self_attn.out_proj.bias'``.
        tensor: The parameter or the buffer.
        places: The dictionaries of modules that have it, each with its key there. The
            first one decides.
    """

    __slots__ = ("array", "key", "name", "owner", "places", "pointer", "tensor")

    def __init__(
        self, name: str, tensor: torch.Tensor, places: list[tuple[dict, str]]
    ) -> None:
        self.name, self.places = name, places
        self.owner, self.key = places[0]
        self.tensor, self.pointer = tensor, tensor.data_ptr()
        self.array: Any = None

    def follow(self) -> torch.Tensor:
        """Returns the present tensor, after giving it to all places."""
        self.tensor = self.owner[self.key]
        for owner, key in self.places:
            owner[key] = self.tensor
        return self.tensor

    def put(self, tensor: torch.Tensor) -> None:
        """Gives the module memory, and keeps the object that the user knows."""
        known = self.owner[self.key]
        if _memory(known) != _memory(tensor):
            try:
                known.data = tensor
            except RuntimeError:
                # A tensor without memory, on the device "meta", cannot get any.
                if isinstance(known, nn.Parameter):
                    tensor = nn.Parameter(tensor, known.requires_grad)
                known = tensor
            for owner, key in self.places:
                owner[key] = known
        self.tensor, self.pointer = known, known.data_ptr()


class Trained(NamedTuple):
    """The parameters of a module.

    Attributes:
        entries: All of them: what is shared, the parameter of the link, that of the
            module, and whether it has a gradient.
        parameters: The parameters of the link that have a gradient.
        tensors: The parameters of the module that have a gradient.
        frozen: The other parameters of the link.
        size: Number of their elements, frozen ones included.
        has_buffers: Whether the module has buffers, too.
    """

    entries: list[tuple[_Shared, chainer.Parameter, torch.Tensor, bool]]
    parameters: tuple[chainer.Parameter, ...]
    tensors: tuple[torch.Tensor, ...]
    frozen: tuple[chainer.Parameter, ...]
    size: int
    has_buffers: bool


class SharedMemory:
    """The parameters and buffers that a link has in common with a module.

    Args:
        link (chainer.Link): The link, which gets the parameters and, as persistent
            values, the buffers of the module's ``state_dict``.
        module (torch.nn.Module): The module.

    Raises:
        TypeError: If a parameter has a dtype that NumPy lacks.
        ValueError: If a name is one of the link's own attributes.
    """

    # Without a dictionary: pipelines search those of a link for states.
    __slots__ = ("_buffers", "_link", "_params", "_trained")

    def __init__(self, link: chainer.Link, module: nn.Module) -> None:
        self._link = weakref.ref(link)
        self._params = [*_places(module, "_parameters")]
        self._buffers = [*_places(module, "_buffers")]
        self._trained: Trained | None = None
        for shared in (*self._params, *self._buffers):
            _check_name(link, module, shared)
        blanks = Blanks(module)
        for shared in self._params:
            parameter = _parameter_of(shared, blanks)
            with link.init_scope():
                setattr(link, shared.name, parameter)
        for shared in self._buffers:
            if shared.tensor.is_meta:
                array = blanks.array(shared.name, shared.tensor)
            else:
                array = shared.array = to_array(shared.tensor)
            link.add_persistent(shared.name, array)

    def check(self) -> None:
        """Shares memory again where one side has got other memory.

        If both have, as in a copy, the module gets that of the link.
        """
        self.check_parameters()
        if self._buffers:
            self.check_buffers()

    def check_parameters(self) -> None:
        """Shares the memory of parameters again, as :meth:`check` does."""
        values = vars(self._link())
        for shared in self._params:
            tensor = shared.tensor
            if (
                values[shared.name]._data[0] is not shared.array
                or shared.owner[shared.key] is not tensor
                or tensor.data_ptr() != shared.pointer
            ):
                self._share_parameter(shared, values[shared.name])

    def check_buffers(self) -> None:
        """Shares the memory of buffers again, as :meth:`check` does."""
        values = vars(self._link())
        for shared in self._buffers:
            if (
                values[shared.name] is not shared.array
                or shared.owner[shared.key] is not shared.tensor
                or shared.tensor.data_ptr() != shared.pointer
            ):
                self._share_buffer(shared, values)

    def trained(self) -> Trained:
        """Shares memory again, and returns the parameters that have a gradient.

        The result is the same object as before if nothing has changed.
        """
        known = self._trained
        if known is not None:
            values = vars(self._link())
            for shared, parameter, tensor, needs_gradient in known.entries:
                if (
                    values[shared.name] is not parameter
                    or parameter._data[0] is not shared.array
                    or shared.owner[shared.key] is not tensor
                    or tensor.data_ptr() != shared.pointer
                    or tensor.requires_grad is not needs_gradient
                ):
                    break
            else:
                if self._buffers:
                    self.check_buffers()
                return known
        self.check()
        values = vars(self._link())
        entries = [
            (shared, values[shared.name], shared.tensor, shared.tensor.requires_grad)
            for shared in self._params
        ]
        self._trained = Trained(
            entries,
            tuple([parameter for _, parameter, _, needs in entries if needs]),
            tuple([tensor for _, _, tensor, needs in entries if needs]),
            tuple([parameter for _, parameter, _, needs in entries if not needs]),
            sum([tensor.numel() for _, _, tensor, _ in entries]),
            bool(self._buffers),
        )
        return self._trained

    def _share_parameter(self, shared: _Shared, parameter: chainer.Parameter) -> None:
        array = parameter.raw_array
        if array is None or getattr(array, "is_deferred", False):
            return
        if array is shared.array:
            array = to_array(shared.follow())
            parameter.array = array
        else:
            tensor = to_tensor(array)
            if tensor.data_ptr() != address_of(array):
                # PyTorch cannot use this memory, so the link gets the copy as well.
                array = to_array(tensor)
                parameter.array = array
            shared.put(tensor)
        shared.array, shared.tensor = array, shared.owner[shared.key]
        shared.pointer = shared.tensor.data_ptr()
        _register(shared.tensor, parameter)

    def _share_buffer(self, shared: _Shared, values: dict[str, Any]) -> None:
        array = values[shared.name]
        if getattr(array, "is_deferred", False):
            return
        if array is shared.array:
            array = values[shared.name] = to_array(shared.follow())
            shared.pointer = shared.tensor.data_ptr()
        else:
            if not isinstance(array, chainer.get_array_types()):
                array = values[shared.name] = np.array(array)
            tensor = to_tensor(array)
            if tensor.data_ptr() != address_of(array):
                array = values[shared.name] = to_array(tensor)
            shared.put(tensor)
        shared.array = array

    @classmethod
    def of_copy(cls, link: chainer.Link, module: nn.Module) -> SharedMemory:
        """Returns the memory that a copy of a link shares with a copy of its module.

        Args:
            link (chainer.Link): The copy, with parameters of its own.
            module (torch.nn.Module): The copy of the module.
        """
        ret = cls.__new__(cls)
        ret._link = weakref.ref(link)
        _mark_constants(link, module)
        ret._params = [*_places(module, "_parameters")]
        ret._buffers = [*_places(module, "_buffers")]
        ret._trained = None
        ret.check()
        return ret


def _memory(tensor: torch.Tensor) -> tuple:
    """Returns where the elements of a tensor are, and how they are read."""
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


def _places(module: nn.Module, kind: str) -> Iterator[_Shared]:
    """Yields the tensors of a module, each once, with all modules that have it.

    Args:
        module: The module.
        kind: Attribute of modules, ``'_parameters'`` or ``'_buffers'``.
    """
    found: dict[int, tuple[str, torch.Tensor, list]] = {}
    for path, inner in module.named_modules():
        tensors = getattr(inner, kind)
        for key, tensor in tensors.items():
            left_out = kind == "_buffers" and key in inner._non_persistent_buffers_set
            if tensor is None or left_out:
                continue
            name = f"{path}.{key}" if path else key
            places = found.setdefault(id(tensor), (name, tensor, []))[2]
            places.append((tensors, key))
            original = _originals[inner]() if inner in _originals else None
            if original is not None and key in getattr(original, kind):
                places.insert(0, (getattr(original, kind), key))
    for name, tensor, places in found.values():
        yield _Shared(name, tensor, places)


def _mark_constants(link: chainer.Link, module: nn.Module) -> None:
    """Marks buffers that are no state; copies of a traced module forget these marks."""
    buffers = _places(module, "_buffers")
    state = {id(each.tensor) for each in buffers if each.name in link._persistent}
    for inner in module.modules():
        inner._non_persistent_buffers_set.update(
            key
            for key, tensor in inner._buffers.items()
            if tensor is not None and id(tensor) not in state
        )


def _check_name(link: chainer.Link, module: nn.Module, shared: _Shared) -> None:
    kind = type(module).__name__
    if hasattr(link, shared.name):
        raise ValueError(
            f"TorchLayer({kind}): {shared.name} is the name of a parameter or buffer,"
            f" and of an attribute of chainer.Link. Rename it, or put the module into"
            f" an nn.Sequential"
        )
    if shared.tensor.dtype in (torch.bfloat16,):
        raise TypeError(
            f"TorchLayer({kind}): {shared.name} is {shared.tensor.dtype}, which NumPy"
            f" lacks. Keep parameters in float32 and compute in bfloat16:"
            f" TorchLayer(module.float(), autocast=torch.bfloat16)"
        )


def _parameter_of(shared: _Shared, blanks: Blanks) -> chainer.Parameter:
    """Returns Chainer's parameter for a tensor, the same for each module with it."""
    tensor = shared.tensor
    known = _parameters.get(id(tensor))
    if known is not None and known[0]() is tensor:
        parameter = known[1]()
        if parameter is not None:
            return parameter
    if tensor.is_meta:
        parameter = blanks.parameter(shared.name, tensor)
    else:
        parameter = chainer.Parameter()
        parameter.array = shared.array = to_array(tensor)
    parameter.cleargrad()
    _register(tensor, parameter)
    return parameter


def _register(tensor: torch.Tensor, parameter: chainer.Parameter) -> None:
    key = id(tensor)

    def forget(reference: weakref.ref) -> None:
        known = _parameters.get(key)
        if known is not None and known[0] is reference:
            del _parameters[key]

    known = _parameters.get(key)
    if known is None or known[0]() is not tensor or known[1]() is not parameter:
        _parameters[key] = weakref.ref(tensor, forget), weakref.ref(parameter)

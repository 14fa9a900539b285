"""Links whose parameters are stored in few bits: the links of an applied model.

A link keeps its path and its name. In the place of a parameter it has persistent
values. Each call makes the parameter's array from them, unless it multiplies them
directly::

    W    ->    W_whole    int8 or uint8, W_scale, W_zero    float32
    W    ->    W_numbers  uint8, W_values                   float32      a codebook
"""

from __future__ import annotations

import functools
from typing import Any

import chainer
import numpy as np

from model_compression import whole_layers
from model_compression.affine import Affine
from model_compression.codebooks import averaged, clusters, code_dtype
from model_compression.quantized_links import (
    FewBits,
    rounded_activation,
    weight_of,
)
from model_compression.rules import Quantize

_PARAMETERS = {"weight": "W", "bias": "b"}


class Stored:
    """A subclass's part of a link with parameters that are stored in few bits."""

    stored_names: tuple[str, ...]
    stored_kind: type

    def __reduce_ex__(self, protocol: int) -> tuple:
        """Tells copies and pickles how to make the class, which has no module."""
        _, _, *rest = super().__reduce_ex__(max(2, protocol))
        return _new, (self.stored_kind, self.stored_names), *rest

    def forward(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        """Computes the forward of the class."""
        if not hasattr(self, "ranges"):
            return super().forward(x, *args, **kwargs)
        y = whole_layers.output(self, x, *args, **kwargs)
        if y is None:
            x = rounded_activation(self, "input", x, looks=False)
            y = super().forward(x, *args, **kwargs)
        return rounded_activation(self, "output", y, looks=False)


def names_to_store(link: chainer.Link, rule: Quantize) -> list[str]:
    """Returns the names of the parameters of a link that a rule quantizes."""
    names = [_PARAMETERS[each] for each in rule.targets if each in _PARAMETERS]
    return [name for name in names if name in link._params]


def store(link: chainer.Link, rule: Quantize) -> None:
    """Stores the parameters of a link in few bits, as a rule requires.

    Args:
        link: Link of a class that can be quantized; it is changed.
        rule: The rule.
    """
    names = names_to_store(link, rule)
    for name in names:
        param = getattr(link, name)
        if rule.has_codebook:
            _store_codebook(link, name, param.array, rule.bits)
        else:
            affine = weight_of(link, param.array, rule)
            link.add_persistent(
                f"{name}_whole", affine.whole(param.array).astype(affine.dtype)
            )
            link.add_persistent(f"{name}_scale", affine.scale)
            link.add_persistent(f"{name}_zero", affine.zero.astype(np.float32))
        link.add_persistent(f"{name}_dtype", np.zeros(0, param.dtype))
        delattr(link, name)
    kind = type(link)
    stored = {*names, *getattr(kind, "stored_names", ())}
    if isinstance(link, FewBits):
        kind = kind.plain_kind
    elif isinstance(link, Stored):
        kind = kind.stored_kind
    link.__class__ = _stored(kind, tuple(sorted(stored)))


def _store_codebook(link: chainer.Link, name: str, weight: Any, bits: int) -> None:
    host = chainer.get_device("@numpy").send(weight)
    # Zero is one more value than those of the codebook.
    size = 2**bits + 1
    values, numbers = np.unique(host, return_inverse=True)
    if len(values) > size:
        few = averaged(host, clusters(host, bits))
        values, numbers = np.unique(few, return_inverse=True)
    kept = np.zeros(size, np.float32)
    kept[: len(values)] = values
    numbers = numbers.reshape(host.shape).astype(code_dtype(bits))
    send = link.device.send
    link.add_persistent(f"{name}_numbers", send(numbers))
    link.add_persistent(f"{name}_values", send(kept))


@functools.cache
def _stored(kind: type, names: tuple[str, ...]) -> type:
    """Returns the subclass of a class of links without some of its parameters."""
    parts = {name: property(functools.partial(_parameter, name=name)) for name in names}
    parts.update(stored_names=names, stored_kind=kind, __module__=kind.__module__)
    return type(kind.__name__, (Stored, kind), parts)


def _new(kind: type, names: tuple[str, ...]) -> chainer.Link:
    """Returns an empty link, to be filled by a pickle."""
    stored = _stored(kind, names)
    return stored.__new__(stored)


def _parameter(link: chainer.Link, name: str) -> chainer.Variable:
    """Makes the array of a parameter from the stored values."""
    dtype = getattr(link, f"{name}_dtype").dtype
    if f"{name}_values" in link._persistent:
        array = getattr(link, f"{name}_values")[getattr(link, f"{name}_numbers")]
    else:
        scale, zero = getattr(link, f"{name}_scale"), getattr(link, f"{name}_zero")
        array = Affine(scale, zero, 0, 0).real(getattr(link, f"{name}_whole"))
    return chainer.Variable(array.astype(dtype, copy=False), requires_grad=False)

"""Models in float16."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any, Callable

import chainer
import chainer.functions as F
import numpy as np

from mixed_precision.kept_layers import keep_layers
from mixed_precision.layer_types import FLOAT32, Keep
from mixed_precision.streamed import is_streamed


def to_float16(model: chainer.Link, *, keep: Keep = None) -> chainer.Link:
    """Makes a model float16, except its normalizations and the layers to keep.

    Layers in float16 compute float16 outputs from float16 inputs;
    :class:`~pipeline.Pipeline` casts the inputs at the first stage. Compute the loss in
    float32: :class:`~pipeline.Pipeline` does so, and :func:`float32_loss` does it for
    other models. Normalizations keep float32 parameters and compute in float32, with
    inputs and outputs of the type of their input.

    ``keep`` names the layers that are different, and may give each its types::

        keep=[0, '/5/conv2', L.EmbedID]         # in float32: two layers, and a class
        keep={0: 'float32', 9: LayerTypes(backward_type='float32')}
        keep={L.Linear: LayerTypes(forward_math='float16')}

    A position or path is that in the undivided model, on every rank. It stands for all
    links within the layer; a longer path comes before a shorter one, and a path before
    a class. Inputs are cast where neighbours differ. A layer of a ``Divisible`` or a
    ``chainer.Sequential`` returns its own type, the last one too, and functions and
    normalizations compute in the type of their input. A link within another layer
    returns the type of that layer.

    Parameters that are initialized in their first forward get the weights of the
    float32 model, rounded.

    The weights of streamed layers stay float32 in their files. Such a layer computes in
    float32, with float16 inputs and outputs, or float32 ones if it is kept.

    Args:
        model (chainer.Link): A model or a stage of one; changed in place.
        keep: Classes of links, positions (int) or paths (str) of layers that stay
            float32; or a dict from these to ``'float32'``, ``'float16'`` or
            :class:`LayerTypes`.

    Returns:
        chainer.Link: The model.

    Raises:
        TypeError: If a parameter is not a floating-point array, or ``keep`` is no list
            or dict of these.
        ValueError: If the model has no such layer, or the layer cannot compute in these
            types.
        OverflowError: If a weight exceeds float16.

    Example:
        >>> import chainer.links as L
        >>> model = chainer.Sequential(
        ...     L.Linear(4, 8), L.BatchNormalization(8), F.relu, L.Linear(8, 2)
        ... )
        >>> model = to_float16(model, keep=[3])
        >>> model[0].W.dtype.name, model[1].gamma.dtype.name, model[3].W.dtype.name
        ('float16', 'float32', 'float32')
        >>> model(np.ones((3, 4), np.float16)).dtype
        dtype('float32')

    See "FP16 storage" and "NVIDIA Caffe 0.16" in Naruse (2017), Volta Tensor Core
    training.
    """
    dtypes = keep_layers(model, keep)
    for link in model.links():
        if hasattr(link, "output_dtype"):
            link.output_dtype = dtypes[id(link.W)]
    for path, param in model.namedparams():
        dtype = dtypes[id(param)]
        if dtype is None or is_streamed(param):
            continue
        if dtype == FLOAT32:
            _widen(param)
            continue
        # A float32 gradient does not fit any more.
        param.cleargrad()
        if param.array is None:
            _initialize_later(param)
            continue
        array = param.array
        if array.dtype.kind != "f":
            raise TypeError(
                f"parameter {path} is of dtype {array.dtype}; only floating-point"
                f" parameters can be trained"
            )
        with chainer.using_device(param.device):
            param.array = _rounded(array, f"parameter {path}")
    return model


def _widen(param: chainer.Parameter) -> None:
    """Makes a float16 parameter float32; those of float64 stay."""
    if param.array is None:
        if isinstance(param.initializer, _Rounded):
            param.initializer = param.initializer.initializer
    elif param.dtype == np.float16:
        param.cleargrad()
        with chainer.using_device(param.device):
            param.array = param.array.astype(np.float32)


def _rounded(weights: Any, what: str) -> Any:
    """Returns weights in float16.

    Raises:
        OverflowError: If the weights do not fit. Weights that are not made yet are
            checked when they are made.
    """
    with np.errstate(over="ignore"):
        rounded = weights.astype(np.float16)
    if getattr(rounded, "is_deferred", False):
        return rounded
    if not bool(chainer.backend.get_array_module(rounded).isfinite(rounded).all()):
        raise OverflowError(
            f"{what} has weights that are not finite in float16, whose largest number"
            f" is 65504. Give smaller ones, or leave the layer in float32 by keep="
        )
    return rounded


def _initialize_later(param: chainer.Parameter) -> None:
    if not isinstance(param.initializer, _Rounded):
        param.initializer = _Rounded(param.initializer)


class _Rounded(chainer.Initializer):
    """Draws in float32, and rounds to the weights of a float32 model.

    Args:
        initializer: Initializer in any form that ``chainer.Parameter`` takes.

    Attributes:
        initializer: Initializer that draws.
    """

    def __init__(self, initializer: Any) -> None:
        super().__init__(np.float16)
        self.initializer = chainer.initializers._get_initializer(initializer)

    def __call__(self, array: Any) -> None:
        xp = chainer.backend.get_array_module(array)
        # Chainer's initializers refuse arrays of another dtype than they were given.
        dtype = getattr(self.initializer, "dtype", None) or np.float32
        weights = xp.empty(array.shape, dtype)
        self.initializer(weights)
        array[...] = _rounded(weights, "a parameter that is sized now")


def float32_loss(lossfun: Callable) -> Callable:
    """Returns a loss function that casts its float16 arguments to float32.

    Not for :class:`~pipeline.Pipeline`, which casts by itself.

    Args:
        lossfun: Loss function of a model's outputs and targets.

    Example:
        >>> lossfun = float32_loss(F.softmax_cross_entropy)
        >>> y, t = np.zeros((2, 3), np.float16), np.array([0, 2], np.int32)
        >>> lossfun(y, t).dtype
        dtype('float32')
    """

    @functools.wraps(lossfun)
    def in_float32(*args: Any, **kwargs: Any) -> Any:
        widened = {name: _widened(value) for name, value in kwargs.items()}
        return lossfun(*map(_widened, args), **widened)

    return in_float32


def _widened(value: Any) -> Any:
    is_array = isinstance(value, (chainer.Variable, *chainer.get_array_types()))
    if is_array and value.dtype == np.float16:
        return F.cast(value, np.float32)
    return value


class LinkGroup(chainer.Link):
    """Several stages on a rank as one target of an optimizer, paths unchanged.

    Args:
        links: The stages.
    """

    def __init__(self, links: Sequence[chainer.Link]) -> None:
        super().__init__()
        self._group = tuple(links)

    @property
    def is_stage(self) -> bool:
        """Returns whether other layers of the model may be elsewhere."""
        return any(getattr(link, "is_stage", False) for link in self._group)

    def children(self) -> Iterator[chainer.Link]:
        """Yields the stages."""
        yield from self._group

    def params(self, include_uninit: bool = True) -> Iterator[chainer.Parameter]:
        """Yields the parameters of all stages."""
        for link in self._group:
            yield from link.params(include_uninit)

    def namedparams(
        self, include_uninit: bool = True
    ) -> Iterator[tuple[str, chainer.Parameter]]:
        """Yields the parameters of all stages with their paths."""
        for link in self._group:
            yield from link.namedparams(include_uninit)

    def links(self, skipself: bool = False) -> Iterator[chainer.Link]:
        """Yields all links of the hierarchy."""
        if not skipself:
            yield self
        for link in self._group:
            yield from link.links()

    def namedlinks(self, skipself: bool = False) -> Iterator[tuple[str, chainer.Link]]:
        """Yields all links of the hierarchy with their paths in the stages."""
        if not skipself:
            yield "/", self
        for link in self._group:
            yield from link.namedlinks(True)

    def device_resident_accept(self, visitor: Any) -> None:
        """Passes ``visitor`` (``to_gpu`` and the like) to every stage."""
        super().device_resident_accept(visitor)
        for link in self._group:
            link.device_resident_accept(visitor)

    def serialize(self, serializer: chainer.AbstractSerializer) -> None:
        """Reads or writes every stage."""
        for link in self._group:
            link.serialize(serializer)

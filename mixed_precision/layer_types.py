"""The types of a layer's numbers and products, forward and backward apart."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Callable, Union

import chainer
import numpy as np

FLOAT16, FLOAT32 = "float16", "float32"
_TYPES = FLOAT16, FLOAT32

#: Names layers: a class of links, a position, or a path such as ``'/3/conv1'``.
Key = Union[type, int, str]
#: The argument ``keep`` of :func:`~mixed_precision.to_float16`.
Keep = Union[Sequence[Key], Mapping[Key, Any], None]


@dataclasses.dataclass(frozen=True)
class LayerTypes:
    """The types of one layer in a float16 model.

    The four types are those of NVCaffe's prototxt, for a layer::

        forward_type      activations and weights    x, W, b, y
        backward_type     their gradients            gx, gW, gb, gy
        forward_math      sums of products           y = x W
        backward_math     sums of products           gx = gy W,  gW = gy x

    Each is ``'float16'`` or ``'float32'``, as a name or as a dtype. The defaults are
    those of a Tensor Core: numbers are float16, and their products are added up in
    float32 and rounded once. In ``'float16'`` every partial sum is rounded, as on GPUs
    before Tensor Cores.

    Chainer has one dtype for an array and its gradient. So if ``forward_type`` and
    ``backward_type`` differ, the layer's arrays are float32, and the numbers of the
    narrower direction are rounded to those of float16. Such a layer takes the memory
    and the time of a float32 layer.

    Args:
        forward_type: Type of activations and weights.
        backward_type: Type of gradients of activations and weights.
        forward_math: Type in which the forward adds up products.
        backward_math: Type in which the backward adds up products.

    Raises:
        ValueError: If a type is neither float16 nor float32, or products of float32
            numbers are to be added up in float16.

    Example:
        >>> LayerTypes(backward_math='float16').backward_type
        'float16'
        >>> LayerTypes(forward_math='float16', forward_type='float32')
        Traceback (most recent call last):
        ValueError: forward_math is float16, so forward_type and backward_type must ...

    See Naruse (2017), Volta Tensor Core training, "NVIDIA Caffe 0.16".
    """

    forward_type: str = FLOAT16
    backward_type: str = FLOAT16
    forward_math: str = FLOAT32
    backward_math: str = FLOAT32

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = _name(field.name, getattr(self, field.name))
            object.__setattr__(self, field.name, value)
        for math in "forward_math", "backward_math":
            if getattr(self, math) == FLOAT16 and self.array_type != FLOAT16:
                raise ValueError(
                    f"{math} is float16, so forward_type and backward_type must be"
                    f" float16 too, not {self.forward_type} and {self.backward_type}:"
                    f" leave out {math}"
                )

    @property
    def array_type(self) -> str:
        """The dtype of the layer's arrays."""
        is_half = self.forward_type == self.backward_type == FLOAT16
        return FLOAT16 if is_half else FLOAT32

    @property
    def are_alike(self) -> bool:
        """Whether numbers and gradients have one type."""
        return self.forward_type == self.backward_type

    @property
    def has_half_sums(self) -> bool:
        """Whether products are added up in float16, forward or backward."""
        return FLOAT16 in (self.forward_math, self.backward_math)


def as_types(value: Any) -> LayerTypes:
    """Returns the types for a value of ``keep``: types, or one type for all numbers.

    Example:
        >>> as_types('float32').backward_type
        'float32'
    """
    if isinstance(value, LayerTypes):
        return value
    return LayerTypes(forward_type=value, backward_type=value)


class KeptTypes:
    """The types that ``keep`` gives to layers.

    Args:
        keep: Keys of layers that stay float32, or a mapping from keys to types.
        path_of: Returns the path of the layer at a position.

    Attributes:
        by_path (dict): Types by path.

    Raises:
        TypeError: If ``keep`` or a key is of another type.
        ValueError: If a type is not valid, or there is no layer at a position.

    Example:
        >>> kept = KeptTypes([0, '/2/conv1', chainer.links.EmbedID], '/{}'.format)
        >>> sorted(kept.by_path)
        ['/0', '/2/conv1']
        >>> kept.of('/7', chainer.links.EmbedID(2, 2)).forward_type
        'float32'
        >>> kept.of('/7', chainer.links.Linear(2, 2))
    """

    def __init__(self, keep: Keep, path_of: Callable[[int], str]) -> None:
        if isinstance(keep, (str, type)) or not isinstance(
            keep, (Mapping, Sequence, type(None))
        ):
            raise TypeError(
                f"keep must be a list of classes, positions and paths of layers, or a"
                f" mapping from them to types, not {keep!r}: give keep=['/3'], or"
                f" keep={{'/3': 'float32'}}"
            )
        if not isinstance(keep, Mapping):
            keep = dict.fromkeys(keep or (), FLOAT32)
        self.by_path: dict[str, LayerTypes] = {}
        self._by_class: dict[type, LayerTypes] = {}
        for key, value in keep.items():
            try:
                types = as_types(value)
            except ValueError as error:
                raise ValueError(f"keep[{key!r}]: {error}") from None
            if isinstance(key, type) and issubclass(key, chainer.Link):
                self._by_class[key] = types
            elif isinstance(key, str):
                self.by_path["/" + key.strip("/")] = types
            elif isinstance(key, (int, np.integer)) and not isinstance(key, bool):
                self.by_path[path_of(int(key))] = types
            else:
                raise TypeError(
                    f"keep names layers by classes of links, positions or paths, not"
                    f" {key!r}"
                )

    @property
    def may_name_layers(self) -> bool:
        """Whether a layer of a list may have types, here or in another stage."""
        is_short = any(path.count("/") == 1 for path in self.by_path)
        return is_short or bool(self._by_class)

    def of(self, path: str, link: chainer.Link) -> LayerTypes | None:
        """Returns the types of a link that is named itself, or by its class.

        A path comes before a class, and a class before the classes it derives from.
        """
        if path in self.by_path:
            return self.by_path[path]
        for kind in type(link).__mro__:
            if kind in self._by_class:
                return self._by_class[kind]
        return None


def _name(field: str, value: Any) -> str:
    try:
        name = np.dtype(value).name
    except TypeError:
        name = value
    if name not in _TYPES or value is None:
        raise ValueError(f"{field} must be 'float16' or 'float32', not {value!r}")
    return name

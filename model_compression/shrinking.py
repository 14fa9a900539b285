"""Channels that are taken away: from weights, and from all that is kept beside them.

::

    /0  convolution     W[kept], b[kept], out_channels
    /1  normalization   gamma[kept], beta[kept], avg_mean[kept], avg_var[kept]
    /3  linear          W[:, kept h w : ...], in_size

    with each parameter: its gradient, its float32 master, and what the update rule
    keeps for each element, as momentum

A rank of a pipeline may have any of these layers; each takes away what it has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import chainer
import numpy as np

from model_compression.channels import Channels

#: By path a parameter; several where a rank has equal copies of it.
Params = Mapping[str, Sequence[chainer.Parameter]]
Links = Mapping[str, chainer.Link]


class Left(NamedTuple):
    """The part of a parameter that stays.

    Attributes:
        axis: Along which axis elements go.
        kept: The positions along it that stay, in host memory.
    """

    axis: int
    kept: np.ndarray

    def of(self, array: Any) -> Any:
        """Returns what stays of an array of the parameter's shape, as a new one."""
        xp = chainer.backend.get_array_module(array)
        found = xp.take(array, xp.asarray(self.kept), axis=self.axis)
        return xp.ascontiguousarray(found)

    def shape_of(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Returns the shape that is left of one.

        Example:
            >>> Left(1, np.array([0, 2])).shape_of((4, 3, 5))
            (4, 2, 5)
        """
        return (*shape[: self.axis], len(self.kept), *shape[self.axis + 1 :])


def parts_left(channels: Channels, kept: np.ndarray) -> dict[str, Left]:
    """Returns by path what stays of each parameter, where some channels stay.

    Args:
        channels: All that a layer gives.
        kept: The numbers of those that stay.

    Example:
        >>> channels = Channels("/0/W", ("/0/b",), (), "/2/W", 2, "/0", "/2")
        >>> parts_left(channels, np.array([0, 3]))["/2/W"]
        Left(axis=1, kept=array([0, 1, 6, 7]))
    """
    found = dict.fromkeys((channels.weight, *channels.parameters), Left(0, kept))
    each = np.arange(channels.n_each)
    columns = (kept[:, None] * channels.n_each + each).ravel()
    return {**found, channels.reader: Left(1, columns)}


def take_away(
    channels: Channels, kept: np.ndarray, params: Params, links: Links
) -> None:
    """Takes channels away from the parameters and links that a rank has.

    Args:
        channels: All that a layer gives.
        kept: The numbers of those that stay, ascending, in host memory.
        params: Some or all of the model.
        links: Likewise.
    """
    for path, part in parts_left(channels, kept).items():
        for param in params.get(path, ()):
            _take_from(param, part)
    _resize_links(channels, len(kept), links)
    for path in channels.normalizing:
        link = links.get(path)
        for name in ("avg_mean", "avg_var"):
            if getattr(link, name, None) is not None:
                setattr(link, name, Left(0, kept).of(getattr(link, name)))


def _take_from(param: chainer.Parameter, left: Left) -> None:
    """Takes elements away from a parameter, and from what its update rule keeps."""
    rule, shape, gradient = param.update_rule, param.shape, param.grad
    with chainer.using_device(param.device):
        for name, value in ((rule and rule.state) or {}).items():
            if getattr(value, "shape", None) == shape:
                rule.state[name] = left.of(value)
        master = getattr(rule, "_fp32_param", None)
        if master is not None and master.array is not None:
            master.cleargrad()
            master.array = left.of(master.array)
        # Chainer refuses a gradient of another shape.
        param.cleargrad()
        param.array = left.of(param.array)
        if gradient is not None:
            param.grad = left.of(gradient)


def take_from_masters(optimizer: Any, left: Mapping[str, Left]) -> None:
    """Takes elements away from float32 masters that an optimizer keeps by itself.

    Args:
        optimizer: Set up. It, or one within it, may have a method ``change_masters``,
            as :class:`~mixed_precision.MixedPrecision` has.
        left: By path what stays of parameters.
    """

    def change(path: str, master: Any) -> Any:
        return left[path].of(master) if path in left else master

    while optimizer is not None:
        if hasattr(optimizer, "change_masters"):
            optimizer.change_masters(change)
        optimizer = getattr(optimizer, "actual_optimizer", None)


def n_channels(channels: Channels, shapes: Mapping[str, Sequence[int]]) -> int | None:
    """Returns how many channels there are, by the shapes of some parameters.

    Args:
        channels: All that belongs to them.
        shapes: By path; also of running averages.

    Returns:
        int or None: ``None`` if the shapes say nothing of them.

    Example:
        >>> channels = Channels("/0/W", ("/0/b",), (), "/2/W", 2, "/0", "/2")
        >>> n_channels(channels, {"/2/W": (3, 10)})
        5
    """
    averages = (f"{path}/avg_mean" for path in channels.normalizing)
    for path in (channels.weight, *channels.parameters, *averages):
        if path in shapes:
            return shapes[path][0]
    if channels.reader in shapes:
        return shapes[channels.reader][1] // channels.n_each
    return None


def make_room(channels: Channels, n: int, params: Params, links: Links) -> None:
    """Gives layers the sizes for so many channels; the values are to be read then.

    Args:
        channels: All that a layer gives.
        n: How many there are to be.
        params: As of :func:`take_away`. They may be not made yet.
        links: Likewise.
    """
    left = parts_left(channels, np.arange(n))
    for path, part in left.items():
        for param in params.get(path, ()):
            shape, dtype = part.shape_of(param.shape), param.dtype
            param.cleargrad()
            with chainer.using_device(param.device):
                param.array = param.device.xp.zeros(shape, dtype)
    for path in channels.normalizing:
        link = links.get(path)
        for name in ("avg_mean", "avg_var"):
            value = getattr(link, name, None)
            if value is not None:
                with chainer.using_device(link.device):
                    setattr(link, name, link.xp.zeros(n, value.dtype))
    _resize_links(channels, n, links)


def _resize_links(channels: Channels, n: int, links: Links) -> None:
    """Lets links know how many channels there are."""
    _resize(links.get(channels.layer), n, "out_channels", "out_size")
    n_read = n * channels.n_each
    _resize(links.get(channels.reading), n_read, "in_channels", "in_size")


def _resize(link: chainer.Link | None, n: int, *names: str) -> None:
    for name in names:
        if isinstance(getattr(link, name, None), (int, np.integer)):
            setattr(link, name, n)

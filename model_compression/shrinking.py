"""Channels that are taken away: from weights, and from all that is kept beside them.

::

    /0  convolution     W[kept], b[kept], out_channels
    /1  normalization   gamma[kept], beta[kept], avg_mean[kept], avg_var[kept]
    /3  linear          W[:, kept h w : ...], in_size

    with each parameter: its gradient, its float32 master, and what the update rule
    keeps for each element, as momentum

A rank of a pipeline may have any of these layers; each takes away what it has. First
all arrays are made, on all ranks, then they are put in their places: where there is no
memory for one, nothing has changed.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Callable, NamedTuple

import chainer
import numpy as np

from divisible.optimizer_wrapper import each_within
from model_compression.channels import Channels

#: By path a parameter; several where a rank has equal copies of it.
Params = Mapping[str, Sequence[chainer.Parameter]]
Links = Mapping[str, chainer.Link]
#: Puts what was made in its place, and makes no array.
Assignment = Callable[[], None]

#: Values of each channel that a normalization keeps beside its parameters.
_AVERAGES = ("avg_mean", "avg_var")


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


def joined(parts: Iterable[Mapping[str, Left]]) -> dict[str, tuple[Left, ...]]:
    """Returns by path what stays of each parameter, of the channels of several layers.

    Args:
        parts: The result of :func:`parts_left` for the channels of each layer.

    Example:
        >>> rows = {"/0/W": Left(0, np.array([1]))}
        >>> columns = {"/0/W": Left(1, np.array([0, 2]))}
        >>> what_stays(np.arange(6).reshape(2, 3), joined([rows, columns])["/0/W"])
        array([[3, 5]])
    """
    found: dict[str, tuple[Left, ...]] = {}
    for each in parts:
        for path, part in each.items():
            found[path] = (*found.get(path, ()), part)
    return found


def what_stays(array: Any, parts: Iterable[Left]) -> Any:
    """Returns what stays of an array of a parameter's shape, as a new one."""
    for part in parts:
        array = part.of(array)
    return array


def take_away(
    channels: Channels, kept: np.ndarray, params: Params, links: Links
) -> None:
    """Takes channels away from the parameters and links of a model.

    Args:
        channels: All that a layer gives.
        kept: The numbers of those that stay, ascending, in host memory.
        params: All parameters of the model.
        links: All links of the model.
    """
    left = joined([parts_left(channels, kept)])
    for assign in taking_away([(channels, kept)], left, params, links):
        assign()


def taking_away(
    removed: Iterable[tuple[Channels, np.ndarray]],
    left: Mapping[str, Sequence[Left]],
    params: Params,
    links: Links,
) -> list[Assignment]:
    """Makes what stays where channels go, and changes nothing yet.

    Args:
        removed: All the channels that a layer gives, and the numbers of those that
            stay, ascending, in host memory; for each layer.
        left: By path what stays of each parameter.
        params: Some or all of the model.
        links: Some or all of the model.

    Returns:
        The assignments that put it in its place. All arrays are made.

    Raises:
        ValueError: If an update rule keeps an array of another shape than the
            parameter's, of which nobody knows what goes.
    """
    found = [
        _taking_from(path, param, parts)
        for path, parts in left.items()
        for param in params.get(path, ())
    ]
    for channels, kept in removed:
        found.append(functools.partial(_resize_links, channels, len(kept), links))
        for path in channels.normalizing:
            link = links.get(path)
            for name in _AVERAGES:
                if getattr(link, name, None) is not None:
                    average = Left(0, kept).of(getattr(link, name))
                    found.append(functools.partial(setattr, link, name, average))
    return found


def _taking_from(
    path: str, param: chainer.Parameter, left: Sequence[Left]
) -> Assignment:
    """Makes what stays of a parameter, and of what its update rule keeps."""
    rule = param.update_rule
    _check_state(path, param)
    with chainer.using_device(param.device):
        array = what_stays(param.array, left)
        gradient = None if param.grad is None else what_stays(param.grad, left)
        state = {
            name: what_stays(value, left)
            for name, value in ((rule and rule.state) or {}).items()
            if getattr(value, "shape", None) == param.shape
        }
        master = getattr(rule, "_fp32_param", None)
        if master is not None and master.array is not None:
            in_float32 = what_stays(master.array, left)

    def assign() -> None:
        if state:
            rule.state.update(state)
        if master is not None and master.array is not None:
            master.cleargrad()
            master.array = in_float32
        # Chainer refuses a gradient of another shape.
        param.cleargrad()
        param.array = array
        if gradient is not None:
            param.grad = gradient

    return assign


def _check_state(path: str, param: chainer.Parameter) -> None:
    """Refuses what an update rule keeps of which nobody knows what stays."""
    rule = param.update_rule
    for name, value in ((rule and rule.state) or {}).items():
        shape = getattr(value, "shape", ())
        # One number is of all elements, as a count is.
        if shape != param.shape and getattr(value, "size", 1) != 1:
            raise ValueError(
                f"{type(rule).__name__} keeps {name} of {shape} for {path} of"
                f" {param.shape}, and which elements go with the channels is not known:"
                f" train without shrink, and let apply() take the channels away"
            )


def taking_from_masters(
    optimizer: Any, left: Mapping[str, Sequence[Left]]
) -> list[Assignment]:
    """Makes what stays of the float32 masters that an optimizer keeps by itself.

    Args:
        optimizer: Set up. It, or one within it, may have the methods ``masters`` and
            ``change_masters``, as :class:`~mixed_precision.MixedPrecision` has.
        left: By path what stays of parameters.

    Returns:
        The assignments that put it in its place.
    """
    found = []
    for each in each_within(optimizer):
        if hasattr(type(each), "change_masters"):
            made = {
                path: what_stays(master, left[path])
                for path, master in each.masters().items()
                if path in left
            }
            found.append(functools.partial(each.change_masters, made.get))
    return found


def n_channels(channels: Channels, shapes: Mapping[str, Sequence[int]]) -> int | None:
    """Returns how many channels there are, by the shapes of some parameters.

    Args:
        channels: All that belongs to them.
        shapes: By path; also of running averages.

    Returns:
        int or None: ``None`` if the shapes say nothing of them, as those of a
        damaged file may.

    Example:
        >>> channels = Channels("/0/W", ("/0/b",), (), "/2/W", 2, "/0", "/2")
        >>> n_channels(channels, {"/2/W": (3, 10)})
        5
    """
    averages = (f"{path}/avg_mean" for path in channels.normalizing)
    for path in (channels.weight, *channels.parameters, *averages):
        if shapes.get(path):
            return shapes[path][0]
    if len(shapes.get(channels.reader, ())) > 1:
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
            if not param.is_initialized:
                # A layer that is sized at its first call, or by what it reads.
                continue
            shape, dtype = part.shape_of(param.shape), param.dtype
            param.cleargrad()
            with chainer.using_device(param.device):
                param.array = param.device.xp.zeros(shape, dtype)
    for path in channels.normalizing:
        link = links.get(path)
        for name in _AVERAGES:
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

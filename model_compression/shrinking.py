"""The removal of channels, from weights and from all states beside them.

::

    /0  convolution     W[kept], b[kept], out_channels
    /1  normalization   gamma[kept], beta[kept], avg_mean[kept], avg_var[kept]
    /3  linear          W[:, kept h w : ...], in_size

    with each parameter: its gradient, its float32 master, and the update rule's state
    of each element, such as momentum

A rank of a pipeline may have any of these layers; each removes its own part. First all
new arrays are made, on all ranks, then they replace the old ones: if memory is too
small for one, nothing has changed.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Callable, NamedTuple

import chainer
import numpy as np

from divisible.optimizer_wrapper import each_within
from model_compression.channels import Channels

#: Parameters by path; several where a rank has equal copies of one.
Params = Mapping[str, Sequence[chainer.Parameter]]
Links = Mapping[str, chainer.Link]
#: Replaces arrays by new ones that were made before, and makes no array.
Assignment = Callable[[], None]

#: Values of each channel that a normalization keeps beside its parameters.
_AVERAGES = ("avg_mean", "avg_var")


class Left(NamedTuple):
    """The part of a parameter that remains.

    Attributes:
        axis: Axis along which elements are removed.
        kept: Positions along the axis that remain, in host memory.
    """

    axis: int
    kept: np.ndarray

    def of(self, array: Any) -> Any:
        """Returns the remaining part of an array as a new array."""
        xp = chainer.backend.get_array_module(array)
        found = xp.take(array, xp.asarray(self.kept), axis=self.axis)
        return xp.ascontiguousarray(found)

    def shape_of(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Returns the shape of the remaining part of an array.

        Example:
            >>> Left(1, np.array([0, 2])).shape_of((4, 3, 5))
            (4, 2, 5)
        """
        return (*shape[: self.axis], len(self.kept), *shape[self.axis + 1 :])


def parts_left(channels: Channels, kept: np.ndarray) -> dict[str, Left]:
    """Returns by path the remaining part of each parameter, where some channels remain.

    Args:
        channels: All channels that a layer outputs.
        kept: Numbers of the channels that remain.

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
    """Returns by path the remaining parts of parameters, for several layers.

    Args:
        parts: Results of :func:`parts_left` for the channels of each layer.

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
    """Returns the remaining part of an array of a parameter's shape, as a new array."""
    for part in parts:
        array = part.of(array)
    return array


def take_away(
    channels: Channels, kept: np.ndarray, params: Params, links: Links
) -> None:
    """Removes channels from the parameters and links of a model.

    Args:
        channels: All channels that a layer outputs.
        kept: Numbers of the channels that remain, ascending, in host memory.
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
    """Makes the remaining arrays without some channels, and changes nothing yet.

    Args:
        removed: For each layer all channels that it outputs, and the numbers of those
            that remain, ascending, in host memory.
        left: Remaining parts of each parameter, by path.
        params: Parameters of the model, or some of them.
        links: Links of the model, or some of them.

    Returns:
        The assignments that replace the arrays. All new arrays are made.

    Raises:
        ValueError: If an update rule keeps an array of another shape than the
            parameter's, which cannot be divided.
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
    """Makes the remaining arrays of a parameter and of its update rule's state."""
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
    """Refuses a state of an update rule that cannot be divided."""
    rule = param.update_rule
    for name, value in ((rule and rule.state) or {}).items():
        shape = getattr(value, "shape", ())
        # One number, such as a count, belongs to all elements.
        if shape != param.shape and getattr(value, "size", 1) != 1:
            raise ValueError(
                f"{type(rule).__name__} keeps {name} of {shape} for {path} of"
                f" {param.shape}, and which elements go with the channels is not known:"
                f" train without shrink, and let apply() take the channels away"
            )


def taking_from_masters(
    optimizer: Any, left: Mapping[str, Sequence[Left]]
) -> list[Assignment]:
    """Makes the remaining parts of the float32 masters that an optimizer keeps itself.

    Args:
        optimizer: Optimizer that is set up. The optimizer, or one within it, may have
            the methods ``masters`` and ``change_masters``, as
            :class:`~mixed_precision.MixedPrecision` has.
        left: Remaining parts of parameters, by path.

    Returns:
        The assignments that replace the masters.
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


def other_size(weight: str, n: int, present: int) -> ValueError:
    """Returns the error of a snapshot with another number of channels than the model.

    Args:
        weight: Path of the weight that outputs the channels.
        n: Number of channels in the snapshot.
        present: Number of channels in the model.
    """
    return ValueError(
        f"the snapshot has {n} channels of {weight}, and the model has {present}: use"
        f" save_snapshot and load_snapshot of pipeline, which give layers their sizes,"
        f" on one rank as well"
    )


def n_channels(channels: Channels, shapes: Mapping[str, Sequence[int]]) -> int | None:
    """Returns the number of channels, by the shapes of some parameters.

    Args:
        channels: The channels, with all that belongs to them.
        shapes: Shapes of parameters and running averages, by path.

    Returns:
        int or None: Number of channels; ``None`` if no shape has it, as in a damaged
        file.

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
    """Gives layers the sizes for a number of channels, but not the values.

    Args:
        channels: All channels that a layer outputs.
        n: New number of channels.
        params: All parameters of the model, which may be not made yet.
        links: All links of the model.
    """
    left = parts_left(channels, np.arange(n))
    for path, part in left.items():
        for param in params.get(path, ()):
            if not param.is_initialized:
                # A layer that is sized at its first call, or by its input.
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
    """Records the number of channels in links."""
    _resize(links.get(channels.layer), n, "out_channels", "out_size")
    n_read = n * channels.n_each
    _resize(links.get(channels.reading), n_read, "in_channels", "in_size")


def _resize(link: chainer.Link | None, n: int, *names: str) -> None:
    for name in names:
        if isinstance(getattr(link, name, None), (int, np.integer)):
            setattr(link, name, n)

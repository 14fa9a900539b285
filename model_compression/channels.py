"""Channels that can be removed: the parameters that belong to them, and their reader.

::

    place 0  convolution          W[c], b[c]           chosen
          1  batch normalization  gamma[c], beta[c]    go with it: zeros stay zeros,
                                  avg_mean[c]          without gamma as well
          2  relu
          3  linear               W[:, c h w : ...]    reads zeros, so may go as well
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import chainer

from model_compression.layer_lines import (
    KEEPING,
    NORMALIZING,
    WEIGHTED,
    Note,
    Place,
)
from model_compression.selection import Weighted


class Channels(NamedTuple):
    """The channels that a layer outputs, with all that belongs to them.

    Attributes:
        weight: Path of the layer's weight, whose rows are the channels.
        parameters: Paths of other parameters with an element for each channel.
        normalizing: Paths of the links after the layer that normalize each channel.
        reader: Path of the weight that reads the channels.
        n_each: Number of the reader's columns that read one channel.
        layer: Path of the layer.
        reading: Path of the layer that reads the channels.
    """

    weight: str
    parameters: tuple[str, ...]
    normalizing: tuple[str, ...]
    reader: str
    n_each: int
    layer: str
    reading: str


def means_that_shift(
    channels: Channels, links: Mapping[str, chainer.Link]
) -> Iterator[chainer.Link]:
    """Yields normalizations whose output for a channel of zeros may not be constant.

    In inference they output ``(0 - avg_mean) / std + beta``, times ``gamma``. A
    ``gamma`` of zero makes the product zero. Without ``gamma``, the mean must be zero.

    Args:
        channels: The channels that a layer outputs.
        links: Links of the model, or some of them, by path.

    Example:
        >>> import chainer.links as L
        >>> channels = Channels("/0/W", (), ("/1", "/2"), "/3/W", 1, "/0", "/3")
        >>> norm = L.BatchNormalization(2, use_gamma=False)
        >>> links = {"/1": norm, "/2": L.BatchNormalization(2)}
        >>> list(means_that_shift(channels, links)) == [norm]
        True
    """
    for path in channels.normalizing:
        link = links.get(path)
        # The mean of a layer that is sized at its first call is zero after the call.
        if link is not None and link.gamma is None and link.avg_mean is not None:
            yield link


def channels_of(
    weight: str,
    known: Mapping[Place, Note],
    rule: str,
    layers: Mapping[str, Weighted],
) -> Channels:
    """Follows the channels of a layer to the layer that reads them.

    Args:
        weight: Path of the layer's weight.
        known: The layers of all lines of the model.
        rule: The rule, for the error message.
        layers: All layers of the model that have weights, also those in no line.

    Raises:
        ValueError: If the channels are needed at a place where they cannot be removed;
            the message names it.
    """
    starts = [at for at, note in known.items() if note.weight == weight]
    others = [note for note in known.values() if weight in note.mixed]
    if others and not starts:
        raise ValueError(
            f"{rule}: {others[0].link} is {others[0].text}, and channels are taken away"
            f" only from Chainer's linear layers and convolutions, without groups and"
            f" link hooks: granularity='element' or a block sets parts of it to zero"
        )
    if not starts:
        raise ValueError(
            f"{rule}: {weight} is in no list of layers, a Divisible or a Sequential"
            f" without a forward of its own, so who reads its channels is not known:"
            f" granularity='row' sets them to zero and keeps them"
        )
    if len(starts) > 1:
        raise ValueError(
            f"{rule}: {weight} is used at {len(starts)} places, which may need each of"
            f" its channels: granularity='row' keeps them as zeros"
        )
    (line, place) = starts[0]
    first = known[starts[0]]
    rest = sorted(at for at in known if at[0] == line and at[1] > place)
    parameters, normalizing = list(first.parameters), []
    users = [note.link for note in known.values()]
    for at in rest:
        note = known[at]
        if note.link is not None and users.count(note.link) > 1:
            raise ValueError(
                f"{rule}: the channels of {weight} reach {note.link}, which is used"
                f" at several places: granularity='row' keeps them as zeros"
            )
        if note.kind == NORMALIZING:
            _check_axes(weight, note, first.n_dims, rule)
            parameters += note.parameters
            normalizing.append(note.link)
        elif note.kind == WEIGHTED:
            n_each, left = divmod(note.n_in, first.n_out)
            if left or (n_each != 1 and not note.is_flat) or not n_each:
                raise ValueError(
                    f"{rule}: {note.weight} reads {note.n_in} channels, not the"
                    f" {first.n_out} of {weight}: granularity='row' keeps them as zeros"
                )
            _check_own(weight, [weight, note.weight, *parameters], known, rule)
            _check_weights(weight, [weight, note.weight], layers, rule)
            return Channels(
                weight,
                tuple(parameters),
                tuple(normalizing),
                note.weight,
                n_each,
                first.link,
                note.link,
            )
        elif note.kind != KEEPING:
            number = ".".join(map(str, at[1]))
            raise ValueError(
                f"{rule}: the channels of {weight} go to layer {number}, {note.text},"
                f" which may need each of them: granularity='row' keeps them as zeros."
                f" Of Chainer's functions, append the function itself or a"
                f" functools.partial of it, not a lambda"
            )
    raise ValueError(
        f"{rule}: the channels of {weight} are the outputs of the model, or of the list"
        f" {line or '/'} in it, and must stay: leave the layer out of the rule"
    )


def _check_axes(weight: str, note: Note, n_dims: int, rule: str) -> None:
    """Refuses a normalization whose statistics are not taken for each channel."""
    if note.axes is not None and note.axes != (0, *range(2, n_dims)):
        axes = ", ".join(map(str, note.axes))
        raise ValueError(
            f"{rule}: the channels of {weight} go to {note.link}, a {note.text} over"
            f" axis={axes}, which mixes channels or splits them: make it without axis,"
            f" which normalizes each channel, or keep them as zeros by"
            f" granularity='row'"
        )


def _check_weights(
    weight: str, paths: list[str], layers: Mapping[str, Weighted], rule: str
) -> None:
    """Refuses weights that another layer uses too."""
    for path in paths:
        users = [at for at, layer in layers.items() if path in layer.weights]
        if len(users) > 1:
            raise _shared(rule, weight, path, users)


def _shared(rule: str, weight: str, path: str, users: Sequence[str]) -> ValueError:
    return ValueError(
        f"{rule}: with the channels of {weight} elements of {path} would go, which"
        f" {' and '.join(users)} share: granularity='row' keeps them as zeros"
    )


def _check_own(
    weight: str,
    paths: list[str],
    known: Mapping[Place, Note],
    rule: str,
) -> None:
    """Refuses parameters that layers at several places share."""
    for path in paths:
        users = [
            note.link
            for note in known.values()
            if path in (note.weight, *note.parameters)
        ]
        if len(users) > 1:
            raise _shared(rule, weight, path, users)

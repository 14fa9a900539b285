"""Links that skip the blocks of their weights that were pruned.

A link keeps its parameters, its path and its name; it gets a subclass of its class. Its
persistent values say what is skipped. They move with it, into snapshots and to other
ranks::

    W_live     uint8 (O / 8, C / 8, taps)    0 for a tile of 8 x 8 weights that is zero
    W_skips    int32 (1,)                    1 skips them, -1 does not, 0 is undecided

A link of an applied model has ``W_blocks`` instead of ``W``: the other tiles alone.
"""

from __future__ import annotations

import math
from typing import Any

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np

from chainer_kernels import product_dtype, switch
from chainer_kernels.geometry import Geometry
from chainer_kernels.layouts import are_float32
from divisible.link_parts import LinkPart, with_part

_FORWARDS = {L.Linear.forward: "Linear", L.Convolution2D.forward: "Convolution2D"}
#: Values of ``W_skips``.
SKIPS, UNDECIDED, DENSE = 1, 0, -1


class Seen:
    """Inputs that a link which may skip blocks has read, and its measured times.

    Attributes:
        shape: Shape of the last inputs that were multiplied by all weights.
        choice: The measured times, where this rank has measured.
    """

    # Searches for arrays that a link keeps pass such an object by.
    __slots__ = ("choice", "shape")

    def __init__(self) -> None:
        self.shape: tuple[int, ...] | None = None
        self.choice: Any = None


class SkipsBlocks(LinkPart):
    """A subclass's part of a link whose pruned blocks may be skipped."""

    is_packed = False
    seen: Seen

    def forward(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        """Computes the forward of the class, without the blocks that are skipped."""
        y = _output(self, x, *args, **kwargs)
        return super().forward(x, *args, **kwargs) if y is None else y


class StoresBlocks(SkipsBlocks):
    """A subclass's part of a link that has no other blocks than it multiplies."""

    is_packed = True

    @property
    def W(self) -> chainer.Variable:
        """All weights, made of the blocks that are not skipped."""
        tiles = chainer.get_device("@numpy").send(self.W_blocks)
        W = _layer(self)._replace(is_packed=False).whole(tiles)
        return chainer.Variable(self.device.send(W), requires_grad=False)


def why_not(link: chainer.Link) -> str:
    """Returns why a link can never skip blocks; "" if it may."""
    kind = link.plain_kind if isinstance(link, SkipsBlocks) else type(link)
    if kind.forward not in _FORWARDS or "forward" in vars(link):
        return f"only {' and '.join(_FORWARDS.values())} skip blocks"
    if getattr(link, "groups", 1) > 1:
        return "its channels are in groups"
    if link.W.array is None:
        return "its weights have no size yet"
    if not are_whole_tiles(link.W.shape):
        return "its outputs and inputs are no multiples of 8"
    return ""


def are_whole_tiles(shape: tuple[int, ...]) -> bool:
    """Returns whether weights of a shape consist of blocks of 8 x 8 elements."""
    return min(shape, default=0) > 0 and not shape[0] % 8 and not shape[1] % 8


def prepare(link: chainer.Link) -> bool:
    """Makes a link one that may skip blocks, undecided yet; returns whether it can.

    Args:
        link: Link with weights. A link that was prepared before is undecided again.
    """
    if why_not(link):
        return False
    if not isinstance(link, SkipsBlocks):
        link.__class__ = with_part(type(link), SkipsBlocks)
        outputs, inputs, *kernel = link.W.shape
        live = np.ones((outputs // 8, inputs // 8, math.prod(kernel)), np.uint8)
        link.add_persistent("W_live", link.device.send(live))
        link.add_persistent("W_skips", link.device.send(np.zeros(1, np.int32)))
        link.seen = Seen()
    link.W_skips[...] = UNDECIDED
    return True


def set_choice(link: chainer.Link, skips: bool) -> None:
    """Records whether a link is to skip blocks from now on."""
    link.W_skips[...] = SKIPS if skips else DENSE


def set_live(link: chainer.Link, is_zero: Any) -> None:
    """Records which weights of a link are zero, and stay zero.

    Args:
        link: Link that :func:`prepare` has prepared.
        is_zero: Boolean, of the shape of W.
    """
    # Numba takes long to load, and most models skip nothing.
    from chainer_kernels.block_rows import live_tiles

    host = chainer.get_device("@numpy").send(is_zero)
    link.W_live[...] = link.device.send(live_tiles(host).astype(np.uint8))


def choose(link: chainer.Link) -> bool | None:
    """Measures whether a link is faster if it skips blocks.

    Args:
        link: Link with recorded zeros.

    Returns:
        ``None`` if no minibatch has reached the link, or it computes with other arrays
        than float32 of NumPy.
    """
    shape = link.seen.shape
    if shape is None or not are_float32(link.W.array):
        return None
    from chainer_kernels.block_choice import measured

    choice = measured(_layer(link), link.W.array, shape)
    link.seen.choice = choice
    return choice.skips


def _pack(link: chainer.Link) -> None:
    """Replaces the weights of a link that skips blocks by the other tiles alone."""
    layer = _layer(link)
    tiles = layer.rows.tiles_of(np.ascontiguousarray(link.W.array))
    link.add_persistent("W_blocks", tiles)
    del link.W
    link.__class__ = with_part(link.plain_kind, StoresBlocks)


def finish(link: chainer.Link) -> None:
    """Packs a link that skips blocks; makes another one an ordinary link again."""
    if int(link.W_skips[0]) == SKIPS:
        _pack(link)
        return
    for name in ("W_live", "W_skips", "seen"):
        delattr(link, name)
    link.__class__ = link.plain_kind


def _layer(link: Any) -> Any:
    """Returns a link's layer, the same for the same zeros."""
    from chainer_kernels.block_rows import LINEAR, block_rows
    from chainer_kernels.functions.block_products import BlockLayer

    live = chainer.get_device("@numpy").send(link.W_live)
    rows = block_rows(live.shape, live.tobytes())
    shape = live.shape[0] * 8, live.shape[1] * 8
    if not hasattr(link, "ksize"):
        return BlockLayer(rows, LINEAR, shape, link.is_packed)
    kernel, stride, pad, dilation = (
        tuple(np.broadcast_to(each, 2).tolist())
        for each in (link.ksize, link.stride, link.pad, link.dilate)
    )
    geometry = Geometry(kernel, stride, pad, dilation)
    return BlockLayer(rows, geometry, (*shape, *kernel), link.is_packed)


def _output(link: Any, x: Any, n_batch_axes: int = 1) -> Any:
    """Returns the output of a link that skips blocks; ``None`` where it does not.

    Args:
        link: The link.
        x: Inputs.
        n_batch_axes: Number of the inputs' axes that stand for samples, for a linear
            layer.
    """
    array = x.array if isinstance(x, chainer.Variable) else x
    shape, samples = array.shape, array.shape[:n_batch_axes]
    is_linear = not hasattr(link, "ksize")
    if is_linear:
        shape = math.prod(samples), math.prod(array.shape[n_batch_axes:])
    W, b = link.W_blocks if link.is_packed else link.W, link.b
    if not array.size or not (link.is_packed or isinstance(W, chainer.Parameter)):
        # No samples; or weights that a hook, or a transposed tie, has just made, whose
        # zeros are elsewhere.
        return None
    if type(link.W_skips) is not np.ndarray or link.W_skips[0] != SKIPS:
        link.seen.shape = shape
        return None
    if not switch.is_ours() or product_dtype.here() != product_dtype.FLOAT32:
        return None
    arrays = [each.array for each in (W, b) if isinstance(each, chainer.Variable)]
    layer = _layer(link)
    if not are_float32(array, *arrays) or not _reads(layer, shape):
        return None
    from chainer_kernels.functions.block_products import BlockProduct

    x = x if array.shape == shape else F.reshape(x, shape)
    (y,) = BlockProduct(layer).apply((x, W) if b is None else (x, W, b))
    return F.reshape(y, (*samples, -1)) if is_linear and len(samples) > 1 else y


def _reads(layer: Any, shape: tuple[int, ...]) -> bool:
    """Returns whether a layer can read inputs of a shape."""
    if len(shape) != max(2, len(layer.shape)) or shape[1] != layer.shape[1]:
        return False
    return len(shape) == 2 or min(layer.geometry.output_sizes(shape[2:])) > 0


def block_report(model: chainer.Link) -> str:
    """Returns a line for each layer that a rule lets skip blocks: whether it does.

    Milliseconds are those of forward and backward of a microbatch, on the rank that
    measured, without and with all blocks.

    Args:
        model (chainer.Link): Model under a plan with ``skip_blocks``.

    Example:
        >>> print(block_report(chainer.Sequential(L.Linear(4, 2))))
        <BLANKLINE>
    """
    return "\n".join(
        f"{path}: {_words(link)}"
        for path, link in model.namedlinks()
        if isinstance(link, SkipsBlocks)
    )


def _words(link: Any) -> str:
    live = chainer.get_device("@numpy").send(link.W_live)
    part = f"{(live == 0).mean():.1%} of its tiles"
    words = {
        SKIPS: f"skips {part}",
        DENSE: f"computes with all weights, which is faster than to skip {part}",
        UNDECIDED: "computes with all weights, as pruning is not over",
    }[int(link.W_skips[0])]
    choice = link.seen.choice
    if choice is None:
        return words
    return (
        f"{words} ({choice.ms_blocks:.3g} and {choice.ms_dense:.3g} ms for inputs"
        f" {choice.shape})"
    )

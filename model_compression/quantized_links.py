"""Links that compute with few bits and learn as if they did not.

A link keeps its parameters, its path and its name; it gets a subclass of its class::

    x -> rounded -> forward of the class, with W and b rounded -> rounded -> y
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import chainer
import chainer.links as L
import numpy as np

from model_compression.affine import Affine
from model_compression.extents import Extent, extent_of, is_finite
from model_compression.fake_quantization import fake_quantize
from model_compression.rules import ACTIVATIONS, Quantize
from model_compression.selection import kinds_of, output_axis

#: Classes whose parameters are W and b, and whose input is one array.
CLASSES = (
    L.Linear,
    L.Convolution2D,
    L.ConvolutionND,
    L.DilatedConvolution2D,
    L.Deconvolution2D,
    L.DeconvolutionND,
    L.EmbedID,
)
NAMES = tuple(each.__name__ for each in CLASSES)
#: How much of a range is that of the minibatches before.
_MOMENTUM = 0.9
#: What of a link says so that a rule is in force; 0 is not yet, 1 is now.
_TAKEN_BACK = -1


class Ranges:
    """The quantization of one link, as its rules say, and what minibatches showed.

    Attributes:
        rules: By target, of those that are in force or will be.
        seen: By target from where to where values reached since the last move.
    """

    def __init__(self) -> None:
        self.rules: dict[str, Quantize] = {}
        self.seen: dict[str, Extent] = {}

    def look(self, target: str, array: Any) -> None:
        """Notes what a microbatch shows."""
        percentile = self.rules[target].percentile
        if percentile is not None:
            array = chainer.get_device("@numpy").send(array)
        extent = extent_of(array, percentile)
        before = self.seen.get(target)
        self.seen[target] = extent if before is None else before.joined(extent)


class FewBits:
    """A subclass's part of a link: rounds on the way in, within, and on the way out."""

    ranges: Ranges
    plain_kind: type

    def __reduce_ex__(self, protocol: int) -> tuple:
        """Lets copies and pickles find the class, which no module has by its name."""
        _, _, *rest = super().__reduce_ex__(max(2, protocol))
        return _new, (self.plain_kind,), *rest

    def forward(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        """Computes what the class computes, with few bits."""
        # A forward within F.forget, or of a pipeline that recomputes it, runs again.
        looks = chainer.config.train and not chainer.config._will_recompute
        x = rounded_activation(self, "input", x, looks)
        with _rounded(self):
            y = super().forward(x, *args, **kwargs)
        return rounded_activation(self, "output", y, looks)


@functools.cache
def _few_bits(kind: type) -> type:
    """Returns the subclass of a class of links; its name is the same, as in print."""
    parts = {"__module__": kind.__module__, "plain_kind": kind}
    return type(kind.__name__, (FewBits, kind), parts)


def _new(kind: type) -> chainer.Link:
    """Returns a link of few bits without anything in it, to be filled by a pickle."""
    few = _few_bits(kind)
    return few.__new__(few)


def check_kind(path: str, kinds: Sequence[str], rule: Quantize) -> None:
    """Refuses a layer of a class that cannot compute with few bits.

    Raises:
        ValueError: If none of the names of its classes is one of :data:`CLASSES`.
    """
    if not {*NAMES} & {*kinds}:
        raise ValueError(
            f"{rule}: {path} is {kinds[0]}, and only {', '.join(NAMES)} can be"
            f" quantized: name the layers"
        )


def add_rule(link: chainer.Link, rule: Quantize) -> None:
    """Lets a link follow a rule, from when :func:`set_active` says so.

    The same rule a second time changes nothing; another one takes the place of that of
    an earlier plan.

    Args:
        link: Of one of :data:`CLASSES`.
        rule: The rule, for whole numbers.
    """
    if not isinstance(link, FewBits):
        link.__class__ = _few_bits(type(link))
        link.ranges = Ranges()
    for target in rule.targets:
        before = link.ranges.rules.get(target)
        link.ranges.rules[target] = rule
        if before is not None:
            if before != rule:
                getattr(link, f"{target}_is_quantized")[...] = 0
            continue
        # Values of the link: they go with it, into snapshots and to other ranks.
        link.add_persistent(f"{target}_is_quantized", np.zeros(1, np.int32))
        if target in ACTIVATIONS:
            link.add_persistent(f"{target}_range", np.zeros(2, np.float32))
            link.add_persistent(f"{target}_n_seen", np.zeros(1, np.int32))


def begin(link: chainer.Link, rule: Quantize) -> None:
    """Begins to quantize what a rule says, while the link trains.

    Ranges that the rule of an earlier plan has left are found anew.
    """
    for target in {*rule.targets} & {*ACTIVATIONS}:
        # A rule that was in force when the model was saved goes on with its range.
        if not is_active(link, target):
            getattr(link, f"{target}_n_seen")[...] = 0
    set_active(link, rule, True)


def set_active(link: chainer.Link, rule: Quantize, is_active: bool) -> None:
    """Begins to quantize what a rule says, or takes it back."""
    for target in rule.targets:
        getattr(link, f"{target}_is_quantized")[...] = 1 if is_active else _TAKEN_BACK


def is_active(link: chainer.Link, target: str) -> bool:
    """Whether a link quantizes a target of one of its rules now."""
    return int(getattr(link, f"{target}_is_quantized")[0]) > 0


def is_taken_back(link: chainer.Link, rule: Quantize) -> bool:
    """Whether a rule was in force on a link, and cost too much."""
    names = (f"{target}_is_quantized" for target in rule.targets)
    return any(int(getattr(link, n, np.zeros(1))[0]) == _TAKEN_BACK for n in names)


def is_moving(link: chainer.Link, target: str) -> bool:
    """Whether the range of a link's inputs or outputs follows minibatches now."""
    rule = link.ranges.rules.get(target)
    if rule is None or not is_active(link, target):
        return False
    n_seen = int(getattr(link, f"{target}_n_seen")[0])
    return rule.freeze_after is None or n_seen < rule.freeze_after


def has_moving_range(link: chainer.Link) -> bool:
    """Whether the range of some activation of a link follows minibatches now."""
    # Integers, which embeddings read, have no range.
    has_floats = not isinstance(link, L.EmbedID)
    targets = [each for each in ACTIVATIONS if has_floats or each != "input"]
    return any(is_moving(link, each) for each in targets)


def move_ranges(link: chainer.Link, seen: Mapping[str, Extent]) -> None:
    """Moves the ranges of activations towards what a minibatch has shown.

    Values that are not finite move nothing, and do not count as a minibatch.

    Args:
        link: With :class:`FewBits`.
        seen: By target from where to where values reached, on all replicas.
    """
    for target, extent in seen.items():
        if not is_finite(extent):
            continue
        n_seen, span = (
            getattr(link, f"{target}_n_seen"),
            getattr(link, f"{target}_range"),
        )
        kept = _MOMENTUM if int(n_seen[0]) else 0.0
        for i, value in enumerate(extent.ends):
            span[i] = kept * float(span[i]) + (1 - kept) * value
        n_seen += 1
    link.ranges.seen.clear()


def range_of(link: chainer.Link, target: str, rule: Quantize) -> Affine | None:
    """Returns how inputs or outputs are written; ``None`` before a minibatch."""
    if not int(getattr(link, f"{target}_n_seen")[0]):
        return None
    low, high = (float(value) for value in getattr(link, f"{target}_range"))
    return Affine.of_range(low, high, rule.bits, symmetric=False)


def weight_of(link: chainer.Link, array: Any, rule: Quantize) -> Affine:
    """Returns how a weight of a link, or its bias, is written."""
    is_each = rule.per_channel and array.ndim > 1
    axis = output_axis(kinds_of(link))
    return Affine.of_weight(array, rule.bits, rule.symmetric, is_each, axis)


def rounded_activation(link: Any, target: str, value: Any, looks: bool) -> Any:
    """Returns an input or an output as the link's rule rounds it.

    Args:
        link: With ranges.
        target: ``'input'`` or ``'output'``.
        value: Integers, as of an embedding, stay as they are.
        looks: Whether the range may move by it.
    """
    rule = link.ranges.rules.get(target)
    if rule is None or not is_active(link, target):
        return value
    array = value.array if isinstance(value, chainer.Variable) else value
    if array.dtype.kind != "f" or not array.size:
        return value
    if looks and is_moving(link, target):
        link.ranges.look(target, array)
    affine = range_of(link, target, rule)
    return value if affine is None else fake_quantize(value, affine)


@contextlib.contextmanager
def _rounded(link: Any) -> Iterator[None]:
    """Gives the forward of a class the parameters as they are rounded."""
    own = {}
    for target, name in (("weight", "W"), ("bias", "b")):
        rule, param = link.ranges.rules.get(target), getattr(link, name, None)
        if rule is None or param is None:
            continue
        if is_active(link, target):
            own[name] = param
            affine = weight_of(link, param.array, rule)
            # Past the link's own setting of attributes, which would register it.
            link.__dict__[name] = fake_quantize(param, affine)
    try:
        yield
    finally:
        link.__dict__.update(own)

"""Links that compute with few bits, and learn as with full precision.

A link keeps its parameters, its path and its name; it gets a subclass of its class::

    x -> rounded -> forward of the class, with W and b rounded -> rounded -> y
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import chainer
import chainer.links as L
import numpy as np

from divisible.link_parts import LinkPart, with_part
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
#: Weight of the earlier minibatches in a range.
_MOMENTUM = 0.9
#: Value of a link's flag for a rule that was taken back; 0 is not yet, 1 is in force.
#: In stored links the value of a rule in force is its bits, which files then have.
_TAKEN_BACK = -1


class Ranges:
    """The quantization of one link by its rules, and the ranges seen in minibatches.

    Attributes:
        rules: Rules that are in force or will be, by target.
        seen: Ranges of values since the last move, by target.
    """

    def __init__(self) -> None:
        self.rules: dict[str, Quantize] = {}
        self.seen: dict[str, Extent] = {}

    def look(self, target: str, array: Any) -> None:
        """Records the range of a microbatch."""
        percentile = self.rules[target].percentile
        if percentile is not None:
            array = chainer.get_device("@numpy").send(array)
        extent = extent_of(array, percentile)
        before = self.seen.get(target)
        self.seen[target] = extent if before is None else before.joined(extent)


class FewBits(LinkPart):
    """A subclass's part of a link: rounds inputs, parameters and outputs."""

    ranges: Ranges

    def forward(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        """Computes the forward of the class, with few bits."""
        # A forward within F.forget, or of a pipeline that recomputes it, runs again.
        looks = chainer.config.train and not chainer.config._will_recompute
        x = rounded_activation(self, "input", x, looks)
        with _rounded(self):
            y = super().forward(x, *args, **kwargs)
        return rounded_activation(self, "output", y, looks)


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
    """Adds a rule to a link; :func:`set_active` puts it in force.

    The same rule a second time changes nothing; another rule replaces that of an
    earlier plan.

    Args:
        link: Link of one of :data:`CLASSES`.
        rule: The rule, for whole numbers.
    """
    if not isinstance(link, FewBits):
        link.__class__ = with_part(type(link), FewBits)
        link.ranges = Ranges()
    for target in rule.targets:
        before = link.ranges.rules.get(target)
        link.ranges.rules[target] = rule
        if before is not None:
            if before != rule:
                getattr(link, f"{target}_is_quantized")[...] = 0
            continue
        # Values of the link: they move with it, into snapshots and to other ranks.
        link.add_persistent(f"{target}_is_quantized", np.zeros(1, np.int32))
        if target in ACTIVATIONS:
            link.add_persistent(f"{target}_range", np.zeros(2, np.float32))
            link.add_persistent(f"{target}_n_seen", np.zeros(1, np.int32))


def begin(link: chainer.Link, rule: Quantize) -> None:
    """Puts a rule in force, while the link trains.

    Ranges that the rule of an earlier plan has left are found again from nothing.
    """
    for target in {*rule.targets} & {*ACTIVATIONS}:
        # A rule that was in force when the model was saved continues with its range.
        if not is_active(link, target):
            getattr(link, f"{target}_n_seen")[...] = 0
    set_active(link, rule, True)


def set_active(link: chainer.Link, rule: Quantize, is_active: bool) -> None:
    """Puts a rule in force, or takes it back."""
    for target in rule.targets:
        getattr(link, f"{target}_is_quantized")[...] = 1 if is_active else _TAKEN_BACK


def note_bits(link: chainer.Link, rule: Quantize) -> None:
    """Puts a rule in force on a link that is to be stored."""
    for target in rule.targets:
        getattr(link, f"{target}_is_quantized")[...] = rule.bits


def noted_bits(link: chainer.Link, target: str) -> int | None:
    """Returns the bits of a target of a stored link; ``None`` if they are unknown."""
    # Files of earlier versions have the value of links that train.
    bits = int(getattr(link, f"{target}_is_quantized")[0])
    return bits if bits > 1 else None


def is_active(link: chainer.Link, target: str) -> bool:
    """Returns whether a link quantizes a target of one of its rules now."""
    return int(getattr(link, f"{target}_is_quantized")[0]) > 0


def is_taken_back(link: chainer.Link, rule: Quantize) -> bool:
    """Returns whether a rule was in force on a link, and cost too much."""
    names = (f"{target}_is_quantized" for target in rule.targets)
    return any(int(getattr(link, n, np.zeros(1))[0]) == _TAKEN_BACK for n in names)


def is_moving(link: chainer.Link, target: str) -> bool:
    """Returns whether the range of inputs or outputs follows minibatches now."""
    rule = link.ranges.rules.get(target)
    if rule is None or not is_active(link, target):
        return False
    n_seen = int(getattr(link, f"{target}_n_seen")[0])
    return rule.freeze_after is None or n_seen < rule.freeze_after


def has_moving_range(link: chainer.Link) -> bool:
    """Returns whether the range of some activation follows minibatches now."""
    # Integers, which embeddings read, have no range.
    has_floats = not isinstance(link, L.EmbedID)
    targets = [each for each in ACTIVATIONS if has_floats or each != "input"]
    return any(is_moving(link, each) for each in targets)


def move_ranges(link: chainer.Link, seen: Mapping[str, Extent]) -> None:
    """Moves the ranges of activations towards those of a minibatch.

    Values that are not finite move nothing, and do not count as a minibatch.

    Args:
        link: Link with :class:`FewBits`.
        seen: Ranges of the minibatch's values on all replicas, by target.
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
    """Returns the mapping of inputs or outputs; ``None`` before a minibatch."""
    if not int(getattr(link, f"{target}_n_seen")[0]):
        return None
    low, high = (float(value) for value in getattr(link, f"{target}_range"))
    return Affine.of_range(low, high, rule.bits, symmetric=False)


def weight_of(link: chainer.Link, array: Any, rule: Quantize) -> Affine:
    """Returns the mapping of a link's weight or bias to whole numbers."""
    is_each = rule.per_channel and array.ndim > 1
    axis = output_axis(kinds_of(link))
    return Affine.of_weight(array, rule.bits, rule.symmetric, is_each, axis)


def rounded_activation(link: Any, target: str, value: Any, looks: bool) -> Any:
    """Returns an input or an output, rounded by the link's rule.

    Args:
        link: Link with ranges.
        target: ``'input'`` or ``'output'``.
        value: Input or output; integers, such as an embedding's input, stay as they
            are.
        looks: Whether the value may move the range.
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
    """Replaces the parameters by their rounded values for a forward of the class."""
    own = {}
    for target, name in (("weight", "W"), ("bias", "b")):
        rule, param = link.ranges.rules.get(target), getattr(link, name, None)
        if rule is None or param is None:
            continue
        if is_active(link, target):
            own[name] = param
            affine = weight_of(link, param.array, rule)
            # Bypasses the link's own setting of attributes, which would register it.
            link.__dict__[name] = fake_quantize(param, affine)
    try:
        yield
    finally:
        link.__dict__.update(own)

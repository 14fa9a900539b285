"""Rules of a compression: layers, method, degree and course."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np

from model_compression.progress import Progress
from model_compression.scores import METHODS, Granularity, check_granularity

#: Parts of a layer that can be quantized.
TARGETS = ("weight", "bias", "input", "output")
#: The targets whose range is not known before minibatches show it.
ACTIVATIONS = TARGETS[2:]


@dataclasses.dataclass(frozen=True, init=False, repr=False)
class Prune:
    """Sets the least important weights of layers to zero, and keeps them there.

    Weights are the parameters of two or more dimensions. Elements that are pruned
    together are a *group*: an element, a block, a row or a channel. In each step the
    groups with the lowest scores go, in each weight as many as the degree requires::

        score of a group      elements w, gradients g of the loss
        'magnitude'           the mean of |w|
        'l1'                  the sum of |w|
        'l2'                  the root of the sum of w w
        'taylor'              |the sum of w g|, the mean over the minibatches since
                              the last step: what the loss would lose, to first order

    The weights of ``'taylor'`` are those before an update, and the gradients those of
    the loss alone, before hooks such as ``WeightDecay``. A step waits for a minibatch
    that updates weights. Groups without a gradient have no effect, and go first.
    ``'taylor'`` is the criterion of Molchanov et al., *Pruning Convolutional Neural
    Networks for Resource Efficient Inference* (2017).

    Args:
        method (str): Method, one of the four.
        layers (str or list of str): Class of a link, its path, a pattern of paths such
            as ``'/block*'``, or a list of these.
        to (float): Degree: the part of each weight's groups that is zero at the end,
            between 0 and 1. One group of each weight remains.
        granularity (str or tuple): Shape of a group: ``'element'``, ``(h, w)``,
            ``'row'`` or ``'channel'``. ``(h, w)`` are blocks of the weight as a matrix
            of outputs (its first axis) and inputs (all others). A row has the weights
            of an output, or of a word in an embedding. A channel is a row, its bias,
            and its parameters in the batch normalization after the layer, so that
            :func:`apply` can remove the channel.
        begin (tuple): Moment of the first step, such as ``(1, 'epoch')``, as for a
            trigger.
        end (tuple or None): Moment of the last step; ``None`` for one step only.
        steps (int or None): Number of steps, at equal distances from ``begin`` to
            ``end``; 10 by default.
        curve (str): ``'cubic'``, with larger steps first, or ``'linear'``. After step k
            of n the degree is ``to * (1 - (1 - k / n) ** 3)``, as in Zhu and Gupta, *To
            prune, or not to prune* (2017), or ``to * k / n``. So the first step, at
            ``begin``, prunes already.
        skip_blocks (bool): Whether layers skip pruned blocks once the last step is
            taken, where that is measured faster: linear layers and 2D convolutions
            whose inputs and outputs are multiples of 8. See :func:`block_report`.

    Raises:
        ValueError: If an argument is wrong; the message names the rule.

    Example:
        >>> Prune("magnitude", layers="Linear", to=0.9)
        Prune('magnitude', 'Linear', to=0.9, element, at iteration 0)
    """

    method: str
    layers: tuple[str, ...]
    to: float
    granularity: Granularity
    progress: Progress
    skip_blocks: bool

    def __init__(
        self,
        method: str,
        *,
        layers: str | Sequence[str] = "*",
        to: float = 0.5,
        granularity: str | Sequence[int] = "element",
        begin: tuple[float, str] | None = None,
        end: tuple[float, str] | None = None,
        steps: int | None = None,
        curve: str = "cubic",
        skip_blocks: bool = False,
    ) -> None:
        rule = f"Prune({method!r}, layers={layers!r})"
        if method not in METHODS:
            raise ValueError(f"{rule}: the method must be one of {', '.join(METHODS)}")
        is_number = isinstance(to, Real) and not isinstance(to, bool)
        if not is_number or not 0 < to < 1:
            raise ValueError(f"{rule}: to must be between 0 and 1, not {to!r}")
        fill = object.__setattr__
        fill(self, "method", method)
        fill(self, "layers", check_layers(layers, rule))
        fill(self, "to", float(to))
        fill(self, "granularity", check_granularity(granularity, rule))
        fill(self, "progress", course(begin, end, steps, curve, rule))
        if skip_blocks and isinstance(self.granularity, str):
            raise ValueError(
                f"{rule}: only blocks can be skipped, not a granularity of"
                f" {granularity!r}: give their sides, as granularity=(8, 8), or leave"
                f" out skip_blocks"
            )
        fill(self, "skip_blocks", bool(skip_blocks))

    @property
    def changes(self) -> tuple[str, ...]:
        """The parts of a layer that the rule changes; no two rules may share one."""
        return ("the zeros of the weights",)

    @property
    def columns(self) -> tuple[str, str, str]:
        """Method, degree and granularity of the rule, as texts."""
        words = granularity_words(self.granularity)
        words += ", skipped" if self.skip_blocks else ""
        return f"prune {self.method}", f"{self.to:.0%}", words

    def settings(self) -> dict[str, Any]:
        """Returns the arguments that make the same rule, for JSON."""
        return {
            "method": self.method,
            "layers": list(self.layers),
            "to": self.to,
            "granularity": self.granularity,
            **settings(self.progress),
            # Plans without it are those of before, in snapshots too.
            **({"skip_blocks": True} if self.skip_blocks else {}),
        }

    def __repr__(self) -> str:
        """Returns the rule on one line."""
        return (
            f"Prune({self.method!r}, {named(self.layers)}, to={self.to:g},"
            f" {granularity_words(self.granularity)}, {self.progress})"
        )


@dataclasses.dataclass(frozen=True, init=False, repr=False)
class Quantize:
    """Makes layers compute with numbers of few bits, and learn that way.

    ``'int8'``, or fewer bits down to ``'int2'``, are whole numbers times a scale. The
    layer computes with such numbers, and its parameters learn as if they had not been
    rounded (straight-through gradients, Bengio et al. 2013)::

        symmetric      q = round(w / s),        s = max|w| / (2^(bits-1) - 1)
        otherwise      q = round(w / s) + z,    s = (max - min) / (2^bits - 1)
        computed with  s q,                     s (q - z)

    Scales of weights follow the weights: one for each output, in embeddings one for
    each word. Scales of inputs and outputs are moving averages over minibatches; the
    first minibatch is computed without rounding. A minibatch whose update is skipped,
    because gradients overflow, moves no range, nor do values that are not finite.
    Weights that read a pruned channel, see :class:`Prune`, are set to zero with it, so
    that neither scales nor codebooks depend on them.

    ``'codebook4'``, or any number of bits from 2 to 8, allows each weight only 2^bits
    values. They are found by k-means, and each is moved by the mean gradient of its
    elements (Han, Mao and Dally, *Deep Compression*, 2016). Zero is one more value,
    which does not move. Elements that are zero when the rule begins stay zero: pruned
    weights, the row of an embedding's padding, and the row of a word that has not
    occurred yet.

    Args:
        method (str): ``'int2'`` to ``'int8'``, or ``'codebook2'`` to ``'codebook8'``.
        layers (str or list of str): Layers as in :class:`Prune`: linear layers,
            convolutions and embeddings.
        targets (list of str): Parts of a layer: ``'weight'``, ``'bias'``, ``'input'``,
            ``'output'``. Codebooks have ``'weight'`` only.
        begin (tuple): Moment of the only step, such as ``(8, 'epoch')``, as for a
            trigger; at once by default.
        symmetric (bool): Whether zero is in the middle of the range of weights and
            biases. Ranges of inputs and outputs follow minibatches.
        per_channel (bool): Whether each output's weights have a scale of their own.
        percentile (float or None): The percentile of a minibatch's values at which a
            range of inputs or outputs ends, such as 99.9, exact to 0.2 % of a value.
            The same part is left out at the lower end. ``None`` for all values.
        freeze_after (int or None): Number of minibatches after which a range of inputs
            or outputs stays. Each range counts the minibatches that have moved it.

    Raises:
        ValueError: If an argument is wrong; the message names the rule.

    Example:
        >>> Quantize("int8", layers="Linear", targets=("weight", "input"))
        Quantize('int8', 'Linear', weight, input, at iteration 0)
    """

    method: str
    layers: tuple[str, ...]
    targets: tuple[str, ...]
    progress: Progress
    symmetric: bool
    per_channel: bool
    percentile: float | None
    freeze_after: int | None

    def __init__(
        self,
        method: str = "int8",
        *,
        layers: str | Sequence[str] = "*",
        targets: str | Sequence[str] = ("weight",),
        begin: tuple[float, str] | None = None,
        symmetric: bool = True,
        per_channel: bool = True,
        percentile: float | None = None,
        freeze_after: int | None = None,
    ) -> None:
        rule = f"Quantize({method!r}, layers={layers!r})"
        match = re.fullmatch("(int|codebook)([2-8])", str(method))
        if match is None:
            raise ValueError(
                f"{rule}: the method must be one of int2 to int8 and codebook2 to"
                f" codebook8"
            )
        fill = object.__setattr__
        fill(self, "method", method)
        fill(self, "layers", check_layers(layers, rule))
        fill(self, "targets", _check_targets(targets, match[1] == "codebook", rule))
        fill(self, "progress", course(begin, None, None, "cubic", rule))
        for name, value in (("symmetric", symmetric), ("per_channel", per_channel)):
            if not isinstance(value, (bool, np.bool_)):
                raise ValueError(f"{rule}: {name} must be True or False, not {value!r}")
            fill(self, name, bool(value))
        fill(self, "percentile", _check_percentile(percentile, rule))
        is_count = isinstance(freeze_after, Integral)
        is_count = is_count and not isinstance(freeze_after, bool)
        if freeze_after is not None and (not is_count or freeze_after < 1):
            raise ValueError(
                f"{rule}: freeze_after must be a number of minibatches, 1 or more, not"
                f" {freeze_after!r}"
            )
        fill(self, "freeze_after", None if freeze_after is None else int(freeze_after))

    @property
    def bits(self) -> int:
        """Bits of a number."""
        return int(self.method[-1])

    @property
    def has_codebook(self) -> bool:
        """Whether the numbers are a few arbitrary values, not whole numbers."""
        return self.method.startswith("codebook")

    @property
    def changes(self) -> tuple[str, ...]:
        """The parts of a layer that the rule changes; no two rules may share one."""
        return tuple(f"the bits of the {target}" for target in self.targets)

    @property
    def columns(self) -> tuple[str, str, str]:
        """Method, bits and targets of the rule, as texts."""
        is_each = self.per_channel and not self.has_codebook
        words = ", ".join(self.targets) + (", each output" if is_each else "")
        return f"quantize {self.method}", f"{self.bits} bits", words

    def settings(self) -> dict[str, Any]:
        """Returns the arguments that make the same rule, for JSON."""
        return {
            "method": self.method,
            "layers": list(self.layers),
            "targets": list(self.targets),
            "begin": list(self.progress.begin),
            "symmetric": self.symmetric,
            "per_channel": self.per_channel,
            "percentile": self.percentile,
            "freeze_after": self.freeze_after,
        }

    def __repr__(self) -> str:
        """Returns the rule on one line."""
        return (
            f"Quantize({self.method!r}, {named(self.layers)},"
            f" {', '.join(self.targets)}, {self.progress})"
        )


def _check_targets(targets: Any, has_codebook: bool, rule: str) -> tuple[str, ...]:
    found = [targets] if isinstance(targets, str) else targets
    known = TARGETS[:1] if has_codebook else TARGETS
    is_some = isinstance(found, (list, tuple, set, frozenset)) and len(found) > 0
    # Always in one order: a set has a different one in each process.
    ordered = tuple(each for each in known if is_some and each in found)
    if not is_some or len(ordered) != len(found):
        raise ValueError(
            f"{rule}: targets must be some of {', '.join(known)}, not {targets!r}"
        )
    return ordered


def _check_percentile(percentile: Any, rule: str) -> float | None:
    if percentile is None:
        return None
    if not isinstance(percentile, Real) or not 50 < percentile <= 100:
        raise ValueError(
            f"{rule}: percentile must be more than 50 and 100 at most, not"
            f" {percentile!r}"
        )
    return float(percentile)


def course(begin: Any, end: Any, steps: int | None, curve: str, rule: str) -> Progress:
    """Returns the course of a rule; without ``begin`` the course begins at once."""
    if begin is None:
        unit = end[1] if isinstance(end, (tuple, list)) and len(end) == 2 else None
        begin = (0, unit if unit in ("epoch", "iteration") else "iteration")
    return Progress.checked(begin, end, steps, curve, rule)


def settings(progress: Progress) -> dict[str, Any]:
    """Returns the arguments that make the same course, for JSON."""
    is_one = progress.end is None
    return {
        "begin": list(progress.begin),
        "end": None if is_one else list(progress.end),
        "steps": None if is_one else progress.steps,
        "curve": progress.curve,
    }


def check_layers(layers: Any, rule: str) -> tuple[str, ...]:
    """Returns the layers of a rule as a tuple of texts.

    Raises:
        ValueError: If ``layers`` is empty, or not a text or a list of texts.
    """
    entries = (layers,) if isinstance(layers, str) else layers
    is_some = isinstance(entries, (list, tuple)) and len(entries) > 0
    if not is_some or not all(isinstance(each, str) and each for each in entries):
        raise ValueError(
            f"{rule}: layers must be a class's name, a path, a pattern, or a list of"
            f" these, not {layers!r}"
        )
    return tuple(entries)


def named(layers: Sequence[str]) -> str:
    """Returns the layers of a rule in the form of the argument."""
    return repr(layers[0]) if len(layers) == 1 else repr(list(layers))


def granularity_words(granularity: Granularity) -> str:
    """Returns a granularity as text.

    Example:
        >>> granularity_words((2, 4))
        'blocks of 2 x 4'
    """
    if isinstance(granularity, str):
        return granularity
    return f"blocks of {granularity[0]} x {granularity[1]}"


def quantize_of(saved: Mapping[str, Any]) -> Quantize:
    """Returns the rule with the settings of :meth:`Quantize.settings`."""
    return Quantize(**{**saved, "begin": tuple(saved["begin"])})


def prune_of(saved: Mapping[str, Any]) -> Prune:
    """Returns the rule with the settings of :meth:`Prune.settings`."""
    moments = {
        name: None if saved[name] is None else tuple(saved[name])
        for name in ("begin", "end")
    }
    return Prune(**{**saved, **moments})

"""Rules of a compression: which layers, by which method, how far and when."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from model_compression.progress import Progress
from model_compression.scores import METHODS, Granularity, check_granularity


@dataclasses.dataclass(frozen=True, init=False, repr=False)
class Prune:
    """Sets the least important weights of layers to zero, and keeps them there.

    Weights are the parameters of two or more dimensions. What is pruned together is a
    *group*: an element, a block, a row or a channel. In each step the groups with the
    lowest scores go, of each weight as many as its degree says::

        score of a group      elements w, gradients g of the loss
        'magnitude'           the mean of |w|
        'l1'                  the sum of |w|
        'l2'                  the root of the sum of w w
        'taylor'              |the sum of w g|, the mean over the minibatches since
                              the last step: what the loss would lose, to first order

    ``'taylor'`` is the criterion of Molchanov et al., *Pruning Convolutional Neural
    Networks for Resource Efficient Inference* (2017).

    Args:
        method (str): One of the four.
        layers (str or list of str): The class of a link, its path, a pattern of paths
            such as ``'/block*'``, or a list of these.
        to (float): The degree: the part of each weight's groups that is zero in the
            end, from 0 to 1, both left out.
        granularity (str or tuple): ``'element'``; ``(h, w)``, blocks of the weight as
            a matrix of outputs and inputs; ``'row'``, an output's weights;
            ``'channel'``, an output's weights, its bias, and what the batch
            normalization behind it does to it, so that :func:`apply` can take the
            channel away.
        begin (tuple): When the first step is taken, as a trigger's ``(1, 'epoch')``.
        end (tuple or None): When the last one is; ``None`` for one step only.
        steps (int or None): How many; 10 by default.
        curve (str): ``'cubic'``, most at first, or ``'linear'``.

    Raises:
        ValueError: If an argument is wrong; it names the rule.

    Example:
        >>> Prune("magnitude", layers="Linear", to=0.9)
        Prune('magnitude', 'Linear', to=0.9, element, at iteration 0)
    """

    method: str
    layers: tuple[str, ...]
    to: float
    granularity: Granularity
    progress: Progress

    def __init__(
        self,
        method: str,
        layers: str | Sequence[str] = "*",
        to: float = 0.5,
        granularity: str | Sequence[int] = "element",
        begin: tuple[float, str] | None = None,
        end: tuple[float, str] | None = None,
        steps: int | None = None,
        curve: str = "cubic",
    ) -> None:
        rule = f"Prune({method!r}, layers={layers!r})"
        if method not in METHODS:
            raise ValueError(f"{rule}: the method is none of {', '.join(METHODS)}")
        is_number = isinstance(to, (int, float)) and not isinstance(to, bool)
        if not is_number or not 0 < to < 1:
            raise ValueError(f"{rule}: to must be between 0 and 1, not {to!r}")
        fill = object.__setattr__
        fill(self, "method", method)
        fill(self, "layers", check_layers(layers, rule))
        fill(self, "to", float(to))
        fill(self, "granularity", check_granularity(granularity, rule))
        fill(self, "progress", course(begin, end, steps, curve, rule))

    @property
    def target(self) -> str:
        """What of a layer it changes; two rules must not have one in common."""
        return "the zeros of its weights"

    def settings(self) -> dict[str, Any]:
        """Returns the arguments that make the same rule, for JSON."""
        return {
            "method": self.method,
            "layers": list(self.layers),
            "to": self.to,
            "granularity": self.granularity,
            **settings(self.progress),
        }

    def __repr__(self) -> str:
        """Returns the rule on one line."""
        return (
            f"Prune({self.method!r}, {named(self.layers)}, to={self.to:g},"
            f" {granularity_words(self.granularity)}, {self.progress})"
        )


def course(begin: Any, end: Any, steps: int | None, curve: str, rule: str) -> Progress:
    """Returns the course of a rule; one without a beginning begins at once."""
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
    """Returns what a rule says of its layers, as a tuple of texts.

    Raises:
        ValueError: If it is none, or empty.
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
    """Returns the layers of a rule as they are typed."""
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


def prune_of(saved: Mapping[str, Any]) -> Prune:
    """Returns the rule that :meth:`Prune.settings` are of."""
    moments = {
        name: None if saved[name] is None else tuple(saved[name])
        for name in ("begin", "end")
    }
    return Prune(**{**saved, **moments})

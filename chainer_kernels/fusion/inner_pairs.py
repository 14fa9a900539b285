"""Pairs of links in a marked layer: the second normalizes the output of the first.

The user wrote the layer's ``forward``. Hooks observe one call for each shape of inputs,
to find pairs::

    conv(x)  ->  y  ->  norm(y)     a pair: each called once, and y used by nothing else

In later calls the first link of a pair computes both, and the second link returns its
input.
"""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import chainer
import numpy as np

from chainer_kernels.fusion.folding import are_pair, folded
from chainer_kernels.fusion.heads import unobserved

#: Largest number of input shapes for which a layer is watched; others run unfolded.
_MOST_SHAPES = 64


class Pair(NamedTuple):
    """A convolution or ``Linear``, and the normalization of its output."""

    layer: chainer.Link
    norm: chainer.Link


#: Pairs in each layer by the shapes of its inputs, as long as the layer exists.
_found: weakref.WeakKeyDictionary[chainer.Link, dict[tuple, tuple[Pair, ...]]] = (
    weakref.WeakKeyDictionary()
)


def run(link: chainer.Link, inputs: Sequence[Any]) -> tuple[Any] | None:
    """Calls a marked link with the pairs in it folded.

    Args:
        link: The link. Every call of it must call the same functions without side
            effects.
        inputs: The arguments of the call.

    Returns:
        The output as a tuple of one; ``None`` if the caller must call the link itself,
        without folding. Reasons are a link without pairs, an error, a pair that is
        called in another way than before, hooks, and weights that are not drawn yet.
    """
    known = _found.setdefault(link, {})
    shapes = tuple(getattr(x, "shape", None) for x in inputs)
    pairs = known.get(shapes)
    if pairs == ():
        return None
    inside = {*link.links()}
    if any(each._n_local_link_hooks for each in inside):
        return None
    if pairs is None or not inside.issuperset(itertools.chain(*pairs)):
        # The first call draws weights; it must be a plain call of the link.
        is_drawn = all(param.is_initialized for param in link.params())
        if len(known) >= _MOST_SHAPES or not is_drawn:
            return None
        try:
            pairs = known[shapes] = _watched(link, inputs, inside)
        except Exception:
            # The plain call of the layer raises it again, with its position.
            return None
        if not pairs:
            return None
    with contextlib.ExitStack() as stack:
        runs = [stack.enter_context(_as_one(pair)) for pair in pairs]
        y = link(*inputs)
    if all(each.is_whole() for each in runs):
        return (y,)
    known[shapes] = ()
    return None


class _Run:
    """A record of the calls of a pair, whose first link may compute both."""

    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        self._one, self._other = pair.layer.forward, pair.norm.forward
        self._folded: chainer.Variable | None = None
        self._calls: list[str] = []

    def layer(self, x: Any) -> chainer.Variable:
        """Replaces the ``forward`` of the first link."""
        y = self._folded = folded(*self._pair, x)
        self._calls.append("apart" if y is None else "folded")
        return self._one(x) if y is None else y

    def norm(self, y: Any, **options: Any) -> chainer.Variable:
        """Replaces the ``forward`` of the second link."""
        if "folded" not in self._calls:
            self._calls.append("normalized")
            return self._other(y, **options)
        self._calls.append("passed" if y is self._folded else "another")
        # Without this reference, later layers can reuse the memory of the array.
        self._folded = None
        return y

    def is_whole(self) -> bool:
        """Whether each link was called once, the second with the first's output."""
        return self._calls in (["folded", "passed"], ["apart", "normalized"])


@contextlib.contextmanager
def _as_one(pair: Pair) -> Iterator[_Run]:
    """Replaces ``forward`` of a pair in a block: the first link may compute both."""
    found = _Run(pair)
    vars(pair.layer)["forward"], vars(pair.norm)["forward"] = found.layer, found.norm
    try:
        yield found
    finally:
        del vars(pair.layer)["forward"], vars(pair.norm)["forward"]


class _Calls(chainer.LinkHook):
    """Records the calls of links, with their first inputs and their outputs."""

    name = "chainer_kernels.inner_pairs"

    def __init__(self) -> None:
        self.n: Counter[chainer.Link] = Counter()
        self.inputs: list[tuple[chainer.Link, Any]] = []
        self.outputs: list[tuple[chainer.Link, Any]] = []

    def forward_preprocess(self, args: Any) -> None:
        """Records the input of a call."""
        self.n[args.link] += 1
        self.inputs += [(args.link, x) for x in args.args[:1]]

    def forward_postprocess(self, args: Any) -> None:
        """Records the output of a call."""
        self.outputs.append((args.link, args.out))


class _Uses(chainer.FunctionHook):
    """Counts how many functions use an array."""

    name = "chainer_kernels.inner_pairs"

    def __init__(self) -> None:
        self.n: Counter[int] = Counter()
        # Arrays are referenced so that no two have the same id.
        self._arrays: list[Any] = []

    def forward_preprocess(self, function: Any, in_data: Sequence[Any]) -> None:
        """Counts the inputs of a function."""
        self.n.update(map(id, in_data))
        self._arrays += in_data


def _watched(
    link: chainer.Link, inputs: Sequence[Any], inside: set[chainer.Link]
) -> tuple[Pair, ...]:
    """Calls a link, and returns the pairs among links that are registered in it."""
    state = np.random.get_state(legacy=False)
    calls, uses = _Calls(), _Uses()
    try:
        with unobserved([link]), calls, uses:
            y = link(*inputs)
    finally:
        # The trial must not change the random numbers of training.
        np.random.set_state(state)
    returned = {id(each) for each in (y if isinstance(y, tuple) else (y,))}
    return tuple(
        Pair(first, second)
        for first, output in calls.outputs
        for second, x in calls.inputs
        if x is output
        and are_pair(first, second)
        and {first, second} <= inside
        and calls.n[first] == calls.n[second] == uses.n[id(x.array)] == 1
        and id(x) not in returned
    )
